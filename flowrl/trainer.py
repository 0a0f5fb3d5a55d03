"""The loop: sample, score, credit, update, evaluate, save.

The trainer knows four contracts (policy, reward, advantage, objective) and no method by name. Every process holds the
whole policy and the same state; micro-batch ``i`` of a step is rolled out and trained by rank ``i % world_size``, and
what must be known everywhere (scores, gradients) is exchanged. So the number of processes changes nothing but the time.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from torch import Tensor

from . import encoders, fitting, parallel
from .adapters import Decay, LoRA, WeightCopy, constant_decay
from .branching import Tree, advantages_by_leaves, credit, rollout_tree
from .checkpoint import Checkpoints, Counters
from .config import RunConfig
from .data import MicroBatch, plan_step, rows_for_step, sample_seed
from .errors import RunStopped
from .evaluation import Evaluation, Setting, draw, eval_batches, evaluate
from .files import remove_unfinished
from .guards import Guards, Watch, forget_later
from .objectives import Seeds, Work
from .objectives.exchange import with_groups
from .policy import Policy
from .preflight import Preflight, preflight
from .reward import Scores
from .reward_gradients import reward_of_pictures
from .run import EXPORTS, RunFolder, environment
from .scoring import Scoring, score_metrics, scores_of_step, to_score
from .selection import Chosen
from .session import Schedule
from .stored import StoredRollouts
from .summary import summary_line
from .trajectory import Rollout
from .updates import learning_rate, shares

T = TypeVar("T")
Rollouts = dict[int, tuple[MicroBatch, Rollout]]

PATIENCE = 3
"""Steps in a row without a learning signal before a run stops itself."""


def train(config: RunConfig, resume: bool = False) -> Path:
    """Run a whole training.

    Args:
        config: the run.
        resume: go on from the last checkpoint in ``config.output``, or from the start if there is none.

    Returns:
        The run's folder.

    Raises:
        UserError: the run cannot work; nothing has been written.
        RunStopped: the run found itself broken.
    """
    checked = preflight(config, resume)
    # Without an accelerator, accelerate must be told so, or it takes several CPU processes for several main processes.
    cpu = not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=cpu, log_with=list(config.trackers) or None, project_dir=config.output)
    trainer = Trainer(checked.resolved.config, checked, accelerator)
    try:
        trainer.run()
    except RunStopped as stop:
        trainer.note_stop(str(stop))
        raise
    return config.output


class Trainer:
    """A run in progress.

    Attributes:
        policy: what is trained.
        copies: named weight copies: those that the objective declared, and ``ema``.
        counters: steps done, denoiser calls, and so on.
        how: the pipeline is called: arguments of `Policy.record`.
    """

    def __init__(self, config: RunConfig, checked: Preflight, accelerator: Accelerator) -> None:
        """Load the model and set everything up; nothing is written yet."""
        self.config, self._checked, self._accelerator = config, checked, accelerator
        pipe = checked.loader(checked.model, config.model)
        targets = None if config.lora.targets is None else tuple(config.lora.targets)
        lora = LoRA(config.lora.rank, config.lora.alpha, targets, sample_seed("lora", config.seed))
        self.policy = Policy(
            pipe,
            kernel=checked.kernel,
            trainable=config.model.trainable,
            lora=lora,
            reduction=config.policy.reduction,
            full=config.fit.train == "full",
        )
        fitting.fit(self.policy, config.fit, accelerator.device)
        self.objective = checked.objective
        self._score = partial(reward_of_pictures, checked.rewards, config.policy.fps)
        self._exchange = partial(with_groups, self.objective, self.policy, group_size=config.group_size)
        self.parameters = list(self.policy.parameters.values())
        self.optimizer = torch.optim.AdamW(self.parameters, config.learning_rate, weight_decay=config.weight_decay)
        self._decays: dict[str, Decay] = dict(self.objective.copies())
        if config.ema_decay is not None:
            self._decays["ema"] = constant_decay(config.ema_decay)
        self.copies = {name: WeightCopy(self.policy.parameters) for name in self._decays}
        self.counters = Counters()
        self.folder = RunFolder(config.output)
        self.checkpoints = Checkpoints(config.output / "checkpoints", config.keep_checkpoints)
        self._console = Console(quiet=not accelerator.is_main_process)
        size = {"height": config.policy.height, "width": config.policy.width}
        self._call = {**config.policy.call, **{key: value for key, value in size.items() if value is not None}}
        self.how: dict[str, Any] = {
            "steps": config.policy.steps,
            "guidance_scale": config.policy.guidance_scale,
            "call": self._call,
        }
        self._stored = None if checked.stored is None else StoredRollouts(checked.stored, self.policy, self.how)
        self._seconds: dict[str, float] = defaultdict(float)
        samples = len(checked.eval_rows) * config.eval.samples_per_prompt
        self._guards = Guards(config.guards, Watch.of(checked.rewards, checked.eval_rewards, samples))

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, to ``max_steps``, and export."""
        self._prepare()
        self._let_encoders_go()
        if self.counters.step == 0:
            self._finish_step({"step": 0.0, **self._evaluate()})
        stopped = False
        while not self._over():
            before = self.counters.denoiser_calls
            metrics = self.step()
            last = self._over()
            if last or self._evaluation_is_due(before):
                metrics |= self._evaluate()
                stopped = not last and self._guards.stops(self.counters)
            self._finish_step(metrics)
            if last or stopped or self.counters.step % self.config.checkpoint_every == 0:
                self._save()
            if stopped:
                self._tell_early_stop()
                break
        self._export()
        self._accelerator.end_training()

    def _over(self) -> bool:
        budget = self.config.max_denoiser_calls
        spent = budget is not None and self.counters.denoiser_calls >= budget
        return spent or self.counters.step >= self.config.max_steps

    def _evaluation_is_due(self, calls_before: int) -> bool:
        every, calls = self.config.eval.every, self.config.eval.every_calls
        by_step = every > 0 and self.counters.step % every == 0
        return by_step or (calls is not None and calls_before // calls < self.counters.denoiser_calls // calls)

    def step(self) -> dict[str, float]:
        """Sample, score, credit and update once."""
        start, step = time.monotonic(), self.counters.step
        _seed_everything(sample_seed("step", self.config.seed, step))
        self._seconds.clear()
        batches = self._plan(step)
        rollouts, scores = self._rollouts(step, batches)
        advantages, metrics = self._credit(batches, rollouts, scores)
        metrics |= self._update(step, batches, rollouts, advantages)
        for name, decay in self._decays.items():
            self.copies[name].update(decay(step))
        self._watch(metrics)
        self.counters.step += 1
        self.counters.denoiser_calls += sum(parallel.gather({parallel.rank(): self.policy.denoiser_calls}).values())
        self.policy.denoiser_calls = 0
        self.counters.seconds += time.monotonic() - start
        metrics |= {f"seconds/{name}": value for name, value in self._seconds.items()}
        return {
            "step": float(self.counters.step),
            "time": self.counters.seconds,
            "denoiser_calls": float(self.counters.denoiser_calls),
            **metrics,
        }

    def note_stop(self, reason: str) -> None:
        """Leave the diagnosis and a report of what there is in the run's folder, whichever process has found it out."""
        if (self.folder.path / "config.yaml").exists():  # on this machine, and since the run has begun
            from .report import write_report

            self.folder.note_stop(self.counters.step, reason)
            write_report(self.folder.path)

    def _prepare(self) -> None:
        if self._accelerator.is_main_process:
            remove_unfinished(self.folder.path)
        steps = self.checkpoints.steps()
        if steps:
            self.counters = self.checkpoints.load(steps[-1], self.policy.parameters, self.copies, self.optimizer)
            self._console.print(f"resuming after step {self.counters.step}")
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            rewards, watched = self._checked.rewards.describe(), self._checked.eval_rewards.describe()
            trained = {reward["name"] for reward in rewards}
            rewards += [{**reward, "weight": 0.0} for reward in watched if reward["name"] not in trained]
            device = self._accelerator.device
            facts = {**environment(rewards, parallel.world_size(), device), "model": self._checked.resolved.facts()}
            self.folder.start(self.config, facts)
            self.folder.rewind(self.counters.step if steps else -1)
            forget_later(self.folder.path, self.counters.step if steps else -1)
        self._console.print(self._checked.resolved.announcement(self.policy), highlight=False, soft_wrap=True)
        self._accelerator.init_trackers("trackers")
        count = sum(p.numel() for p in self.parameters)
        self._console.print(
            f"{type(self.policy.pipe).__name__}: {count:,} trainable parameters, run in {self.folder.path}",
            soft_wrap=True,
        )

    def _let_encoders_go(self) -> None:
        """Encode the prompts of all steps to come and of the evaluations, and send the text encoders away."""
        how, setting, policy = self.config.fit.text_encoders, self._setting(), self.config.policy
        if how == "keep":
            return
        calls: dict[tuple[str, ...], Callable[[], object]] = {}
        for batch in _mine(eval_batches(self._checked.eval_rows, setting)):
            calls[("evaluation", *(row.prompt for row in batch.rows))] = partial(draw, self.policy, batch, setting)
        call = partial(self.policy.rollout, steps=policy.steps, guidance_scale=policy.guidance_scale, **self._call)
        for step in range(self.counters.step, self.config.max_steps):
            for batch in _mine(self._plan(step)):
                for shared in self._checked.sharing:  # groups that branch encode the prompts of each part anew
                    prompts = [row.prompt for row in batch.rows[::shared]]
                    calls[("rollout", *prompts)] = partial(call, prompts, seeds=range(len(prompts)))
        with self._timed("encoding"):
            encoders.let_go(self.policy, self._progress("encoding", list(calls.values())), release=how == "release")

    def _plan(self, step: int) -> list[MicroBatch]:
        config, rows = self.config, self._checked.rows
        chosen = [rows[row] for row in rows_for_step(len(rows), config.groups_per_step, step, config.seed)]
        batches = plan_step(
            chosen,
            group_size=config.group_size,
            micro_batch_size=config.micro_batch_size,
            step=step,
            seed=config.seed,
            share_initial_noise=config.policy.share_initial_noise,
        )
        return batches if self._checked.stored is None else self._checked.stored.scored(batches)

    def _rollouts(self, step: int, batches: Sequence[MicroBatch]) -> tuple[Rollouts, Scores]:
        """What this process draws of a step, and the scores of what all draw."""
        rewards, rollouts, choose = self._checked.rewards, {}, self._choice(step)
        with Scoring(rewards) as scoring:
            with self._timed("rollout"), self._behaviour():
                for batch in self._progress("rollout", _mine(batches)):
                    rollout = self._rollout(batch, choose)
                    rollouts[batch.index] = (batch, rollout)
                    scoring.begin(batch.index, to_score(batch, rollout, self.config.policy.fps))
            with self._timed("score"):
                mine = scoring.finish(partial(self._progress, "scoring"))
                return rollouts, scores_of_step(rewards, mine)

    def first_rollout(self) -> tuple[MicroBatch, Rollout]:
        """The first micro-batch of the first step, sampled as in training."""
        batch = self._plan(0)[0]
        with self._behaviour():
            return batch, self._rollout(batch, self._choice(0))

    def _choice(self, step: int) -> Callable[[Schedule], Chosen]:
        return partial(self._checked.selection.select, step, sample_seed("window", self.config.seed, step))

    def _rollout(self, batch: MicroBatch, choose: Callable[[Schedule], Chosen]) -> Rollout:
        """A micro-batch, with the steps that ``choose`` says: sample by sample, or groups that branch. Or stored."""
        if self._stored is not None:
            return self._stored(batch)
        config, policy = self.config, self.config.policy
        prompts = [row.prompt for row in batch.rows]

        def train(schedule: Schedule) -> Sequence[int]:
            return sorted(choose(schedule).train)

        how: dict[str, Any] = {
            "seeds": batch.seeds,
            "steps": policy.steps,
            "guidance_scale": policy.guidance_scale,
            "train_steps": train if self.objective.transitions else (),
            "noise_steps": lambda schedule: choose(schedule).noise,
            **self._call,
        }
        if policy.branch is None:
            keep = self.objective.keep_steps(policy.steps)
            return self.policy.rollout(prompts, latent_seeds=batch.latent_seeds, keep_steps=keep, **how)
        at = train if policy.branch.at is None else policy.branch.at
        return rollout_tree(self.policy, prompts, tree=Tree(config.group_size, at, policy.branch.into), **how)

    def _behaviour(self) -> AbstractContextManager[None]:
        name = self.objective.behaviour
        return nullcontext() if name is None else self.copies[name].active()

    def _credit(
        self, batches: Sequence[MicroBatch], rollouts: Rollouts, scores: Scores
    ) -> tuple[dict[int, dict[int, Tensor]], dict[str, float]]:
        """Advantages of every micro-batch, `[B]` or by step `[B, T]`, by how many samples share a step."""
        config, rewards = self.config, self._checked.rewards
        table = rewards.combine(scores.raw).unflatten(0, (config.groups_per_step, config.group_size))
        advantages, diagnostics = self._checked.advantage(table, rewards.weights)
        levels = advantages_by_leaves(
            advantages, table, rewards.weights, self._checked.advantage, [rollout for _, rollout in rollouts.values()]
        )
        start, cut = 0, {}
        for batch in batches:
            part = slice(start, start + len(batch.rows))
            cut[batch.index] = {leaves: found.flatten(0, 1)[part] for leaves, found in levels.items()}
            start = part.stop
        metrics = {f"advantage/{name}": value for name, value in diagnostics.items() if not name.startswith("reward_")}
        metrics |= {"reward/mean": diagnostics["reward_mean"], "reward/std": diagnostics["reward_std"]}
        return cut, metrics | score_metrics(rewards, scores)

    def _update(
        self,
        step: int,
        batches: Sequence[MicroBatch],
        rollouts: Rollouts,
        advantages: dict[int, dict[int, Tensor]],
    ) -> dict[str, float]:
        """The step's optimizer updates, each from the gradients of its share of the samples of all processes."""
        averages = parallel.Averages()
        with self._timed("update"):
            pieces = {index: self._pieces(step, batch, rollout) for index, (batch, rollout) in rollouts.items()}
            lengths = parallel.gather({index: len(work) for index, work in pieces.items()})
            counts = {batch.index: len(batch.rows) for batch in batches}
            credits = {i: credit(rollout, advantages[i], self.policy.device) for i, (_, rollout) in rollouts.items()}
            for number, share in enumerate(shares(counts, self.config.updates_per_step)):
                total = sum((part.stop - part.start) * lengths[index] for index, part in share.items())
                mine = [(index, piece) for index in share if index in rollouts for piece in pieces[index]]
                works = {
                    i: Work(own, self.copies, number == 0, by_step, score=partial(self._score, *rollouts[i]))
                    for i, (own, by_step) in credits.items()
                }
                works = self._exchange({i: (rollouts[i][1], pieces[i], work) for i, work in works.items()})
                for index, piece in self._progress("update", mine):
                    terms = self.objective.loss(self.policy, rollouts[index][1], piece, works[index])
                    part = share[index]
                    (terms.loss[part].sum() / total).backward()
                    values = {"loss": terms.loss.detach(), **terms.metrics}
                    shown = {name: value[part] if value.dim() else value for name, value in values.items()}
                    averages.add(shown, part.stop - part.start)
                averages.add({"grad_norm": self._optimize(step)}, 1)
        return averages.over_processes()

    def _pieces(self, step: int, batch: MicroBatch, rollout: Rollout) -> Sequence[Any]:
        shared = sample_seed("objective", self.config.seed, step)
        own, groups = [sample_seed("objective", n) for n in batch.seeds], [sample_seed(shared, n) for n in batch.groups]
        return self.objective.pieces(self.policy, rollout, Seeds(shared, own, groups))

    def _optimize(self, step: int) -> Tensor:
        """One optimizer update from the gradients of all processes; the gradient's norm before clipping."""
        parallel.sum_gradients(self.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        if not norm.isfinite():
            raise RunStopped(
                f"the gradient of step {step + 1} is not finite. No weight has taken it. Likely "
                "causes: a step of the schedule with a std near 0 is trained; float16 overflowed (write model.dtype: "
                "bfloat16); a score is extreme (look at the rewards in metrics.jsonl)."
            )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm.detach()

    def _watch(self, metrics: dict[str, float]) -> None:
        """Stop a run that does not learn."""
        dead = metrics["advantage/dead_groups"] == self.config.groups_per_step
        idle = dead or metrics["grad_norm"] == 0
        self.counters.idle = self.counters.idle + 1 if idle else 0
        if self.counters.idle >= PATIENCE:
            reason = (
                "in every group all scores were equal, so there is nothing to prefer"
                if dead
                else "the gradient was exactly 0"
            )
            raise RunStopped(
                f"no learning signal for {PATIENCE} steps in a row: {reason}. Mean reward "
                f"{metrics['reward/mean']:.4g}. Likely causes: the reward returns a constant (run `flowrl doctor "
                "CONFIG`); group_size is too small for a reward that is rarely given; the task is solved or hopeless "
                "for these prompts."
            )

    def _evaluate(self) -> dict[str, float]:
        with self._timed("evaluation"), self._evaluated():
            result: Evaluation = evaluate(
                self.policy,
                self._checked.eval_rows,
                self._checked.eval_rewards,
                self._setting(),
                lambda batches: self._progress("evaluation", batches),
            )
        if self._accelerator.is_main_process:
            self.folder.save_samples(self.counters.step, result.images, result.records, self.config.policy.fps)
        return {**result.metrics, **self._guard(result.metrics), "seconds/evaluation": self._seconds["evaluation"]}

    def _guard(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """What the guards say to an evaluation; weights that are the best so far are kept."""
        found, messages = self._guards.look(self.counters, metrics)
        self._alarms = list(messages.values())
        for message in self._alarms:
            self._console.print(f"[yellow]alarm:[/] {escape(message)}", highlight=False, soft_wrap=True)
        if self._guards.improves(self.counters, metrics) and self._accelerator.is_main_process:
            with self._evaluated():
                self._guards.save_best(self.folder.path, self.counters, self.policy.save)
        return found

    def _tell_early_stop(self) -> None:
        reason = (
            f"{self.config.guards.stop_after} evaluations in a row with an alarm (guards.stop_after), the last: "
            f"{'; '.join(self._alarms)}. Look at the pictures; `flowrl train CONFIG --resume` goes on until there are "
            "as many again."
        )
        self._console.print(f"stopped early after step {self.counters.step}: {reason}", highlight=False, soft_wrap=True)
        if self._accelerator.is_main_process:
            self.folder.note_stop(self.counters.step, reason)

    def _evaluated(self) -> AbstractContextManager[None]:
        return self.copies["ema"].active() if "ema" in self.copies else nullcontext()

    def _setting(self) -> Setting:
        config, setting = self.config, self.config.eval
        guidance_scale = setting.guidance_scale
        return Setting(
            samples_per_prompt=setting.samples_per_prompt,
            steps=setting.steps or config.policy.steps,
            guidance_scale=config.policy.guidance_scale if guidance_scale is None else guidance_scale,
            micro_batch_size=setting.micro_batch_size,
            seed=config.seed,
            call=self._call,
            fps=config.policy.fps,
        )

    def _finish_step(self, metrics: dict[str, float]) -> None:
        if self._accelerator.is_main_process:
            self.folder.log(metrics)
        self._accelerator.log(metrics, step=self.counters.step)
        self._console.print(summary_line(metrics, self.config.max_steps), highlight=False, soft_wrap=True)

    def _save(self) -> None:
        if self._accelerator.is_main_process:
            self.checkpoints.save(self.counters, self.policy.parameters, self.copies, self.optimizer)
        self._accelerator.wait_for_everyone()

    def _export(self) -> None:
        """Write what was trained (and its moving average) for users, and the report."""
        if self._accelerator.is_main_process:
            from .report import write_report

            folder = self.folder.path / EXPORTS[self.config.fit.train]
            self.policy.save(folder)
            if "ema" in self.copies:
                with self.copies["ema"].active():
                    self.policy.save(folder / "ema")
            write_report(self.folder.path)
        self._accelerator.wait_for_everyone()

    def _progress(self, label: str, items: Sequence[T]) -> Iterable[T]:
        hidden = self._console.quiet or not self._console.is_terminal
        return track(items, label, console=self._console, transient=True, disable=hidden)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._seconds[name] += time.monotonic() - start


def _mine(batches: Sequence[MicroBatch]) -> list[MicroBatch]:
    return [batch for batch in batches if batch.index % parallel.world_size() == parallel.rank()]


def _seed_everything(seed: int) -> None:
    """Global generators for code that is not ours (a user's reward, a pipeline): the same in a resumed run."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
