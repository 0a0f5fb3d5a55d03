"""Pictures from a trained LoRA, drawn by diffusers alone: the stock pipeline, its stock sampler, ``load_lora_weights``.

So what `draw` shows is what a user of the LoRA gets elsewhere, and picture ``seed`` is the one that
``torch.Generator().manual_seed(seed)`` gives there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from pydantic import Field

from . import plugins, recipe
from .config import Count, ModelConfig, Section, load_config
from .data import bundled_prompts, load_prompts
from .errors import UserError
from .media import suffix, write_frames
from .models import find_model

WEIGHTS_FILE = "pytorch_lora_weights.safetensors"


class SampleConfig(Section):
    """How pictures are drawn; a run's own config gives the defaults."""

    model: ModelConfig
    """The generator that the LoRA was trained on."""
    steps: Count = 28
    """Denoising steps."""
    guidance_scale: Annotated[float, Field(ge=0)] | None = None
    """Guidance; null is the pipeline's default."""
    height: Count | None = None
    """Picture height in pixels; null is the pipeline's own."""
    width: Count | None = None
    """Picture width in pixels; null is the pipeline's own."""
    fps: Annotated[float, Field(gt=0)] | None = None
    """Frames a second of a clip's file; null is 8."""
    call: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the pipeline's call."""
    seed: int = 0
    """Seed of a prompt's first picture; the next ones count up from it."""
    samples_per_prompt: Count = 1
    """Pictures a prompt."""
    micro_batch_size: Count = 8
    """Pictures drawn at once; a memory knob."""


@dataclass(frozen=True)
class Source:
    """A LoRA and how to draw with it.

    Attributes:
        config: the settings.
        adapter: folder of the LoRA, or of whole denoisers.
    """

    config: SampleConfig
    adapter: Path


def find_source(folder: Path, overrides: Sequence[str] = (), *, ema: bool = False) -> Source:
    """The LoRA of a run's folder or of a folder with ``pytorch_lora_weights.safetensors``; or a run's whole denoisers.

    Args:
        folder: of a run or of a LoRA; the latter needs ``model.path=...``.
        overrides: dotted settings of `SampleConfig`.
        ema: the averaged weights of a run instead of the last ones.

    Raises:
        UserError: there is no LoRA, or a setting is wrong.
    """
    run = folder / "config.yaml"
    exported = "model" if (folder / "model").is_dir() else "adapter"
    adapter = folder / exported if run.is_file() else folder
    adapter = adapter / "ema" if ema else adapter
    if not (adapter / WEIGHTS_FILE).is_file() and not _whole(adapter):
        hint = "the run has not saved one yet" if run.is_file() else "wanted the folder of a run or of a LoRA"
        raise UserError(f"there is no {WEIGHTS_FILE} in {adapter}; {hint}.")
    defaults = _settings(run) if run.is_file() else {}
    return Source(recipe.build(SampleConfig, defaults, overrides, recipe.Source(str(folder))), adapter)


def _whole(folder: Path) -> list[Path]:
    """The folders of whole denoisers, each with the name of its component."""
    return sorted(path.parent for path in folder.glob("*/config.json"))


def _settings(run: Path) -> dict[str, Any]:
    """What a run's evaluations draw with."""
    config = load_config(run)
    given = config.eval.guidance_scale
    return {
        "model": config.model.model_dump(),
        "steps": config.eval.steps or config.policy.steps,
        "guidance_scale": config.policy.guidance_scale if given is None else given,
        "height": config.policy.height,
        "width": config.policy.width,
        "fps": config.policy.fps,
        "call": config.policy.call,
        "seed": config.seed,
    }


def read_prompts(texts: Sequence[str]) -> list[str]:
    """Prompts, each given as its text, as a ``.txt`` or ``.jsonl`` file, or as the name of a bundled list.

    >>> read_prompts(["a red circle"])
    ['a red circle']
    """
    found: list[str] = []
    for text in texts:
        named = text.endswith((".txt", ".jsonl")) or text in bundled_prompts()
        found += [row.prompt for row in load_prompts(text)] if named else [text]
    if not found:
        raise UserError("no prompt; write --prompt 'a red circle', or --prompt with a prompt file.")
    return found


def draw(source: Source, prompts: Sequence[str], output: Path, *, base: bool = False) -> list[Path]:
    """Write files ``000_seed_0.png``, and with ``base`` also ``000_seed_0_base.png`` from the same noise.

    Clips become animated WebP files, ``000_seed_0.webp``.

    Args:
        source: what to draw with.
        prompts: each gets ``samples_per_prompt`` pictures.
        output: a folder; files that are there already are an error.
        base: draw with the base model too.

    Raises:
        UserError: a file is there already, or the LoRA does not fit the model.
    """
    config = source.config
    pictures = [
        (f"{row:03d}_seed_{seed}", prompt, seed)
        for row, prompt in enumerate(prompts)
        for seed in range(config.seed, config.seed + config.samples_per_prompt)
    ]
    endings = ("_base", "") if base else ("",)
    names = [f"{name}{ending}" for ending in endings for name, _, _ in pictures]
    taken = [path for name in names for path in (output / f"{name}.png", output / f"{name}.webp") if path.exists()]
    if taken:
        raise UserError(f"{taken[0]} is there already; write another --output, or remove it.")
    pipe, paths = _load(config.model), []
    output.mkdir(parents=True, exist_ok=True)
    for ending in endings:
        if not ending:
            attach(pipe, source.adapter)
        for name, frames in _draw(pipe, config, pictures):
            paths.append(output / f"{name}{ending}{suffix(frames)}")
            write_frames(frames, paths[-1], config.fps)
    return paths


def _load(model: ModelConfig) -> Any:
    import torch

    pipe = plugins.load("pipelines", model.loader)(find_model(model), model)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to("cuda" if torch.cuda.is_available() else "cpu")


def attach(pipe: Any, adapter: Path) -> None:
    """Load a LoRA into a pipeline, and make sure that all of it arrived; diffusers only warns. Or exchange denoisers.

    Raises:
        UserError: a layer of the file found no module.
    """
    for path in _whole(adapter):
        before = getattr(pipe, path.name)
        after = type(before).from_pretrained(path, dtype=before.dtype, use_safetensors=True)
        setattr(pipe, path.name, after.to(before.device))
    if _whole(adapter):
        return
    from peft.tuners.lora import LoraLayer
    from safetensors import safe_open

    with safe_open(adapter / WEIGHTS_FILE, framework="pt") as file:
        wanted = sum(".lora_B." in name or ".lora.up." in name for name in file.keys())  # noqa: SIM118 (no mapping)
    try:
        pipe.load_lora_weights(adapter, weight_name=WEIGHTS_FILE)
    except (ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"the LoRA in {adapter} does not fit {type(pipe).__name__}: {error}") from error
    modules = [part for part in pipe.components.values() if hasattr(part, "modules")]
    found = sum(len(layer.lora_B) for module in modules for layer in module.modules() if isinstance(layer, LoraLayer))
    if found != wanted or not wanted:
        raise UserError(
            f"the LoRA in {adapter} has {wanted} layers and {found} of them found a module of {type(pipe).__name__}; "
            "it was trained on another model."
        )


def _draw(
    pipe: Any, config: SampleConfig, pictures: Sequence[tuple[str, str, int]]
) -> Iterator[tuple[str, list[Image.Image]]]:
    """The frames of each picture or clip, with its name."""
    import torch

    from .calls import for_each_prompt

    for start in range(0, len(pictures), config.micro_batch_size):
        part = pictures[start : start + config.micro_batch_size]
        drawn = pipe(
            prompt=[prompt for _, prompt, _ in part],
            generator=[torch.Generator().manual_seed(seed) for _, _, seed in part],
            num_inference_steps=config.steps,
            **for_each_prompt(config.call, len(part)),
            **_given(config.model_dump(include={"guidance_scale", "height", "width"})),
        )[0]
        yield from zip((name for name, _, _ in part), map(_frames, drawn), strict=True)


def _frames(drawn: Any) -> list[Image.Image]:
    """What a pipeline gives for one prompt, as frames: a picture, a list of them, or an array `[F, H, W, 3]`."""
    if isinstance(drawn, Image.Image):
        return [drawn]
    if isinstance(drawn, list):
        return drawn
    return [Image.fromarray((frame * 255).round().astype("uint8")) for frame in drawn]


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
