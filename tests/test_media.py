"""Pictures and clips as files, and back."""

import numpy as np
import pytest
import torch
from PIL import Image

from flowrl.media import read_frames, suffix, to_frames, write_frames


def clip(count: int, side: int = 32, seed: int = 0) -> torch.Tensor:
    """Frames of noise, uint8 `[F, 3, H, W]`, that no encoder can guess."""
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.manual_seed(seed))


def stacked(frames) -> np.ndarray:
    """Frames as `[F, H, W, 3]`."""
    return np.stack([np.asarray(frame) for frame in frames])


def test_small_clip_keeps_every_pixel_and_its_speed(tmp_path):
    """What the model drew at 32 pixels is what the file holds."""
    frames = to_frames(clip(9))
    assert suffix(frames) == ".webp"
    write_frames(frames, tmp_path / "a.webp", fps=10)
    read, duration = read_frames(tmp_path / "a.webp")
    assert np.array_equal(stacked(read), stacked(frames))
    assert duration == 100


def test_a_clip_that_stands_still_keeps_its_length(tmp_path):
    """The format stores equal frames once; a reader sees all of them, so two clips stay in step."""
    moving = clip(3)
    frames = to_frames(torch.stack([moving[0], moving[1], moving[1], moving[1], moving[2]]))
    write_frames(frames, tmp_path / "a.webp", fps=10)
    assert np.array_equal(stacked(read_frames(tmp_path / "a.webp")[0]), stacked(frames))


def test_picture_is_a_png(tmp_path):
    """A single frame is a picture like any other."""
    frames = to_frames(clip(1)[0])
    assert suffix(frames) == ".png"
    write_frames(frames, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.format == "PNG"
    read, _ = read_frames(tmp_path / "a.png")
    assert np.array_equal(stacked(read), stacked(frames))


def test_large_clips_are_packed_with_loss(tmp_path):
    """A clip of 256 pixels of noise is far from a byte a colour."""
    write_frames(to_frames(clip(4, side=256)), tmp_path / "a.webp")
    assert (tmp_path / "a.webp").stat().st_size < 4 * 256 * 256 * 3 * 0.8


@pytest.mark.parametrize("cut", [0, 30, 0.5])
def test_broken_clips_are_none(tmp_path, cut):
    """Empty, header only, cut off in the middle."""
    write_frames(to_frames(clip(5)), tmp_path / "a.webp")
    content = (tmp_path / "a.webp").read_bytes()
    (tmp_path / "b.webp").write_bytes(content[: int(cut * len(content)) if cut < 1 else cut])
    assert read_frames(tmp_path / "b.webp") is None
    assert read_frames(tmp_path / "absent.webp") is None


def test_endless_clips_are_cut(tmp_path):
    """A file from outside must not fill the memory."""
    write_frames(to_frames(clip(12, side=8)), tmp_path / "a.webp")
    assert len(read_frames(tmp_path / "a.webp", limit=5)[0]) == 5


def test_files_that_are_no_pictures_are_none(tmp_path):
    """Missing, empty, cut off, broken inside, text: none of them stops a report."""
    whole = tmp_path / "whole.png"
    write_frames(to_frames(clip(1, side=48)), whole)
    content = whole.read_bytes()
    broken = bytearray(content)
    broken[len(content) // 2] ^= 255
    for name, data in {"empty": b"", "cut": content[:900], "broken": bytes(broken), "text": b"hello"}.items():
        (tmp_path / name).write_bytes(data)
        assert read_frames(tmp_path / name) is None, name
    assert read_frames(tmp_path / "absent") is None
    assert read_frames(whole)[0][0].size == (48, 48)


def test_grey_and_transparent_pictures_become_rgb(tmp_path):
    """A grid has one mode."""
    for mode in ("L", "RGBA", "P", "I;16"):
        Image.new(mode, (8, 8)).save(tmp_path / "a.png")
        assert read_frames(tmp_path / "a.png")[0][0].mode == "RGB"
