"""What can be known before any weights load: a run that cannot work is refused here, and leaves nothing behind.

`preflight` runs every check, the cheap ones first, and hands back what it had to build on the way. It reads files and
imports plug-ins, but writes nothing and loads no weights. In a run of several processes all must have passed before one
of them creates the output folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import plugins, recipe
from .config import ModelConfig, Plugin, PolicyConfig, RewardOptions, RunConfig, load_config
from .data import PromptRow, load_prompts
from .errors import UserError
from .models import matrices
from .preferences import SCORE, load_groups, rows_of
from .preset import Resolved, resolve

if TYPE_CHECKING:
    from .kernels import Kernel
    from .objectives import Objective
    from .reward import RewardSet
    from .selection import StepSelection
    from .stored import StoredData

RESUMABLE = (
    "output",
    "max_steps",
    "max_denoiser_calls",
    "micro_batch_size",
    "reward_cache",
    "eval",
    "guards",
    "checkpoint_every",
    "keep_checkpoints",
    "trackers",
)
"""Fields that may change when a run is resumed: none of them alters what the steps compute."""

RESUMABLE_FIT = ("gradient_checkpointing", "text_encoders", "vae_slicing", "fsdp")
"""The same for fields of ``fit``."""

RUN_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "environment.json",
    "samples",
    "checkpoints",
    "adapter",
    "best",
    "model",
    "trackers",
    "report.html",
    "stopped.json",
    "compare.png",
    "compare.webp",
)
"""What a run writes into its folder."""

_LAUNCHER_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "no": None}
_SPARE_BYTES = 64 * 2**20  # pictures, metrics, the report


@dataclass(frozen=True)
class Preflight:
    """What a checked run is made of.

    Attributes:
        resolved: the run with its open settings decided; the rest is made from its ``config``.
        model: the model's folder, checkpoint or hub id.
        loader: ``loader(model, config.model)`` gives the pipeline.
        kernel: the transition kernel of the rollouts.
        rows: prompts to train on.
        eval_rows: held-out prompts.
        rewards: what is trained on.
        eval_rewards: what evaluations measure.
        advantage: ``advantage(scores, weights)``, its options bound.
        objective: the objective, its options set.
        selection: which steps are stochastic and trained.
        sharing: how many samples share each part of a trajectory, see `check_branch`.
        stored: preference data that the run learns from in place of rollouts.
    """

    resolved: Resolved
    model: str
    loader: Callable[..., Any]
    kernel: Kernel
    rows: list[PromptRow]
    eval_rows: list[PromptRow]
    rewards: RewardSet
    eval_rewards: RewardSet
    advantage: Callable[..., Any]
    objective: Objective
    selection: StepSelection
    sharing: Sequence[int]
    stored: StoredData | None = None


def preflight(config: RunConfig, resume: bool = False) -> Preflight:
    """Check a run and build its parts that need no weights.

    Args:
        config: the run.
        resume: whether ``config.output`` may hold the beginning of this run.

    Raises:
        UserError: the run cannot work; the message says what to change.
    """
    resolved, rows, eval_rows = check_files(config, resume)
    config, model = resolved.config, resolved.files.place
    loader = plugins.load("pipelines", config.model.loader)
    kernel, objective = make_kernel(config.policy), make_objective(config.objective)
    from .fitting import check_fit

    check_transitions(config.objective.name, objective, kernel)
    objective.check(config.policy.steps)
    selection = make_selection(config.policy)
    sharing = check_branch(config, selection, kernel)
    stored = make_stored(config, objective)
    credited = config.rewards if stored is None else {SCORE: RewardOptions(weight=1.0)}
    advantage = make_advantage(config.advantage, config.shaping, credited)
    check_credit(config, objective, advantage, [options.weight for options in credited.values()])
    check_fit(config, len(eval_rows), int(os.environ.get("WORLD_SIZE", "1")))
    check_disk(config, model)
    # Rewards come last: their constructors may load weights of their own.
    rewards, eval_rewards = make_both_rewards(config, stored)
    if stored is None:
        rewards.check(rows)
    eval_rewards.check(eval_rows)
    from .guards import check

    check(config.guards, eval_rewards)
    check_media(resolved.files.pipeline, [rewards, eval_rewards])
    check_gradients(config, objective, rewards)
    made = (kernel, rows, eval_rows, rewards, eval_rewards, advantage, objective, selection, sharing, stored)
    return Preflight(resolved, model, loader, *made)


def check_media(pipeline: str | None, rewards: Sequence[RewardSet]) -> None:
    """Refuse a reward for videos where the pipeline is known to draw single pictures.

    One that compares pictures with each other is refused where the pipeline is known to draw videos.

    Raises:
        UserError: names the reward and the class.
    """
    from .set_reward import require_pictures
    from .support import read

    task = next((row.task for row in read().rows if row.name == pipeline), None)
    if task is not None and task.endswith("to video"):
        for found in rewards:
            for name, reward in zip(found.names, found.rewards, strict=True):
                require_pictures(name, reward, "video")
    if task is None or not task.endswith("to image"):  # "control" and the like say nothing of it
        return
    for found in rewards:
        for name, reward in zip(found.names, found.rewards, strict=True):
            if reward.media == "video":
                raise UserError(
                    f"reward {name!r} scores videos, and {pipeline} draws single pictures ({task}); train a video "
                    "pipeline, or write another reward."
                )


def check_files(config: RunConfig, resume: bool = False) -> tuple[Resolved, list[PromptRow], list[PromptRow]]:
    """The checks that need no torch, so that the command line can make them before its slow imports.

    Returns:
        The run with its open settings decided, the prompts, and the held-out prompts.

    Raises:
        UserError: as `preflight`.
    """
    check_launcher(config.model)
    resolved = resolve(config)
    check_output(resolved.config, resume)
    rows = load_prompts(config.prompts) if config.data is None else rows_of(load_groups(config.data))
    return resolved, rows, load_prompts(config.eval.prompts)


def check_launcher(model: ModelConfig, environment: Mapping[str, str] = os.environ) -> None:
    """Precision is said in one place, and no two processes share a GPU.

    Args:
        model: the run's model.
        environment: what ``accelerate launch`` set.

    >>> check_launcher(ModelConfig(path="a"), {"ACCELERATE_MIXED_PRECISION": "bf16"})
    Traceback (most recent call last):
        ...
    flowrl.errors.UserError: the launcher asks for bf16 and model.dtype is float32; write model.dtype: bfloat16, or \
launch with --mixed_precision no.
    """
    asked = environment.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    dtype = _LAUNCHER_DTYPES.get(asked, asked)
    if dtype is not None and dtype != model.dtype:
        known = f"write model.dtype: {dtype}, or " if asked in _LAUNCHER_DTYPES else ""
        raise UserError(
            f"the launcher asks for {asked} and model.dtype is {model.dtype}; {known}launch with --mixed_precision no."
        )
    processes = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    if processes > 1:
        import torch

        devices = torch.cuda.device_count()
        if 0 < devices < processes:
            raise UserError(f"{processes} processes for {devices} GPUs; launch with --num_processes {devices}.")


def check_output(config: RunConfig, resume: bool) -> None:
    """The output folder is free, or holds the beginning of this very run.

    Raises:
        UserError: it holds another run or foreign files, cannot be written, or the resumed run would change.
    """
    folder = config.output
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        problem = "cannot be written" if existing.is_dir() else "is a file"
        raise UserError(f"output: {existing} {problem}; write another folder, such as output=runs/second.")
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    visible = [name for name in names if not name.startswith(".")]
    if not visible:
        return
    listed = ", ".join(visible[:5])
    foreign = [name for name in visible if name not in RUN_FILES]
    if "config.yaml" not in names and foreign:
        raise UserError(f"output: {folder} is not empty ({listed}) and holds no run; write another folder.")
    if not resume:
        raise UserError(
            f"output: {folder} holds a run already ({listed}); continue it with --resume, "
            f"or write another folder, such as output={folder}-2."
        )
    if "config.yaml" in names:
        _same_run(config, folder / "config.yaml")


def _same_run(config: RunConfig, path: Path) -> None:
    free: Any = {**dict.fromkeys(RESUMABLE, True), "fit": set(RESUMABLE_FIT)}
    before, now = (c.model_dump(mode="json", exclude=free) for c in (load_config(path), config))
    changed = [f"{key} was {before[key]}, is {now[key]}" for key in now if before[key] != now[key]]
    if changed:
        raise UserError(
            f"{path} is of another run: {'; '.join(changed)}. Take the old values back, or write another output. "
            f"Free to change when resuming: {', '.join((*RESUMABLE, *(f'fit.{name}' for name in RESUMABLE_FIT)))}."
        )


def make_rewards(rewards: Mapping[str, RewardOptions], cache: Path | None = None) -> RewardSet:
    """The rewards of a config, with a cache of their scores in a folder."""
    from .reward import RewardSet

    made = RewardSet.from_config({name: options.model_dump() for name, options in rewards.items()})
    if cache is None:
        return made
    from .reward_cache import with_cache

    return with_cache(made, {name: options.model_dump(exclude={"weight"}) for name, options in rewards.items()}, cache)


def make_both_rewards(config: RunConfig, stored: StoredData | None) -> tuple[RewardSet, RewardSet]:
    """What is trained on, and what evaluations measure; the same set where the config says no other."""
    if stored is not None:
        from .stored import stored_rewards

        measured = config.rewards if config.eval.rewards is None else config.eval.rewards
        return stored_rewards(), make_rewards(measured, config.reward_cache)
    rewards = make_rewards(config.rewards, config.reward_cache)
    if config.eval.rewards is None:
        return rewards, rewards
    return rewards, make_rewards(config.eval.rewards, config.reward_cache)


def make_stored(config: RunConfig, objective: Objective) -> StoredData | None:
    """The preference data of a config, if it has some and its objective can learn from it."""
    name = config.objective.name
    if config.data is None:
        if objective.needs_noise:
            raise UserError(
                f"objective {name} wants the noise that each sample was drawn from; that is in preference data alone: "
                "write data: FOLDER, as `flowrl data make` fills it."
            )
        return None
    if objective.transitions or objective.differentiates or objective.behaviour is not None:
        raise UserError(
            f"data: objective {name} learns from rollouts of its own, and not from stored samples; write an objective "
            "such as dpo or gdro, or leave data out."
        )
    if config.policy.branch is not None:
        raise UserError("data: stored samples do not branch; leave policy.branch out.")
    from .stored import StoredData

    return StoredData.of(load_groups(config.data), config.group_size, objective.needs_noise)


def make_kernel(policy: PolicyConfig) -> Kernel:
    """The transition kernel of a config."""
    from .kernels import KERNELS

    return KERNELS[policy.kernel]() if policy.kernel == "ode" else KERNELS[policy.kernel](policy.noise_level)


def make_advantage(
    advantage: Plugin, shaping: Sequence[Plugin] = (), rewards: Mapping[str, RewardOptions] | None = None
) -> Callable[..., Any]:
    """The advantage of a config, ``f(scores, weights)``, after its shapings, with all options bound and tried out."""
    from .composition import compose

    return compose(advantage, shaping, {name: options.weight for name, options in (rewards or {}).items()})


def make_objective(objective: Plugin) -> Objective:
    """The objective of a config."""
    from .objectives import Objective

    found = plugins.load("objectives", objective.name)
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise UserError(
            f"objective: {objective.name!r} is {found!r}; wanted a subclass of flowrl.objectives.Objective."
        )
    recipe.validate(found.Options, objective.options, recipe.Source(f"objective {objective.name}"))
    return found(**objective.options)


def make_selection(policy: PolicyConfig) -> StepSelection:
    """The step selection of a config, fit for its schedule."""
    from .selection import StepSelection, short_form

    if not isinstance(policy.train_steps, Plugin):
        selection = short_form(policy.train_steps)
    else:
        name = policy.train_steps.name
        found = plugins.load("selections", name)
        if not (isinstance(found, type) and issubclass(found, StepSelection)):
            raise UserError(
                f"policy.train_steps: {name!r} is {found!r}; wanted a subclass of flowrl.selection.StepSelection."
            )
        selection = recipe.validate(found, policy.train_steps.options, recipe.Source(f"policy.train_steps {name}"))
    selection.check(policy.steps)
    return selection


def check_branch(config: RunConfig, selection: StepSelection, kernel: Kernel) -> list[int]:
    """Where samples share their trajectories, noise makes them part, in numbers that give whole groups.

    Returns:
        How many samples share each part of a trajectory, from its start on; the last is 1.
    """
    branch = config.policy.branch
    if branch is None:
        return [1]
    from .branching import Tree
    from .selection import stand_in

    if kernel.noise_level == 0:
        raise UserError(
            f"policy.branch: trajectories part by their noise, and kernel {kernel.name} with noise_level 0 has none; "
            "write policy.kernel: flow_sde, or leave policy.branch out."
        )
    schedule = stand_in(config.policy.steps)
    chosen = selection.select(0, 0, schedule)
    splits = Tree(config.group_size, chosen.train if branch.at is None else branch.at, branch.into).splits(schedule)
    for step, _ in splits:
        if step >= config.policy.steps:
            last = config.policy.steps - 1
            raise UserError(f"policy.branch.at: step {step}, but the schedule has the steps 0 to {last}.")
    return [config.group_size // width for width in accumulate((ways for _, ways in splits), mul, initial=1)]


def check_credit(
    config: RunConfig, objective: Objective, advantage: Callable[..., Any], reward_weights: Sequence[float]
) -> None:
    """Refuse an advantage for each step where the objective, the schedule or branches have no place for it."""
    import torch

    weights = torch.tensor(reward_weights, dtype=torch.float32)
    tried: torch.Tensor = advantage(torch.tensor([0.0, 1.0]).reshape(1, 2, 1).expand(1, 2, len(weights)), weights)[0]
    if tried.ndim == 2:
        return
    label, steps = f"advantage {config.advantage.name}", config.policy.steps
    if tried.shape[2] != steps:
        raise UserError(f"{label}: numbers for {tried.shape[2]} steps, but policy.steps is {steps}; write one a step.")
    if not objective.by_step:
        raise UserError(
            f"{label} gives each step its own advantages, and objective {config.objective.name} takes one a sample; "
            "write an objective such as grpo or nft, or advantage: group."
        )
    if config.policy.branch is not None:
        raise UserError(f"{label}: branches have advantages of their own by step; leave policy.branch out.")


def check_transitions(name: str, objective: Objective, kernel: Kernel) -> None:
    """An objective that trains on transitions needs a kernel with noise."""
    if objective.transitions and kernel.noise_level == 0:
        raise UserError(
            f"objective {name} trains on stochastic transitions, and kernel {kernel.name} with "
            "noise_level 0 has none; write policy.kernel: flow_sde, or an objective that needs none, such as nft."
        )


def check_gradients(config: RunConfig, objective: Objective, rewards: RewardSet) -> None:
    """An objective that scores pictures of its own needs whole trajectories, and perhaps rewards with gradients."""
    name = config.objective.name
    if objective.keep_steps(config.policy.steps):
        if config.shaping:
            raise UserError(f"shaping: objective {name} takes the rewards themselves; leave it out.")
        if config.policy.branch is not None:
            raise UserError(f"policy.branch: objective {name} finishes every sample's own trajectory; leave it out.")
        for kind, reward, weight in zip(rewards.names, rewards.rewards, rewards.weights.tolist(), strict=True):
            if reward.scope != "sample" and weight != 0:
                raise UserError(
                    f"objective {name} scores pictures of its own, micro-batch by micro-batch, and reward {kind!r} "
                    f"needs all of a {reward.scope}; write weight 0 to only watch it, or an objective such as grpo."
                )
    if objective.differentiates:
        from .reward_gradients import check_differentiable

        check_differentiable(name, rewards)


def check_disk(config: RunConfig, model: str) -> None:
    """There is room for the checkpoints."""
    folder = next(path for path in (config.output, *config.output.absolute().parents) if path.exists())
    wanted, free = run_bytes(config, model), shutil.disk_usage(folder).free
    if free < wanted:
        raise UserError(
            f"output: no disk space for checkpoints: {folder} has {free / 2**20:.0f} MB free, and this run needs about "
            f"{wanted / 2**20:.0f} MB; write output: on another disk, keep_checkpoints: 1, or a smaller lora.rank."
        )


def run_bytes(config: RunConfig, model: str) -> int:
    """About how many bytes a run writes.

    A checkpoint holds what is trained, Adam's two moments, and up to two more copies (EMA, old policy), in float32; one
    more than ``keep_checkpoints`` exist while the newest is written. The sizes come from the headers of the weight
    files; for a model that is not on this disk only a flat sum is asked for.
    """
    from .calls import DENOISERS

    found = matrices(Path(model), DENOISERS)
    if config.fit.train == "full":
        numbers = sum(shape[0] * shape[1] for _, shape in found)
    else:
        targets = _targets(config.lora.targets)
        numbers = sum(config.lora.rank * (shape[0] + shape[1]) for name, shape in found if name.endswith(targets))
    return 4 * numbers * (5 * (config.keep_checkpoints + 1) + 2) + _SPARE_BYTES


def _targets(targets: Sequence[str] | None) -> tuple[str, ...]:
    from .adapters import ATTENTION

    return tuple("." + target + ".weight" for target in targets or ATTENTION)
