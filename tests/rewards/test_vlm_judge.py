"""A judge over HTTP: what is sent, what is read, and what happens when it does not answer."""

import base64
import io
import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from PIL import Image

from flowrl.errors import UserError
from flowrl.reward import RewardBatch, Unscored
from flowrl.rewards.vlm_judge import VlmJudgeReward


class Judge:
    """An endpoint that marks a picture by its brightness, unless ``statuses`` or ``answer`` say otherwise."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.answer, self.requests, self.tokens = "", [], []
        self.lock = threading.Lock()

    def reply(self, body: dict) -> str:
        """The mark, from 1 to 5; of two pictures, the first one's place whatever they show."""
        *pictures, text = body["messages"][0]["content"]
        if self.answer:
            return self.answer.replace("{text}", text["text"])
        shades = []
        for picture in pictures:
            png = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
            shades.append(Image.open(io.BytesIO(png)).getpixel((0, 0))[0] / 255)
        if len(shades) == 2:
            return f"**Better:** {1 if shades[0] > shades[1] else 2}"
        return f"Final Score: 1 would be harsh.\n**Final Score:** {1 + 4 * shades[0]:.2f}"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    """A judge in a thread of this process."""
    monkeypatch.setenv("no_proxy", "*")
    judge = Judge()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, b'{"data": []}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with judge.lock:
                judge.requests.append(body)
                judge.tokens.append(self.headers["Authorization"])
                status = judge.statuses.pop(0) if judge.statuses else 200
            reply = {"choices": [{"message": {"content": judge.reply(body)}}]}
            self._send(status, json.dumps(reply).encode() if judge.answer != "broken" else b"<html>")

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/v1/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    judge.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield judge
    server.shutdown()
    thread.join()
    server.server_close()


def reward(judge: Judge, *, retries: int = 3, side: int = 512, **options) -> VlmJudgeReward:
    """The reward of this judge, in no mood to wait."""
    asking = VlmJudgeReward(judge.url, "tiny", timeout=5.0, **options)
    asking.backoff, asking.retries, asking.side = 0.0, retries, side
    return asking


def shades(*values: float, prompt: str = "a {curly} cat") -> RewardBatch:
    """Flat pictures."""
    images = torch.stack([torch.full((3, 8, 16), value) for value in values])
    return RewardBatch(images, [prompt] * len(values), [{}] * len(values))


def test_marks_in_the_order_of_the_pictures(judge: Judge) -> None:
    """1 + 4 * brightness, the last mark of the answer; the question has the prompt, braces and all."""
    scores = reward(judge, side=4)(shades(0.0, 1.0, 0.2))
    torch.testing.assert_close(scores, torch.tensor([1.0, 5.0, 1.8]))
    sent = judge.requests[0]
    assert (sent["model"], sent["temperature"]) == ("tiny", 0)
    assert "a {curly} cat" in sent["messages"][0]["content"][-1]["text"]
    assert judge.tokens == [None] * 3


def test_token_comes_from_the_environment(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not kept in the object."""
    monkeypatch.setenv("JUDGE_TOKEN", "abc")
    asking = reward(judge, token_variable="JUDGE_TOKEN")
    asking(shades(0.0))
    assert judge.tokens == ["Bearer abc"]
    assert "abc" not in str(vars(asking))
    with pytest.raises(UserError, match="NO_SUCH_TOKEN"):
        reward(judge, token_variable="NO_SUCH_TOKEN")


@pytest.mark.parametrize("answer", ["a fine picture", "Final Score: 7", "Final Score: none"])
def test_an_answer_without_a_mark_is_nan(answer: str, judge: Judge) -> None:
    """With the answer as the reason, and no second request."""
    judge.answer = answer
    with pytest.raises(Unscored, match=answer) as caught:
        reward(judge)(shades(0.5))
    assert math.isnan(caught.value.scores.item())
    assert len(judge.requests) == 1


def test_busy_and_broken_endpoints_are_asked_again(judge: Judge) -> None:
    """Twice refused, then answered; or refused for good after the last attempt."""
    judge.statuses = [503, 429]
    assert reward(judge, retries=2)(shades(1.0)).item() == 5
    judge.statuses = [500] * 3
    with pytest.raises(Unscored, match=r"500.* 3 times"):
        reward(judge, retries=2)(shades(1.0))
    assert len(judge.requests) == 6


@pytest.mark.parametrize("status", [400, 401, 302])
def test_refusals_are_final(status: int, judge: Judge) -> None:
    """A bad request, a bad token, a redirection: one request, one reason; the other samples keep their marks."""
    judge.statuses = [status]
    with pytest.raises(Unscored, match=f"HTTP {status}") as caught:
        reward(judge, concurrency=1)(shades(0.0, 1.0))
    assert caught.value.scores.isnan().tolist() == [True, False]
    assert len(judge.requests) == 2


def test_reply_that_is_not_json(judge: Judge) -> None:
    """Is a reason, not a crash."""
    judge.answer = "broken"
    with pytest.raises(Unscored, match="not JSON"):
        reward(judge)(shades(0.0))


def test_compare_shows_both_orders(judge: Judge) -> None:
    """Brighter wins; a judge that always says the first place scores 0.5."""
    wins = reward(judge).compare(shades(0.9, 0.1), shades(0.2, 0.8))
    assert wins.tolist() == [1.0, 0.0]
    judge.answer = "Better: 1"
    assert reward(judge).compare(shades(0.9), shades(0.2)).tolist() == [0.5]
    judge.answer = "neither"
    with pytest.raises(Unscored, match="no verdict"):
        reward(judge).compare(shades(0.9), shades(0.2))
    with pytest.raises(ValueError, match="same ones"):
        reward(judge).compare(shades(0.9), shades(0.2, prompt="other"))


def test_check_names_an_endpoint_that_is_away(judge: Judge) -> None:
    """Before any weights are loaded, with the URL."""
    reward(judge).check([])
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/v1/models"):
        VlmJudgeReward("http://127.0.0.1:9/v1", "tiny").check([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8080"}, "url: wanted"),
        ({"template": "Mark it."}, "template: wanted"),
        ({"pattern": "("}, "pattern: "),
        ({"pattern": "mark"}, "one group"),
        ({"marks": [5, 1]}, "marks: wanted"),
        ({"concurrency": 0}, "concurrency, timeout: wanted"),
    ],
)
def test_wrong_options(options: dict, message: str) -> None:
    """Each is named."""
    with pytest.raises(UserError, match=message):
        VlmJudgeReward(**{"url": "http://localhost/v1", "model": "m", **options})
