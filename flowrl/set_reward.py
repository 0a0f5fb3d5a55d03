"""Rewards that see more than one sample: all of a group, or all of a step, wherever they were drawn.

Such a reward says two things. :meth:`SetReward.features` is what it has to know of each sample; it is called with the
micro-batch, in the process that drew it. :meth:`SetReward.combine` makes the scores of all samples of a group or a step
from those features; it is called once for each, in one process, and every process is told the result
(:mod:`flowrl.set_scoring`). So micro-batch sizes and processes change nothing, each picture's features are computed
once, and a judge that answers differently each time still gives one score.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import RunStopped, UserError
from .reward import Reward, RewardBatch, Scope, Unscored, describe_error, read_scores

ODD = "it returned None or a number that is not finite"


@dataclass(frozen=True)
class Members:
    """The samples that are scored together: those of a group or of a step that could be looked at, in the step's order.

    >>> members = Members(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]), ["a", "b"], [{}, {}])
    >>> len(members), members.select([1]).prompts
    (2, ['b'])
    """

    features: Tensor
    """`[N, ...]` on the CPU, finite."""
    groups: Tensor
    """`[N]` int64, equal for samples of one group."""
    prompts: list[str]
    """The prompt of each."""
    metadata: list[dict[str, Any]]
    """The metadata of each prompt's row."""

    def __len__(self) -> int:
        """N, the number of samples."""
        return len(self.prompts)

    def select(self, indices: Sequence[int]) -> Members:
        """The samples at ``indices``, in that order."""
        rows = list(indices)
        prompts, metadata = [self.prompts[row] for row in rows], [self.metadata[row] for row in rows]
        return Members(self.features[rows], self.groups[rows], prompts, metadata)

    @staticmethod
    def joined(parts: Sequence[Members]) -> Members:
        """Several, one after the other."""
        return Members(
            torch.cat([part.features for part in parts]),
            torch.cat([part.groups for part in parts]),
            [prompt for part in parts for prompt in part.prompts],
            [row for part in parts for row in part.metadata],
        )


@dataclass(frozen=True)
class Seen:
    """What a reward saw of a micro-batch."""

    usable: Tensor
    """`[B]` bool: the samples with features."""
    members: Members | None
    """Those samples; None if there are none."""
    trouble: str | None
    """Why there are others, if any."""


class SetReward(Reward):
    """A reward of whole groups, or of whole steps. Write :meth:`features` and :meth:`combine`.

    Called with a batch, it takes that for all there is. Options reach the constructor, as for any reward.

    >>> class Unlike(SetReward):
    ...     "How far a picture's brightness is from the mean of its group."
    ...
    ...     def features(self, batch):
    ...         return batch.images.mean(dim=(1, 2, 3))[:, None]
    ...
    ...     def combine(self, members):
    ...         return (members.features - members.features.mean(dim=0)).abs()[:, 0]
    >>> pictures = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1).expand(3, 3, 8, 8)
    >>> Unlike()(RewardBatch(pictures, ["a"] * 3, [{}] * 3)).tolist()
    [0.5, 0.0, 0.5]
    """

    scope: Scope = "group"
    """What :meth:`combine` sees: ``group`` or ``step``."""
    cacheable = False

    @abstractmethod
    def features(self, batch: RewardBatch) -> Tensor:
        """What must be known of each sample, `[B, ...]`, of the sample alone; NaN where it cannot be scored.

        If it raises, it is called again sample by sample, and only those that raise alone are left out.
        """

    @abstractmethod
    def combine(self, members: Members) -> Tensor:
        """The scores `[N]` of all samples of a group or a step, those with features.

        :class:`~flowrl.reward.Unscored` gives the reason where there are none. Whatever else it raises is held against
        this group or step; a :class:`~flowrl.errors.RunStopped` or a :class:`~flowrl.errors.UserError` is for the run.
        """

    def measure(self, members: Members) -> float | None:
        """The one number of a set, such as its distance, for evaluations; None if the scores' mean says it.

        With the scope ``group`` an evaluation takes its mean over the groups.
        """
        return None

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores `[B]` of a batch that is all there is.

        Raises:
            Unscored: some samples have none.
        """
        label = self.name or type(self).__name__
        seen = observe(label, self, batch)
        scores, trouble = torch.full((len(batch),), math.nan), seen.trouble
        if seen.members is not None:
            found = torch.full((len(seen.members),), math.nan)
            for rows in sets_of(self, seen.members):
                found[rows], odd = combine(label, self, seen.members.select(rows))
                trouble = trouble or odd
            scores[seen.usable] = found
        if trouble:
            raise Unscored(trouble, scores)
        return scores


def require_pictures(name: str, reward: Reward, media: str) -> None:
    """Refuse videos for a set reward that looks at pictures: the frames of a video are no group.

    Raises:
        UserError: names the reward.
    """
    if reward.scope != "sample" and (reward.media, media) == ("image", "video"):
        raise UserError(
            f"reward {name!r} compares pictures of a {reward.scope} with each other, and the pipeline draws videos; "
            "write a subclass with media = 'video', or another reward."
        )


def sets_of(reward: SetReward, members: Members) -> list[list[int]]:
    """Which of the members a reward sees together: those of each group, or all."""
    if reward.scope == "step":
        return [list(range(len(members)))]
    numbers = members.groups.tolist()
    return [[row for row, other in enumerate(numbers) if other == group] for group in dict.fromkeys(numbers)]


@torch.no_grad()
def observe(name: str, reward: SetReward, batch: RewardBatch) -> Seen:
    """The features of a micro-batch; pictures that are not finite have none, without a call.

    Raises:
        RunStopped: the reward raised on every one of two or more samples, or returned something else than a tensor with
            one row a sample.
        UserError: the batch is of videos, and the reward for pictures.
    """
    require_pictures(name, reward, batch.media)
    usable = batch.images.isfinite().flatten(1).all(dim=1).cpu()
    trouble = None if usable.all() else "the picture is not finite"
    kept: list[int] = usable.nonzero().flatten().tolist()
    features, rows, raised = _features(name, reward, batch.select(kept), kept)
    if features is not None and features.is_floating_point():
        finite = features.isfinite().flatten(1).all(dim=1)
        raised = raised or (None if finite.all() else "its features are not finite")
        features, rows = features[finite], [row for row, good in zip(rows, finite.tolist(), strict=True) if good]
    usable = torch.zeros(len(batch), dtype=torch.bool)
    usable[rows] = True
    if features is None or not rows:
        return Seen(usable, None, raised or trouble)
    groups = torch.zeros(len(batch), dtype=torch.int64) if batch.groups is None else batch.groups.cpu()
    prompts, metadata = [batch.prompts[row] for row in rows], [batch.metadata[row] for row in rows]
    return Seen(usable, Members(features, groups[rows], prompts, metadata), raised or trouble)


def combine(name: str, reward: SetReward, members: Members) -> tuple[Tensor, str | None]:
    """The scores `[N]` of a set, and the trouble if some are NaN; what is meant for the run passes through."""
    try:
        scores = read_scores(reward.combine(members), len(members), name)
    except (RunStopped, UserError):
        raise
    except Unscored as error:
        none = torch.full((len(members),), math.nan)
        return (none if error.scores is None else read_scores(error.scores, len(members), name)), error.reason
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises: it is recorded
        return torch.full((len(members),), math.nan), describe_error(error)
    return scores, ODD if scores.isnan().any() else None


def _features(
    name: str, reward: SetReward, batch: RewardBatch, rows: list[int]
) -> tuple[Tensor | None, list[int], str | None]:
    """Features of a batch whose samples have the numbers ``rows``, the numbers of those that have some, and trouble."""
    if not rows:
        return None, [], None
    try:
        return _read(reward.features(batch), len(batch), name), rows, None
    except (RunStopped, UserError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises: it is recorded, or stops the run
        if len(batch) == 1:
            return None, [], describe_error(error)
        first = error
    found, kept, reasons = [], [], []
    for index, row in enumerate(rows):
        try:
            found.append(_read(reward.features(batch.select([index])), 1, name))
            kept.append(row)
        except (RunStopped, UserError):
            raise
        except Exception as own:  # noqa: BLE001 - as above
            reasons.append(describe_error(own))
    if not kept:
        raise RunStopped(f"reward {name!r} raised on each of {len(batch)} samples: {describe_error(first)}.") from first
    return torch.cat(found), kept, reasons[0] if reasons else f"only together: {describe_error(first)}"


def _read(features: Any, count: int, name: str) -> Tensor:
    if not isinstance(features, Tensor) or features.ndim < 2 or len(features) != count:
        got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise RunStopped(f"reward {name!r}: features: wanted a tensor [{count}, ...], one row a sample, got {got}.")
    return features.detach().cpu()
