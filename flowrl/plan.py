"""What a training step costs, before it is run: ``flowrl plan``.

The run's model is loaded, and its pipeline samples one micro-batch with a denoiser and a decoder that compute nothing:
they answer with zeros of the right shapes. The shapes come from running them on torch's *fake* tensors, which have no
data; on these, floating-point operations are counted, and the bytes that are alive at once. So planning takes
seconds whatever the model's size, and knows no model. Rewards are not counted, nor is what a library takes inside of
an operation.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.table import Table
from torch import nn

from . import memo
from .config import RunConfig
from .costs import Cost, Stub
from .objectives import Seeds
from .preflight import preflight
from .preset import resolve
from .trainer import Trainer
from .trajectory import Rollout


@dataclass(frozen=True)
class Term:
    """A part of the memory.

    Attributes:
        name: what it is.
        nbytes: its size.
        hint: what lowers it.
        passing: alive only for a part of the step; of these terms, only the largest counts.
    """

    name: str
    nbytes: int
    hint: str
    passing: bool = False


@dataclass(frozen=True)
class Plan:
    """What a training step costs, all processes together but for the memory, which is that of one.

    Attributes:
        rollout_calls: samples that the denoiser processes in rollouts, counting guidance's second pass.
        update_calls: the same in updates.
        flops: of the denoiser.
        terms: of the peak memory.
    """

    rollout_calls: int
    update_calls: int
    flops: int
    terms: Sequence[Term]

    @property
    def peak(self) -> int:
        """Estimated peak memory of a step in bytes."""
        staying = sum(term.nbytes for term in self.terms if not term.passing)
        return staying + max((term.nbytes for term in self.terms if term.passing), default=0)

    @property
    def largest(self) -> Term:
        """The term to lower first."""
        return max(self.terms, key=lambda term: term.nbytes)


def plan(config: RunConfig, processes: int = 1) -> Plan:
    """Plan a training step.

    Args:
        config: the run; nothing is written to its output folder.
        processes: that share the step.

    Raises:
        UserError: the run cannot work.
    """
    config = resolve(config).config
    # Backends, compilation and int8 change neither what is counted here nor, but for the base, what is alive.
    plain = {"attention": None, "compile": "none", "quantise": "none", "fsdp": False, "text_encoders": "keep"}
    with tempfile.TemporaryDirectory() as folder:
        changes = {"output": Path(folder) / "run", "fit": config.fit.model_copy(update=plain)}
        light = config.model_copy(update=changes)
        trainer = Trainer(light, preflight(light), Accelerator(cpu=not torch.accelerator.is_available()))
        return _plan(trainer, config, processes)


def _plan(trainer: Trainer, config: RunConfig, processes: int) -> Plan:
    policy, pipe = trainer.policy, trainer.policy.pipe
    trained = list(policy.parameters.values())
    denoisers = {f"{name}.forward": Stub(module, module.forward, trained) for name, module in policy.modules.items()}
    vae: Any = getattr(pipe, "vae", None)
    decoders = {"vae.decode": Stub(vae, vae.decode)} if hasattr(vae, "decode") else {}
    with memo.exchanged(pipe, {**denoisers, **decoders}):
        batch, rollout = trainer.first_rollout()
        sampling = [cost for stub in denoisers.values() for cost in stub.take()]
        rollout_calls, policy.denoiser_calls = policy.denoiser_calls, 0
        with torch.no_grad():
            policy.predict(rollout, rollout.latents.float(), 0.5)
        model_call = [cost for stub in denoisers.values() for cost in stub.take()]
        passes = policy.denoiser_calls
    objective, steps = trainer.objective, len(rollout.transitions)
    pieces = len(objective.pieces(policy, rollout, Seeds(0, range(len(batch.rows)))))
    calls = objective.model_calls(steps)
    shared = _share(rollout)
    forward, training = (sum(getattr(cost, f"{kind}flops") for cost in model_call) for kind in ("", "training_"))
    times = config.groups_per_step * config.group_size / len(batch.rows)
    flops = sum(cost.flops for cost in sampling) + shared * (pieces * training + (calls - pieces) * forward)
    decoding = [cost for stub in decoders.values() for cost in stub.take()]
    kept = _kept(rollout) * math.ceil(math.ceil(times) / processes)
    terms = [
        *_weights(trainer, config, processes),
        Term("rollouts of a step", kept, "fewer policy.train_steps, or a smaller groups_per_step"),
        *_passing(config, sampling, model_call, decoding, more=calls > pieces),
    ]
    return Plan(round(times * rollout_calls), round(times * shared * calls * passes), round(times * flops), terms)


def _share(rollout: Rollout) -> float:
    """Samples of an average replay over all samples: less than 1 where some share the beginning of a trajectory."""
    stems = [rollout.stem(step) or rollout for step in rollout.transitions]
    return sum(map(len, stems)) / (len(rollout) * len(stems)) if stems else 1.0


def _weights(trainer: Trainer, config: RunConfig, processes: int) -> list[Term]:
    """What stays on the device all the time."""
    policy, fit = trainer.policy, config.fit
    base = sum(_frozen_bytes(module, fit.quantise == "int8") for module in policy.modules.values())
    numbers = 4 * sum(parameter.numel() for parameter in policy.parameters.values())
    whole = fit.train == "full"
    copies = [*trainer.copies, *(["base model"] if whole and policy.device.type == "cpu" else [])]  # it lies on the CPU
    found = [Term("frozen weights", base // (processes if fit.fsdp else 1), _base_hint(config))]
    fewer = "fit.train: lora" if whole else "a smaller lora.rank"
    found.append(Term("trained weights, gradients and Adam", numbers * 4, fewer))
    named = f"weight copies ({', '.join(copies) or 'none'})"
    found.append(Term(named, numbers * len(copies), f"{fewer}; ema_decay: null spares one"))
    rest = {name: part for name, part in policy.pipe.components.items() if isinstance(part, nn.Module)}
    encoders = [part for name, part in rest.items() if "text_encoder" in name and name not in policy.modules]
    gone = fit.text_encoders == "release" or (fit.text_encoders == "offload" and policy.device.type != "cpu")
    others = [part for name, part in rest.items() if "text_encoder" not in name and name not in policy.modules]
    text = 0 if gone else sum(map(_frozen_bytes, encoders))
    found.append(Term("text encoders", text, "fit.text_encoders: release (or offload)"))
    found.append(Term("VAE and other parts", sum(map(_frozen_bytes, others)), "model.dtype: bfloat16"))
    return found


def _base_hint(config: RunConfig) -> str:
    if config.model.dtype == "float32":
        return "model.dtype: bfloat16"
    return "fit.fsdp: true, on several GPUs" if config.fit.quantise != "none" else "fit.quantise: int8"


def _passing(
    config: RunConfig, sampling: Sequence[Cost], model_call: Sequence[Cost], decoding: Sequence[Cost], more: bool
) -> list[Term]:
    """What comes and goes: activations."""
    fit = config.fit
    held = sum(cost.held for cost in model_call)
    update = max((held - cost.held + cost.training_peak for cost in model_call), default=0)
    beside = held + max((cost.peak for cost in model_call), default=0) if more else 0
    smaller = "a smaller micro_batch_size"
    checkpoint = smaller if fit.gradient_checkpointing else "fit.gradient_checkpointing: true"
    bound = " (at most)" if fit.gradient_checkpointing else ""
    slicing = "fit.vae_tiling: true" if fit.vae_slicing else "fit.vae_slicing: true"
    return [
        # With checkpointing, the count on fake tensors comes out as without it: no more than that is known.
        Term("activations of an update" + bound, max(update, beside), checkpoint, passing=True),
        Term("activations of sampling", max((cost.peak for cost in sampling), default=0), smaller, passing=True),
        Term("decoding pictures", max((cost.peak for cost in decoding), default=0), slicing, passing=True),
    ]


def _frozen_bytes(module: nn.Module, quantised: bool = False) -> int:
    """Bytes of a module's weights that are not trained; int8 with a scale for each row where quantised."""
    total = memo.nbytes([*(p for p in module.parameters() if not p.requires_grad), *module.buffers()])
    if quantised:
        for part in module.modules():
            if isinstance(part, nn.Linear) and not part.weight.requires_grad:
                size = part.weight.element_size()
                total -= part.weight.numel() * (size - 1) - part.out_features * size
    return total


def _kept(rollout: Rollout) -> int:
    """Bytes that a micro-batch leaves behind until its update."""
    return rollout.transition_bytes() + memo.nbytes([rollout.images, rollout.latents])


def show(found: Plan, console: Console | None = None) -> None:
    """Print a plan."""
    console = console or Console()
    table = Table("a training step", "", box=None)
    table.columns[1].justify = "right"
    table.add_row("denoiser calls (samples), rollouts", f"{found.rollout_calls:,}")
    table.add_row("denoiser calls (samples), updates", f"{found.update_calls:,}")
    table.add_row("floating-point operations of the denoiser", f"{found.flops:.3g}")
    for term in found.terms:
        table.add_row(("at its height: " if term.passing else "") + term.name, _size(term.nbytes))
    table.add_row("estimated peak memory of a process", _size(found.peak))
    console.print(table)
    console.print(f"Largest: {found.largest.name}. It gets smaller with {found.largest.hint}.", highlight=False)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
