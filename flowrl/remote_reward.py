"""A reward that a server computes: ``rewards: {"http://127.0.0.1:8000/ocr": 1.0}``.

The server is asked who it is before any weights load. During the run every wait has an end: a batch that could not be
scored after a few attempts is NaN, with the reason, and the run goes on. What the server says is checked like any data
from outside. `docs/reward_server.md` describes the other side.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from torch import Tensor

from .errors import RunStopped, UserError
from .reward import Reward, RewardBatch, Unscored
from .reward_protocol import SAFETENSORS, Description, Reply, encode_batch

if TYPE_CHECKING:
    import httpx

Message = TypeVar("Message", bound=BaseModel)

TOKEN = "FLOWRL_REWARD_TOKEN"
"""The environment variable that holds the token; a config is no place for a secret."""

_CONNECT = 3.0  # seconds; with a health check of 5 a run that cannot work ends in under ten
_HEALTH = 5.0
_SMALL = 2**18  # bytes of a description
_A_SCORE = 64  # bytes of an answer for each sample, beyond 64 KiB
_BUSY = frozenset({408, 429, 500, 502, 503, 504})
_SAID = 300  # characters of what a server says that an error repeats


class RemoteReward(Reward):
    """The reward behind a URL, with the declarations that its server makes.

    Attributes:
        url: of the reward.
    """

    name = ""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 60.0,
        attempts: int = 4,
        encoding: Literal["float32", "uint8"] = "float32",
        token_env: str = TOKEN,
    ) -> None:
        """Ask the server what it is.

        Args:
            url: ``http://host:port/name``, without a user or a query.
            timeout: seconds for one attempt at a batch, from sending to the last byte of the answer.
            attempts: how often a batch is sent, after waits of 0.5, 1, 2, ... seconds, before it is given up.
            encoding: ``float32`` gives exactly the scores of a local reward; ``uint8`` sends a fourth of the bytes.
            token_env: the environment variable with the server's token.

        Raises:
            UserError: httpx is missing, an option is wrong, or no such reward answers.
        """
        self.url, self._timeout, self._attempts, self._encoding = _checked(url, timeout, attempts, encoding)
        self._sleep: Callable[[float], None] = time.sleep
        self._client = _client(os.environ.get(token_env), token_env)
        weakref.finalize(self, self._client.close)
        said = self._describe()
        self.name, self.media = said.name, said.media
        self.higher_is_better, self.cacheable = said.higher_is_better, said.cacheable
        self.needs, self.license = frozenset(said.needs), said.license
        low, high = said.range
        self.range = (-math.inf if low is None else low, math.inf if high is None else high)
        self.source = f"{self.url} {said.identity[:80]}: {said.source}"
        self._most = {name: said.limits.get(name, math.inf) for name in ("body", "pixels", "batch")}

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The server's scores `[B]`.

        Raises:
            Unscored: some or all samples could not be scored.
            RunStopped: the server refuses such batches.
        """
        body = encode_batch(batch, self._encoding)
        self._fits(batch, len(body))
        reply = self._post(body, len(batch))
        scores = torch.tensor([math.nan if score is None else score for score in reply.scores], dtype=torch.float32)
        if scores.isnan().any():
            raise Unscored(f"{self.url}: {_clean(reply.reason or 'the server gives no reason')}", scores)
        return scores

    def _describe(self) -> Description:
        import httpx

        start = f"Start it with: flowrl rewards serve {self.url.rstrip('/').rsplit('/', 1)[-1]}"
        try:
            status, body = self._send("GET", b"", _SMALL, _HEALTH)
        except (httpx.HTTPError, _TooLong) as error:
            raise UserError(f"reward {self.url!r}: no reward server answers: {_clean(error)}. {start}") from error
        if status != 200:
            raise UserError(f"reward {self.url!r}: the server answers {status}: {_error(body)}.{_hint(status)}")
        try:
            return Description.model_validate_json(body)
        except ValidationError as error:
            raise UserError(f"reward {self.url!r}: what answers is no reward server of flowrl. {start}") from error

    def _fits(self, batch: RewardBatch, size: int) -> None:
        pixels = batch.images[:, :, 0].numel() if batch.media == "video" else batch.images[:, 0].numel()
        for name, value in (("batch", len(batch)), ("pixels", pixels), ("body", size)):
            if value > self._most[name]:
                raise RunStopped(
                    f"reward {self.url!r}: {name}: this batch has {value}, and the server takes "
                    f"{self._most[name]:.0f}; write a smaller micro_batch_size, or start the server with a larger "
                    f"--max-{name}."
                )

    def _post(self, body: bytes, count: int) -> Reply:
        """The answer to a batch, within a bounded time."""
        import httpx

        reason = ""
        for attempt in range(self._attempts):
            if attempt:
                self._sleep(0.5 * 2 ** (attempt - 1))
            try:
                status, answer = self._send("POST", body, 2**16 + _A_SCORE * count, self._timeout)
            except _TooLong as error:
                raise Unscored(f"{self.url}: {error}") from error
            except httpx.HTTPError as error:
                reason = _clean(error)
                continue
            if status == 200:
                return self._read(answer, count)
            if status not in _BUSY:
                raise RunStopped(f"reward {self.url!r}: the server refuses: {status}, {_error(answer)}.{_hint(status)}")
            reason = f"{status}, {_error(answer)}"
        raise Unscored(f"{self.url}: no answer in {self._attempts} attempts; the last: {reason}")

    def _read(self, answer: bytes, count: int) -> Reply:
        try:
            reply = Reply.model_validate_json(answer)
        except ValidationError as error:
            raise Unscored(f"{self.url}: the answer is not as documented") from error
        if len(reply.scores) != count:
            raise Unscored(f"{self.url}: {len(reply.scores)} scores for {count} samples")
        return reply

    def _send(self, method: str, body: bytes, most: int, seconds: float) -> tuple[int, bytes]:
        """Status and body of an answer of at most ``most`` bytes that has come whole within ``seconds``."""
        import httpx

        end, answer = time.monotonic() + seconds, bytearray()
        timeout = httpx.Timeout(seconds, connect=min(_CONNECT, seconds))
        with self._client.stream(method, self.url, content=body or None, timeout=timeout) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise _TooLong("the answer is compressed, which nobody asked for")
            for chunk in response.iter_raw():
                answer += chunk
                if len(answer) > most:
                    raise _TooLong(f"the answer is longer than {most} bytes")
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"the answer was not whole after {seconds:g} s")
        return response.status_code, bytes(answer)


class _TooLong(Exception):
    """An answer that nobody should wait for the end of."""


def _checked(url: str, timeout: float, attempts: int, encoding: Any) -> tuple[str, float, int, Any]:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        whole = bool(parts.hostname and parts.path.strip("/") and parts.port != 0)
    except ValueError:  # no number, or too large a one, for a port; brackets without an address
        whole = False
    if not whole or parts.query or parts.fragment or not url.isprintable():
        raise UserError(f"reward {url!r}: wanted http://host:port/name, the name being one that the server serves.")
    if "@" in parts.netloc:
        raise UserError(f"reward at {parts.hostname}: no user in a URL, which is logged; set {TOKEN} instead.")
    if not 0 < timeout < math.inf:
        raise UserError(f"reward {url!r}: timeout: wanted seconds, such as 60, got {timeout!r}.")
    if not 1 <= attempts <= 20:
        raise UserError(f"reward {url!r}: attempts: wanted 1 to 20, got {attempts!r}.")
    if encoding not in ("float32", "uint8"):
        raise UserError(f"reward {url!r}: encoding: wanted float32 or uint8, got {encoding!r}.")
    return url, float(timeout), attempts, encoding


def _client(token: str | None, variable: str) -> httpx.Client:
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise UserError("a reward behind a URL needs httpx, not installed: pip install 'flowrl[serve]'.") from error
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UserError(f"{variable}: wanted a token of printable ASCII.")
    headers = {"Content-Type": SAFETENSORS, "Accept-Encoding": "identity"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    # No proxy and no .netrc of the environment: pictures and token go to the server that was named, or nowhere.
    return httpx.Client(headers=headers, trust_env=False, follow_redirects=False)


def _error(body: bytes) -> str:
    """What a server says went wrong, made fit for a terminal."""
    try:
        said = from_json(body)
    except ValueError:
        return "no reason"
    return _clean(said.get("error", "no reason") if isinstance(said, dict) else "no reason")


def _clean(said: object) -> str:
    text = str(said) or type(said).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SAID])


def _hint(status: int) -> str:
    return f" Set {TOKEN} to the server's token." if status in (401, 403) else ""
