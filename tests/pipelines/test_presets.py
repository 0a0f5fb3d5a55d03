"""Every preset, held against diffusers: its classes, the arguments of their calls, and the parts of tiny pipelines."""

import inspect

import diffusers
import pytest
from torch import nn

from flowrl.adapters import ADAPTABLE, _matches
from flowrl.kernels import KERNELS
from flowrl.kinds import scheduler_kind
from flowrl.pipelines.presets import presets
from flowrl.scheduler import policy_scheduler

from .cases import CASES, TASKS

PRESETS = presets()
PAIRS = [
    pytest.param(preset, name, id=f"{preset.name.replace(', ', '-')}-{name}")
    for preset in PRESETS
    for name in preset.classes
]
FAMILIES = {
    *("sd", "sdxl", "sd3", "flux", "flux2", "qwen", "zimage", "sana", "lumina2", "pixart", "hunyuanimage", "hidream"),
    *("chroma", "auraflow", "cogview4", "kandinsky5", "wan", "hunyuanvideo", "ltx", "ltx2", "cogvideox", "mochi"),
    *("cosmos", "skyreels", "lcm"),
}
WITH_CASE = [pair for pair in PAIRS if pair.values[1] in CASES]
SOMETIMES = {"transformer_2"}
"""Components that only some models of a class have, as a preset's condition says."""


def test_every_family_is_here():
    """The families that flowrl promises, each in a file of its name."""
    assert {preset.family for preset in PRESETS} == FAMILIES


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: f"{preset.name}-{preset.classes[0]}")
def test_every_value_has_a_source(preset):
    """A value names a paper or a config, with an address."""
    assert preset.task in TASKS
    for name, value in preset.sourced().items():
        assert "https://" in value.source, name


def test_no_two_presets_for_one_model():
    """A class has one preset without a condition, and its others have different ones."""
    seen = [(name, preset.when.text if preset.when else None) for preset in PRESETS for name in preset.classes]
    assert len(seen) == len(set(seen))
    assert all((name, None) in seen for name, _ in seen)


@pytest.mark.parametrize(("preset", "name"), PAIRS)
def test_class_and_arguments_exist(preset, name):
    """Diffusers has the class, and its call takes what the preset sets."""
    arguments = inspect.signature(getattr(diffusers, name).__call__).parameters
    given = set(preset.arguments()) | ({"height", "width"} if preset.resolution else set())
    if preset.steps:
        given.add("num_inference_steps")
    assert given <= set(arguments)
    assert preset.kernel is None or preset.kernel.value in KERNELS


@pytest.fixture(scope="module")
def built():
    """The tiny pipeline of a class, built once."""
    made = {}

    def build(name):
        if name not in made:
            made.clear()
            made[name] = CASES[name].build()
        return made[name]

    return build


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("preset", "name"), WITH_CASE)
def test_parts_exist(preset, name, built):
    """The tiny pipeline has the trained components and the LoRA's layers, and the kernel suits its scheduler."""
    pipe = built(name)
    for component in set(preset.trainable or ()) - SOMETIMES:
        module = pipe.components[component]
        assert isinstance(module, nn.Module)
        layers = [path for path, part in module.named_modules() if isinstance(part, ADAPTABLE)]
        assert (
            [target for target in preset.targets.value if not _matches(target, layers)] == []
            if preset.targets
            else True
        )
    kind = scheduler_kind(type(pipe.scheduler).__name__, pipe.scheduler.config)
    assert kind == policy_scheduler(pipe.scheduler).kind
    if preset.kernel:
        KERNELS[preset.kernel.value](0.1).check_suits(kind)
