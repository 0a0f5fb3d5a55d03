"""The reward server: what it answers over a real connection, and what it keeps to itself."""

import gc
import json
import os
import random
import socket
import struct
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
import torch

from flowrl import plugins, reward_server
from flowrl.errors import RunStopped, UserError
from flowrl.reward import Reward, RewardBatch, Unscored
from flowrl.reward_protocol import JSON, SAFETENSORS, Limits, encode_batch
from flowrl.reward_server import TOKEN, Served, create_app, token_for

from .served import running
from .test_reward_protocol import body, png, text

LIMITS = Limits(body=20_000, pixels=1_000, batch=4, seconds=0.5)
BINARY = {"Content-Type": SAFETENSORS}
LEAKS = ("Traceback", 'File "', ".py", "site-packages", "/work", "Error(")


def brightness(images, prompts, metadata):
    """The mean of the pixels."""
    return images.mean(dim=(1, 2, 3))


def picky(images, prompts, metadata):
    """None for dark pictures."""
    return [None if value < 0.5 else 1.0 for value in images.mean(dim=(1, 2, 3))]


class Broken(Reward):
    """Raises whatever the prompt names."""

    needs = frozenset({"how"})
    license = "MIT"
    source = "procedural"
    range = (0.0, float("inf"))

    def __call__(self, batch):
        how = batch.metadata[0]["how"]
        if how == "secret":
            raise OSError("cannot read /home/somebody/secret.bin")
        if how == "unscored":
            raise Unscored("no face in it")
        if how == "length":
            return torch.zeros(len(batch) + 1)
        raise {"user": UserError("look into /home/somebody"), "exit": SystemError("inside")}[how]


class Clips(Reward):
    """Frames of a video."""

    media = "video"

    def __call__(self, batch):
        return torch.full((len(batch),), float(batch.images.shape[1]))


@pytest.fixture(scope="module")
def address():
    """A server of some rewards."""
    rewards = {"brightness": brightness, "picky": picky, "broken": Broken(), "clips": Clips()}
    with running(rewards, LIMITS) as url:
        yield url


def post(url: str, content: bytes, kind: str = SAFETENSORS) -> httpx.Response:
    """A request of ours."""
    return httpx.post(url, content=content, headers={"Content-Type": kind}, timeout=30)


def batch_of(*values, how=None) -> RewardBatch:
    """A grey picture for each value."""
    images = torch.tensor(values)[:, None, None, None].expand(-1, 3, 4, 4).clone()
    return RewardBatch(images, ["a"] * len(values), [{} if how is None else {"how": how} for _ in values])


def test_health_describes_the_rewards(address):
    """Each with its declarations; open ends of a range are null."""
    said = httpx.get(f"{address}/health").json()
    assert list(said["rewards"]) == ["brightness", "picky", "broken", "clips"]
    broken = httpx.get(f"{address}/broken").json()
    assert said["rewards"]["broken"] == broken
    assert (broken["needs"], broken["license"], broken["range"]) == (["how"], "MIT", [0.0, None])
    assert broken["limits"]["pixels"] == 1_000
    assert len(broken["identity"]) == 64


def test_scores(address):
    """Both kinds of body; null for what could not be scored."""
    assert post(f"{address}/brightness", encode_batch(batch_of(0.5, 0.25))).json() == {
        "scores": [0.5, 0.25],
        "reason": None,
    }
    white = body(images=[text(png(color=(255, 255, 255)))])
    assert post(f"{address}/brightness", white, JSON).json()["scores"] == [1.0]
    answer = post(f"{address}/picky", encode_batch(batch_of(0.75, 0.25))).json()
    assert answer == {"scores": [1.0, None], "reason": "it returned None or a number that is not finite"}
    clip = RewardBatch(torch.zeros(1, 5, 3, 4, 4), ["a"], [{}])
    assert post(f"{address}/clips", encode_batch(clip)).json()["scores"] == [5.0]


@pytest.mark.parametrize(
    ("path", "content", "kind", "status", "said"),
    [
        ("nobody", b"", SAFETENSORS, 404, "known: brightness, picky, broken, clips"),
        ("brightness", b"", "text/plain", 415, "wanted application/vnd.safetensors or application/json"),
        ("brightness", b"x", SAFETENSORS, 422, "not whole"),
        ("brightness", b"{}", JSON, 422, "images: Field required"),
        ("brightness", bytes(20_001), SAFETENSORS, 413, "at most 20000 bytes"),
        ("brightness", encode_batch(batch_of(*[0.5] * 5)), SAFETENSORS, 422, "wanted at most 4, got 5"),
        ("broken", encode_batch(batch_of(0.5)), SAFETENSORS, 422, "sample 0 lacks 'how'"),
        ("clips", encode_batch(batch_of(0.5)), SAFETENSORS, 422, "scores videos, got single pictures"),
        ("broken", encode_batch(batch_of(0.5, how="user")), SAFETENSORS, 500, "the reward is broken"),
        ("broken", encode_batch(batch_of(0.5, how="length")), SAFETENSORS, 500, "the reward is broken"),
        ("broken", encode_batch(batch_of(0.5, 0.25, how="secret")), SAFETENSORS, 500, "the reward is broken"),
    ],
)
def test_mistakes(path, content, kind, status, said, address):
    """The status and one line; nothing of the server's inside."""
    answer = post(f"{address}/{path}", content, kind)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert said in answer.json()["error"]
    assert not any(leak in answer.text for leak in LEAKS)
    assert "somebody" not in answer.text
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("how", "reason"),
    [("secret", "OSError (the server's log says more)"), ("unscored", "no face in it")],
)
def test_reasons_for_clients(how, reason, address):
    """Of an exception only its type leaves the server; a reason that a reward wrote for others leaves whole."""
    answer = post(f"{address}/broken", encode_batch(batch_of(0.5, how=how))).json()
    assert answer == {"scores": [None], "reason": reason}


def test_reasons_of_a_batch_alone():
    """Reasons that `RewardSet` words around an exception give its type, too."""
    reason = "no sample alone, but a batch of them: OSError: /home/somebody (/home/somebody/a.py:3)"
    assert reward_server._for_clients(reason) == "OSError (the server's log says more)"
    assert reward_server._for_clients("the picture is not finite") == "the picture is not finite"


def test_other_methods_and_the_schema(address):
    """No page of scripts, and an OpenAPI schema that names both kinds of body."""
    assert httpx.delete(f"{address}/brightness").status_code == 405
    assert httpx.get(f"{address}/docs").status_code == 404
    schema = httpx.get(f"{address}/openapi.json").json()
    assert set(schema["paths"]["/{name}"]["post"]["requestBody"]["content"]) == {JSON, SAFETENSORS}


def test_a_request_that_never_arrives(address):
    """A body that stays away is given up after the limit, and does not keep others waiting."""
    host, port = address.removeprefix("http://").split(":")
    head = f"POST /brightness HTTP/1.1\r\nHost: {host}\r\nContent-Type: {SAFETENSORS}\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode())
        assert post(f"{address}/brightness", encode_batch(batch_of(0.5))).json()["scores"] == [0.5]
        assert b" 408 " in connection.recv(200)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode() + b"half")
    assert httpx.get(f"{address}/health").status_code == 200


def test_an_error_of_the_server_itself(monkeypatch):
    """What nobody foresaw is 500 and one line."""

    def fail(*arguments):
        raise MemoryError("at 0x7f")

    with running({"brightness": brightness}) as url:
        monkeypatch.setattr(Served, "answer", fail)
        answer = post(f"{url}/brightness", encode_batch(batch_of(0.5)))
    assert (answer.status_code, answer.json()) == (500, {"error": "an error of the server; its log says which"})


def test_one_request_at_a_time_meets_a_reward():
    """Requests come in many threads; a reward sees one after the other."""
    inside, most = [], []

    def watches(images, prompts, metadata):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return [1.0] * len(images)

    with running({"watches": watches}) as url, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: post(f"{url}/watches", encode_batch(batch_of(0.5))), range(12)))
    assert [answer.json()["scores"] for answer in answers] == [[1.0]] * 12
    assert max(most) == 1


def test_few_bodies_are_held_at_once():
    """Requests beyond the limit wait before their bodies are read; all are answered in the end."""
    entered, gate = threading.Semaphore(0), threading.Event()

    def waits(images, prompts, metadata):
        entered.release()
        assert gate.wait(20)
        return [1.0] * len(images)

    limits = Limits(requests=1)
    with running({"waits": waits, "brightness": brightness}, limits) as url, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, f"{url}/waits", encode_batch(batch_of(0.5)))
        assert entered.acquire(timeout=20)
        second = pool.submit(post, f"{url}/brightness", encode_batch(batch_of(0.5)))
        assert httpx.get(f"{url}/health").status_code == 200  # needs no place
        assert not second.done()
        gate.set()
        assert second.result(20).json()["scores"] == [0.5]
        assert first.result(20).json()["scores"] == [1.0]


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic s3cret", "Bearer s3cret2", "Bearer \xff"])
def test_without_the_token(given):
    """Every path but the schema needs it, and the body is not even read."""
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    with running({"brightness": brightness}, token="s3cret") as url:
        for path in ("health", "brightness", "nobody"):
            assert httpx.get(f"{url}/{path}", headers=headers).status_code == 401
        assert httpx.post(f"{url}/brightness", headers=headers, content=b"").status_code == 401
        assert httpx.get(f"{url}/health", headers={"Authorization": "Bearer s3cret"}).status_code == 200


def test_who_may_listen_where(monkeypatch):
    """Other machines only with a token; the token fits into a header."""
    monkeypatch.delenv(TOKEN, raising=False)
    assert [token_for(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [None] * 4
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", ""):  # noqa: S104 (refused)
        with pytest.raises(UserError, match=f"set {TOKEN} to a long secret"):
            token_for(host)
    monkeypatch.setenv(TOKEN, "abc")
    assert token_for("0.0.0.0") == "abc"  # noqa: S104 (a value)
    monkeypatch.setenv(TOKEN, "a\r\nb")
    with pytest.raises(UserError, match="printable ASCII"):
        token_for("127.0.0.1")


def test_identity_depends_on_the_options():
    """A reward of other options is another reward for a client's cache."""
    make = plugins.load("rewards", "jpeg")
    one, two = (Served("jpeg", make(quality=q), LIMITS, {"quality": q}).description.identity for q in (80, 90))
    assert one != two


def test_fastapi_is_named_when_it_is_missing(monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "fastapi", None)
    with pytest.raises(UserError, match=r"pip install 'flowrl\[serve\]'"):
        create_app({}, LIMITS)


@pytest.mark.parametrize("error", [RunStopped("x"), UserError("y")])
def test_what_stops_a_run_does_not_stop_the_server(error):
    """A broken reward is 500 again and again, and the others go on."""

    def stops(images, prompts, metadata):
        raise error

    with running({"stops": stops, "brightness": brightness}) as url:
        for _ in range(3):
            assert post(f"{url}/stops", encode_batch(batch_of(0.5))).status_code == 500
        assert post(f"{url}/brightness", encode_batch(batch_of(0.5))).status_code == 200


def malformed(chance: random.Random) -> tuple[str, str, bytes, str]:
    """Method, path, body and content type of a request that is wrong, or might be."""
    whole = bytearray(encode_batch(batch_of(0.5, 0.25)))
    for _ in range(chance.randrange(1, 8)):
        whole[chance.randrange(len(whole))] = chance.randrange(256)
    deep = b"[" * chance.randrange(1, 5000)
    wild = {"images": chance.choice([[], [""], [[text(png())[:-9]]], 3, [text(png())] * 9]), "prompts": [None, "a"]}
    content = chance.choice(
        [
            chance.randbytes(chance.randrange(300)),
            bytes(whole),
            bytes(whole)[: chance.randrange(len(whole))],
            struct.pack("<Q", chance.randrange(2**64)) + chance.randbytes(40),
            struct.pack("<Q", len(deep)) + deep,
            b'{"images": ' + deep,
            json.dumps(wild).encode(),
            bytes(chance.randrange(19_000, 22_000)),
        ]
    )
    path = chance.choice(["brightness"] * 6 + ["picky", "broken", "clips", "health", "%00", "..%2f", "a" * 2000])
    method = chance.choice(["POST"] * 8 + ["GET", "PUT", "BREW"])
    return (
        method,
        path,
        content,
        chance.choice([SAFETENSORS, JSON, JSON, "", "text/html", "application/json; charset=x"]),
    )


def fuzz(address: str, count: int, seed: int = 0) -> dict[int, int]:
    """Send malformed requests, and count the answers by status; no answer shows the server's inside."""
    chance, statuses = random.Random(seed), {}
    with httpx.Client(base_url=address, timeout=30) as client:
        for _ in range(count):
            method, path, content, kind = malformed(chance)
            answer = client.request(method, f"/{path}", content=content, headers={"Content-Type": kind})
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert not any(leak in answer.text for leak in LEAKS), answer.text
    return statuses


def test_malformed_requests(address):
    """Some hundred of them: each is refused as documented, and the server goes on."""
    statuses = fuzz(address, 300)
    assert set(statuses) <= {200, 404, 405, 413, 415, 422, 500}
    assert statuses[422] > 50
    assert post(f"{address}/brightness", encode_batch(batch_of(0.5))).json()["scores"] == [0.5]


@pytest.mark.slow
def test_ten_thousand_malformed_requests_leave_no_trace(address):
    """After a warm-up, eight thousand leave less than 128 bytes each with Python, and less than 16 MB in the process.

    The process is the client's, too, and what its allocator keeps grows for a while: hence the two bounds.
    """
    process = psutil.Process(os.getpid())
    fuzz(address, 2_000, seed=1)
    gc.collect()
    tracemalloc.start(1)
    try:
        before = process.memory_info().rss
        statuses = fuzz(address, 8_000, seed=2)
        gc.collect()
        traced = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    grown = process.memory_info().rss - before
    print(f"statuses {statuses}, traced {traced / 2**20:.2f} MiB, process grown by {grown / 2**20:.1f} MiB")  # noqa: T201
    assert 500 not in statuses
    assert traced < 8_000 * 128
    assert grown < 16 * 2**20
    assert post(f"{address}/brightness", encode_batch(batch_of(0.5))).json()["scores"] == [0.5]


def test_the_schema_s_own_fuzz(address):
    """Requests that schemathesis makes from the OpenAPI schema: none makes the server fail."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    rewards = {"brightness": Served("brightness", Clips(), LIMITS, {})}
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(rewards, LIMITS))
    for path, method in (("/{name}", "POST"), ("/{name}", "GET"), ("/health", "GET")):

        @given(case=schema[path][method].as_strategy())
        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        def no_failure(case):
            answer = case.call()
            assert answer.status_code < 500
            assert not any(leak in answer.text for leak in LEAKS)

        no_failure()
