"""How a run fits a device, and how fast it is there: what the section ``fit`` of a recipe asks for.

`check_fit` refuses what cannot work before any weights load. `fit` changes a policy's models, once, before training.
What each key saves and costs is in ``docs/fitting.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .errors import UserError
from .memo import mapped
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
            _require(blocks(module), name, module, "gradient_checkpointing")
            checkpoint_blocks(module)
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


def checkpoint_blocks(module: nn.Module) -> Callable[[], None]:
    """Keep no activations inside the repeated blocks of a model: a backward pass runs each of them again.

    Not by the models' own ``enable_gradient_checkpointing``: some leave out arguments of their blocks with it (the mask
    of Chroma's text), and the replay would not be the rollout.

    Returns:
        A function that undoes it.
    """
    exchanged = [(block, vars(block).get("forward")) for block in blocks(module)]
    for block, _ in exchanged:
        vars(block)["forward"] = partial(_checkpointed, block.forward)

    def undo() -> None:
        for block, before in exchanged:
            vars(block).pop("forward") if before is None else vars(block).update(forward=before)

    return undo


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        # A few blocks write into their inputs; the second run must find what the first one found.
        return forward(*mapped(args, Tensor.clone), **mapped(kwargs, Tensor.clone))

    return checkpoint(run, *args, use_reentrant=False, **kwargs)


def blocks(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model: the members of its outermost lists of modules.

    >>> inner = nn.ModuleList([nn.Linear(1, 1)])
    >>> len(blocks(nn.ModuleDict({"blocks": nn.ModuleList([inner, inner, nn.Linear(1, 1)])})))
    2
    """

    def members(part: nn.Module) -> Iterator[nn.Module]:
        for child in part.children():
            if isinstance(part, nn.ModuleList) and not isinstance(child, nn.ModuleList):
                yield child
            else:
                yield from members(child)

    return list(dict.fromkeys(members(module)))
