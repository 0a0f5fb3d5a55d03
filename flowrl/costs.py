"""What a call of a module would cost, found out on torch's fake tensors, which have no data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakIdKeyDictionary

from . import memo
from .memo import mapped


@dataclass(frozen=True)
class Cost:
    """What a call costs.

    Attributes:
        flops: floating-point operations of the forward pass, a multiplication and an addition counted as two.
        peak: most bytes alive at once in it, beside weights and arguments.
        training_flops: the same with the backward pass to the trained weights.
        training_peak: the same with the backward pass.
        held: bytes that the forward pass keeps for the backward pass.
        answer: the result, as fake tensors.
    """

    flops: int
    peak: int
    training_flops: int
    training_peak: int
    held: int
    answer: Any


class Stub:
    """Stands for a method of a module: answers with zeros, and knows what the method would have cost."""

    def __init__(self, owner: nn.Module, method: Callable[..., Any], trained: Sequence[Tensor] = ()) -> None:
        """Stand for a method; ``trained`` are the weights that a backward pass would reach."""
        self._owner, self._method, self._trained = owner, method, trained
        self._known: dict[Any, Cost] = {}
        self._calls: list[Cost] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The zeros."""
        key = (memo.shapes((args, kwargs)), memo.words((args, kwargs)))
        if key not in self._known:
            weights = [*self._owner.parameters(), *self._owner.buffers()]
            self._known[key] = measure(self._method, args, kwargs, weights, self._trained)
        self._calls.append(self._known[key])
        # Fake tensors know the device that they stand for.
        return mapped(self._known[key].answer, lambda t: torch.zeros(t.shape, dtype=t.dtype, device=t.device))

    def take(self) -> list[Cost]:
        """What the calls since the last time would have cost."""
        calls, self._calls = self._calls, []
        return calls


def measure(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    weights: Iterable[Tensor],
    trained: Sequence[Tensor] = (),
) -> Cost:
    """What a call would cost, computed on fake tensors.

    Args:
        function: a method of a module.
        args: of the call.
        kwargs: of the call.
        weights: of the module, which are there anyway.
        trained: weights that a backward pass goes to; none for a call without one.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake_args, fake_kwargs = mapped((tuple(args), dict(kwargs)), mode.from_tensor)
        there: list[Tensor] = [mode.from_tensor(weight) for weight in weights]
        mapped((fake_args, fake_kwargs), there.append)
        with torch.no_grad(), FlopCounterMode(display=False) as flops, Alive(there) as alive:
            answer = function(*fake_args, **fake_kwargs)
        if not trained:
            return Cost(flops.get_total_flops(), alive.peak, 0, 0, 0, answer)
        with torch.enable_grad(), FlopCounterMode(display=False) as all_flops, Alive(there) as all_alive:
            outputs: list[Tensor] = []
            mapped(function(*fake_args, **fake_kwargs), outputs.append)
            held = all_alive.now
            torch.autograd.grad([o.float().square().mean() for o in outputs[:1]], list(trained), allow_unused=True)
    return Cost(flops.get_total_flops(), alive.peak, all_flops.get_total_flops(), all_alive.peak, held, answer)


class Alive(TorchDispatchMode):
    """Bytes of the tensors that operations make, as long as they live.

    Attributes:
        now: bytes alive.
        peak: the most so far.
    """

    def __init__(self, there: Iterable[Tensor]) -> None:
        """Count new storages only: not those of ``there``, nor views of them."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: Any = WeakIdKeyDictionary()
        for tensor in there:
            self._known[tensor.untyped_storage()] = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and look at what it made."""
        result = func(*args, **(kwargs or {}))
        mapped(result, self._see)
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._known:
            self._known[storage] = True
            size = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size
