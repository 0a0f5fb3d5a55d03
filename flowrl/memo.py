"""Remembers what the frozen parts of a pipeline returned, so that a replay calls no encoder and draws no condition.

A replay runs the pipeline again for one step. What lies around the denoiser (text and image encoders, the VAE's
encoder, noise on a conditioning image) must give exactly what it gave in the rollout; running it again would cost time
and, where it draws at random, would make the probability ratio differ from 1.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Key = tuple[str, str]


class Memo:
    """Results of frozen callables, by the content of their arguments; the oldest leave when they grow too large."""

    def __init__(self, limit: int = 2**30) -> None:
        """Make an empty memory.

        Args:
            limit: bytes of tensors that it holds at most; the newest result stays whatever its size.
        """
        self._results: OrderedDict[Key, Any] = OrderedDict()
        self._limit, self._held = limit, 0

    def get(self, key: Key, compute: Callable[[], Any]) -> Any:
        """The remembered result, or a new one."""
        if key not in self._results:
            self._results[key] = compute()
            self._held += nbytes(self._results[key])
            while self._held > self._limit and len(self._results) > 1:
                self._held -= nbytes(self._results.popitem(last=False)[1])
        self._results.move_to_end(key)
        return self._results[key]

    def clear(self) -> None:
        """Forget everything (a frozen part has changed, say)."""
        self._results.clear()
        self._held = 0


class Memory:
    """What one rollout needs to be replayed: the results of frozen parts that it used.

    Attributes:
        open: results are remembered; closed once the denoising loop runs, where each step has inputs of its own.
    """

    def __init__(self, shared: Memo, stem: Memory | None = None, times: int = 1) -> None:
        """Share results with other rollouts through ``shared``; keep alive those that this one used.

        Args:
            shared: results of all rollouts.
            stem: of a rollout of the same calls with fewer samples, which knows the shapes of what a walk answers.
            times: how many times as many samples there are here.
        """
        self._shared = shared
        self._used: dict[Key, Any] = {}
        self._blanks: dict[tuple[str, tuple[Any, ...]], Any] = {}
        self._answers: dict[tuple[str, int], Any] = {}
        self._foreseen = {} if stem is None else {call: grown(blank, times) for call, blank in stem._answers.items()}
        self._inside = False
        self.open = True

    def recall(self, name: str, function: Callable[..., Any], walking: Callable[[], bool]) -> Callable[..., Any]:
        """A function that answers from memory where it can, and with zeros where ``walking`` says so."""
        answered = self.walked(name, function, walking)

        def compute(*args: Any, **kwargs: Any) -> Any:
            self._inside = True
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False

        def remembered(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # the caller's result is remembered: to keep this one too would hold it twice
                return function(*args, **kwargs)
            key = (name, digest((args, kwargs)))
            if self.open and key not in self._used:
                self._used[key] = self._shared.get(key, lambda: compute(*args, **kwargs))
            if key in self._used:
                return _fresh(self._used[key])
            return answered(*args, **kwargs)

        return remembered

    def walked(self, name: str, function: Callable[..., Any], walking: Callable[[], bool]) -> Callable[..., Any]:
        """A function whose result is zeros where ``walking`` says so, shaped as it was for inputs of such shapes."""
        calls = count()

        def answered(*args: Any, **kwargs: Any) -> Any:
            self.open = False  # what is called on the way has inputs of its own at each step
            key, call = (name, (*shapes((args, kwargs)), *words((args, kwargs)))), (name, next(calls))
            blank = self._blanks.get(key, self._foreseen.get(call)) if walking() else None
            if blank is not None:
                self._blanks[key] = self._answers[call] = blank
                return mapped(blank, lambda zero: zero.clone())
            held = _held((args, kwargs))
            versions = [tensor._version for tensor in held]
            result = function(*args, **kwargs)
            # Zeros cannot stand for state that later steps read, such as a cache of keys and values.
            now = _held((args, kwargs))
            same = list(map(id, now)) == list(map(id, held)) and [tensor._version for tensor in now] == versions
            if same and _blankable(result):
                self._blanks[key] = self._answers[call] = mapped(result, lambda tensor: _zero(tensor, tensor.shape))
            return result

        return answered


def _zero(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros of a shape, of the type of a tensor, that take no memory."""
    return torch.zeros((), dtype=like.dtype, device=like.device).expand(torch.Size(shape))


def grown(blank: Any, times: int) -> Any:
    """What a model that answered with such zeros answers for ``times`` as many samples.

    Samples are rows of a tensor, or the tensors of a list.

    >>> grown((torch.zeros(2, 3), None), 2)[0].shape, len(grown([torch.zeros(3)], 2))
    (torch.Size([4, 3]), 2)
    """
    if isinstance(blank, list):
        return [part for part in blank for _ in range(times)]
    if isinstance(blank, Tensor):
        return _zero(blank, [times * size if axis == 0 else size for axis, size in enumerate(blank.shape)])
    if isinstance(blank, tuple):
        parts = [grown(part, times) for part in blank]
        return type(blank)(*parts) if hasattr(blank, "_fields") else tuple(parts)
    if isinstance(blank, Mapping):
        items = {key: grown(part, times) for key, part in blank.items()}
        return items if type(blank) is dict else type(blank)(**items)
    return blank


def _blankable(value: Any) -> bool:
    """Whether nested containers hold nothing but tensors and constants, so that zeros can stand for them.

    >>> _blankable((torch.ones(2), None, {"a": [1.0]})), _blankable((torch.ones(2), object()))
    (True, False)
    """
    if isinstance(value, Mapping):
        return all(map(_blankable, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_blankable, value))
    return value is None or isinstance(value, (Tensor, bool, int, float, str))


def _held(value: Any, depth: int = 0) -> list[Tensor]:
    """The tensors that objects in nested containers hold, and the objects in those; not the containers' own."""
    if isinstance(value, Tensor):
        return [value] if depth else []
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _held(part, depth)]
    if isinstance(value, nn.Module) or depth == 3:
        return []
    return _held(getattr(value, "__dict__", {}), depth + 1)


def _fresh(value: Any) -> Any:
    """A result in lists and dictionaries of its own: some pipelines write into those that they are given."""
    if type(value) in (list, tuple):
        return type(value)(_fresh(part) for part in value)
    return {key: _fresh(part) for key, part in value.items()} if type(value) is dict else value


def digest(value: Any) -> str:
    """A hash of the content of nested arguments: numbers, text, tensors, arrays, pictures, containers.

    >>> digest((1, "a")) == digest((1, "a")), digest(1) == digest(1.0)
    (True, False)
    """
    state = hashlib.blake2b(digest_size=16)
    for chunk in _chunks(value):
        state.update(len(chunk).to_bytes(8, "little"))
        state.update(chunk)
    return state.hexdigest()


def _chunks(value: Any) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        yield str(len(value)).encode()
        for key in sorted(value, key=str):
            yield from _chunks(key)
            yield from _chunks(value[key])
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        yield str(len(value)).encode()
        for item in value:
            yield from _chunks(item)
    elif hasattr(value, "tobytes"):  # a PIL picture
        yield f"{getattr(value, 'mode', '')} {getattr(value, 'size', '')}".encode()
        yield value.tobytes()
    else:
        yield repr(value).encode()


def shapes(value: Any) -> tuple[Any, ...]:
    """The shapes of all tensors in nested containers, in order.

    >>> shapes((torch.ones(2, 1), {"a": [torch.ones(3)], "b": "text"}))
    (torch.Size([2, 1]), torch.Size([3]))
    """
    found: list[Any] = []
    mapped(value, lambda tensor: found.append(tensor.shape))
    return tuple(found)


def words(value: Any) -> tuple[str, ...]:
    """The texts in nested containers, in order: the names of modes, mostly.

    >>> words((torch.ones(2), {"mode": "extract"}, None))
    ('extract',)
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return tuple(word for part in value for word in words(part))
    return (value,) if isinstance(value, str) else ()


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same nested containers with other tensors; what is neither container nor tensor stays.

    >>> mapped((torch.ones(2), [None, torch.ones(1)]), lambda tensor: tensor.tolist())
    ([1.0, 1.0], [None, [1.0]])
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        parts = [mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        items = {key: mapped(part, change) for key, part in value.items()}
        return items if type(value) is dict else type(value)(**items)  # diffusers' outputs: their keys are fields
    return value


def nbytes(value: Any) -> int:
    """Bytes of the tensors in nested containers, and of those that are attributes of objects (a distribution, say).

    >>> nbytes((torch.zeros(3), {"a": [torch.zeros(2)]}, "text", None))
    20
    """
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(map(nbytes, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return sum(map(nbytes, value))
    return sum(nbytes(part) for part in getattr(value, "__dict__", {}).values() if isinstance(part, Tensor))


@contextmanager
def exchanged(owner: Any, replacements: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Exchange methods of an object, or of its parts (``"vae.encode"``), and put the old ones back afterwards.

    Works on the instance alone, and restores methods that were already exchanged there (hooks of accelerate, say).
    """
    with ExitStack() as restore:
        for path, function in replacements.items():
            *parents, name = path.split(".")
            target = owner
            for parent in parents:
                target = getattr(target, parent)
            before = vars(target).get(name)
            vars(target)[name] = function
            restore.callback(_put_back, target, name, before)
        yield


def _put_back(target: Any, name: str, before: Any) -> None:
    if before is None:
        del vars(target)[name]
    else:
        vars(target)[name] = before


def frozen_callables(pipe: Any, trainable: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The callables of a pipeline that a replay must not run again, by their path.

    These are the forward passes of every module that is not trained, but for the VAE: of that, its ``encode``; and
    ``encode_prompt`` (and what else is called so, with an ending) as a whole, if no text encoder is trained: that
    spares the tokenizer too, and the hooks with which some read their encoder. The safety checker is
    left alone: it sees finished pictures, which a replay does not make. So is a module that holds trained weights, such
    as a control net that shares layers with the denoiser.
    """
    modules = {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}
    trained = {id(weight) for name in trainable for weight in modules[name].parameters()}
    found: dict[str, Callable[..., Any]] = {}
    for name, module in modules.items():
        if name in trainable or name == "safety_checker" or any(id(w) in trained for w in module.parameters()):
            continue
        method = "forward"
        if hasattr(module, "encode") and hasattr(module, "decode"):
            method = "encode"
        found[f"{name}.{method}"] = getattr(module, method)
    if not any("text_encoder" in name for name in trainable):
        found |= {name: getattr(pipe, name) for name in dir(type(pipe)) if name.startswith("encode_prompt")}
    return found
