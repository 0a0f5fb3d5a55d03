"""The client of reward servers: equal to a local reward, and unmoved by bad servers."""

import socket
import time

import pytest
import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from flowrl import plugins
from flowrl.errors import RunStopped, UserError
from flowrl.remote_reward import TOKEN, RemoteReward
from flowrl.reward import RewardBatch, RewardSet, Unscored
from flowrl.reward_protocol import Limits, limits_of

from . import runs, served
from .test_reward_server import Broken, Clips, batch_of, brightness, picky

SAID = {
    "protocol": 1,
    "name": "odd",
    "media": "image",
    "higher_is_better": True,
    "range": [0, None],
    "needs": [],
    "cacheable": True,
    "license": "",
    "source": "a test",
    "identity": "0",
    "limits": limits_of(Limits()),
}


class Odd:
    """A server that describes itself well, and answers batches with what is in ``answers``, one after the other."""

    def __init__(self, *answers, said=SAID):
        self.answers, self.requests = list(answers), []

        async def describe(request):
            return said if isinstance(said, Response) else JSONResponse(said)

        async def score(request):
            self.requests.append(await request.body())
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return answer() if callable(answer) and not isinstance(answer, Response) else answer

        self.app = Starlette(routes=[Route("/odd", describe), Route("/odd", score, methods=["POST"])])


def odd(*answers, **fields):
    """A context with the address of an odd server."""
    return served.running({}, app=Odd(*answers, **fields).app)


def client(url: str, **options) -> RemoteReward:
    """A client that does not sleep between attempts, but writes down how long it would."""
    reward = RemoteReward(url, **options)
    reward.slept = []
    reward._sleep = reward.slept.append
    return reward


@pytest.fixture(scope="module")
def address():
    """A server of built-in and toy rewards."""
    make = plugins.load("rewards", "jpeg")
    rewards = {"jpeg": make(), "brightness": brightness, "picky": picky, "broken": Broken(), "clips": Clips()}
    with served.running(rewards, Limits(batch=16)) as url:
        yield url


@pytest.mark.parametrize("name", ["brightness", "jpeg"])
def test_remote_scores_are_the_local_ones(name, address):
    """Bit for bit, whatever the pixels are."""
    local = brightness if name == "brightness" else plugins.load("rewards", name)()
    batch = RewardBatch(torch.rand(5, 3, 33, 17), list("abcde"), [{}] * 5)
    wanted = local(batch.images, batch.prompts, batch.metadata) if name == "brightness" else local(batch)
    assert torch.equal(RemoteReward(f"{address}/{name}")(batch), wanted)


def test_a_config_names_it_by_its_url(address):
    """Declarations come from the server; a cache can tell it from another."""
    rewards = RewardSet.from_config({f"{address}/jpeg": {"weight": 0.5, "timeout": 9}})
    (reward,) = rewards.rewards
    local = plugins.load("rewards", "jpeg")
    assert (reward.name, reward.range, reward.license, reward.media) == ("jpeg", local.range, local.license, "image")
    assert reward.source.startswith(f"{address}/jpeg ")
    assert reward.source.endswith(": procedural")
    batch = RewardBatch(torch.rand(2, 3, 8, 8), ["a", "b"], [{}, {}])
    assert torch.equal(rewards.score(batch).raw[:, 0], local()(batch))


def test_options_are_checked(address):
    """As of every reward."""
    with pytest.raises(UserError, match=r"unknown option 'timeut'\. Did you mean 'timeout'"):
        RewardSet.from_config({f"{address}/jpeg": {"timeut": 9}})


def test_videos_and_frames(address):
    """A reward for videos gets them whole; one for pictures gets the frames of a clip."""
    clip = RewardBatch(torch.full((2, 5, 3, 4, 4), 0.5), ["a", "b"], [{}, {}], fps=8.0)
    rewards = RewardSet.from_config({f"{address}/clips": 1.0, f"{address}/brightness": 1.0})
    assert rewards.score(clip).raw.tolist() == [[5.0, 0.5], [5.0, 0.5]]


def test_needs_are_checked_before_the_run(address):
    """The server says which metadata it needs."""
    reward = RemoteReward(f"{address}/broken")
    assert reward.needs == frozenset({"how"})
    with pytest.raises(UserError, match=r"metadata\.how: missing"):
        reward.check([type("Row", (), {"metadata": {}, "where": "a.txt:1"})])


def test_reasons_arrive(address):
    """One NaN, with the server's reason, through the whole set."""
    url = f"{address}/picky"
    scores = RewardSet.from_config({url: 1.0}).score(batch_of(0.75, 0.25))
    assert scores.raw[0].tolist() == [1.0]
    assert scores.raw[1].isnan()
    assert scores.errors == {url: f"{url}: it returned None or a number that is not finite"}


def test_uint8_is_an_option(address):
    """A fourth of the bytes; 0.5 arrives as 128 / 255."""
    score = RemoteReward(f"{address}/brightness", encoding="uint8")(batch_of(0.5))
    assert score.item() == pytest.approx(128 / 255)


def test_larger_than_the_server_takes(address):
    """Found before anything is sent, with what to change."""
    with pytest.raises(RunStopped, match=r"batch: this batch has 17, and the server takes 16; .* --max-batch"):
        RemoteReward(f"{address}/brightness")(batch_of(*[0.5] * 17))


def test_nobody_there():
    """A closed port is found within seconds, before weights load, with the command that opens it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(UserError, match=r"no reward server answers: .*Start it with: flowrl rewards serve ocr"):
        RewardSet.from_config({f"http://127.0.0.1:{port}/ocr": 1.0})
    assert time.monotonic() - start < 10


def test_a_server_that_is_silent():
    """Somebody listens and says nothing: the health check has an end."""
    with socket.socket() as silent, pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowrl.remote_reward._HEALTH", 0.3)
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match="no reward server answers"):
            RemoteReward(f"http://127.0.0.1:{silent.getsockname()[1]}/x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:8000", "wanted http://host:port/name"),
        ("http://127.0.0.1:8000/", "wanted http://host:port/name"),
        ("http:///name", "wanted http://host:port/name"),
        ("http://host:99999/name", "wanted http://host:port/name"),
        ("http://[::1/name", "wanted http://host:port/name"),
        ("http://host/name?x=1", "wanted http://host:port/name"),
        ("http://host/na\nme", "wanted http://host:port/name"),
        ("http://user:secret@host/name", "no user in a URL"),
    ],
)
def test_urls_that_are_refused(url, message):
    """Before anybody is asked; a password is not repeated."""
    with pytest.raises(UserError, match=message) as caught:
        RemoteReward(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"timeout": 0}, "timeout"), ({"attempts": 0}, "attempts"), ({"encoding": "jpeg"}, "encoding")],
)
def test_options_that_are_refused(options, message):
    """Each is named."""
    with pytest.raises(UserError, match=message):
        RemoteReward("http://127.0.0.1:1/name", **options)


def test_no_such_reward(address):
    """The server's list of names arrives."""
    with pytest.raises(UserError, match=r"answers 404: no such reward; known: jpeg, brightness"):
        RemoteReward(f"{address}/nobody")


def test_the_token_comes_from_the_environment(monkeypatch):
    """Without it, the error says what to set; a .netrc and a proxy of the environment are not asked."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with served.running({"brightness": brightness}, token="s3cret") as url:
        monkeypatch.delenv(TOKEN, raising=False)
        with pytest.raises(UserError, match=f"answers 401.*Set {TOKEN} to the server's token"):
            RemoteReward(f"{url}/brightness")
        monkeypatch.setenv(TOKEN, "s3cret")
        assert RemoteReward(f"{url}/brightness")(batch_of(0.5)).tolist() == [0.5]
        monkeypatch.setenv("OTHER", "wrong")
        with pytest.raises(UserError, match="answers 401"):
            RemoteReward(f"{url}/brightness", token_env="OTHER")


@pytest.mark.parametrize(
    "said",
    [
        {**SAID, "protocol": 2},
        {**SAID, "needs": "everything"},
        {**SAID, "range": [0]},
        {**SAID, "limits": {"body": "NaN"}},
        {},
        Response(b"<html>a proxy's page</html>"),
        Response(b"[" * 2000),
        Response(b"\xff\xfe"),
    ],
)
def test_descriptions_that_are_refused(said):
    """What is no reward server is found before weights load."""
    with odd(None, said=said) as url, pytest.raises(UserError, match="no reward server of flowrl"):
        RemoteReward(f"{url}/odd")


def test_a_description_without_end():
    """Reading stops at a limit."""
    with odd(None, said=Response(b" " * 2**19)) as url, pytest.raises(UserError, match="longer than"):
        RemoteReward(f"{url}/odd")


@pytest.mark.parametrize(
    "answer",
    [
        JSONResponse({"scores": [1.0]}),
        JSONResponse({"scores": [1.0, "2.0"]}),
        JSONResponse({"scores": [1.0, True]}),
        JSONResponse({"scores": "11"}),
        Response(b'{"scores": [1.0, NaN]}'),
        Response(b'{"scores": [1.0, 1e999]}'),
        JSONResponse([1.0, 2.0]),
        Response(b""),
        Response(b" " * 2**17),
        Response(b'{"scores": [1, 2]}', headers={"Content-Encoding": "gzip"}),
    ],
)
def test_answers_that_are_no_scores(answer):
    """Wrong lengths, types and sizes are NaN with a reason, at once: asking again would not help."""
    with odd(answer) as url:
        reward = client(f"{url}/odd")
        with pytest.raises(Unscored, match=url):
            reward(batch_of(0.5, 0.25))
    assert reward.slept == []


def test_a_busy_server_is_asked_again():
    """Waits of half a second and a second; the same bytes each time."""
    server = Odd(Response(status_code=503), Response(status_code=500), JSONResponse({"scores": [0.5]}))
    with served.running({}, app=server.app) as url:
        reward = client(f"{url}/odd")
        assert reward(batch_of(0.5)).tolist() == [0.5]
    assert reward.slept == [0.5, 1.0]
    assert len(set(server.requests)) == 1
    assert len(server.requests) == 3


def test_attempts_have_an_end():
    """Then the batch is NaN, and the reason names the last answer; a whole step without scores stops the run."""
    with odd(JSONResponse({"error": "bu\x1b[31msy"}, 503)) as url:
        reward = client(f"{url}/odd", attempts=3)
        rewards = RewardSet(("odd",), (reward,), torch.ones(1))
        scores = rewards.score(batch_of(0.5, 0.25))
    assert scores.raw.isnan().all()
    assert scores.errors == {"odd": f"{url}/odd: no answer in 3 attempts; the last: 503, bu?[31msy"}
    assert reward.slept == [0.5, 1.0]
    with pytest.raises(RunStopped, match=r"could score none of 2 samples: .* no answer in 3 attempts"):
        rewards.require_alive(scores)


def test_a_server_that_went_away():
    """Connections that fail are tried again, too."""
    with odd(JSONResponse({"scores": [0.5]})) as url:
        reward = client(f"{url}/odd", attempts=2)
    with pytest.raises(Unscored, match="no answer in 2 attempts"):
        reward(batch_of(0.5))
    assert reward.slept == [0.5]


def test_an_answer_that_drips():
    """A byte now and then does not keep a run waiting beyond its timeout."""

    def drips():
        async def bytes_now_and_then():
            import asyncio

            for _ in range(100):
                yield b" "
                await asyncio.sleep(0.05)

        return StreamingResponse(bytes_now_and_then())

    with odd(drips) as url:
        reward = client(f"{url}/odd", attempts=1, timeout=0.3)
        start = time.monotonic()
        with pytest.raises(Unscored, match=r"not whole after 0\.3 s"):
            reward(batch_of(0.5))
        assert time.monotonic() - start < 4


@pytest.mark.parametrize("status", [302, 401, 404, 413, 415, 422])
def test_refusals_stop_the_run(status):
    """A refusal would come again for each batch; redirections are not followed, since they would get the token."""
    with odd(JSONResponse({"error": "no"}, status, {"Location": "/elsewhere"})) as url:
        reward = client(f"{url}/odd")
        with pytest.raises(RunStopped, match=f"refuses: {status}, no"):
            reward(batch_of(0.5))
    assert reward.slept == []


def test_each_picture_is_scored_once_whatever_the_number_of_processes(tmp_path):
    """Two processes that train together ask a server for each picture once between them."""
    model = runs.save_model(tmp_path)
    shown = []

    def counts(images, prompts, metadata):
        shown.extend(images.mean(dim=(1, 2, 3)).tolist())
        return images.mean(dim=(1, 2, 3))

    with served.running({"counts": counts}) as url:
        settings = ("max_steps=1", "micro_batch_size=2")
        recipe = runs.recipe(model, tmp_path / "run", *settings, rewards={f"{url}/counts": 1.0})
        runs.together(runs.train, recipe, log=tmp_path / "log.txt")
    # A step of eight, and two evaluations of two prompts and two samples, by other weights.
    assert len(shown) == len(set(shown)) == 8 + 2 * 4
    (row,) = (row for row in runs.metrics(tmp_path / "run") if row["step"] == 1)
    assert row["reward/mean"] == pytest.approx(row[f"reward/{url}/counts/mean"])
    assert row[f"reward/{url}/counts/failures"] == 0
