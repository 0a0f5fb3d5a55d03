"""As many processes as ``accelerate launch`` was asked for, also on a machine without an accelerator.

There, ``accelerate launch --num_processes 2`` starts one process: accelerate only prepares the address of a process
group that it leaves to MPI. flowrl then starts torch's own launcher in that process's place. Imports no torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from .errors import UserError


def processes_missing(environment: Mapping[str, str], command: Sequence[str]) -> int:
    """How many processes were asked for, if this is the only one that accelerate started; else 0.

    Args:
        environment: of this process.
        command: the command line of its parent.

    Raises:
        UserError: several were asked for, and the command line does not say how many.

    >>> processes_missing({}, ["bash"])
    0
    >>> alone = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}
    >>> processes_missing(alone, ["accelerate", "launch", "--num_processes", "2", "-m", "flowrl", "train"])
    2
    """
    # The address without a rank is what accelerate leaves when it starts one process where several were asked for.
    alone = "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment
    if not alone or "RANK" in environment or "WORLD_SIZE" in environment:
        return 0
    for word, after in zip(command, [*command[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name.replace("-", "_") == "__num_processes" and (value or after).isdigit():
            return int(value or after)
    raise UserError(
        "accelerate was asked for several processes (in its configuration file) and started one, because it sees no "
        "accelerator. Write the number into the command: accelerate launch --num_processes 2 -m flowrl ..."
    )


def start_missing_processes() -> None:
    """Become torch's launcher of the same flowrl command, if accelerate started fewer processes than were asked for."""
    import psutil

    parent = psutil.Process().parent()
    count = processes_missing(os.environ, parent.cmdline() if parent else [])
    if count > 1:
        _become([sys.executable, *torch_launcher(count, sys.argv[1:])])


def torch_launcher(count: int, arguments: Sequence[str]) -> list[str]:
    """Arguments of Python that run ``flowrl`` with ``arguments`` in ``count`` processes of this machine.

    >>> " ".join(torch_launcher(2, ["train", "a.yaml"]))
    '-m torch.distributed.run --standalone --nproc_per_node 2 -m flowrl train a.yaml'
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    return [*launcher, "-m", "flowrl", *arguments]


def _become(command: Sequence[str]) -> NoReturn:
    environment = {key: value for key, value in os.environ.items() if key not in ("MASTER_ADDR", "MASTER_PORT")}
    sys.stdout.flush()
    os.execve(command[0], list(command), environment)
