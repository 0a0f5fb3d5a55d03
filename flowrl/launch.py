"""As many processes as ``accelerate launch`` was asked for, also on a machine without an accelerator.

There, ``accelerate launch --num_processes 2`` starts one process: accelerate only prepares the address of a process
group that it leaves to MPI. flowrl then starts the others itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

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


@contextmanager
def all_processes() -> Iterator[None]:
    """Inside the block, as many processes run this command as ``accelerate launch`` was asked for."""
    import psutil

    parent = psutil.Process().parent()
    with together(processes_missing(os.environ, parent.cmdline() if parent else [])):
        yield


@contextmanager
def one_process_a_core(limit: int) -> Iterator[None]:
    """Inside the block, each core of a machine without an accelerator runs this command, ``limit`` at most.

    For a small model that is faster than the threads of one process: its matrices are too small to share out.
    """
    import torch

    launched = "RANK" in os.environ or "MASTER_ADDR" in os.environ
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with together(0 if launched or torch.accelerator.is_available() else min(cores, limit)):
        if "RANK" in os.environ:
            torch.set_num_threads(1)
        yield


@contextmanager
def together(count: int) -> Iterator[None]:
    """Inside the block, this is process 0 of ``count`` that run the same command; 0 and 1 change nothing.

    The others end with the block: at its end they are through too, and if it fails they are stopped.
    """
    if count < 2:
        yield
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    environments = [{**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    command = [sys.executable, "-m", "flowrl", *sys.argv[1:]]
    others = [subprocess.Popen(command, env=environment) for environment in environments[1:]]
    before = dict(os.environ)
    os.environ.update(environments[0])
    try:
        yield
        for other in others:
            other.wait()
    finally:
        for other in others:
            other.terminate()
        os.environ.clear()
        os.environ.update(before)
