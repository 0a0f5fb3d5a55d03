"""Pictures inside the page."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from flowrl.report.pictures import MAX_FRAMES, MAX_SIDE, data_uri, fit


def noise(width, height):
    """A picture that no compression helps."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def unpack(uri):
    """The picture of a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_small_pictures_keep_every_pixel():
    """What the model drew at 48 pixels is what the page holds."""
    picture = noise(48, 32)
    assert np.array_equal(np.asarray(unpack(data_uri([picture]))), np.asarray(picture))


def test_large_pictures_are_made_small():
    """A megapixel photograph must not make the page too large to send."""
    uri = data_uri([noise(1024, 512)])
    assert unpack(uri).size == (MAX_SIDE, MAX_SIDE // 2)
    assert len(uri) < 200_000


@pytest.mark.parametrize(
    ("size", "fitted"), [((48, 48), (144, 144)), ((100, 40), (100, 40)), ((2000, 3), (144, 1)), ((300, 600), (72, 144))]
)
def test_fit(size, fitted):
    """Whole multiples upwards, the longer side exactly downwards, never a side of nothing."""
    assert fit(Image.new("RGB", size), 144).size == fitted


def test_clips_move_on_the_page_and_last_as_long():
    """A long clip is thinned; its duration stays."""
    frames = [noise(32, 32) for _ in range(4 * MAX_FRAMES)]
    frames = [Image.fromarray(np.roll(np.asarray(frame), number, axis=0)) for number, frame in enumerate(frames)]
    clip = unpack(data_uri(frames, duration=50))
    clip.load()  # which tells the duration
    assert (clip.format, clip.n_frames, clip.info["duration"]) == ("WEBP", MAX_FRAMES, 200)
    assert np.array_equal(np.asarray(clip.convert("RGB")), np.asarray(frames[0]))
