"""How small a picture is as a JPEG: a reward that needs no weights and cannot be argued with.

See "Training Diffusion Models with Reinforcement Learning" (DDPO), Black et al., https://arxiv.org/abs/2305.13301,
section 5.2. Training on it ends in flat pictures, on its opposite in noise, so it shows at a glance whether a run
learns.
"""

from __future__ import annotations

import io

import torch
from PIL import Image
from torch import Tensor

from ..errors import UserError
from ..reward import Reward, RewardBatch


def kilobytes(image: Tensor, quality: int = 95) -> float:
    """Size of a picture as a JPEG file, in units of 1,000 bytes.

    Args:
        image: `[3, H, W]` in [0, 1]; it is rounded to 8 bits.
        quality: of the JPEG, 1 to 95.

    >>> kilobytes(torch.zeros(3, 48, 48)) < kilobytes(torch.rand(3, 48, 48))
    True
    """
    pixels = (image.detach().float() * 255).round().clamp(0, 255).to("cpu", torch.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, format="JPEG", quality=quality)
    return len(file.getvalue()) / 1000


class JpegReward(Reward):
    """Compressibility: minus the kilobytes of the picture as a JPEG.

    Sizes grow with the number of pixels, so compare runs of one resolution only.

    >>> flat_and_noise = torch.stack([torch.zeros(3, 48, 48), torch.rand(3, 48, 48)])
    >>> flat, noise = JpegReward()(RewardBatch(flat_and_noise, ["a", "b"], [{}, {}])).tolist()
    >>> noise < flat < 0
    True
    """

    name = "jpeg"
    range = (-float("inf"), 0.0)
    license = "Apache-2.0"
    source = "procedural"

    def __init__(self, quality: int = 95) -> None:
        """Encode with ``quality``, from 1 to 95; DDPO takes 95.

        Raises:
            UserError: the quality is out of range.
        """
        if not 1 <= quality <= 95:
            raise UserError(f"reward {self.name!r}: quality: wanted a number from 1 to 95, got {quality!r}.")
        self.quality = quality

    def __call__(self, batch: RewardBatch) -> Tensor:
        """Minus the kilobytes of each picture, `[B]`."""
        return -torch.tensor([kilobytes(image, self.quality) for image in batch.images])

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """A grey picture, and noise."""
        grey = torch.full((1, 3, 64, 64), 0.5)
        noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        return RewardBatch(grey, ["grey"], [{}]), RewardBatch(noise, ["noise"], [{}])


class JpegIncompressibilityReward(Reward):
    """Incompressibility: the kilobytes of the picture as a JPEG.

    >>> batch = RewardBatch(torch.zeros(1, 3, 48, 48), ["a"], [{}])
    >>> torch.equal(JpegIncompressibilityReward()(batch), -JpegReward()(batch))
    True
    """

    name = "jpeg_incompressibility"
    range = (0.0, float("inf"))
    license = "Apache-2.0"
    source = "procedural"

    def __init__(self, quality: int = 95) -> None:
        """Encode with ``quality``, from 1 to 95."""
        self._compressibility = JpegReward(quality)

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The kilobytes of each picture, `[B]`."""
        return -self._compressibility(batch)

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """Noise, and a grey picture."""
        grey, noise = self._compressibility.examples()
        return noise, grey
