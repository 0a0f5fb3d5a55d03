"""As many processes as ``accelerate launch`` was asked for, also on a machine without an accelerator.

There, ``accelerate launch --num_processes 2`` starts one process: accelerate only prepares the address of a process
group that it leaves to MPI. flowrl then hands the same command to torch's launcher.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence

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


def processes_asked() -> int:
    """How many processes ``accelerate launch`` was asked for and did not start; 0 if none is missing."""
    import psutil

    parent = psutil.Process().parent()
    return processes_missing(os.environ, parent.cmdline() if parent else [])


def processes_for_cores(limit: int) -> int:
    """One process a core, at most ``limit``, on a machine without an accelerator; 1 where a launcher has decided.

    For a small model that is faster than the threads of one process: its matrices are too small to share out.
    """
    import torch

    if "RANK" in os.environ or "MASTER_ADDR" in os.environ or torch.accelerator.is_available():
        return 1
    return max(1, min(_cores(), limit))


def run_together(count: int) -> None:
    """Run this very command in ``count`` processes of this machine, by torch's launcher, and wait for them.

    If one of them fails, the others are stopped.

    Raises:
        SystemExit: with the exit code of the process that failed first, or 128 and the number of a signal.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What went wrong is said by the process to which it happened.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // count)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "flowrl", *sys.argv[1:])
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        raise SystemExit(code if code > 0 else 1) from None  # a signal's number is negative
    except SignalException as stop:  # the processes have had it too
        raise SystemExit(128 + stop.sigval) from None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
