"""Statistics of pixels, as rewards and as guards: they need no weights, and show what a run does to its pictures.

Training on a learned reward often moves one of them long before pictures look wrong: fine grids raise the edge energy,
flat and dark pictures lower it together with the colour entropy. As a reward each is its plain value; with ``target``
it is minus the distance from a value, such as the base model's, which holds a statistic where it was. The formulas are
:mod:`flowrl.pixels`'.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from ..errors import UserError
from ..pixels import blockiness, clipping, colour_entropy, dark_share, edge_energy, saturation
from ..reward import Reward, RewardBatch


class _Statistic(Reward):
    """A statistic as a reward: its value, or minus its distance from a target."""

    range = (0.0, 1.0)
    license = "Apache-2.0"
    source = "procedural"

    def __init__(self, target: float | None = None) -> None:
        low, high = type(self).range
        if target is not None and not low <= target <= high:
            raise UserError(f"reward {self.name!r}: target: wanted a number from {low} to {high}, got {target!r}.")
        self.target = target
        if target is not None:
            self.higher_is_better, self.range = True, (low - high, 0.0)

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each picture, `[B]`."""
        value = self.measure(batch.images)
        return value if self.target is None else -(value - self.target).abs()

    @abstractmethod
    def measure(self, images: Tensor) -> Tensor:
        """The statistic of pictures `[B, 3, H, W]`, `[B]`."""


class SaturationReward(_Statistic):
    """:func:`~flowrl.pixels.saturation`, in [0, 1]; with ``target`` minus the distance from it, in [-1, 0].

    >>> import torch
    >>> red = RewardBatch(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), ["a"], [{}])
    >>> SaturationReward()(red).item(), SaturationReward(target=0.25)(red).item()
    (1.0, -0.75)
    """

    name = "saturation"
    differentiable = True

    def measure(self, images: Tensor) -> Tensor:
        """:func:`~flowrl.pixels.saturation`."""
        return saturation(images)


class ClippingReward(_Statistic):
    """:func:`~flowrl.pixels.clipping`, in [0, 1], lower is better; with ``target`` minus the distance from it.

    >>> import torch
    >>> ClippingReward()(RewardBatch(torch.ones(1, 3, 8, 8), ["a"], [{}])).item()
    1.0
    """

    name = "clipping"
    higher_is_better = False

    def __init__(self, target: float | None = None, margin: float = 1 / 255) -> None:
        """Count values within ``margin`` of 0 or 1.

        Raises:
            UserError: an option is out of range.
        """
        super().__init__(target)
        if not 0 <= margin < 0.5:
            raise UserError(f"reward {self.name!r}: margin: wanted a number from 0 to 0.5, got {margin!r}.")
        self.margin = margin

    def measure(self, images: Tensor) -> Tensor:
        """:func:`~flowrl.pixels.clipping`."""
        return clipping(images, self.margin)


class EdgeEnergyReward(_Statistic):
    """:func:`~flowrl.pixels.edge_energy`, in [0, 1]; with ``target`` minus the distance from it.

    >>> import torch
    >>> EdgeEnergyReward()(RewardBatch(torch.ones(1, 3, 8, 8), ["a"], [{}])).item()
    0.0
    """

    name = "edge_energy"
    differentiable = True

    def measure(self, images: Tensor) -> Tensor:
        """:func:`~flowrl.pixels.edge_energy`."""
        return edge_energy(images)


class BlockinessReward(_Statistic):
    """:func:`~flowrl.pixels.blockiness`, in [-1, 1], lower is better; with ``target`` minus the distance from it.

    >>> import torch
    >>> BlockinessReward()(RewardBatch(torch.ones(1, 3, 16, 16), ["a"], [{}])).item()
    0.0
    """

    name = "blockiness"
    range = (-1.0, 1.0)
    higher_is_better = False
    differentiable = True

    def __init__(self, target: float | None = None, period: int = 8) -> None:
        """Look for a grid of ``period`` pixels.

        Raises:
            UserError: an option is out of range.
        """
        super().__init__(target)
        if period < 2:
            raise UserError(f"reward {self.name!r}: period: wanted at least 2 pixels, got {period!r}.")
        self.period = period

    def measure(self, images: Tensor) -> Tensor:
        """:func:`~flowrl.pixels.blockiness`."""
        return blockiness(images, self.period)


class DarkShareReward(_Statistic):
    """:func:`~flowrl.pixels.dark_share`, in [0, 1], lower is better; with ``target`` minus the distance from it.

    >>> import torch
    >>> DarkShareReward()(RewardBatch(torch.zeros(1, 3, 8, 8), ["a"], [{}])).item()
    1.0
    """

    name = "dark_share"
    higher_is_better = False

    def __init__(self, target: float | None = None, threshold: float = 0.1) -> None:
        """Call a pixel dark under a luma of ``threshold``.

        Raises:
            UserError: an option is out of range.
        """
        super().__init__(target)
        if not 0 < threshold < 1:
            raise UserError(f"reward {self.name!r}: threshold: wanted a number from 0 to 1, got {threshold!r}.")
        self.threshold = threshold

    def measure(self, images: Tensor) -> Tensor:
        """:func:`~flowrl.pixels.dark_share`."""
        return dark_share(images, self.threshold)


class ColourEntropyReward(_Statistic):
    """:func:`~flowrl.pixels.colour_entropy`, in [0, 1]; with ``target`` minus the distance from it.

    >>> import torch
    >>> ColourEntropyReward()(RewardBatch(torch.zeros(1, 3, 8, 8), ["a"], [{}])).item()
    0.0
    """

    name = "colour_entropy"

    def measure(self, images: Tensor) -> Tensor:
        """:func:`~flowrl.pixels.colour_entropy`."""
        return colour_entropy(images)
