"""How different the pictures of a group, or of a step, are from each other; a picture's score is its share of that.

With a small weight beside another reward, they keep a group from becoming one picture. Noise is diverse, too: alone
they are no good.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from ..reward import RewardBatch, Unscored
from ..set_reward import Members, SetReward
from . import _sets
from ._features import extractor

Within = Literal["group", "step"]


class _Diversity(SetReward):
    """Features, and the choice of the set."""

    source = "procedural"

    def __init__(self, features: str = "pixels", *, within: Within = "group") -> None:
        """What is compared, and among whom.

        Args:
            features: ``pixels``, ``filters``, or a plug-in's ``module:function`` from `[N, 3, H, W]` to `[N, D]`.
            within: ``group`` or ``step``.

        Raises:
            UserError: an option is wrong.
        """
        if within not in get_args(Within):
            raise UserError(f"reward {self.name!r}: within: wanted group or step, got {within!r}.")
        self.scope = within
        self._extract = extractor(features, f"reward {self.name!r}")
        self.source = f"{self.name} on the features {features}"

    def features(self, batch: RewardBatch) -> Tensor:
        """The extractor's features of the pictures, `[B, D]`."""
        return self._extract(batch.images).flatten(1)

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """Four pictures of noise, and four times the same one."""
        noise = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        same = noise[:1].expand(4, 3, 32, 32).clone()
        good, bad = (RewardBatch(images, ["noise"] * 4, [{}] * 4) for images in (noise, same))
        return good, bad


class VendiReward(_Diversity):
    """What a picture adds to the Vendi score of its set: ``V(all) - V(all but this one)``, at most 1 where all differ.

    ``V`` is the number of different pictures, see :func:`._sets.vendi`, with the cosine of the features as likeness. An
    evaluation gives ``V`` itself.

    >>> good, bad = VendiReward().examples()
    >>> bool(VendiReward()(good).min() > 0.5 > VendiReward()(bad).max())
    True
    """

    name = "vendi"

    def combine(self, members: Members) -> Tensor:
        """The gain by each, `[N]`."""
        _require_two(members)
        value = _sets.vendi(_sets.leave_out(torch.eye(len(members), dtype=torch.bool)), _cosines(members))
        return value[0] - value[1:]

    def measure(self, members: Members) -> float:
        """The Vendi score of all."""
        return float(_sets.vendi(torch.ones(1, len(members), dtype=torch.bool), _cosines(members)))


class PairwiseDistanceReward(_Diversity):
    """The mean distance of a picture's features from those of the others, ``|f_i - f_j| / sqrt(D)``.

    >>> PairwiseDistanceReward()(PairwiseDistanceReward().examples()[1]).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    name = "pairwise_distance"
    range = (0.0, float("inf"))

    def combine(self, members: Members) -> Tensor:
        """The mean distance of each, `[N]`."""
        _require_two(members)
        x = members.features.double()
        # Without matrix products, equal rows have the distance 0 exactly.
        distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.sum(dim=1) / (len(members) - 1) / x.shape[1] ** 0.5


def _require_two(members: Members) -> None:
    if len(members) < 2:
        raise Unscored(f"wanted two samples or more to compare, got {len(members)}")


def _cosines(members: Members) -> Tensor:
    x = F.normalize(members.features.double(), dim=1)
    return (x @ x.T).fill_diagonal_(1.0)  # also of features that are all 0
