"""What a vision-language model says of a picture: any judge behind an endpoint that speaks OpenAI's chat protocol.

vLLM and SGLang serve UnifiedReward this way; see "Unified Reward Model for Multimodal Understanding and Generation",
Wang et al., https://arxiv.org/abs/2503.05236.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..data import PromptRow
from ..errors import UserError
from ..reward import Reward, RewardBatch, Unscored

POINT = (
    "This picture was made for the caption: {prompt}\nJudge how well it shows what the caption says, and how good it "
    "looks. End with one line, 'Final Score: N', where N is a number from 1 (bad) to 5 (excellent)."
)
PAIR = (
    "Two pictures were made for the caption: {prompt}\nWhich is better? "
    "End with one line, 'Better: 1', 'Better: 2' or 'Better: 0' if they are equal."
)
_BETTER = re.compile(r"Better:\W*([012])\b", re.IGNORECASE)
_LONGEST_ANSWER = 10_000_000


class Unanswered(Exception):
    """A judge gave no answer that can be used; the message says why."""


class VlmJudgeReward(Reward):
    """A judge's mark for each picture; NaN, with the reason, where it gave none."""

    name = "vlm_judge"
    cacheable = False  # servers batch requests, and their answers need not repeat
    source = "endpoint"
    compares_both_orders = True
    """:meth:`compare` shows each pair both ways already, for :mod:`.arena`."""
    side: int = 512
    """Pictures with a longer side are shrunk to it, in pixels."""
    max_tokens: int = 1024
    """The longest answer."""
    retries: int = 3
    """How often a request is repeated when the endpoint is busy, broken or away."""
    backoff: float = 1.0
    """Seconds before the first repetition; twice as long before each further one."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        template: str = POINT,
        pattern: str = r"Final Score:\W*(\d+(?:\.\d+)?)",
        marks: Sequence[float] = (1.0, 5.0),
        timeout: float = 120.0,
        concurrency: int = 8,
        token_variable: str = "",
    ) -> None:
        """Where the judge is, and how it is asked.

        Args:
            url: of the endpoint, up to and with ``/v1``.
            model: as the endpoint calls it.
            template: the question; ``{prompt}`` stands for the prompt.
            pattern: a regular expression whose only group is the mark; the last match counts.
            marks: the worst and the best mark; one outside counts as none.
            timeout: of one request, in seconds.
            concurrency: requests at a time.
            token_variable: the environment variable that holds the endpoint's token, if it wants one.

        Raises:
            UserError: an option is wrong, or the environment variable is not set.
        """
        label = f"reward {self.name!r}"
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{label}: url: wanted one such as 'http://localhost:8080/v1', got {url!r}.")
        if "{prompt}" not in template:
            raise UserError(f"{label}: template: wanted a text with {{prompt}} in it, got {template!r}.")
        if len(marks) != 2 or not marks[0] < marks[1]:
            raise UserError(f"{label}: marks: wanted the worst and the best, such as [1, 5], got {marks!r}.")
        if concurrency < 1 or timeout <= 0:
            raise UserError(f"{label}: concurrency, timeout: wanted more than 0, got {concurrency!r}, {timeout!r}.")
        if token_variable and not os.environ.get(token_variable):
            raise UserError(f"{label}: token_variable: the environment variable {token_variable!r} is not set.")
        self._pattern = _compiled(pattern, label)
        self.url, self.model, self.template, self.range = url.rstrip("/"), model, template, (marks[0], marks[1])
        self._timeout, self._concurrency, self._token_variable = timeout, concurrency, token_variable
        self.source = f"{model} at an OpenAI-compatible endpoint; longer side at most {self.side}"

    def check(self, rows: Sequence[PromptRow]) -> None:
        """Make sure that the endpoint answers.

        Raises:
            UserError: it does not.
        """
        super().check(rows)
        try:
            self._send("/models", None, min(self._timeout, 10.0))
        except (OSError, Unanswered) as error:
            raise UserError(
                f"reward {self.name!r}: no judge answers at {self.url}/models: {error}. Start one, such as "
                f"`vllm serve {self.model}`, or correct `url`."
            ) from error

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The mark of each picture, `[B]`.

        Raises:
            Unscored: some have none; those are NaN, and the first reason is given.
        """
        pictures = [_encoded(image, self.side) for image in batch.images]
        questions = [([picture], prompt) for picture, prompt in zip(pictures, batch.prompts, strict=True)]
        return self._all(questions, self.template, self._mark)

    def compare(self, first: RewardBatch, second: RewardBatch) -> Tensor:
        """How often the first picture of each pair beats the second, `[B]`: 1, 0, or 0.5 for a tie.

        Each pair is shown in both orders and the mean is taken, since judges favour a place.

        Args:
            first: pictures.
            second: as many, of the same prompts.

        Raises:
            ValueError: the prompts differ.
            Unscored: some pairs got no verdict; those are NaN.
        """
        if first.prompts != second.prompts:
            raise ValueError("prompts: wanted the same ones, in the same order, in both batches")
        left, right = ([_encoded(image, self.side) for image in batch.images] for batch in (first, second))
        pairs = [([a, b], prompt) for a, b, prompt in zip(left, right, first.prompts, strict=True)]
        turned = [([b, a], prompt) for (a, b), prompt in pairs]
        return self._all([*pairs, *turned], PAIR, _verdict, fold=len(pairs))

    def _all(self, questions: list[tuple[list[str], str]], template: str, read: Any, fold: int = 0) -> Tensor:
        """Ask all questions at once; with ``fold``, the second half are the first with the pictures exchanged."""
        reasons: list[str] = []

        def ask(question: tuple[list[str], str]) -> float:
            try:
                return float(read(self._answer(question[0], template.replace("{prompt}", question[1]))))
            except Unanswered as error:
                reasons.append(str(error))
                return math.nan

        with ThreadPoolExecutor(self._concurrency) as pool:
            scores = torch.tensor(list(pool.map(ask, questions)), dtype=torch.float32)
        if fold:
            scores = (scores[:fold] + 1 - scores[fold:]) / 2
        if reasons:
            raise Unscored(reasons[0], scores)
        return scores

    def _mark(self, answer: str) -> float:
        found = self._pattern.findall(answer)
        lowest, highest = self.range
        try:
            mark = float(found[-1]) if found else math.nan
        except ValueError:
            mark = math.nan
        if not lowest <= mark <= highest:
            raise Unanswered(f"no mark from {lowest:g} to {highest:g} in the judge's answer {answer[-200:]!r}")
        return mark

    def _answer(self, pictures: list[str], question: str) -> str:
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}} for picture in pictures
        ]
        content.append({"type": "text", "text": question})
        messages = [{"role": "user", "content": content}]
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": self.max_tokens}
        for attempt in range(self.retries + 1):
            try:
                reply = self._send("/chat/completions", json.dumps(body).encode(), self._timeout)
                return str(reply["choices"][0]["message"]["content"])
            except (KeyError, IndexError, TypeError) as error:
                raise Unanswered("the judge's reply has no choices[0].message.content") from error
            except OSError as error:  # also URLError, and a time-out
                trouble = error
            if attempt < self.retries:
                time.sleep(self.backoff * 2**attempt)
        raise Unanswered(f"{self.url}: {trouble}, {self.retries + 1} times") from trouble

    def _send(self, path: str, body: bytes | None, timeout: float) -> Any:
        """What the endpoint replies; OSError if another attempt may help, Unanswered if not."""
        headers = {"Content-Type": "application/json"}
        if self._token_variable:
            headers["Authorization"] = f"Bearer {os.environ.get(self._token_variable, '')}"
        request = urllib.request.Request(self.url + path, body, headers)  # noqa: S310 (http or https, checked)
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout) as reply:
                return json.loads(reply.read(_LONGEST_ANSWER))
        except urllib.error.HTTPError as error:
            error.close()
            trouble = f"{self.url}{path}: HTTP {error.code} {error.reason}"
            again = error.code == 429 or error.code >= 500
            raise (OSError if again else Unanswered)(trouble) from error
        except http.client.HTTPException as error:
            raise OSError(f"{self.url}{path}: the reply broke off: {error!r}") from error
        except ValueError as error:
            raise Unanswered(f"{self.url}{path}: the reply is not JSON") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection is an error: it would take the token to another host."""

    def redirect_request(self, *arguments: Any) -> None:
        """Go nowhere."""


def _compiled(pattern: str, label: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise UserError(f"{label}: pattern: {pattern!r} is no regular expression: {error}.") from error
    if compiled.groups != 1:
        raise UserError(f"{label}: pattern: wanted one group, for the mark, got {compiled.groups} in {pattern!r}.")
    return compiled


def _verdict(answer: str) -> float:
    found = _BETTER.findall(answer)
    if not found:
        raise Unanswered(f"no verdict in the judge's answer {answer[-200:]!r}")
    return {"1": 1.0, "2": 0.0, "0": 0.5}[found[-1]]


def _encoded(image: Tensor, side: int) -> str:
    """A picture `[3, H, W]` as a PNG in base64."""
    pixels = (image.detach().float() * 255).round().to("cpu", torch.uint8).permute(1, 2, 0).numpy()
    picture, file = Image.fromarray(pixels), io.BytesIO()
    picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    picture.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()
