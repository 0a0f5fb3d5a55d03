"""JPEG sizes as a reward."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards.jpeg import JpegIncompressibilityReward, JpegReward, kilobytes


def batch_of(*images: torch.Tensor) -> RewardBatch:
    """A batch of the given `[3, H, W]` pictures."""
    return RewardBatch(torch.stack(images), [""] * len(images), [{}] * len(images))


def test_kilobytes_are_the_size_of_the_file_that_pillow_writes(tmp_path):
    """The reward is minus the size on disk, in units of 1,000 bytes, at quality 95."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95)
    image = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    size = (tmp_path / "a.jpg").stat().st_size / 1000
    assert kilobytes(image) == size
    assert JpegReward()(batch_of(image)).item() == pytest.approx(-size)
    assert JpegIncompressibilityReward()(batch_of(image)).item() == pytest.approx(size)


def test_values_are_rounded_not_cut():
    """254.6 / 255 is stored as 255: the file decodes to white."""
    image = torch.full((3, 16, 16), 254.6 / 255)
    white = io.BytesIO()
    Image.new("RGB", (16, 16), "white").save(white, format="JPEG", quality=95)
    assert kilobytes(image) == len(white.getvalue()) / 1000


def test_more_detail_is_larger():
    """Flat, a gradient and noise are in the order of their detail, and each costs at least a header."""
    ramp = torch.linspace(0, 1, 64).expand(3, 64, 64)
    flat, noise = torch.full((3, 64, 64), 0.5), torch.rand(3, 64, 64)
    sizes = JpegIncompressibilityReward()(batch_of(flat, ramp, noise)).tolist()
    assert 0.5 < sizes[0] < sizes[1] < sizes[2]


def test_lower_quality_is_smaller():
    """The option reaches the encoder, in both rewards."""
    noise = batch_of(torch.rand(3, 64, 64))
    assert JpegReward(quality=50)(noise) > JpegReward()(noise)
    assert JpegIncompressibilityReward(quality=50)(noise) < JpegIncompressibilityReward()(noise)


@pytest.mark.parametrize("reward", [JpegReward, JpegIncompressibilityReward])
@pytest.mark.parametrize("quality", [0, 96, -1])
def test_quality_out_of_range(reward, quality):
    """Qualities that the encoder does not have are refused when the reward is made."""
    with pytest.raises(UserError, match=f"quality: wanted a number from 1 to 95, got {quality}"):
        reward(quality=quality)
