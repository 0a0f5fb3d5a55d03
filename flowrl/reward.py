"""What a reward is, and a weighted set of rewards that survives the failures of each.

A reward gives one number a picture, or one a video. It may be

- a plain function ``f(images, prompts, metadata)`` that returns B numbers, ``f(videos, prompts, metadata)`` if it wants
  whole videos, or
- a subclass of :class:`Reward`, which also says what it needs, what it was made from and how to try it out.

Both are named in a config by ``rewards: {shapes: 1.0, "my_rewards.py:brightness": 0.2}``. B is the number of samples
in a batch and R the number of rewards in a set. NaN means "could not score".
"""

from __future__ import annotations

import inspect
import math
import numbers
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from . import plugins
from .data import PromptRow
from .errors import RunStopped, UserError

Media = Literal["image", "video"]
Scope = Literal["sample", "group", "step"]


@dataclass(frozen=True)
class RewardBatch:
    """Pictures or videos to score, with all that a reward may look at.

    Raises:
        ValueError: lengths differ, or the images are not float32 `[B, 3, H, W]` or `[B, F, 3, H, W]` in [0, 1].
    """

    images: Tensor
    """`[B, 3, H, W]`, videos `[B, F, 3, H, W]`, float32 in [0, 1]; NaN and infinities are let through, for
    :class:`RewardSet` to sort out."""
    prompts: list[str]
    """The prompt of each picture."""
    metadata: list[dict[str, Any]]
    """The metadata of each prompt's row."""
    groups: Tensor | None = None
    """`[B]` int64, equal for pictures of one group."""
    latents: Tensor | None = None
    """`[B, ...]` the final latents that the pictures were decoded from."""
    fps: float | None = None
    """Frames a second of videos, if known."""

    def __post_init__(self) -> None:
        """Check shapes, dtype and range."""
        images = self.images
        if images.ndim not in (4, 5) or images.shape[-3] != 3 or images.dtype != torch.float32:
            raise ValueError(
                f"images: wanted float32 [B, 3, H, W] or [B, F, 3, H, W], got {images.dtype} {list(images.shape)}"
            )
        outside = images.isfinite() & ((images < 0) | (images > 1))
        if outside.any():
            low, high = images[outside].min().item(), images[outside].max().item()
            raise ValueError(f"images: wanted values in [0, 1], got {low:.3g} to {high:.3g}; from [-1, 1]: (x + 1) / 2")
        for field in ("prompts", "metadata", "groups", "latents"):
            value = getattr(self, field)
            if value is not None and len(value) != len(images):
                raise ValueError(f"{field}: wanted {len(images)}, one a picture, got {len(value)}")

    def __len__(self) -> int:
        """B, the number of samples."""
        return len(self.prompts)

    @property
    def media(self) -> Media:
        """What is scored: ``image`` or ``video``."""
        return "image" if self.images.ndim == 4 else "video"

    def frames(self) -> RewardBatch:
        """The frames of all videos as B * F pictures, video by video; the latents, which are of whole videos, are left.

        >>> clips = RewardBatch(torch.zeros(2, 5, 3, 8, 8), ["a", "b"], [{}, {}], groups=torch.tensor([0, 1]))
        >>> clips.frames().images.shape, clips.frames().groups.tolist()
        (torch.Size([10, 3, 8, 8]), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
        """
        count = self.images.shape[1]
        return RewardBatch(
            images=self.images.flatten(0, 1),
            prompts=[prompt for prompt in self.prompts for _ in range(count)],
            metadata=[row for row in self.metadata for _ in range(count)],
            groups=None if self.groups is None else self.groups.repeat_interleave(count),
        )

    def select(self, indices: Sequence[int]) -> RewardBatch:
        """The samples at ``indices``, in that order."""
        rows = list(indices)
        return RewardBatch(
            images=self.images[rows],
            prompts=[self.prompts[row] for row in rows],
            metadata=[self.metadata[row] for row in rows],
            groups=None if self.groups is None else self.groups[rows],
            latents=None if self.latents is None else self.latents[rows],
            fps=self.fps,
        )


class Unscored(Exception):
    """Raised by a reward that knows why it could not score some samples: they are NaN, and it is not asked again.

    Attributes:
        reason: why not.
        scores: `[B]`, NaN where there is none; None if there are none at all.
    """

    def __init__(self, reason: str, scores: Tensor | None = None) -> None:
        """Could not score for ``reason``; ``scores`` are of the samples that could be."""
        super().__init__(reason)
        self.reason, self.scores = reason, scores


class Reward(ABC):
    """A reward that describes itself. Only ``__call__`` must be written; set what differs from the defaults.

    Options of the config reach the constructor as keyword arguments, where weights are loaded too.

    >>> class Redness(Reward):
    ...     range = (-1.0, 1.0)
    ...
    ...     def __call__(self, batch):
    ...         return batch.images[:, 0].mean(dim=(1, 2)) - batch.images[:, 1:].mean(dim=(1, 2, 3))
    >>> Redness()(RewardBatch(torch.ones(2, 3, 8, 8), ["a", "b"], [{}, {}])).tolist()
    [0.0, 0.0]
    """

    name: str = ""
    """What to call it in a table; a config names it by its own key."""
    higher_is_better: bool = True
    """False for a distance or an error: :meth:`RewardSet.combine` flips its sign."""
    range: tuple[float, float] = (-math.inf, math.inf)
    """Smallest and largest possible score."""
    needs: frozenset[str] = frozenset()
    """Metadata keys that every prompt row must have."""
    media: Media = "image"
    """What it looks at. A reward for images is shown every frame of a video, and the video's score is their mean; one
    for videos cannot score an image."""
    scope: Scope = "sample"
    """What a score depends on; for a whole ``group`` or ``step`` see :class:`flowrl.set_reward.SetReward`."""
    differentiable: bool = False
    """Whether gradients reach the images."""
    thread_safe: bool = True
    """Whether it may be called by another thread than the main one, while that draws pictures. False for one that
    uses what a process has once, such as the global random generators; it is called after the rollout."""
    cacheable: bool = True
    """Whether a score depends on the sample alone (picture, prompt, metadata, ``fps``), and is the same each time."""
    extra: str = ""
    """The extra of flowrl that brings the packages it needs, as in ``pip install 'flowrl[ocr]'``."""
    license: str = ""
    """Of the weights, as an SPDX expression."""
    source: str = ""
    """What it is made from: weights file, its SHA-256 and the preprocessing; or ``procedural``."""

    @abstractmethod
    def __call__(self, batch: RewardBatch) -> Tensor:
        """Score a batch: `[B]` raw scores, NaN for a sample that cannot be scored.

        :class:`Unscored` gives the reason for NaN, too. Whatever else it raises is held against the samples that raise
        it alone too. A :class:`~flowrl.errors.RunStopped` or a :class:`~flowrl.errors.UserError` is meant for the run
        and passes through.
        """

    def check(self, rows: Sequence[PromptRow]) -> None:
        """Make sure, before any generator is loaded, that the prompts have what this reward needs.

        Raises:
            UserError: a row lacks a metadata key of :attr:`needs`; the message names file, line and key.
        """
        for row in rows:
            for key in sorted(self.needs - row.metadata.keys()):
                label = self.name or type(self).__name__
                present = ", ".join(sorted(row.metadata)) or "none"
                raise UserError(
                    f"{row.where}: metadata.{key}: missing; the reward {label!r} needs it (there: {present}). "
                    f'A line of a .jsonl file: {{"prompt": ..., "metadata": {{"{key}": ...}}}}.'
                )

    def examples(self) -> tuple[RewardBatch, RewardBatch] | None:
        """Pictures that must score well and pictures that must score badly, for ``flowrl doctor``; None if unknown."""
        return None


class FunctionReward(Reward):
    """A plain function ``f(images, prompts, metadata, **options)`` as a reward.

    It gets its own copy of the images `[B, 3, H, W]`, so it may write into them, and returns B numbers in a tensor, an
    array, a list or a tuple; None for "could not score". If its first argument is called ``videos``, it gets whole
    videos `[B, F, 3, H, W]` instead of frame by frame. Attributes ``thread_safe`` and ``cacheable``
    of the function are the reward's.

    >>> brightness = FunctionReward(lambda images, prompts, metadata: images.mean(dim=(1, 2, 3)), name="brightness")
    >>> brightness(RewardBatch(torch.ones(2, 3, 8, 8), ["a", "b"], [{}, {}]))
    tensor([1., 1.])
    """

    source = "function"

    def __init__(self, function: Callable[..., Any], *, name: str = "", **options: Any) -> None:
        """Wrap ``function``; ``options`` are keyword arguments of each call.

        Raises:
            UserError: the function does not take these arguments.
        """
        self.name = name or getattr(function, "__name__", type(function).__name__)
        plugins.check_options(function, options, f"reward {self.name!r}", given=3)
        self.function, self._options = function, options
        self.thread_safe = getattr(function, "thread_safe", True)
        self.cacheable = getattr(function, "cacheable", True)
        self.media = "video" if next(iter(inspect.signature(function).parameters), "") == "videos" else "image"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """Call the function; what is not a number becomes NaN."""
        copies = batch.images.clone(), list(batch.prompts), [dict(row) for row in batch.metadata]
        return read_scores(self.function(*copies, **self._options), len(batch), self.name)


@dataclass(frozen=True)
class Scores:
    """What a :class:`RewardSet` found."""

    raw: Tensor
    """`[B, R]` float32 on the CPU, in each reward's own units and sign; NaN where it could not score."""
    failures: dict[str, int]
    """Samples that each reward could not score; every reward of the set has an entry."""
    errors: dict[str, str]
    """The first trouble that each reward had, if any: also one that only a batch raised, and no sample alone."""


@dataclass(frozen=True, eq=False)
class RewardSet:
    """Several rewards with their weights.

    A sample that a reward cannot score is NaN there and nowhere else, whether the reward returned NaN, an infinity or
    None, or raised. A reward that is broken altogether stops the run and is named.
    """

    names: tuple[str, ...]
    """The keys of the config."""
    rewards: tuple[Reward, ...]
    """The rewards, in the order of ``names``."""
    weights: Tensor
    """`[R]` float32; they take effect in the advantage."""

    @classmethod
    def from_config(cls, config: Mapping[str, float | Mapping[str, Any]]) -> RewardSet:
        """Load the rewards that a config names.

        Args:
            config: from a plug-in name (see :mod:`flowrl.plugins`) to a weight, or to a mapping with ``weight`` (1 if
                missing) and options: of the class's constructor, or keyword arguments of the function.

        Raises:
            UserError: a name, a weight or an option is wrong.

        >>> RewardSet.from_config({"jpeg": {"weight": 0.5, "quality": 80}}).weights
        tensor([0.5000])
        """
        if not config:
            raise UserError("rewards: wanted at least one, such as {shapes: 1.0}, got none.")
        weights, rewards = [], []
        for name, value in config.items():
            options = dict(value) if isinstance(value, Mapping) else {"weight": value}
            weights.append(_weight(name, options.pop("weight", 1.0)))
            rewards.append(_build(name, options))
        return cls(tuple(config), tuple(rewards), torch.tensor(weights, dtype=torch.float32))

    def check(self, rows: Sequence[PromptRow]) -> None:
        """Run every reward's :meth:`Reward.check`."""
        for reward in self.rewards:
            reward.check(rows)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Scores:
        """Score a batch with every reward; rewards for images score a video by the mean over its frames.

        Pictures that are not finite are NaN without a call. If a reward raises, it is called again sample by sample,
        and those that raise alone are NaN.

        Raises:
            UserError: a reward for videos is to score images.
            RunStopped: a reward raised on every one of two or more samples, or returned something else than one number
                a sample. (One sample alone is NaN, lest micro-batches of one stop a run that larger ones do not.)
        """
        finite = batch.images.isfinite().flatten(1).all(dim=1).cpu()
        usable = batch.select(finite.nonzero().flatten().tolist())
        raw = torch.full((len(batch), len(self.names)), math.nan)
        failures, errors = {}, {}
        for column, (name, reward) in enumerate(zip(self.names, self.rewards, strict=True)):
            raw[finite, column], trouble = _score(name, reward, usable)
            failures[name] = int(raw[:, column].isnan().sum())
            if trouble or failures[name]:
                errors[name] = trouble or "the picture is not finite"
        return Scores(raw, failures, errors)

    def combine(self, raw: Tensor) -> Tensor:
        """Turn raw scores `[..., R]` so that larger is better in each, the form that advantages take."""
        signs = [1.0 if reward.higher_is_better else -1.0 for reward in self.rewards]
        return raw * torch.tensor(signs, dtype=raw.dtype, device=raw.device)

    def require_alive(self, scores: Scores) -> None:
        """Stop the run if a reward could score nothing at all; meant for the scores of a whole step.

        Rewards of weight 0 are only watched, and may be silent.

        Raises:
            RunStopped: every score of a reward is NaN.
        """
        for column, name in enumerate(self.names):
            if self.weights[column] != 0 and scores.raw[:, column].isnan().all():
                reason = scores.errors.get(name, "no reason was recorded")
                raise RunStopped(f"reward {name!r} could score none of {len(scores.raw)} samples: {reason}.")

    def describe(self) -> list[dict[str, Any]]:
        """One JSON-ready record a reward, for ``environment.json``; an open end of a range is None."""
        return [
            {
                "name": name,
                "weight": weight,
                "media": reward.media,
                "higher_is_better": reward.higher_is_better,
                "range": [bound if math.isfinite(bound) else None for bound in reward.range],
                "needs": sorted(reward.needs),
                "differentiable": reward.differentiable,
                "license": reward.license,
                "source": reward.source,
            }
            for name, reward, weight in zip(self.names, self.rewards, self.weights.tolist(), strict=True)
        ]


def read_scores(values: Any, count: int, name: str) -> Tensor:
    """Whatever a reward returned, as `[count]` float32 on the CPU; None, infinities and non-numbers are NaN.

    Args:
        values: a tensor, an array, a list or a tuple of ``count`` numbers or Nones.
        count: samples that it was asked to score.
        name: of the reward, for the message.

    Raises:
        RunStopped: it is something else, or has another length.

    >>> read_scores([1, None, True, "high"], 4, "mine")
    tensor([1., nan, 1., nan])
    """
    if not isinstance(values, Tensor | np.ndarray | list | tuple):
        raise RunStopped(f"reward {name!r}: wanted {count} numbers, one a picture, got a {type(values).__name__}.")
    shape = list(values.shape) if isinstance(values, Tensor | np.ndarray) else [len(values)]
    if shape != [count]:
        raise RunStopped(f"reward {name!r}: wanted {count} numbers, one a picture, got shape {shape}.")
    if isinstance(values, Tensor):
        scores = values.detach().to("cpu", torch.float32)
    else:
        scores = torch.tensor([_number(value) for value in values], dtype=torch.float32)
    return torch.where(scores.isfinite(), scores, math.nan)


def _number(value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.item())
    return float(value) if isinstance(value, numbers.Real) else math.nan


def _score(name: str, reward: Reward, batch: RewardBatch) -> tuple[Tensor, str | None]:
    """The scores `[B]` of one reward, and its first trouble."""
    if reward.media == "video" and batch.media == "image":
        raise UserError(
            f"reward {name!r} scores videos, and the pipeline draws single pictures; train a video pipeline, or write "
            "another reward."
        )
    if reward.scope != "sample":
        from .set_reward import require_pictures

        require_pictures(name, reward, batch.media)
    if not len(batch):
        return torch.empty(0), None
    score = partial(_by_frame, name, reward) if (reward.media, batch.media) == ("image", "video") else reward
    try:
        values = score(batch)
    except (RunStopped, UserError):
        raise
    except Unscored as error:
        return read_scores(_or_nan(error.scores, len(batch)), len(batch), name), error.reason
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises: it is recorded, or stops the run
        return _score_one_by_one(name, score, batch, error)
    scores = read_scores(values, len(batch), name)
    return scores, "it returned None or a number that is not finite" if scores.isnan().any() else None


def _by_frame(name: str, reward: Reward, batch: RewardBatch) -> Tensor:
    """The mean score `[B]` of each video's frames; NaN if one of them could not be scored."""
    frames = batch.frames()
    try:
        scores = read_scores(reward(frames), len(frames), name)
    except Unscored as error:
        scores = _or_nan(error.scores, len(frames)).view(len(batch), -1).mean(dim=1)
        raise Unscored(error.reason, scores) from error
    return scores.view(len(batch), -1).mean(dim=1)


def _or_nan(scores: Tensor | None, count: int) -> Tensor:
    return torch.full((count,), math.nan) if scores is None else scores


def _score_one_by_one(
    name: str, reward: Callable[[RewardBatch], Any], batch: RewardBatch, error: Exception
) -> tuple[Tensor, str | None]:
    """Find out which samples made a reward raise ``error``."""
    if len(batch) == 1:
        return torch.full((1,), math.nan), describe_error(error)
    parts, reasons = [], []
    for index in range(len(batch)):
        scores = torch.full((1,), math.nan)
        try:
            scores = read_scores(reward(batch.select([index])), 1, name)
        except (RunStopped, UserError):
            raise
        except Unscored as own:
            reasons.append(own.reason)
        except Exception as own:  # noqa: BLE001 - as above
            reasons.append(describe_error(own))
        parts.append(scores)
    if len(reasons) == len(batch):
        raise RunStopped(f"reward {name!r} raised on each of {len(batch)} samples: {describe_error(error)}.") from error
    return torch.cat(parts), reasons[0] if reasons else f"no sample alone, but a batch of them: {describe_error(error)}"


def describe_error(error: Exception) -> str:
    """The error's type, message and the place that raised it, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"


def _weight(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"rewards.{name}: weight: wanted a finite number such as 1.0, got {value!r}.")
    return float(value)


def _build(name: str, options: Mapping[str, Any]) -> Reward:
    """The reward that a plug-in name stands for."""
    if name.startswith(("http://", "https://")):
        from .remote_reward import RemoteReward

        plugins.check_options(RemoteReward, options, f"reward {name!r}", given=1)
        return RemoteReward(name, **options)
    found = plugins.load("rewards", name)
    if isinstance(found, type) and issubclass(found, Reward):
        plugins.check_options(found, options, f"reward {name!r}")
        return found(**options)
    if isinstance(found, Reward):
        if options:
            raise UserError(f"reward {name!r}: it is an object, made already: it takes no options, got {options}.")
        return found
    if isinstance(found, type) or not callable(found):
        raise UserError(
            f"reward {name!r}: wanted a function f(images, prompts, metadata) or a subclass of flowrl.reward.Reward, "
            f"got {found!r}."
        )
    return FunctionReward(found, name=name, **options)
