"""The schema of a run: what a YAML recipe may say, and one sentence on each field.

A recipe is read by `load_config`, which adds dotted overrides (``policy.steps=12``) and turns every mistake into a
`flowrl.errors.UserError` that names the file, the line and the field. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from . import recipe

Count: TypeAlias = Annotated[int, Field(ge=1)]
DType: TypeAlias = Literal["float32", "bfloat16", "float16"]
KernelName: TypeAlias = Literal["ode", "flow_sde", "dance_sde", "flow_cps", "ddim", "consistency"]


class Section(BaseModel):
    """A part of a recipe: frozen, and an unknown key or a number that is not finite is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Plugin(Section):
    """A plug-in by name, and the options that it declares; ``objective: nft`` is short for ``objective: {name: nft}``.

    >>> Plugin.model_validate({"name": "nft", "beta": 0.5}).options
    {'beta': 0.5}
    """

    model_config = ConfigDict(extra="allow")

    name: str
    """An entry-point name, ``module:object`` or ``path/to/file.py:object``."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """Every key but the name."""
        return dict(self.model_extra or {})


class AdvantageConfig(Plugin):
    """From the scores of a group to advantages: an entry point of ``flowrl.advantages``, or a function."""

    name: str = "group"
    """The function; beside it stand its keyword arguments."""


class ShapingConfig(Plugin):
    """A transform of the scores before the advantage: an entry point of ``flowrl.shapings``, or a function."""

    name: str
    """The function; beside it stand its keyword arguments."""


class ObjectiveConfig(Plugin):
    """From advantages to a loss: an entry point of ``flowrl.objectives``, or a class."""

    name: str = "nft"
    """The class; beside it stand its options."""


class SelectionConfig(Plugin):
    """Which steps are stochastic and trained: an entry point of ``flowrl.selections``, or a class."""

    name: str
    """The class; beside it stand its options."""


class BranchConfig(Section):
    """Where the samples of a group part, which until then share their trajectory (see `flowrl.branching`)."""

    at: list[Annotated[int, Field(ge=0)]] | None = None
    """Steps at which trajectories part; null is every trained step."""
    into: list[Annotated[int, Field(ge=2)]] | None = None
    """In how many ways each goes on, split by split, with the product ``group_size``; null is equal numbers."""

    @field_validator("at")
    @classmethod
    def _in_order(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and (not value or sorted(set(value)) != value):
            raise ValueError("different steps in order, at least one, or null for every trained step")
        return value


class RewardOptions(Section):
    """The weight of a reward, and the options of its constructor; ``shapes: 1.0`` is short for ``{weight: 1.0}``."""

    model_config = ConfigDict(extra="allow")

    weight: float = 1.0
    """Its share in the advantage; 0 watches a reward without training on it."""

    @model_validator(mode="before")
    @classmethod
    def _weight_alone(cls, value: Any) -> Any:
        return value if isinstance(value, (dict, cls)) else {"weight": value}


class ModelConfig(Section):
    """Which generator is trained."""

    path: str
    """A bundled name, a folder in diffusers' format, a hub id such as ``stabilityai/stable-diffusion-3.5-medium``, or a
    ``.safetensors`` checkpoint, which needs ``pipeline`` too."""
    pipeline: str | None = None
    """The class, such as ``StableDiffusionXLPipeline``; null is the one that ``model_index.json`` names."""
    configs: str | None = None
    """For a checkpoint in one file: a folder or hub id in diffusers' format that has its configs and tokenizers; null
    lets diffusers choose one by the weights."""
    loader: str = "auto"
    """What loads it: ``auto``, an entry point of ``flowrl.pipelines``, ``module:object`` or ``file.py:object``."""
    preset: str = "auto"
    """Where settings come from that the recipe leaves out: ``auto`` is the preset of the class, ``none`` the pipeline's
    own defaults, and ``module:object`` or ``file.py:object`` a preset of yours."""
    revision: str | None = None
    """The hub's commit, branch or tag; a run is pinned to the commit, which its ``config.yaml`` names."""
    trust_remote_code: bool = False
    """Run Python code that the model brings along; read it first."""
    trainable: list[str] | None = None
    """Components that are trained, such as ``[transformer]``; null is every denoiser of the pipeline."""
    dtype: DType = "float32"
    """The precision of the frozen weights; the LoRA is always float32."""
    vae_dtype: DType | None = None
    """The precision of the VAE; null is ``dtype``."""


class PolicyConfig(Section):
    """How pictures are drawn while training.

    What a recipe leaves out here, the preset of the model's class sets (see `flowrl.preset`); the defaults below are
    those of models without one.
    """

    kernel: KernelName = "flow_sde"
    """The transition kernel, a function of ``flowrl.kernels``."""
    noise_level: Annotated[float, Field(ge=0)] = 0.7
    """The kernel's noise strength; 0 is the stock deterministic sampler."""
    steps: Count = 10
    """Denoising steps of a rollout."""
    guidance_scale: Annotated[float, Field(ge=0)] | None = None
    """Classifier-free (or embedded) guidance of a rollout; 1 is off for pipelines with classifier-free guidance, null
    is the pipeline's own default."""
    train_steps: Literal["all"] | int | list[int] | SelectionConfig = "all"
    """``all``, a list of indices from 0 (noisiest), the length of a window that is drawn anew each time, or a selection
    with options, such as ``{name: sliding, size: 4}`` (see `flowrl.selection`)."""
    branch: BranchConfig | None = None
    """The samples of a group share their trajectory, which is computed once, until it parts; ``{}`` lets it part at
    every trained step. Null is a trajectory for each sample."""
    share_initial_noise: bool = False
    """The samples of a group start from the same noise, as in DanceGRPO; only the steps' noise tells them apart."""
    height: Count | None = None
    """Picture height in pixels; null is the pipeline's own."""
    width: Count | None = None
    """Picture width in pixels; null is the pipeline's own."""
    fps: Annotated[float, Field(gt=0)] | None = None
    """Frames a second of a video, for its rewards and its files; null is 8 for files and unknown to rewards."""
    call: dict[str, Any] = {}
    """Further arguments of the pipeline's call, such as ``{negative_prompt: blurry}``; evaluations pass them too."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over the elements of a log-probability; published clip ranges assume ``mean``."""

    @field_validator("train_steps")
    @classmethod
    def _inside_the_schedule(
        cls, value: str | int | list[int] | SelectionConfig, info: ValidationInfo
    ) -> str | int | list[int] | SelectionConfig:
        steps = info.data.get("steps")
        if steps is None or isinstance(value, (str, SelectionConfig)):
            return value
        if isinstance(value, int):
            longest = max(1, steps - 1)  # the last step ends on clean data and has no noise
            if not 1 <= value <= longest:
                raise ValueError(f"a window of 1 to {longest} steps, because the schedule has {steps}, or 'all'")
            return value
        outside = [step for step in value if not 0 <= step < steps]
        if outside:
            why = f"because the schedule has {steps} steps; {outside} is not inside"
            raise ValueError(f"indices from 0 to {steps - 1}, {why}")
        if not value:
            raise ValueError(f"at least one index from 0 to {steps - 1}, or 'all'")
        if len(set(value)) < len(value):
            raise ValueError("each index once")
        return value


class LoraConfig(Section):
    """The trained adapter."""

    rank: Count = 16
    """Rank of the update."""
    alpha: Annotated[float, Field(gt=0)] = 32
    """Scale: the update is multiplied by alpha / rank."""
    targets: list[str] | None = None
    """Module names that get an adapter; null is the attention of the denoiser."""


class FitConfig(Section):
    """How a run fits its device, and how fast it is there; `docs/fitting.md` says what each key saves and costs."""

    train: Literal["lora", "full"] = "lora"
    """``lora``, or all weights of the denoiser, in float32; ``lora:`` is not used then."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them; the gradients are the same."""
    compile: Literal["none", "regional"] = "none"
    """``regional`` compiles the repeated blocks of the denoiser, once for all of them."""
    attention: str | None = None
    """An attention backend of diffusers, such as ``native``, ``flash`` or ``xformers``; null leaves the choice to
    diffusers."""
    quantise: Literal["none", "int8"] = "none"
    """``int8`` holds the frozen weights of the denoiser in 8 bits, by torchao."""
    text_encoders: Literal["keep", "offload", "release"] = "keep"
    """When all prompts are encoded: ``keep`` the text encoders on the device, move them to the CPU, or drop them."""
    vae_tiling: bool = False
    """Decode pictures tile by tile; seams may show."""
    vae_slicing: bool = False
    """Decode pictures one by one."""
    fsdp: bool = False
    """Share the frozen weights of the denoiser out over all processes (FSDP2)."""


class EvalConfig(Section):
    """Evaluation on held-out prompts: fixed seeds and the stock deterministic sampler."""

    every: Annotated[int, Field(ge=0)] = 10
    """Training steps between two evaluations; 0 evaluates the base model and the end only."""
    every_calls: Count | None = None
    """Denoiser calls of the training between two evaluations, besides ``every``; null counts none."""
    prompts: str = "shapes_heldout"
    """A bundled prompt list or a prompt file that training does not see."""
    samples_per_prompt: Count = 2
    """Pictures a prompt; diversity needs at least 2."""
    steps: Count | None = None
    """Denoising steps; null is ``policy.steps``."""
    guidance_scale: Annotated[float, Field(ge=0)] | None = None
    """Guidance; null is ``policy.guidance_scale``."""
    rewards: dict[str, RewardOptions] | None = None
    """Rewards to measure; null is the run's own. A reward that is not trained on shows reward hacking."""
    micro_batch_size: Count = 32
    """Pictures drawn at once; a memory knob."""

    @field_validator("rewards")
    @classmethod
    def _something_to_measure(cls, value: dict[str, RewardOptions] | None) -> dict[str, RewardOptions] | None:
        if value is not None and not value:
            raise ValueError("at least one reward, or null for the run's own")
        return value


class GuardConfig(Section):
    """Alarms about a run that cheats its reward, see `docs/guards.md`: an evaluation against the first one."""

    held_out: bool = True
    """A reward that is evaluated and not trained on got worse while a trained one rose."""
    diversity: Annotated[float, Field(gt=0, le=1)] | None = 0.8
    """Smallest share of the base model's diversity; null for no such guard."""
    saturation: Annotated[float, Field(gt=0)] | None = 0.15
    """Largest change of the mean saturation, which is in [0, 1]."""
    dark_share: Annotated[float, Field(gt=0)] | None = 0.15
    """Largest change of the share of dark pixels."""
    edge_energy: Annotated[float, Field(gt=1)] | None = 2.0
    """Largest factor by which high-frequency energy may rise or fall."""
    stop_after: Count | None = None
    """Evaluations in a row with an alarm after which the run ends early; null goes on."""
    best: str | None = None
    """A reward of the evaluations: the weights with its best mean are kept in ``best/``; null keeps none."""


class RunConfig(Section):
    """A whole run.

    >>> RunConfig(model={"path": "shapes-sd3"}, rewards={"shapes": 1.0}).policy.steps
    10
    """

    output: Path = Path("runs/run")
    """The run's folder; `load_config` fills in ``runs/<name of the recipe>``."""
    seed: int = 0
    """Decides the LoRA's first weights and every sample's noise."""
    max_steps: Count = 100
    """Training steps; each samples, scores and updates once."""
    max_denoiser_calls: Count | None = None
    """The run also ends with the first step at or past so many samples through the denoiser; null sets no limit."""
    prompts: str = "shapes_train"
    """A bundled list, a ``.txt`` file (a prompt a line) or ``.jsonl`` (``{"prompt": ..., "metadata": {...}}``)."""
    data: Path | None = None
    """Preference data to learn from in place of rollouts (see `docs/preferences.md`): a ``.jsonl`` file or a folder.
    Its prompts and scores are those of the training then, and ``rewards`` are measured by evaluations alone."""
    model: ModelConfig
    """The generator."""
    policy: PolicyConfig = PolicyConfig()
    """How it is sampled."""
    lora: LoraConfig = LoraConfig()
    """What is trained."""
    fit: FitConfig = FitConfig()
    """How it fits the device."""
    rewards: dict[str, RewardOptions]
    """What is wanted: plug-in names, or URLs of reward servers, with their weights."""
    reward_cache: Path | None = None
    """A folder where scores are kept, so that equal pictures are not scored twice; null keeps none."""
    shaping: list[ShapingConfig] = []
    """What is done to scores before the advantage: one transform, or several in order (see `docs/advantages.md`)."""
    advantage: AdvantageConfig = AdvantageConfig()
    """From the scores of a group to advantages."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """From advantages to a loss."""
    groups_per_step: Count = 8
    """Prompts a step, over all processes."""
    group_size: int = 8
    """Pictures a prompt; an advantage compares them with one another."""
    micro_batch_size: Count = 8
    """Pictures rolled out and trained at once in a process; a memory knob."""
    updates_per_step: Count = 1
    """Optimizer steps a training step; 1 is on-policy."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    """Of AdamW, after the warm-up."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Of AdamW."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Training steps over which the learning rate rises from 0."""
    learning_rate_half_life: Count | None = None
    """Training steps in which the learning rate halves; null keeps it. Unlike a cosine, it does not depend on
    ``max_steps``, so a run that is resumed with more steps is the run that had them from the start."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are scaled down to this norm."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Decay of an averaged copy of the LoRA, saved beside it; null keeps none."""
    eval: EvalConfig = EvalConfig()
    """How progress is measured."""
    guards: GuardConfig = GuardConfig()
    """What tells of a run that cheats its reward."""
    checkpoint_every: Count = 10
    """Training steps between two checkpoints."""
    keep_checkpoints: Count = 2
    """Newest checkpoints that stay."""
    trackers: list[str] = ["tensorboard"]
    """Trackers of accelerate; ``metrics.jsonl`` is always written."""

    @field_validator("shaping", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | dict) else value

    @field_validator("group_size")
    @classmethod
    def _a_group_compares(cls, value: int) -> int:
        if value < 2:
            raise ValueError("at least 2, because an advantage compares the pictures of one prompt; write 8")
        return value

    @field_validator("rewards")
    @classmethod
    def _something_to_learn(cls, value: dict[str, RewardOptions]) -> dict[str, RewardOptions]:
        if not any(reward.weight for reward in value.values()):
            raise ValueError(
                "at least one reward with a weight, or there is nothing to learn; write for example {shapes: 1.0}"
            )
        return value

    @model_validator(mode="after")
    def _groups_that_branch_stay_together(self) -> RunConfig:
        if self.policy.branch is not None and self.micro_batch_size % self.group_size:
            raise ValueError(
                f"micro_batch_size: {self.micro_batch_size} cuts groups of {self.group_size} apart, and with "
                "policy.branch a group is sampled as one; write a multiple of group_size, such as "
                f"micro_batch_size: {self.group_size}"
            )
        return self

    @model_validator(mode="after")
    def _own_prompts_own_evaluation(self) -> RunConfig:
        if self.prompts != "shapes_train" and "prompts" not in self.eval.model_fields_set:
            raise ValueError(
                "eval.prompts: missing, and its default asks for shapes, which your prompts do not; "
                "write eval: {prompts: your_heldout_file.txt}"
            )
        return self


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """The recipe at ``path`` with dotted overrides, for example ``["policy.steps=12", "objective=grpo"]``.

    Raises:
        UserError: the file cannot be read, or a key or a value is wrong; names the file, the line and the field.
    """
    path = Path(path)
    return recipe.load(RunConfig, path, overrides, defaults={"output": f"runs/{path.stem}"})


def to_yaml(config: RunConfig) -> str:
    """The resolved recipe, every default written out; `load_config` reads it back to an equal config."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text
