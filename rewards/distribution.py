"""How far all pictures of a step, as a set, are from a reference set; a picture's score is what it adds to that.

A reward of single pictures pulls all of them the same way; a distance of sets wants the whole spread of the reference.
It has to be shared out: the step's pictures with and without a subset differ by what the subset does to the distance
(subset-replace, "Distribution-wise rewards", https://arxiv.org/abs/2607.02291).
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from ..errors import UserError
from ..reward import RewardBatch, Unscored
from ..set_reward import Members, SetReward
from . import _sets
from ._features import extractor, features_of_set

Credit = Literal["sample", "subset"]


class _Distance(SetReward):
    """A distance ``d`` of sets as a reward: lower is better.

    A sample's score is ``d(all) - d(all but its subset)``; with a pool of earlier pictures, ``d(pool with as many
    replaced by the subset) - d(pool)``. An evaluation gives ``d`` of all its pictures.
    """

    scope = "step"
    higher_is_better = False

    def __init__(
        self,
        reference: str,
        features: str = "filters",
        *,
        credit: Credit = "sample",
        pool: str | None = None,
        prompts: str = "shapes_train",
    ) -> None:
        """Extract the features of the reference.

        Args:
            reference: a folder of ten or more pictures, or ``shapes``: scenes of the shapes world.
            features: ``filters``, ``pixels``, or a plug-in's ``module:function`` from `[N, 3, H, W]` to `[N, D]`.
            credit: what a subset is: ``sample``, each picture for itself; or ``subset``, the pictures that have the
                same place in their groups, one of each, which share their score.
            pool: a folder of pictures of the model before the training, of which a subset replaces as many; None to
                leave the subset out of the step's pictures instead.
            prompts: of the scenes, for ``shapes``: a prompt file, or a bundled one.

        Raises:
            UserError: an option is wrong, or pictures cannot be read.
        """
        label = f"reward {self.name!r}"
        if credit not in get_args(Credit):
            raise UserError(f"{label}: credit: wanted one of {', '.join(get_args(Credit))}, got {credit!r}.")
        self._credit, self._named, self._extract = credit, features, extractor(features, label)
        self._reference, self._sizes = features_of_set(reference, self._extract, f"{label}: reference", prompts)
        self._pool = None
        if pool is not None:
            self._pool, sizes = features_of_set(pool, self._extract, f"{label}: pool", prompts)
            self._sizes |= sizes
        self.source = f"{self.name} on the features {features}; a reference of {len(self._reference)} pictures"

    def features(self, batch: RewardBatch) -> Tensor:
        """The extractor's features of the pictures, `[B, D]`.

        Raises:
            UserError: statistics of filters depend on the pictures' size, and the reference has another.
        """
        size = tuple(batch.images.shape[-2:])
        if self._named == "filters" and self._sizes != {size}:
            raise UserError(
                f"reward {self.name!r}: the pictures are {size[0]} x {size[1]} pixels, and those of the reference (and "
                f"pool) {', '.join(f'{h} x {w}' for h, w in sorted(self._sizes))}; the features 'filters' compare "
                "equal sizes only. Resize the folder, or write features: pixels."
            )
        return self._extract(batch.images).flatten(1)

    @abstractmethod
    def distances(self, members: Tensor, features: Tensor) -> Tensor:
        """Distances `[K]` of subsets ``members`` `[K, N]` of samples with ``features`` `[N, D]` from the reference."""

    def combine(self, members: Members) -> Tensor:
        """What each sample, or its subset, adds to the distance, `[N]`."""
        subsets = subsets_of(members.groups, self._credit)
        features = members.features.double()
        size = int(subsets.sum(dim=1).max())
        if self._pool is None:
            if len(members) < size + 2:
                raise Unscored(f"wanted two samples beside a subset of {size}, got {len(members)} samples in all")
            value = self.distances(_sets.leave_out(subsets), features)
            gains = value[0] - value[1:]
        else:
            if len(self._pool) <= size:
                raise Unscored(f"wanted a pool of more pictures than a subset's {size}, got {len(self._pool)}")
            rows = _sets.replace(subsets, len(self._pool))
            value = self.distances(rows, torch.cat([self._pool, features]))
            gains = value[1:] - value[0]
        return gains[subsets.int().argmax(dim=0)]

    def measure(self, members: Members) -> float | None:
        """The distance of all."""
        if len(members) < 2:
            return None
        everyone = torch.ones(1, len(members), dtype=torch.bool)
        return float(self.distances(everyone, members.features.double()))


class FrechetReward(_Distance):
    """The Frechet distance of Gaussians fitted to features: FD on whatever features are named, and not FID.

    >>> reward = FrechetReward("shapes", "pixels", prompts="shapes_heldout")
    >>> (reward.scope, reward.higher_is_better)
    ('step', False)
    """

    name = "frechet"

    def distances(self, members: Tensor, features: Tensor) -> Tensor:
        """See :func:`._sets.frechet`."""
        return _sets.frechet(members, features, self._moments)

    @cached_property
    def _moments(self) -> _sets.Reference:
        return _sets.moments(self._reference)


class _KernelDistance(_Distance):
    """A squared maximum mean discrepancy, without bias."""

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """The kernel, `[N, M]`."""
        return _sets.polynomial_kernel(x, y)

    def distances(self, members: Tensor, features: Tensor) -> Tensor:
        """See :func:`._sets.squared_mmd`."""
        within, across = self.kernel(features, features), self.kernel(features, self._reference)
        return _sets.squared_mmd(members, within, across, self._own)

    @cached_property
    def _own(self) -> Tensor:
        return _sets.mean_of_pairs(self.kernel(self._reference, self._reference))


class KidReward(_KernelDistance):
    """The unbiased squared MMD with the kernel ``(x . y / D + 1)^3``: KID if the features are Inception's.

    >>> KidReward("shapes", "pixels", prompts="shapes_heldout").source.split(";")[0]
    'kid on the features pixels'
    """

    name = "kid"


class MmdReward(_KernelDistance):
    """The unbiased squared MMD with the kernel ``exp(-|x - y|^2 / (2 bandwidth^2))``.

    >>> MmdReward("shapes", "pixels", prompts="shapes_heldout").bandwidth > 0
    True
    """

    name = "mmd"

    def __init__(
        self,
        reference: str,
        features: str = "filters",
        *,
        bandwidth: float | None = None,
        credit: Credit = "sample",
        pool: str | None = None,
        prompts: str = "shapes_train",
    ) -> None:
        """As :class:`_Distance`, and the kernel's width.

        Args:
            reference: see there.
            features: see there.
            bandwidth: of the kernel, > 0; None for the median distance between two pictures of the reference.
            credit: see there.
            pool: see there.
            prompts: see there.

        Raises:
            UserError: an option is wrong, or all pictures of the reference are equal.
        """
        super().__init__(reference, features, credit=credit, pool=pool, prompts=prompts)
        if bandwidth is None:
            bandwidth = float(torch.pdist(self._reference).median())
        if not bandwidth > 0:
            raise UserError(f"reward {self.name!r}: bandwidth: wanted a number > 0, got {bandwidth!r}.")
        self.bandwidth = bandwidth

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """The kernel, `[N, M]`."""
        return _sets.rbf_kernel(x, y, self.bandwidth)


def subsets_of(groups: Tensor, credit: Credit) -> Tensor:
    """Which samples are scored together, `[K, N]` bool; each sample is in one subset.

    Args:
        groups: `[N]`, equal for samples of one group.
        credit: ``sample`` or ``subset``: one for each place in a group, over all groups. Samples of one group are then
            in different subsets, and so have different scores.

    >>> subsets_of(torch.tensor([7, 7, 8, 8]), "subset").int()
    tensor([[1, 0, 1, 0],
            [0, 1, 0, 1]], dtype=torch.int32)
    """
    if credit == "sample":
        return torch.eye(len(groups), dtype=torch.bool)
    same = groups[:, None] == groups
    places = same.tril(diagonal=-1).sum(dim=1)
    return places == torch.arange(int(places.max()) + 1)[:, None]
