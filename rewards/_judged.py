"""What the judges of the bundled worlds share: two modes, and prompts that must be captions of their world."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..data import PromptRow
from ..errors import UserError
from ..reward import Reward, RewardBatch

MODES = ("strict", "partial")


class JudgedReward(Reward):
    """Whether a picture or a clip shows what its caption asks for, by a judge that looks at pixels.

    Attributes:
        size: side in pixels of the pictures or frames; a judge's margins are in pixels.
    """

    range = (0.0, 1.0)
    license = "Apache-2.0"
    source = "procedural"
    size: ClassVar[int]

    def __init__(self, mode: str = "strict") -> None:
        """``strict`` gives 0 or 1, ``partial`` a number in between for a part of what was asked for.

        Raises:
            UserError: the mode is neither.
        """
        if mode not in MODES:
            raise UserError(f"reward {self.name!r}: mode: wanted one of {', '.join(MODES)}, got {mode!r}.")
        self.mode = mode

    @abstractmethod
    def verdict(self, pixels: np.ndarray, caption: str) -> tuple[float, float]:
        """The ``strict`` and the ``partial`` score of `[..., H, W, 3]`, float in [0, 1]."""

    @abstractmethod
    def parse(self, caption: str) -> object:
        """Read a caption; a ``ValueError`` shows the forms."""

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each picture or clip, `[B]`, in [0, 1].

        Raises:
            ValueError: they are not ``size`` pixels wide and high.
        """
        height, width = batch.images.shape[-2:]
        if (height, width) != (self.size, self.size):
            what = "pictures" if batch.media == "image" else "frames"
            raise ValueError(f"wanted {what} of {self.size} x {self.size} pixels, got {width} x {height}")
        pixels = batch.images.movedim(-3, -1).cpu().numpy()
        verdicts = [self.verdict(item, prompt) for item, prompt in zip(pixels, batch.prompts, strict=True)]
        return torch.tensor(verdicts, dtype=torch.float32).reshape(-1, 2)[:, MODES.index(self.mode)]

    def check(self, rows: Sequence[PromptRow]) -> None:
        """Make sure that every prompt is a caption of the judge's world.

        Raises:
            UserError: one is not; the message names file and line and shows the forms.
        """
        super().check(rows)
        for row in rows:
            try:
                self.parse(row.prompt)
            except ValueError as error:
                raise UserError(
                    f"{row.where}: prompt: {error} (The reward {self.name!r} reads nothing else.)"
                ) from error
