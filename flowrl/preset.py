"""What a model family is sampled and trained with, where the recipe does not say: numbers, each with its source.

A preset is found by the name of the pipeline's class, before any weights load. It never overrides the recipe: it fills
what the recipe leaves out (`resolve`). Presets come from the entry points of the group ``flowrl.presets``, each a
function without arguments that returns `Preset` objects; those of flowrl lie in ``pipelines/presets/``, one file a
family. A model without a preset takes the general path: what can be read from its files, and flowrl's own defaults.
This module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import plugins, recipe
from .config import RunConfig
from .errors import UserError
from .kinds import scheduler_kind
from .models import INDEX, ModelFiles, find_model

if TYPE_CHECKING:
    from .policy import Policy

T = TypeVar("T")

KERNELS: Mapping[str, str] = {"flow": "flow_sde", "ddpm": "ddim", "consistency": "consistency"}
"""The stochastic kernel where neither recipe nor preset names one, by the kind of the scheduler."""

NOISE_LEVELS: Mapping[str, float] = {
    "flow_sde": 0.7,
    "dance_sde": 0.3,
    "flow_cps": 0.7,
    "ddim": 1.0,
    "consistency": 1.0,
}
"""The noise level where only the kernel is known: the kernel's own default."""


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A value, and the paper or authors' config that it is taken from.

    Attributes:
        value: the value.
        source: a few words and an address.
    """

    value: T
    source: str


def cited(source: str) -> Callable[[Any], Sourced[Any]]:
    """A function that marks values as taken from one source.

    >>> cited("DDPO, config/base.py: https://github.com/kvablack/ddpo-pytorch")(50).value
    50
    """
    return partial(Sourced[Any], source=source)


@dataclass(frozen=True)
class Condition:
    """Which models of its classes a preset is for.

    Attributes:
        text: in words.
        holds: looks at the model's files.
    """

    text: str
    holds: Callable[[ModelFiles], bool]


@dataclass(frozen=True)
class Preset:
    """A model family, or a variant of it. None, or an absent argument, leaves the matter to the general path.

    Attributes:
        family: the name of its file in ``pipelines/presets/``, or a name of yours.
        classes: pipeline classes that it serves.
        task: what they do, such as ``text to image``.
        variant: tells presets of a family apart.
        when: the models of these classes that it is for; of all that fit, a preset with a condition comes first.
        trainable: components that are trained.
        targets: ends of the names of the layers that get a LoRA.
        steps: denoising steps of a rollout.
        guidance: the name of the call's guidance argument, and its value.
        resolution: height and width in pixels.
        frames: frames of a video.
        kernel: the transition kernel.
        noise_level: of that kernel.
        call: further arguments of the pipeline's call.
        vae_dtype: precision of the VAE, where it must not be that of the denoiser.
        notes: what a user should know.
    """

    family: str
    classes: tuple[str, ...]
    task: str
    variant: str = ""
    when: Condition | None = None
    trainable: tuple[str, ...] | None = None
    targets: Sourced[tuple[str, ...]] | None = None
    steps: Sourced[int] | None = None
    guidance: Sourced[tuple[str, float]] | None = None
    resolution: Sourced[tuple[int, int]] | None = None
    frames: Sourced[int] | None = None
    kernel: Sourced[str] | None = None
    noise_level: Sourced[float] | None = None
    call: Mapping[str, Sourced[Any]] = field(default_factory=dict)
    vae_dtype: Sourced[str] | None = None
    notes: str = ""

    @property
    def name(self) -> str:
        """Family and variant.

        >>> Preset("flux", ("FluxPipeline",), "text to image", variant="schnell").name
        'flux, schnell'
        """
        return ", ".join(filter(None, (self.family, self.variant)))

    def arguments(self) -> dict[str, Sourced[Any]]:
        """Every argument of the pipeline's call that it sets, but for steps, height and width."""
        found = dict(self.call)
        if self.guidance is not None:
            argument, value = self.guidance.value
            found[argument] = Sourced(value, self.guidance.source)
        if self.frames is not None:
            found["num_frames"] = self.frames
        return found

    def sourced(self) -> dict[str, Sourced[Any]]:
        """Every value by the name of its field or call argument."""
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        found = {name: value for name, value in own.items() if isinstance(value, Sourced)}
        return {**found, **{f"call.{name}": value for name, value in self.call.items()}}


def presets(name: str = "auto") -> list[Preset]:
    """Every installed preset, or those that a ``model.preset`` names.

    Raises:
        UserError: what the name stands for is no preset.
    """
    if name == "none":
        return []
    # Where two fit a model equally well, the first is taken: those of users come before flowrl's own.
    names = sorted(plugins.known("presets"), key=lambda each: each == "builtin") if name == "auto" else [name]
    return [preset for each in names for preset in _as_presets(each, plugins.load("presets", each))]


def _as_presets(name: str, found: Any) -> list[Preset]:
    if isinstance(found, Preset):
        return [found]
    made = list(found()) if callable(found) else found
    if not isinstance(made, list) or not all(isinstance(item, Preset) for item in made):
        raise UserError(f"preset {name!r} is {found!r}; wanted a flowrl.preset.Preset or a function that returns some.")
    return made


def find_preset(files: ModelFiles) -> Preset | None:
    """The preset for a model; None if there is none.

    A preset that the recipe names serves any class.
    """
    named = files.model.preset not in ("auto", "none")
    fitting = [
        preset
        for preset in presets(files.model.preset)
        if (named or files.pipeline in preset.classes) and (preset.when is None or preset.when.holds(files))
    ]
    return max(fitting, key=lambda preset: preset.when is not None, default=None)


@dataclass(frozen=True)
class Resolved:
    """A run whose open settings are decided.

    Attributes:
        config: with every setting of the model's preset filled in.
        files: the model's.
        preset: what it was filled from; None for the general path.
        origins: where each setting comes from that the recipe left out, by its dotted name.
    """

    config: RunConfig
    files: ModelFiles
    preset: Preset | None
    origins: Mapping[str, str]

    def line(self) -> str:
        """The settings that were filled in, by where they come from, for the console."""
        by_origin: dict[str, list[str]] = {}
        for name, origin in self.origins.items():
            by_origin.setdefault(origin, []).append(f"{name.removeprefix('policy.')} {_short(self._value(name))}")
        parts = [f"{', '.join(settings)} ({origin})" for origin, settings in by_origin.items()]
        title = f"preset {self.preset.name}" if self.preset else "no preset"
        return f"{title}: {'; '.join(parts) or 'the recipe says everything'}"

    def announcement(self, policy: Policy) -> str:
        """What a run says of its settings: `line`, or for a class without a preset a warning with all that was guessed.

        Args:
            policy: the run's.
        """
        if self.preset is not None or self.config.model.preset == "none":
            return self.line()
        from .adapters import adapted

        layers = sorted({end for module in policy.modules.values() for end in adapted(module)})
        whole = "with all of its weights" if self.config.fit.train == "full" else ""
        scale = self.config.policy.guidance_scale
        guidance = "guidance is left at the pipeline's default" if scale is None else f"guidance_scale {scale:g}"
        return (
            f"warning: {type(policy.pipe).__name__} has no preset, so this was guessed, where the recipe does not say "
            f"it: {', '.join(policy.modules)} is trained, {whole or 'with a LoRA on ' + ', '.join(layers)}; kernel "
            f"{policy.kernel.name} with noise level {policy.kernel.noise_level:g}; {guidance}."
        )

    def facts(self) -> dict[str, Any]:
        """What ``environment.json`` keeps of the model and its settings."""
        return {
            "path": self.config.model.path,
            "pipeline": self.files.pipeline,
            "commit": self.files.commit,
            "preset": self.preset.name if self.preset else None,
            "settings": {name: {"value": self._value(name), "origin": origin} for name, origin in self.origins.items()},
        }

    def _value(self, name: str) -> Any:
        section, _, key = name.partition(".")
        if key.startswith("call."):
            return self.config.policy.call[key.removeprefix("call.")]
        return getattr(getattr(self.config, section), key)


def resolve(config: RunConfig) -> Resolved:
    """Fill what the recipe leaves out: from the preset of the model's class, else from what the model's files say.

    Downloads the model's small JSON files if it lies on a hub. Settings that the recipe has are kept, ``null``
    included; a recipe that has all is returned as it is, but for the revision, which becomes the commit.

    Raises:
        UserError: there is no such model, or its files cannot be read.
    """
    files = ModelFiles(find_model(config.model), config.model)
    preset = find_preset(files)
    filling = _Filling(config, files, preset)
    filling.fill()
    return Resolved(filling.config(), files, preset, filling.origins)


class _Filling:
    """The settings that a recipe leaves out, decided one after another."""

    def __init__(self, config: RunConfig, files: ModelFiles, preset: Preset | None) -> None:
        self._config, self._files, self._preset = config, files, preset or Preset("", (), "")
        self._changes: dict[str, dict[str, Any]] = {"policy": {}, "lora": {}, "model": {}}
        self.origins: dict[str, str] = {}

    def fill(self) -> None:
        """Decide everything."""
        preset = self._preset
        self._take("policy", "steps", preset.steps)
        self._fill_kernel()
        self._fill_size()
        self._fill_call()
        self._take("lora", "targets", preset.targets, list)
        self._take("model", "vae_dtype", preset.vae_dtype)
        if preset.trainable is not None:
            self._take("model", "trainable", Sourced(preset.trainable, f"preset {preset.name}"), list)
        if self._files.commit is not None:
            self._changes["model"]["revision"] = self._files.commit

    def config(self) -> RunConfig:
        """The recipe with what was decided, checked again."""
        changed = {
            section: {**getattr(self._config, section).model_dump(exclude_unset=True), **values}
            for section, values in self._changes.items()
            if values
        }
        whole = {**self._config.model_dump(exclude_unset=True), **changed}
        source = recipe.Source(f"the recipe with preset {self._preset.name or 'none'}")
        return recipe.validate(RunConfig, whole, source) if changed else self._config

    def _open(self, section: str, name: str) -> bool:
        return name not in getattr(self._config, section).model_fields_set

    def _set(self, section: str, name: str, value: Any, origin: str) -> None:
        self._changes[section][name] = value
        self.origins[f"{section}.{name}"] = origin

    def _take(
        self, section: str, name: str, found: Sourced[Any] | None, kind: Callable[[Any], Any] = lambda value: value
    ) -> None:
        if found is not None and self._open(section, name):
            self._set(section, name, kind(found.value), found.source)

    def _fill_kernel(self) -> None:
        """Kernel and noise level go together: a preset's level is for the preset's kernel."""
        preset, policy = self._preset, self._config.policy
        self._take("policy", "kernel", preset.kernel)
        if preset.kernel is None and self._open("policy", "kernel"):
            index = self._files.json(INDEX).get("scheduler") or [None, None]
            name = index[-1] if isinstance(index, list) else None
            kind = scheduler_kind(name, self._files.json("scheduler/scheduler_config.json"))
            if kind in KERNELS:
                self._set("policy", "kernel", KERNELS[kind], f"guessed from {name}")
        kernel = self._changes["policy"].get("kernel", policy.kernel)
        own = preset.kernel is not None and kernel == preset.kernel.value
        if own:
            self._take("policy", "noise_level", preset.noise_level)
        if self._open("policy", "noise_level") and "policy.noise_level" not in self.origins and kernel in NOISE_LEVELS:
            self._set("policy", "noise_level", NOISE_LEVELS[kernel], f"default of {kernel}")

    def _fill_size(self) -> None:
        """Height and width, unless the recipe has one of them or the model is smaller than those of the preset."""
        found = self._preset.resolution
        if found is None or not (self._open("policy", "height") and self._open("policy", "width")):
            return
        own = _native_pixels(self._files)
        if own is not None and own < max(found.value):
            return
        for name, value in zip(("height", "width"), found.value, strict=True):
            self._set("policy", name, value, found.source)

    def _fill_call(self) -> None:
        """Arguments of the call, guidance among them, each by itself: a recipe that adds one keeps the others."""
        given, added = self._config.policy.call, {}
        for name, found in self._preset.arguments().items():
            if name == "guidance_scale":
                self._take("policy", name, found)
            elif name not in given:
                added[name] = found.value
                self.origins[f"policy.call.{name}"] = found.source
        if added:
            self._changes["policy"]["call"] = {**added, **given}


def _native_pixels(files: ModelFiles) -> int | None:
    """The side of the pictures that a denoiser was made for, where its config says it."""
    for component in ("transformer", "unet"):
        size = files.json(f"{component}/config.json").get("sample_size")
        blocks = files.json("vae/config.json").get("block_out_channels")
        if isinstance(size, int) and isinstance(blocks, list):
            scale: int = 2 ** (len(blocks) - 1)
            return size * scale
    return None


def _short(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def for_class(name: str, found: Iterable[Preset] | None = None) -> list[Preset]:
    """The presets that serve a class, the one without a condition first."""
    chosen = [preset for preset in (presets() if found is None else found) if name in preset.classes]
    return sorted(chosen, key=lambda preset: preset.when is not None)
