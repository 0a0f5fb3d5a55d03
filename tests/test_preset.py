"""Tests of `flowrl.preset`: which preset a model gets, what it fills in, and what a run says of it."""

import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from torch import nn

from flowrl import kernels, trainer
from flowrl.config import ModelConfig, RunConfig, load_config, to_yaml
from flowrl.errors import UserError
from flowrl.kinds import scheduler_kind
from flowrl.models import ModelFiles
from flowrl.preset import (
    KERNELS,
    NOISE_LEVELS,
    Condition,
    Preset,
    Sourced,
    cited,
    find_preset,
    for_class,
    presets,
    resolve,
)

from . import runs

OURS = """
from flowrl.preset import Preset, cited

NOTES = cited("my notes: https://example.org/notes")
MINE = Preset("mine", ("AnyPipeline",), "text to image", steps=NOTES(7), guidance=NOTES(("true_cfg_scale", 2.0)))


def several():
    return [MINE]


def nothing():
    return [3]
"""

RECIPE = (
    "model: {{path: {model}}}\nrewards: {{jpeg: 1.0}}\nprompts: {folder}/p.txt\neval: {{prompts: {folder}/p.txt}}\n"
)


def model_folder(
    folder: Path, pipeline: str, scheduler: str = "FlowMatchEulerDiscreteScheduler", **files: object
) -> Path:
    """What ``save_pretrained`` leaves of a pipeline, without weights; ``transformer={...}`` is a component's config."""
    index = {"_class_name": pipeline, "scheduler": ["diffusers", scheduler], **files.pop("index", {})}
    content = {"model_index.json": index, "scheduler/scheduler_config.json": files.pop("settings", {})}
    content |= {f"{name}/config.json": config for name, config in files.items()}
    for name, value in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


def recipe(tmp_path: Path, model: Path, text: str = "", *overrides: str) -> RunConfig:
    """A recipe for a model that says nothing else, but for a few lines."""
    (tmp_path / "p.txt").write_text("a red circle\n")
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE.format(model=model, folder=tmp_path) + text, encoding="utf-8")
    return load_config(path, overrides)


def preset_of(folder: Path, **fields: object) -> str:
    """The name of a model's preset."""
    found = find_preset(ModelFiles(str(folder), ModelConfig(path=str(folder), **fields)))
    return found.name if found else "none"


def test_fills_what_the_recipe_leaves_out(tmp_path):
    """Kernel, noise, steps, guidance, size, VAE and trained parts of Wan 2.1 come from its preset, with the sources."""
    config = recipe(tmp_path, model_folder(tmp_path / "wan", "WanPipeline"))
    found = resolve(config)
    policy = found.config.policy
    assert (policy.kernel, policy.noise_level, policy.steps, policy.guidance_scale) == ("flow_sde", 0.7, 20, 4.5)
    assert (policy.height, policy.width, policy.call) == (240, 416, {"num_frames": 33})
    assert (found.config.model.vae_dtype, found.config.model.trainable) == ("float32", ["transformer"])
    assert found.origins["policy.steps"].startswith("GenRL, config/default.yaml: https://github.com/ModelTC/GenRL")
    assert found.origins["model.vae_dtype"].startswith("diffusers, Wan")
    assert config.policy.steps == 10, "the recipe itself is not touched"


def test_never_overrides_the_recipe(tmp_path):
    """What a recipe says stays, null included; a size in part, or a further argument of the call, too."""
    model = model_folder(tmp_path / "wan", "WanPipeline")
    text = "policy: {steps: 4, guidance_scale: null, height: 64, call: {negative_prompt: dull, num_frames: 5}}\n"
    found = resolve(recipe(tmp_path, model, text, "model.trainable=null", "model.vae_dtype=bfloat16"))
    policy = found.config.policy
    assert (policy.steps, policy.guidance_scale, policy.height, policy.width) == (4, None, 64, None)
    assert policy.call == {"negative_prompt": "dull", "num_frames": 5}
    assert (found.config.model.trainable, found.config.model.vae_dtype) == (None, "bfloat16")
    assert set(found.origins) == {"policy.kernel", "policy.noise_level"}


def test_guidance_by_another_name(tmp_path):
    """Qwen-Image's guidance is an argument of its own; guidance_scale stays open."""
    model = model_folder(tmp_path / "qwen", "QwenImagePipeline")
    found = resolve(recipe(tmp_path, model, "policy: {call: {max_sequence_length: 64}}\n")).config.policy
    assert found.guidance_scale is None
    assert found.call == {"true_cfg_scale": 4.0, "negative_prompt": " ", "max_sequence_length": 64}


def test_resolved_config_reads_back_and_stays(tmp_path):
    """The config.yaml of a run says everything: read again and resolved again, it is the same run."""
    found = resolve(recipe(tmp_path, model_folder(tmp_path / "wan", "WanPipeline"))).config
    path = tmp_path / "resolved.yaml"
    path.write_text(to_yaml(found), encoding="utf-8")
    again = resolve(load_config(path))
    assert again.config == found
    assert again.origins == {}


def test_noise_level_of_another_kernel(tmp_path):
    """A preset's noise level is for the preset's kernel; with another one it is that kernel's default."""
    model = model_folder(tmp_path / "wan", "WanPipeline")
    found = resolve(recipe(tmp_path, model, "policy: {kernel: dance_sde}\n"))
    assert found.config.policy.noise_level == 0.3
    assert found.origins["policy.noise_level"] == "default of dance_sde"
    kept = resolve(recipe(tmp_path, model, "policy: {kernel: dance_sde, noise_level: 0.1}\n"))
    assert kept.config.policy.noise_level == 0.1


def test_models_smaller_than_the_preset_keep_their_size(tmp_path):
    """512 px are for released checkpoints: a model that was made for 96 px draws 96."""
    vae = {"block_out_channels": [8, 8, 8, 8]}  # three halvings: 8 px a latent
    small = model_folder(tmp_path / "small", "StableDiffusion3Pipeline", transformer={"sample_size": 12}, vae=vae)
    large = model_folder(tmp_path / "large", "StableDiffusion3Pipeline", transformer={"sample_size": 128}, vae=vae)
    assert resolve(recipe(tmp_path, small)).config.policy.height is None
    assert resolve(recipe(tmp_path, large)).config.policy.height == 512


@pytest.mark.parametrize(
    ("pipeline", "files", "wanted"),
    [
        ("FluxPipeline", {"transformer": {"guidance_embeds": True}}, "flux, dev"),
        ("FluxPipeline", {"transformer": {"guidance_embeds": False}}, "flux, schnell"),
        ("WanPipeline", {"index": {"transformer_2": [None, None]}}, "wan, 2.1"),
        ("WanPipeline", {"index": {"transformer_2": ["diffusers", "WanTransformer3DModel"]}}, "wan, 2.2"),
        ("Flux2KleinPipeline", {"index": {"is_distilled": False}}, "flux2, klein base"),
        ("Flux2KleinPipeline", {"index": {"is_distilled": True}}, "flux2, klein"),
        ("HunyuanImagePipeline", {"transformer": {"guidance_embeds": True}}, "hunyuanimage, distilled"),
        ("ZImagePipeline", {}, "zimage"),
        ("NobodysPipeline", {}, "none"),
    ],
)
def test_variants_of_a_class(pipeline, files, wanted, tmp_path):
    """Models of one class are told apart by their files."""
    assert preset_of(model_folder(tmp_path / "model", pipeline, **files)) == wanted


def test_variant_by_name(tmp_path):
    """Z-Image-Turbo has the files of Z-Image; its name tells."""
    assert preset_of(model_folder(tmp_path / "Z-Image-Turbo", "ZImagePipeline")) == "zimage, turbo"


def test_class_that_the_recipe_names(tmp_path):
    """model.pipeline decides, not the index."""
    folder = model_folder(tmp_path / "model", "StableDiffusion3Pipeline")
    found = find_preset(
        ModelFiles(str(folder), ModelConfig(path=str(folder), pipeline="StableDiffusion3Img2ImgPipeline"))
    )
    assert found is not None
    assert found.task == "image to image"


def test_preset_of_ones_own(tmp_path):
    """A recipe names a preset, or a function that returns some, by a file; it serves any class."""
    (tmp_path / "ours.py").write_text(OURS)
    folder = model_folder(tmp_path / "model", "NobodysPipeline")
    for name in ("MINE", "several"):
        found = resolve(recipe(tmp_path, folder, "", f"model.preset={tmp_path / 'ours.py'}:{name}"))
        assert found.config.policy.steps == 7
        assert found.config.policy.call == {"true_cfg_scale": 2.0}
    with pytest.raises(UserError, match=r"wanted a flowrl\.preset\.Preset or a function"):
        presets(f"{tmp_path / 'ours.py'}:nothing")


def test_users_preset_comes_before_ours(monkeypatch):
    """Where an installed package has a preset for a class of ours, it is taken."""
    theirs = Preset("theirs", ("WanPipeline",), "text to video")
    ours = Preset("wan", ("WanPipeline",), "text to video")
    found = {"builtin": lambda: [ours], "zzz": lambda: [theirs]}
    monkeypatch.setattr("flowrl.preset.plugins.known", lambda _: sorted(found))
    monkeypatch.setattr("flowrl.preset.plugins.load", lambda _, name: found[name])
    assert find_preset(ModelFiles("x", ModelConfig(path="x", pipeline="WanPipeline", loader="mine"))) is theirs


def test_no_preset_at_all(tmp_path):
    """With model.preset none the class's own defaults rule."""
    found = resolve(recipe(tmp_path, model_folder(tmp_path / "wan", "WanPipeline"), "", "model.preset=none"))
    assert (found.preset, found.config.policy.steps, found.config.policy.guidance_scale) == (None, 10, None)


@pytest.mark.parametrize(
    ("scheduler", "settings", "kernel", "level"),
    [
        ("FlowMatchEulerDiscreteScheduler", {}, "flow_sde", 0.7),
        ("UniPCMultistepScheduler", {"use_flow_sigmas": True}, "flow_sde", 0.7),
        ("UniPCMultistepScheduler", {}, "ddim", 1.0),
        ("CogVideoXDDIMScheduler", {}, "ddim", 1.0),
        ("LCMScheduler", {}, "consistency", 1.0),
        ("SCMScheduler", {}, "consistency", 1.0),
        ("EulerDiscreteScheduler", {"timestep_type": "continuous"}, "flow_sde", 0.7),
    ],
)
def test_general_path_by_the_scheduler(scheduler, settings, kernel, level, tmp_path):
    """Without a preset the kernel follows from the scheduler's class and config, and guidance is the pipeline's own."""
    found = resolve(recipe(tmp_path, model_folder(tmp_path / "m", "NobodysPipeline", scheduler, settings=settings)))
    assert (found.config.policy.kernel, found.config.policy.noise_level) == (kernel, level)
    assert found.config.policy.guidance_scale is None
    assert found.origins["policy.kernel"] == f"guessed from {scheduler}"


@pytest.mark.parametrize("name", [None, "MysteryScheduler", "FlowMatchLCMScheduler", "FlowMatchHeunDiscreteScheduler"])
def test_schedulers_of_no_known_kind(name, tmp_path):
    """Nothing is guessed from a scheduler that flowrl cannot turn into a policy's: the policy refuses it by name."""
    assert scheduler_kind(name, {}) == "unknown"
    found = resolve(recipe(tmp_path, model_folder(tmp_path / "m", "NobodysPipeline", str(name))))
    assert "policy.kernel" not in found.origins


def test_defaults_are_those_of_the_kernels():
    """This module imports no torch, so it repeats the kernels' default noise levels."""
    signatures = {name: inspect.signature(kernel).parameters for name, kernel in kernels.KERNELS.items()}
    defaults = {name: found["noise_level"].default for name, found in signatures.items() if "noise_level" in found}
    assert defaults == NOISE_LEVELS
    assert set(KERNELS.values()) <= set(defaults)


def test_a_recipe_that_does_not_fit_the_preset(tmp_path):
    """Steps of the recipe outside the preset's schedule are a mistake that names both."""
    model = model_folder(tmp_path / "flux", "FluxPipeline", transformer={"guidance_embeds": True})
    config = recipe(tmp_path, model, "policy: {train_steps: [8]}\n")
    with pytest.raises(UserError, match=r"the recipe with preset flux, dev: .*the schedule has 6 steps"):
        resolve(config)


def test_line(tmp_path):
    """One line names each setting and, once, each source."""
    line = resolve(recipe(tmp_path, model_folder(tmp_path / "wan", "WanPipeline"))).line()
    assert line.startswith("preset wan, 2.1: steps 20, ")
    assert line.count("https://github.com/ModelTC/GenRL") == 1
    assert "call.num_frames 33" in line
    assert "\n" not in line


def test_facts(tmp_path):
    """What environment.json keeps is JSON: class, preset, and each setting with its origin."""
    facts = json.loads(json.dumps(resolve(recipe(tmp_path, model_folder(tmp_path / "wan", "WanPipeline"))).facts()))
    assert (facts["pipeline"], facts["preset"], facts["commit"]) == ("WanPipeline", "wan, 2.1", None)
    assert facts["settings"]["policy.call.num_frames"]["value"] == 33


def test_warning_without_a_preset(tmp_path):
    """One warning names all that was guessed: components, layers, kernel and guidance."""
    found = resolve(recipe(tmp_path, model_folder(tmp_path / "m", "NobodysPipeline")))
    policy = SimpleNamespace(
        pipe=type("NobodysPipeline", (), {})(), modules={"transformer": nn.Linear(1, 1)}, kernel=kernels.flow_sde()
    )
    text = found.announcement(policy)
    assert text.startswith("warning: NobodysPipeline has no preset")
    assert "transformer is trained" in text
    assert "kernel flow_sde with noise level 0.7; guidance is left at the pipeline's default." in text


def test_pinned_to_the_commit(tmp_path, monkeypatch):
    """A hub's branch becomes its commit, in the config and in the facts; the small files are all that is fetched."""
    snapshot = model_folder(tmp_path / "models--org--name" / "snapshots" / "c0ffee", "FluxPipeline")
    asked = []

    def download(hub_id, name, revision=None):
        asked.append((hub_id, name, revision))
        if not (snapshot / name).exists():
            raise huggingface_hub.errors.EntryNotFoundError(name)
        return str(snapshot / name)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: str(snapshot / "model_index.json"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    found = resolve(recipe(tmp_path, Path("org/name"), "", "model.revision=main"))
    assert (found.config.model.revision, found.facts()["commit"]) == ("c0ffee", "c0ffee")
    assert found.config.model.path == "org/name"
    assert found.preset is not None
    assert {(hub_id, revision) for hub_id, _, revision in asked} == {("org/name", "main")}
    assert all(name.endswith(".json") for _, name, _ in asked)


def test_names_and_order():
    """A preset's name has its variant; a class's presets begin with the one without a condition."""
    plain = Preset("a", ("X",), "text to image")
    special = Preset("a", ("X",), "text to image", variant="b", when=Condition("always", lambda _: True))
    assert special.name == "a, b"
    assert for_class("X", [special, plain]) == [plain, special]
    assert cited("paper")(3) == Sourced(3, "paper")


def test_sourced():
    """Every value comes with its name and source, arguments of the call among them."""
    preset = Preset("a", ("X",), "text to image", steps=cited("p")(3), call={"fps": cited("q")(8)})
    assert preset.sourced() == {"steps": Sourced(3, "p"), "call.fps": Sourced(8, "q")}


def test_a_run_says_its_settings(tmp_path, capsys):
    """A run prints one line, and its config.yaml and environment.json hold what was filled in."""
    model = runs.save_model(tmp_path)
    run = runs.train(runs.recipe(model, tmp_path / "run", "max_steps=1", "eval.every=0"))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("preset"))
    assert line.startswith("preset sd3: kernel flow_sde, noise_level 0.7 (Flow-GRPO")
    config = load_config(run / "config.yaml")
    assert (config.policy.guidance_scale, config.model.trainable) == (1.0, ["transformer"])
    facts = json.loads((run / "environment.json").read_text())["model"]
    assert (facts["pipeline"], facts["preset"]) == ("StableDiffusion3Pipeline", "sd3")
    assert facts["settings"]["policy.kernel"]["value"] == "flow_sde"


def test_a_run_without_a_preset_warns_once(tmp_path, capsys, monkeypatch):
    """A class that has no preset trains by the general path, after one warning that names what was guessed."""
    monkeypatch.setattr("flowrl.preset.presets", lambda name="auto": [])
    model = runs.save_model(tmp_path)
    run = runs.train(runs.recipe(model, tmp_path / "run", "max_steps=1", "eval.every=0"))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "has no preset" in line)
    assert line.startswith("warning: StableDiffusion3Pipeline has no preset")
    assert "transformer is trained, with a LoRA on add_k_proj, add_q_proj, add_v_proj, to_add_out, to_k, " in line
    assert json.loads((run / "environment.json").read_text())["model"]["preset"] is None


def test_resume_compares_what_was_resolved(tmp_path):
    """A resumed run is held against its resolved config: the same recipe goes on."""
    model = runs.save_model(tmp_path)
    config = runs.recipe(model, tmp_path / "run", "max_steps=1", "eval.every=0")
    runs.train(config)
    trainer.preflight(config, resume=True)
    with pytest.raises(UserError, match="policy was"):
        trainer.preflight(runs.recipe(model, tmp_path / "run", "policy.noise_level=0.5"), resume=True)
