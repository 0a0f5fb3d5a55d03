"""Tests of `flowrl.memo`: what is remembered, how it is told apart, and that encoders do not run again."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from flowrl.memo import Memo, Memory, digest, exchanged, frozen_callables, mapped, nbytes

from . import tiny
from .pipelines.cases import CASES

FITTING = dict(reversed(tiny.STOCHASTIC))


def encoder_calls(pipe, monkeypatch):
    """Counts calls of every text encoder, every tokenizer, and the VAE's encoder."""
    calls = Counter()
    for name, part in pipe.components.items():
        if name.startswith("text_encoder") and part is not None:
            part.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    for kind in {type(part) for name, part in pipe.components.items() if name.startswith("tokenizer") and part}:
        monkeypatch.setattr(kind, "__call__", counted(kind.__call__, calls, "tokenizer"))
    monkeypatch.setattr(type(pipe.vae), "encode", counted(type(pipe.vae).encode, calls, "vae.encode"))
    return calls


def never():
    """Not on a walk."""
    return False


def counted(function, calls, name):
    """A function that counts its calls."""

    def counting(*args, **kwargs):
        calls.update([name])
        return function(*args, **kwargs)

    return counting


@pytest.mark.parametrize("guided", [False, True], ids=["unguided", "guided"])
@pytest.mark.parametrize("pipeline", list(tiny.PIPELINES))
def test_encoders_run_once_a_prompt_batch(pipeline, guided, monkeypatch):
    """Each text encoder runs once in a rollout (twice with a negative prompt), and never in an epoch of replays."""
    policy, arguments = tiny.policy(pipeline, FITTING[pipeline]), tiny.arguments(pipeline, guided=guided)
    calls = encoder_calls(policy.pipe, monkeypatch)
    rollout = policy.rollout(**arguments)
    encoders = [name for name, part in policy.pipe.components.items() if name.startswith("text_encoder") and part]
    assert {name: calls[name] for name in encoders} == dict.fromkeys(encoders, 1 + guided)
    assert calls["tokenizer"] > 0
    assert calls["vae.encode"] == 0

    calls.clear()
    for step in rollout.transitions:
        policy.replay(rollout, step)
        policy.predict(rollout, rollout.latents, 0.5)
    assert calls.total() == 0


@pytest.mark.parametrize("pipeline", list(tiny.PIPELINES))
def test_same_prompts_are_not_encoded_again(pipeline, monkeypatch):
    """A second rollout of the same prompts calls no encoder, nor does the stock sampler; other prompts do."""
    policy, arguments = tiny.policy(pipeline, FITTING[pipeline]), tiny.arguments(pipeline)
    calls = encoder_calls(policy.pipe, monkeypatch)
    policy.rollout(**arguments)
    calls.clear()
    policy.rollout(**{**arguments, "seeds": [5, 6]})
    policy.sample(**arguments)
    assert calls.total() == 0
    policy.rollout(**{**arguments, "prompts": arguments["prompts"][::-1]})
    assert calls.total() > 0


@pytest.mark.parametrize("pipeline", list(tiny.PIPELINES))
def test_results_are_held_once(pipeline):
    """Remembered are the prompt's embeddings, and not the hidden states of the encoders that made them too."""
    policy = tiny.policy(pipeline, FITTING[pipeline])
    shared = policy._memo
    policy.rollout(**tiny.arguments(pipeline, guided=False))
    assert [name for name, _ in shared._results] == ["encode_prompt"]


def test_memo_forgets_the_oldest_by_bytes():
    """Results leave in the order of their last use, when more than the limit is held; the newest stays."""
    memo = Memo(limit=100)
    made = []

    def get(name, size):
        return memo.get((name, ""), lambda: made.append(name) or torch.zeros(size, dtype=torch.uint8))

    get("a", 40)
    get("b", 40)
    get("a", 40)  # used again: now b is the oldest
    get("c", 40)  # 120 bytes: b leaves
    get("a", 40)
    get("b", 40)  # made again; c, used before a, leaves
    assert made == ["a", "b", "c", "b"]
    assert get("d", 500).numel() == 500
    get("d", 500)
    assert made == ["a", "b", "c", "b", "d"]
    memo.clear()
    get("a", 40)
    get("b", 40)
    get("a", 40)
    assert made == ["a", "b", "c", "b", "d", "a", "b"]


def test_recall_keeps_what_a_rollout_used():
    """What a rollout used stays with it when the shared memory has forgotten it, and an exception is not remembered."""
    shared = Memo()
    memory = Memory(shared)
    attempts = []

    def encode(x):
        attempts.append(x)
        if len(attempts) == 1:
            raise ValueError(x)
        return torch.zeros(1)

    remembered = memory.recall("encode", encode, never)
    with pytest.raises(ValueError, match="a"):
        remembered("a")
    first = remembered("a")
    shared.clear()
    assert remembered("a") is first
    assert Memory(shared).recall("encode", encode, never)("a") is not first
    assert attempts == ["a", "a", "a"]


def test_remembered_functions_that_call_each_other():
    """Only the outer result is held; called alone, the inner one is remembered too."""
    memo, calls = Memo(), []
    memory = Memory(memo)
    inner = memory.recall("inner", lambda x: calls.append(x) or x + 1, never)
    outer = memory.recall("outer", lambda x: 2 * inner(x), never)
    assert [outer(1), outer(1)] == [4, 4]
    assert (calls, len(memo._results)) == ([1], 1)
    assert [inner(1), inner(1)] == [2, 2]
    assert (calls, len(memo._results)) == ([1, 1], 2)


def test_a_caller_may_write_into_what_it_is_given():
    """What a pipeline appends to a list, or exchanges in it, is not remembered."""
    remembered = Memory(Memo()).recall("f", lambda: [torch.zeros(1), {"a": [1]}], lambda: False)
    for _ in range(2):
        result = remembered()
        assert torch.equal(result[0], torch.zeros(1))
        assert result[1] == {"a": [1]}
        result[0] = torch.ones(2)
        result[1]["a"].append(2)


def test_a_walk_is_answered_with_zeros():
    """On a walk a result is zeros, shaped as it was for inputs of such shapes; other inputs are computed."""
    memory, walking = Memory(Memo()), []
    model = memory.walked("model", lambda x: (x + 1, [x.bfloat16()], None), lambda: bool(walking))
    model(torch.ones(2, 3))
    walking.append(True)
    zero, (low,), none = model(torch.ones(2, 3))
    assert torch.equal(zero, torch.zeros(2, 3))
    assert (low.dtype, low.abs().max().item(), none) == (torch.bfloat16, 0.0, None)
    assert torch.equal(model(torch.ones(1, 3))[0], torch.full((1, 3), 2.0))


class Cache:
    """State that a model hands on from one step to the next."""

    def __init__(self):
        self.layers = [type("Layer", (), {})()]


def test_a_walk_makes_state_anew():
    """A cache that a model returns, or writes into, is not zeros on a walk; calls that only read it are."""
    memory, walking, calls = Memory(Memo()), [], []

    def model(x, cache=None, mode=None):
        calls.append(mode)
        if mode == "new":
            return x, Cache()
        if mode == "write":
            cache.layers[0].keys = x + 1
        return (x,)

    walked = memory.walked("model", model, lambda: bool(walking))
    x, shared = torch.ones(2), Cache()
    for mode in ("new", "write", "read"):
        walked(x, cache=shared, mode=mode)
    walking.append(True)
    again = Cache()
    assert walked(x, cache=again, mode="new")[0].tolist() == [1, 1]
    assert walked(x, cache=again, mode="write")[0].tolist() == [1, 1]
    assert walked(x, cache=again, mode="read")[0].tolist() == [0, 0]
    assert again.layers[0].keys.tolist() == [2, 2]
    assert calls == ["new", "write", "read", "new", "write"]


def test_a_walk_calls_nothing_that_the_loop_called():
    """A control in the loop is remembered for the first step alone; on a walk to a later one, it does not run."""
    memory, walking, calls = Memory(Memo()), [], []
    control = memory.recall("control", lambda x: calls.append(1) or x + 1, lambda: bool(walking))
    control(torch.ones(2))
    memory.open = False
    control(torch.zeros(2))
    walking.append(True)
    assert control(torch.ones(2)).tolist() == [2, 2]
    assert control(torch.full((2,), 5.0)).tolist() == [0, 0]
    assert len(calls) == 2


def test_once_closed_nothing_more_is_held():
    """Inside the denoising loop each step has inputs of its own: to hold all of them would fill the memory."""
    memo, calls = Memo(), []
    memory = Memory(memo)
    control = memory.recall("control", lambda x: calls.append(x) or x, never)
    control(1)
    memory.open = False
    assert [control(1), control(2), control(2)] == [1, 2, 2]
    assert (calls, len(memo._results)) == ([1, 2, 2], 1)


PICTURE = Image.new("RGB", (2, 1), "red")
DIFFERENT = [
    (1, 1.0),
    ("1", 1),
    (True, 1),
    (None, "None"),
    (b"a", "a"),
    ([1, 2], [2, 1]),
    ([1, 2], (1, 2)),
    ([[1], 2], [[1, 2]]),
    (["ab"], ["a", "b"]),
    ({"a": 1}, {"a": 2}),
    ({"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}),
    (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
    (torch.zeros(2, 1), torch.zeros(1, 2)),
    (torch.zeros(4), np.zeros(4, dtype=np.float32)),
    (torch.tensor(0.0), torch.tensor(1.0)),
    (np.zeros(2), np.zeros(2, dtype=np.float32)),
    (PICTURE, Image.new("RGB", (1, 2), "red")),
    (PICTURE, Image.new("RGB", (2, 1), "blue")),
    (PICTURE, PICTURE.convert("RGBA")),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_digest_tells_apart(one, other):
    """Arguments that differ in value, type, shape, dtype or nesting have different digests."""
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    "value", [value for pair in DIFFERENT for value in pair], ids=lambda value: type(value).__name__
)
def test_digest_is_of_the_content(value):
    """An equal value in another object has the same digest."""
    copy = value.clone() if isinstance(value, torch.Tensor) else value.copy() if hasattr(value, "copy") else value
    assert digest((copy, {"x": copy})) == digest((value, {"x": value}))


def test_digest_of_a_view():
    """A view has the digest of its content, whatever its strides."""
    x = torch.arange(6.0).reshape(2, 3)
    assert digest(x.T) == digest(x.T.contiguous()) != digest(x)


def test_nbytes_of_objects():
    """Tensors count in containers and as attributes: 3 x 4 + 2 x 2 + 5 x 1 = 21 bytes."""

    class Distribution:
        def __init__(self):
            self.mean = torch.zeros(3)
            self.owner = self

    value = {"d": Distribution(), "list": [torch.zeros(2, dtype=torch.half), (torch.zeros(5, dtype=torch.uint8), "a")]}
    assert nbytes(value) == 21


class Part:
    """Something with methods."""

    def encode(self):
        """The original."""
        return "stock"


class Pipe:
    """An owner of a part."""

    def __init__(self):
        self.vae = Part()

    def prepare(self):
        """The original."""
        return "stock"


def test_exchanged_methods_come_back():
    """Methods of an object and of its parts are exchanged on the instance alone, also if the block fails."""
    pipe, other = Pipe(), Pipe()
    with exchanged(pipe, {"prepare": lambda: "mine", "vae.encode": lambda: "mine"}):
        assert (pipe.prepare(), pipe.vae.encode(), other.prepare()) == ("mine", "mine", "stock")
    with pytest.raises(ZeroDivisionError), exchanged(pipe, {"vae.encode": lambda: 1 / 0}):
        pipe.vae.encode()
    with pytest.raises(AttributeError), exchanged(pipe, {"prepare": lambda: "mine", "unet.forward": lambda: "mine"}):
        pytest.fail("the second owner is not there")
    assert (pipe.prepare(), pipe.vae.encode()) == ("stock", "stock")
    assert list(vars(pipe)) == ["vae"]


def test_exchanged_restores_a_hooked_method():
    """A method that was exchanged before (a hook of accelerate, say) is there again afterwards."""
    pipe = Pipe()
    pipe.prepare = lambda: "hooked"
    with exchanged(pipe, {"prepare": lambda: "mine"}):
        assert pipe.prepare() == "mine"
    assert pipe.prepare() == "hooked"


@pytest.mark.parametrize(
    ("pipeline", "trainable", "wanted"),
    [
        ("sd3", ["transformer"], ["encode_prompt", "text_encoder.forward", "text_encoder_2.forward", "vae.encode"]),
        ("flux", ["transformer"], ["encode_prompt", "text_encoder.forward", "text_encoder_2.forward", "vae.encode"]),
        ("sd15", ["unet"], ["encode_prompt", "text_encoder.forward", "vae.encode"]),
        ("sd15", ["unet", "text_encoder"], ["vae.encode"]),
    ],
)
def test_frozen_callables(pipeline, trainable, wanted):
    """Everything before the denoiser is remembered; a text encoder that is trained, and its prompts, are not."""
    assert sorted(frozen_callables(tiny.PIPELINES[pipeline](), trainable)) == wanted


def test_safety_checker_is_not_remembered():
    """It sees finished pictures, which are never the same again: to keep them would fill the memory."""
    pipe = tiny.sd15()
    pipe.register_modules(safety_checker=torch.nn.Identity())
    assert "safety_checker.forward" not in frozen_callables(pipe, ["unet"])


def test_a_module_with_trained_weights_is_not_remembered():
    """A control net that shares a layer with the denoiser changes with it: what it gave once is not what it gives."""
    pipe = tiny.sd15()
    apart = torch.nn.Linear(2, 2)
    pipe.register_modules(image_encoder=torch.nn.ModuleList([apart]))
    assert "image_encoder.forward" in frozen_callables(pipe, ["unet"])
    pipe.register_modules(image_encoder=torch.nn.ModuleList([apart, pipe.unet.conv_in]))
    assert "image_encoder.forward" not in frozen_callables(pipe, ["unet"])


def test_mapped_takes_any_key():
    """Dictionaries by layer number too, as some control nets return them."""
    assert mapped({0: torch.ones(1), 5: None}, lambda tensor: tensor.tolist()) == {0: [1.0], 5: None}


def test_every_way_to_encode_a_prompt_is_remembered():
    """Some classes have another function for prompts with pictures."""
    pipe = CASES["JoyImageEditPipeline"].build()
    assert {"encode_prompt", "encode_prompt_multiple_images"} < set(frozen_callables(pipe, ["transformer"]))


def test_a_walk_of_more_samples_knows_the_shapes_from_fewer():
    """Call by call, a memory that stems from another answers a walk with the zeros of as many times the samples."""
    stem, made = Memory(Memo()), []

    def model(x):
        made.append(len(x))
        return (x + 1, list(x), {"a": x.sum()})

    answered = stem.walked("model", model, never)
    answered(torch.ones(2, 3))
    answered(torch.ones(2, 5))
    later = Memory(Memo(), stem, times=3)
    walked = later.walked("model", model, lambda: True)
    assert later.open
    for size in (3, 5):
        tensor, rows, total = walked(torch.ones(6, size))
        assert torch.equal(tensor, torch.zeros(6, size))
        assert [row.shape for row in rows] == [(size,)] * 6
        assert total["a"].shape == ()
    assert made == [2, 2]
    assert not later.open
    walked(torch.ones(6, 7))  # a call that the stem has not made
    assert made == [2, 2, 6]
    # Once known, shapes serve any later walk, and a memory that stems from this one.
    assert torch.equal(later.walked("model", model, lambda: True)(torch.ones(6, 5))[0], torch.zeros(6, 5))
    assert len(Memory(Memo(), later, times=2).walked("model", model, lambda: True)(torch.ones(12, 3))[0]) == 12
    assert made == [2, 2, 6]
