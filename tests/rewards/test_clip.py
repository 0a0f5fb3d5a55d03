"""Preparing pictures as PIL and the published processors do; files of weights; folding linear layers."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from flowrl.errors import UserError
from flowrl.rewards._clip import CLIP_MEAN, CLIP_STD, folded, normalised, square, state_of, weights_file


def smooth(height: int, width: int) -> torch.Tensor:
    """A picture `[1, 3, H, W]` of slow waves, on 8-bit levels."""
    y, x = torch.linspace(0, 3, height)[:, None], torch.linspace(0, 4, width)[None]
    waves = torch.stack([torch.sin(x + y), torch.cos(x - y), torch.sin(2 * x) * torch.cos(y)])
    return ((waves * 0.4 + 0.5) * 255).round()[None] / 255


def as_pil(images: torch.Tensor) -> Image.Image:
    """The only picture of a batch."""
    return Image.fromarray((images[0] * 255).round().byte().permute(1, 2, 0).numpy())


@pytest.mark.parametrize("size", [(300, 400), (517, 256), (100, 80), (224, 224)])
def test_crop_equals_the_clip_processor_of_transformers(size: tuple[int, int]) -> None:
    """Within 2/255 of the pixel range, from its rounding to 8 bits."""
    from transformers import CLIPImageProcessor

    images = smooth(*size)
    wanted = CLIPImageProcessor()(as_pil(images), return_tensors="pt")["pixel_values"]
    difference = (normalised(square(images, 224)) - wanted).abs().amax(dim=(0, 2, 3)) * torch.tensor(CLIP_STD)
    assert difference.max() <= 2 / 255


@pytest.mark.parametrize("size", [(300, 400), (100, 80)])
def test_squash_equals_pil(size: tuple[int, int]) -> None:
    """Bicubic, with PIL's antialiasing."""
    images = smooth(*size)
    wanted = np.asarray(as_pil(images).resize((64, 64), Image.Resampling.BICUBIC)) / 255
    assert np.abs(square(images, 64, "squash")[0].permute(1, 2, 0).numpy() - wanted).max() <= 2 / 255


def test_pad_has_black_margins_and_the_whole_picture() -> None:
    """128 x 64 to 32: 32 x 16 in the middle, columns 8 to 23."""
    images = smooth(128, 64)
    padded = square(images, 32, "pad")
    assert padded.shape == (1, 3, 32, 32)
    assert padded[..., :8].eq(0).all()
    assert padded[..., 24:].eq(0).all()
    wanted = np.asarray(as_pil(images).resize((16, 32), Image.Resampling.BICUBIC)) / 255
    assert np.abs(padded[0, :, :, 8:24].permute(1, 2, 0).numpy() - wanted).max() <= 2 / 255


def test_normalised_by_hand() -> None:
    """A pixel at the mean becomes 0, one deviation above it 1."""
    mean, std = torch.tensor(CLIP_MEAN).view(1, 3, 1, 1), torch.tensor(CLIP_STD).view(1, 3, 1, 1)
    torch.testing.assert_close(normalised(mean), torch.zeros(1, 3, 1, 1), atol=1e-6, rtol=0)
    torch.testing.assert_close(normalised(mean + std), torch.ones(1, 3, 1, 1))


def test_folded_equals_the_layers() -> None:
    """Five layers in order of their numbers, not of their names."""
    sizes, state, chain = [6, 5, 4, 3, 2, 1], {}, torch.nn.Sequential()
    for before, after in pairwise(sizes):
        chain.append(torch.nn.Linear(before, after))
    for layer, index in zip(chain, [0, 2, 4, 9, 10], strict=True):
        state |= {f"layers.{index}.weight": layer.weight.detach(), f"layers.{index}.bias": layer.bias.detach()}
    weight, bias = folded(dict(reversed(state.items())), "head")
    points = torch.randn(7, 6)
    torch.testing.assert_close(points @ weight + bias, chain(points)[:, 0].detach(), atol=1e-5, rtol=1e-5)


def test_folded_refuses_what_is_no_chain() -> None:
    """Layers that do not fit, and an end of two numbers."""
    with pytest.raises(UserError, match="not a linear layer"):
        folded({"0.weight": torch.ones(2, 3), "0.bias": torch.ones(2), "1.weight": torch.ones(1, 3)}, "head")
    with pytest.raises(UserError, match="end in one number"):
        folded({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, "head")


def test_weights_file_checks_the_checksum(tmp_path) -> None:
    """The file's own is returned; another one is refused with both."""
    (tmp_path / "w.pt").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert weights_file(str(tmp_path / "w.pt"), None, "r", wanted="w", sha256=digest)[1] == digest
    with pytest.raises(UserError, match=f"{'0' * 64}, got {digest}"):
        weights_file(str(tmp_path / "w.pt"), None, "r", wanted="w", sha256="0" * 64)


class Evil:
    """What a pickle may run."""

    def __reduce__(self):
        return print, ("code from a file ran",)


def test_files_that_hold_more_than_tensors_are_refused(tmp_path, capsys) -> None:
    """No code of theirs runs."""
    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    for name in ("evil.pt", "list.pt", "broken.safetensors"):
        with pytest.raises(UserError, match=name):
            state_of(tmp_path / name, "reward 'x'")
    assert "ran" not in capsys.readouterr().out
