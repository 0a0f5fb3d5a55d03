"""Text encoders that leave the device when the prompts of a run are encoded; what they gave is kept (see ``fit``)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .errors import UserError
from .memo import Key, Memo, digest, mapped

if TYPE_CHECKING:
    from .policy import Policy


def let_go(policy: Policy, calls: Iterable[Callable[[], object]], *, release: bool) -> None:
    """Encode the prompts of a run once, and send the text encoders away.

    Args:
        policy: the policy.
        calls: each samples a micro-batch; it is cut short at the first model call, so that only encoders run.
        release: drop the encoders; else they lie on the CPU, and come back for a prompt that was not among these.

    Raises:
        UserError: the pipeline needs its text encoders for more than encoding prompts.
    """
    encoders = TextEncoders(policy, release)
    policy.remember_in(Kept(encoders))
    first: Callable[[], object] | None = None
    for call in calls:
        first = first or call
        _encode(policy, call)
    encoders.leave()
    if first is None:
        return
    try:
        _encode(policy, first)
    except (TypeError, AttributeError) as error:
        raise UserError(
            f"fit.text_encoders: {type(policy.pipe).__name__} uses its text encoders outside of encode_prompt "
            f"({error}); write keep."
        ) from error


class _Encoded(Exception):
    """All encoders have run."""


def _encode(policy: Policy, call: Callable[[], object]) -> None:
    def stop(*_: Any) -> None:
        raise _Encoded

    # Before any other hook, and so before the all-gather of a sharded model, which others would have to join.
    hooks = [module.register_forward_pre_hook(stop, prepend=True) for module in policy.modules.values()]
    try:
        call()
    except _Encoded:
        pass
    finally:
        for hook in hooks:
            hook.remove()


class TextEncoders:
    """The frozen text encoders of a pipeline, which can leave it.

    Attributes:
        here: whether the pipeline has them.
    """

    def __init__(self, policy: Policy, release: bool) -> None:
        """Find them; nothing moves yet."""
        self._policy, self._release, self.here = policy, release, True
        self._modules = {
            name: part
            for name, part in policy.pipe.components.items()
            if isinstance(part, nn.Module) and "text_encoder" in name and name not in policy.modules
        }

    def leave(self) -> None:
        """Take them out of the pipeline, and to the CPU or away."""
        self.here = False
        for name, module in self._modules.items():
            setattr(self._policy.pipe, name, None)
            if not self._release:
                module.to("cpu")
        if self._release:
            self._modules.clear()
            gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @contextmanager
    def back(self) -> Iterator[None]:
        """The pipeline with its encoders inside the block.

        Raises:
            UserError: they were dropped.
        """
        if self._release:
            raise UserError(
                "a prompt was not among those that were encoded before the text encoders were dropped; write "
                "fit.text_encoders: offload."
            )
        self.here = True
        for name, module in self._modules.items():
            setattr(self._policy.pipe, name, module.to(self._policy.device))
        try:
            yield
        finally:
            self.leave()


class Kept(Memo):
    """A memory that never forgets what text encoders gave, and holds it on the CPU, each row once.

    A row (a sample's embedding) that occurs in several batches, as all of a group's do, is held once, if it came out
    the same. What comes back is the same bit for bit.
    """

    def __init__(self, encoders: TextEncoders) -> None:
        """Ask these encoders for what is not known."""
        super().__init__()
        self._encoders = encoders
        self._packed: dict[Key, tuple[Any, list[_Rows]]] = {}
        self._rows: dict[str, Tensor] = {}

    def get(self, key: Key, compute: Callable[[], Any]) -> Any:
        """The remembered result, or a new one."""
        if not key[0].startswith("encode_prompt"):
            return super().get(key, compute)
        if key not in self._packed:
            with nullcontext() if self._encoders.here else self._encoders.back():
                result = compute()
            rows: list[_Rows] = []
            self._packed[key] = mapped(result, lambda tensor: self._pack(tensor, rows)), rows
        places, rows = self._packed[key]
        return mapped(places, lambda place: rows[int(place)].tensor(self._rows))

    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(row.numel() * row.element_size() for row in self._rows.values())

    def _pack(self, tensor: Tensor, rows: list[_Rows]) -> Tensor:
        """Put a tensor's rows into ``rows``; its place there."""
        parts = list(tensor) if tensor.is_contiguous() and tensor.dim() > 1 and len(tensor) else [tensor]
        names = []
        for part in parts:
            held = part.detach().cpu()
            names.append(digest(held))
            self._rows.setdefault(names[-1], held.clone() if len(parts) > 1 else held)
        rows.append(_Rows(names, len(parts) if parts[0] is not tensor else None, tensor.device))
        return torch.tensor(len(rows) - 1)


class _Rows:
    """A tensor as the names of its rows."""

    def __init__(self, names: list[str], count: int | None, device: torch.device) -> None:
        """``count`` is None for a tensor that is held whole."""
        self._names, self._count, self._device = names, count, device

    def tensor(self, rows: dict[str, Tensor]) -> Tensor:
        """The tensor, on its device."""
        if self._count is None:
            return rows[self._names[0]].to(self._device)
        return torch.stack([rows[name] for name in self._names]).to(self._device)
