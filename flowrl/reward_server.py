"""Rewards behind HTTP: ``flowrl rewards serve``. `docs/reward_server.md` describes what it understands.

The reward lives in an environment and on a machine of its own; a run names its URL. Nothing of the server's inside goes
to a client: no traceback, no path, no message of an exception. It listens to this machine alone, unless a token
protects it.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of the functions below, and a name that is
# imported inside a function cannot be found again from its text.
import asyncio
import hashlib
import hmac
import ipaddress
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from .errors import RunStopped, UserError
from .reward import Reward, RewardBatch, RewardSet
from .reward_cache import identify
from .reward_protocol import (
    JSON,
    SAFETENSORS,
    VERSION,
    BadRequest,
    Description,
    JsonBatch,
    Limits,
    decode_batch,
    decode_json,
    limits_of,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

TOKEN = "FLOWRL_REWARD_TOKEN"
"""The environment variable that holds the token, on both sides."""

_DECODERS = {SAFETENSORS: decode_batch, JSON: decode_json}
_RAISED = re.compile(r"(?:of them: )?(\w+): .* \(.*:\d+\)", re.DOTALL)  # what reward.py writes of an exception
_log = logging.getLogger("uvicorn.error")  # the one that uvicorn shows


class Served:
    """One reward, and what the server says of it."""

    def __init__(self, name: str, reward: Reward, limits: Limits, options: Mapping[str, Any]) -> None:
        """Serve ``reward`` as ``name``; ``options`` are what it was made with."""
        self.reward, self.limits = reward, limits
        self._set = RewardSet((name,), (reward,), torch.ones(1))
        self._lock = Lock()  # requests come in many threads, and a reward is asked one at a time
        low, high = (bound if math.isfinite(bound) else None for bound in reward.range)
        self.description = Description(
            protocol=VERSION,
            name=reward.name or name,
            media=reward.media,
            higher_is_better=reward.higher_is_better,
            range=(low, high),
            needs=sorted(reward.needs),
            cacheable=reward.cacheable,
            license=reward.license,
            source=reward.source,
            identity=hashlib.sha256(identify(name, reward, options).encode()).hexdigest(),
            limits=limits_of(limits),
        )

    def answer(self, decode: Callable[[bytes, Limits], RewardBatch], body: bytes, device: str) -> dict[str, Any]:
        """The answer to a request's body.

        Raises:
            BadRequest: the reward cannot score this.
            RunStopped, UserError: the reward is broken.
        """
        batch = decode(body, self.limits)
        if self.reward.media == "video" and batch.media == "image":
            raise BadRequest("this reward scores videos, got single pictures")
        for row, metadata in enumerate(batch.metadata):
            if missing := sorted(self.reward.needs - metadata.keys()):
                raise BadRequest(f"metadata: sample {row} lacks {missing[0]!r}, which this reward needs")
        with self._lock:
            scores = self._set.score(_moved(batch, device))
        found = [None if math.isnan(score) else score for score in scores.raw[:, 0].tolist()]
        reason = next(iter(scores.errors.values()), None)
        if reason is not None:
            _log.warning("%s could not score %d of %d: %s", self._set.names[0], found.count(None), len(found), reason)
        return {"scores": found, "reason": None if reason is None else _for_clients(reason)}


def create_app(
    served: Mapping[str, Served], limits: Limits, *, token: str | None = None, device: str = "cpu"
) -> "FastAPI":
    """The web application.

    Args:
        served: rewards by the last part of their URL.
        limits: of requests.
        token: that clients must bring; None lets everybody in.
        device: where rewards find the pictures.

    Raises:
        UserError: FastAPI is not installed.
    """
    _needed("fastapi")
    from fastapi import Depends, FastAPI, HTTPException, Request
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse

    def authorise(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if token is not None and not hmac.compare_digest(given, b"Bearer " + token.encode()):
            raise HTTPException(
                401, "wanted the header 'Authorization: Bearer <token>'", {"WWW-Authenticate": "Bearer"}
            )

    def find(name: str) -> Served:
        if name not in served:
            raise HTTPException(404, f"no such reward; known: {', '.join(served)}")
        return served[name]

    async def receive(request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limits.body:
                raise HTTPException(413, f"wanted at most {limits.body} bytes", {"Connection": "close"})
        return bytes(body)

    slots = asyncio.Semaphore(limits.requests)
    app = FastAPI(
        title="flowrl rewards",
        version=str(VERSION),
        docs_url=None,  # the page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(authorise)],
        responses={status: {"description": text} for status, text in _STATUS.items()},
    )

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"protocol": VERSION, "rewards": {name: one.description.model_dump() for name, one in served.items()}}

    @app.get("/{name}")
    def describe(name: str) -> Description:
        return find(name).description

    @app.post("/{name}", openapi_extra={"requestBody": {"required": True, "content": _content()}})
    async def score(name: str, request: Request) -> JSONResponse:
        one = find(name)
        decode = _DECODERS.get(request.headers.get("content-type", "").partition(";")[0].strip().lower())
        if decode is None:
            raise HTTPException(415, f"content-type: wanted {' or '.join(_DECODERS)}")
        async with slots:  # before the body is read: those that wait hold no memory
            try:
                body = await asyncio.wait_for(receive(request), limits.seconds)
            except asyncio.TimeoutError:
                raise HTTPException(408, f"wanted the request within {limits.seconds:g} s") from None
            return JSONResponse(await run_in_threadpool(one.answer, decode, body, device))

    _add_handlers(app)
    return app


def serve(app: "FastAPI", host: str, port: int, *, connections: int = 128) -> None:
    """Listen until the process is interrupted.

    Args:
        app: what `create_app` made.
        host: address to listen at.
        port: 0 takes a free one, which the log names.
        connections: beyond which clients are told to come back.
    """
    _needed("uvicorn").Server(server_config(app, host, port, connections)).run()


def server_config(app: "FastAPI", host: str, port: int, connections: int = 128) -> Any:
    """The settings of uvicorn under which the application is safe to reach."""
    return _needed("uvicorn").Config(
        app,
        host=host,
        port=port,
        limit_concurrency=connections,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        log_level="info",
        access_log=False,  # a line a request, with whatever a client wrote as its path
    )


def token_for(host: str, variable: str = TOKEN) -> str | None:
    """The token that clients of a server must bring.

    Raises:
        UserError: others than this machine can reach the host, and there is no token; or the token is no ASCII.
    """
    token = os.environ.get(variable) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise UserError(f"{variable}: wanted a token of printable ASCII without spaces.")
    if token is None and not _loopback(host):
        raise UserError(
            f"host {host!r} can be reached from other machines; set {variable} to a long secret (clients need the "
            "same), or listen at 127.0.0.1."
        )
    return token


def _add_handlers(app: "FastAPI") -> None:
    """Whatever goes wrong, the client gets ``{"error": ...}`` of ours."""
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    def plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": text}, status, dict(headers or {}))

    @app.exception_handler(BadRequest)
    @app.exception_handler(RequestValidationError)
    def refuse(_: Request, error: Exception) -> JSONResponse:
        return plain(422, str(error) if isinstance(error, BadRequest) else "the request is not as documented")

    @app.exception_handler(HTTPException)
    def say(_: Request, error: HTTPException) -> JSONResponse:
        return plain(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(ClientDisconnect)
    def drop(_: Request, __: Exception) -> JSONResponse:
        return plain(400, "the request ended early")

    @app.exception_handler(RunStopped)
    @app.exception_handler(UserError)
    def broken(_: Request, error: Exception) -> JSONResponse:
        _log.error("%s", error)
        return plain(500, "the reward is broken; the server's log says why")

    @app.exception_handler(Exception)
    def fail(_: Request, __: Exception) -> JSONResponse:
        return plain(500, "an error of the server; its log says which")  # the server logs it when this has gone out


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _moved(batch: RewardBatch, device: str) -> RewardBatch:
    return RewardBatch(batch.images.to(device), batch.prompts, batch.metadata, batch.groups, fps=batch.fps)


def _for_clients(reason: str) -> str:
    """A reason without the message and the place of an exception, which may tell of the server's files."""
    raised = _RAISED.search(reason)
    return f"{raised[1]} (the server's log says more)" if raised else reason[:500]


def _needed(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise UserError(f"a reward server needs {package}, not installed: pip install 'flowrl[serve]'.") from error


def _content() -> dict[str, Any]:
    """The two kinds of request body, for the OpenAPI page."""
    return {
        JSON: {"schema": JsonBatch.model_json_schema()},
        SAFETENSORS: {"schema": {"type": "string", "format": "binary"}},
    }


_STATUS: dict[int | str, str] = {
    400: "The request ended early, or is no HTTP.",
    401: "No token, or a wrong one.",
    404: "No such reward.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "Neither JSON nor safetensors.",
    422: "The body is not as documented, or too much for this reward.",
    500: "The reward is broken.",
    503: "Too many connections; come back later.",
}
