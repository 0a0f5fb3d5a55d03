"""A reward server in a thread of this process, on a free port."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn

from flowrl.reward import FunctionReward, Reward
from flowrl.reward_protocol import Limits
from flowrl.reward_server import Served, create_app, server_config


@contextlib.contextmanager
def running(
    rewards: Mapping[str, Any], limits: Limits | None = None, token: str | None = None, app: Any = None
) -> Iterator[str]:
    """The address of a server of rewards and functions, such as ``http://127.0.0.1:40123``.

    Args:
        rewards: by name.
        limits: of requests.
        token: that clients need.
        app: another application instead.
    """
    limits = limits or Limits()
    made = {n: r if isinstance(r, Reward) else FunctionReward(r, name=n) for n, r in rewards.items()}
    served = {name: Served(name, reward, limits, {}) for name, reward in made.items()}
    config = server_config(app or create_app(served, limits, token=token), "127.0.0.1", 0)
    config.log_level = "critical"
    # A server has no line a request, but pytest listens to loggers that hand nothing on, too, and keeps what it hears.
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
