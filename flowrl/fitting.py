"""How a run fits a device, and how fast it is there: what the section ``fit`` of a recipe asks for.

`check_fit` refuses what cannot work before any weights load. `fit` changes a policy's models, once, before training.
`let_go` sends the text encoders away when the prompts of a run are encoded. What each key saves and costs is in
``docs/fitting.md``.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .errors import UserError
from .memo import Key, Memo, digest, mapped
from .plugins import nearest

if TYPE_CHECKING:
    from .config import FitConfig, RunConfig
    from .policy import Policy

_INSTALL = {
    "flash": "pip install flash-attn",
    "sage": "pip install sageattention",
    "xformers": "pip install 'flowrl[xformers]'",
    "aiter": "pip install 'kernels>=0.12'",
    "hub": "pip install 'kernels>=0.12'",
}
"""What makes an attention backend available, by a part of its name; the last that matches counts."""


def check_fit(config: RunConfig, eval_rows: int, processes: int = 1) -> None:
    """Refuse what a run cannot fit with, before any weights load.

    Args:
        config: the run.
        eval_rows: number of held-out prompts.
        processes: of the run.

    Raises:
        UserError: a backend or package is missing, or two settings exclude each other.
    """
    fit = config.fit
    if fit.attention is not None:
        check_attention(fit.attention)
    if fit.quantise != "none" and find_spec("torchao") is None:
        raise UserError(
            f"fit.quantise: {fit.quantise} needs the package torchao; pip install 'flowrl[torchao]', or write none."
        )
    for other, why in (
        (fit.quantise != "none", "quantise: weights in int8 cannot be trained"),
        (fit.fsdp, "fsdp: sharded weights cannot be copied and exported here"),
    ):
        if fit.train == "full" and other:
            raise UserError(f"fit.train: full excludes fit.{why}; write fit.train: lora.")
    if fit.train == "full" and config.model.dtype != "float32":
        raise UserError(
            f"fit.train: full updates the weights themselves, and in {config.model.dtype} small updates are rounded "
            "away; write model.dtype: float32, or fit.train: lora."
        )
    if fit.fsdp:
        _check_fsdp(config, eval_rows, processes)


def check_attention(backend: str) -> None:
    """Refuse an attention backend that diffusers does not know, or whose package is missing.

    >>> check_attention("native")
    >>> check_attention("nativ")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    flowrl.errors.UserError: fit.attention: diffusers has no backend 'nativ'. Did you mean 'native'? Known: ...
    """
    from diffusers.models import attention_dispatch as dispatch

    known = [name.value for name in dispatch.AttentionBackendName]
    if backend not in known:
        raise UserError(
            f"fit.attention: diffusers has no backend {backend!r}.{nearest(backend, known)} Known: {', '.join(known)}."
        )
    try:
        dispatch._check_attention_backend_requirements(dispatch.AttentionBackendName(backend))
    except (RuntimeError, ImportError) as error:
        how = [command for part, command in _INSTALL.items() if part in backend]
        advice = f" Install it: {how[-1]}." if how else ""
        raise UserError(f"fit.attention: {backend} cannot be used here: {error}{advice}") from error


def _check_fsdp(config: RunConfig, eval_rows: int, processes: int) -> None:
    """All processes must call the sharded model equally often, or they wait for one another for ever."""
    fit, evaluation = config.fit, config.eval
    if fit.quantise != "none" or fit.compile != "none":
        raise UserError("fit.fsdp goes with neither fit.quantise nor fit.compile; write none for both.")
    if processes < 2:
        raise UserError("fit.fsdp shares the base out over several processes; accelerate launch --num_processes 2 ...")
    samples, size = config.groups_per_step * config.group_size, config.micro_batch_size
    batches, shares = math.ceil(samples / size), processes * config.updates_per_step
    if batches % shares or (config.updates_per_step > 1 and samples % size):
        raise UserError(
            f"fit.fsdp: {batches} micro-batches a step are no equal work for {processes} processes and "
            f"{config.updates_per_step} updates; write groups_per_step x group_size as a multiple of "
            f"{shares} x micro_batch_size."
        )
    pictures = eval_rows * evaluation.samples_per_prompt
    if math.ceil(pictures / evaluation.micro_batch_size) % processes:
        raise UserError(
            f"fit.fsdp: {pictures} pictures in micro-batches of {evaluation.micro_batch_size} are no equal work for "
            f"{processes} processes; write eval.micro_batch_size: {math.ceil(pictures / processes)}."
        )


def fit(policy: Policy, how: FitConfig, device: torch.device) -> None:
    """Move a policy to its device, in the form that the run asks for.

    Args:
        policy: with its pipeline still on the CPU.
        how: the section ``fit``.
        device: of this process.

    Raises:
        UserError: a model does not support what was asked for.
    """
    for name, module in policy.modules.items():
        if how.quantise != "none":
            quantise(module)
        if how.gradient_checkpointing:
            _require(getattr(module, "_supports_gradient_checkpointing", False), name, module, "gradient_checkpointing")
            _of_diffusers(module).enable_gradient_checkpointing()
        if how.attention is not None:
            _set_attention(name, module, how.attention)
    for key, asked in (("tiling", how.vae_tiling), ("slicing", how.vae_slicing)):
        if asked:
            vae = getattr(policy.pipe, "vae", None)
            _require(hasattr(vae, f"enable_{key}"), "vae", vae, f"vae_{key}")
            getattr(vae, f"enable_{key}")()
    _move(policy, device, how.fsdp)
    if how.compile == "regional":
        for name, module in policy.modules.items():
            _require(getattr(module, "_repeated_blocks", None), name, module, "compile: regional")
            _of_diffusers(module).compile_repeated_blocks()


def _move(policy: Policy, device: torch.device, sharded: bool) -> None:
    """To the device as a whole, or a denoiser block by block, so that no process ever holds all of it there."""
    if not sharded:
        policy.pipe.to(device)
        return
    for name, part in policy.pipe.components.items():
        if isinstance(part, nn.Module) and name not in policy.modules:
            part.to(device)
    for module in policy.modules.values():
        shard(module, device)


def _of_diffusers(module: nn.Module) -> Any:
    """The module, with the methods that diffusers' models have and torch's do not."""
    return module


def _require(supported: Any, name: str, module: Any, key: str) -> None:
    if not supported:
        raise UserError(f"fit.{key}: the {name} of this pipeline, {type(module).__name__}, does not support it.")


def _set_attention(name: str, module: nn.Module, backend: str) -> None:
    _of_diffusers(module).set_attention_backend(backend)
    processors = (getattr(part, "processor", None) for part in module.modules())
    chosen = any(getattr(processor, "_attention_backend", None) is not None for processor in processors)
    _require(chosen, name, module, f"attention: {backend}")


def quantise(module: nn.Module) -> None:
    """Hold the frozen linear layers of a denoiser as int8 with a scale for each row, by torchao; in place.

    What is trained, and what is no linear layer, stays as it is. Products are computed in the dtype of the input.
    """
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    def frozen(part: nn.Module, _: str) -> bool:
        return type(part) is nn.Linear and not part.weight.requires_grad

    quantize_(module, Int8WeightOnlyConfig(), filter_fn=frozen)


def shard(module: nn.Module, device: torch.device) -> None:
    """Share the frozen weights of a denoiser out over all processes (FSDP2), in place, block by block.

    What is trained stays whole in every process: it is small, and `flowrl.parallel` sums its gradients.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    trained = {parameter for parameter in module.parameters() if parameter.requires_grad}
    for parameter in trained:
        parameter.data = parameter.data.to(device)
    for block in blocks(module):
        fully_shard(block, mesh=mesh, ignored_params=trained)
    fully_shard(module, mesh=mesh, ignored_params=trained)


def blocks(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model: the members of its outermost lists of modules.

    >>> inner = nn.ModuleList([nn.Linear(1, 1)])
    >>> len(blocks(nn.ModuleDict({"blocks": nn.ModuleList([inner, inner, nn.Linear(1, 1)])})))
    2
    """
    lists: list[str] = []
    found: dict[nn.Module, None] = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.ModuleList) and not name.startswith(tuple(f"{outer}." for outer in lists)):
            lists.append(name)
            found |= dict.fromkeys(member for member in part if not isinstance(member, nn.ModuleList))
    return list(found)


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
