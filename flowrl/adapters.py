"""LoRA adapters: adding them, the reference policy, named weight copies, and export.

The base model is never copied. The reference policy is the model with its adapters off; old and averaged policies are
copies of the few adapter tensors, swapped in for as long as they are needed.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn

from .errors import UserError
from .files import whole_file, whole_folder

ADAPTER = "flowrl"
WEIGHTS_FILE = "pytorch_lora_weights.safetensors"
"""The file name that ``DiffusionPipeline.load_lora_weights`` looks for."""

ADAPTABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
"""Layers that PEFT can give a LoRA; quantised linear layers are subclasses."""

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
"""The attention projections by diffusers' names: LoRA targets where none are given (see `default_targets`)."""


@dataclass(frozen=True)
class LoRA:
    """What adapter to add.

    Attributes:
        rank: r, at least 1.
        alpha: the adapter's output is scaled by alpha / r.
        targets: ends of module names; None takes those of `default_targets`.
        seed: of the initial A matrices; B starts at 0, so the adapted model starts as the base.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | None = None
    seed: int = 0


def add_lora(module: nn.Module, lora: LoRA) -> None:
    """Freeze a denoiser and add a LoRA to it, float32 whatever the dtype of the base.

    Raises:
        UserError: a target matches no layer, or the module has adapters already.
    """
    if has_adapters(module):
        raise UserError("the model has adapters already; pass lora=None to train those, or unload them first.")
    if lora.rank < 1:
        raise UserError(f"the LoRA's rank is {lora.rank}; wanted at least 1.")
    names = [name for name, part in module.named_modules() if isinstance(part, ADAPTABLE)]
    targets = lora.targets or default_targets(module)
    missing = [target for target in targets if not _matches(target, names)]
    if missing or not targets:
        ends = sorted({_end(name) for name, part in module.named_modules() if isinstance(part, nn.Linear)})
        raise UserError(
            f"LoRA targets that match no layer of {type(module).__name__}: {', '.join(missing) or 'any default'}. "
            f"Its linear modules end in: {', '.join(ends)}."
        )
    module.requires_grad_(False)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(targets),
        exclude_modules=_without_effect(module) or None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lora.seed)
        inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    _to_float32(module)


def default_targets(module: nn.Module) -> tuple[str, ...]:
    """The layers that get a LoRA where nobody names any; none if the model has no layer to speak of.

    The attention projections by diffusers' names; of a model that has none of these, the linear layers inside of
    attention by the names of the modules around them; else every linear layer of the repeated blocks.

    >>> default_targets(nn.ModuleDict({"self_attn": nn.ModuleDict({"query": nn.Linear(2, 2)}), "mlp": nn.Linear(2, 2)}))
    ('self_attn.query',)
    """
    names = [name for name, part in module.named_modules() if isinstance(part, ADAPTABLE)]
    usual = tuple(target for target in ATTENTION if _matches(target, names))
    if usual:
        return usual
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    blocks = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.ModuleList)]
    repeated = tuple(f"{name}." for name, part in blocks if len(part) > 1)
    return tuple(filter(_in_attention, linear)) or tuple(name for name in linear if name.startswith(repeated))


def _in_attention(name: str) -> bool:
    """Whether a path leads into attention, but not into a norm beside it, whose layers modulate."""
    path = name.lower()
    return ("attn" in path or "attention" in path) and "norm" not in path


def take_lora(module: nn.Module) -> None:
    """Train the adapter that a denoiser has already, float32 whatever the dtype in which it was loaded.

    Raises:
        UserError: there is no adapter, or more than one is active.
    """
    adapter_name(module)
    module.requires_grad_(False)
    for layer in adapter_layers(module):
        layer.set_adapter(layer.active_adapters)
    _to_float32(module)


def train_whole(module: nn.Module) -> None:
    """Train every weight of a denoiser.

    Raises:
        UserError: the module has adapters, or is not in float32.
    """
    if has_adapters(module):
        raise UserError("the model has adapters, and all of its weights are to be trained; fuse or unload them first.")
    other = sorted({str(p.dtype) for p in module.parameters() if p.dtype != torch.float32})
    if other:
        raise UserError(
            f"all weights of {type(module).__name__} are to be trained, and some are {', '.join(other)}, where small "
            "updates are rounded away; load it in float32."
        )
    module.requires_grad_(True)


def adapter_name(module: nn.Module) -> str:
    """The name of the one active adapter of a module.

    Raises:
        UserError: there is none, or more than one.
    """
    names: list[str] = sorted({name for layer in adapter_layers(module) for name in layer.active_adapters})
    if not names:
        raise UserError(f"{type(module).__name__} has no adapter that is active: there is nothing to train or to save.")
    if len(names) > 1:
        raise UserError(
            f"{type(module).__name__} has the active adapters {', '.join(names)}; one is trained and saved: call "
            f"pipe.set_adapters({names[0]!r}), or fuse the others into the model."
        )
    return names[0]


def _to_float32(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _without_effect(module: nn.Module) -> list[str]:
    """Projections whose output the model throws away (the text queries of a last joint block): nothing to learn."""
    found = [f"{name}.add_q_proj" for name, part in module.named_modules() if getattr(part, "context_pre_only", False)]
    attentions = [(name, part) for name, part in module.named_modules() if hasattr(part, "to_q")]
    if attentions:
        name, part = attentions[-1]
        if getattr(part, "add_q_proj", None) is not None and getattr(part, "to_add_out", None) is not None:
            # No attention comes after it, so nobody reads the text that it makes.
            found += [f"{name}.add_q_proj", f"{name}.to_add_out"]
    return found


def _matches(target: str, names: list[str]) -> bool:
    return any(name == target or name.endswith("." + target) for name in names)


def _end(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def adapter_layers(module: nn.Module) -> list[BaseTunerLayer]:
    """Every layer of a module that carries an adapter."""
    return [part for part in module.modules() if isinstance(part, BaseTunerLayer)]


def adapted(module: nn.Module) -> set[str]:
    """The ends of the names of a module's layers that carry an adapter."""
    return {_end(name) for name, part in module.named_modules() if isinstance(part, BaseTunerLayer)}


def has_adapters(module: nn.Module) -> bool:
    """Whether a module carries adapters."""
    return bool(adapter_layers(module))


def trainable_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, by ``component.parameter`` name, in a fixed order."""
    return {
        f"{component}.{name}": parameter
        for component, module in sorted(modules.items())
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


@contextmanager
def adapters_off(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """The reference policy: adapters off inside the block.

    Activity and ``requires_grad`` of every parameter are as before afterwards, also after an exception; PEFT alone
    would thaw or freeze adapters on the way.
    """
    layers = [(layer, layer.disable_adapters) for module in modules.values() for layer in adapter_layers(module)]
    gradients = [(p, p.requires_grad) for module in modules.values() for p in module.parameters()]
    try:
        for layer, _ in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer, was_off in layers:
            layer.enable_adapters(not was_off)
        for parameter, required in gradients:
            parameter.requires_grad_(required)


class WeightCopy:
    """A named copy of the trainable weights, such as the old policy or a moving average.

    Attributes:
        tensors: the copy, by parameter name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], device: str | None = None) -> None:
        """Copy the weights as they are now, to where they are or to a device that has room for them."""
        self._parameters = dict(parameters)
        self.tensors: dict[str, Tensor] = {n: p.detach().to(device=device, copy=True) for n, p in parameters.items()}

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Move towards the current weights: ``copy <- decay * copy + (1 - decay) * current``; decay in [0, 1]."""
        for name, parameter in self._parameters.items():
            if decay == 0:
                self.tensors[name].copy_(parameter)
            else:
                self.tensors[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the model with the copy inside the block.

        The optimizer's parameters stay the same objects: only their data is exchanged. Do not call ``backward`` inside.
        """
        current = {name: parameter.data for name, parameter in self._parameters.items()}
        try:
            for name, parameter in self._parameters.items():
                parameter.data = self.tensors[name].to(parameter.device)
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = current[name]

    def is_current(self) -> bool:
        """Whether the copy equals the current weights: what a model gives with the one, it gives with the other."""
        return all(torch.equal(self.tensors[name], parameter.data) for name, parameter in self._parameters.items())

    def nbytes(self) -> int:
        """Bytes that the copy holds."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


Decay = Callable[[int], float]


def constant_decay(value: float) -> Decay:
    """A decay that does not depend on the step.

    >>> constant_decay(0.9)(100)
    0.9
    """
    if not 0 <= value <= 1:
        raise UserError(f"a decay is {value}; wanted a number in [0, 1].")
    return lambda step: value


def ramp_decay(slope: float, maximum: float, start: int = 0) -> Decay:
    """A decay that is 0 until ``start`` and then rises by ``slope`` a step up to ``maximum``.

    DiffusionNFT's type 1 is ``ramp_decay(0.001, 0.5)`` and its type 2 ``ramp_decay(0.0075, 0.999, start=75)``; see
    "DiffusionNFT: Online Diffusion Reinforcement with Forward Process", Zheng et al., https://arxiv.org/abs/2509.16117.

    >>> decay = ramp_decay(0.001, 0.5)
    >>> decay(0), decay(100), decay(10_000)
    (0.0, 0.1, 0.5)
    """
    if not 0 <= maximum <= 1 or slope < 0:
        raise UserError(f"a ramp has slope {slope} and maximum {maximum}; wanted slope >= 0 and maximum in [0, 1].")
    return lambda step: min(max(0.0, slope * (step - start)), maximum)


def export_lora(modules: Mapping[str, nn.Module], folder: Path) -> Path:
    """Write the adapters as ``DiffusionPipeline.load_lora_weights`` and other tools read them.

    The scale alpha / r is folded into B. Loaders that find no alpha take the scale 1, and they disagree on where to
    look for one; a file whose scale is 1 means the same to all.

    Returns:
        The file.
    """
    weights: dict[str, Tensor] = {}
    for component, module in modules.items():
        adapter = adapter_name(module)
        state: dict[str, Tensor] = get_peft_model_state_dict(module, adapter_name=adapter)
        layers = {name: part for name, part in module.named_modules() if isinstance(part, LoraLayer)}
        for key, tensor in state.items():
            layer, _, kind = key.partition(".lora_")
            scale = layers[layer].scaling[adapter] if kind.startswith("B") else 1.0
            weights[f"{component}.{key}"] = (tensor.detach() * scale).cpu().contiguous()
    path = Path(folder) / WEIGHTS_FILE
    with whole_file(path) as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    return path


def export_whole(modules: Mapping[str, nn.Module], folder: Path) -> Path:
    """Write denoisers as their classes' ``from_pretrained`` reads them, each in a folder with its component's name.

    Returns:
        The folder.
    """
    for component, module in modules.items():
        path = Path(folder) / component
        if path.exists():
            shutil.rmtree(path)
        with whole_folder(path) as temporary:
            module.save_pretrained(temporary)  # type: ignore[operator]
    return Path(folder)


def weight_norm(tensors: Mapping[str, Tensor]) -> float:
    """Euclidean norm of all tensors together."""
    return math.sqrt(sum(float(tensor.detach().double().square().sum()) for tensor in tensors.values()))


def as_state(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Detached, contiguous CPU tensors, ready for safetensors."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
