"""Pictures inside the page."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from flowrl.report.pictures import MAX_SIDE, data_uri, fit, open_picture


def noise(width, height):
    """A picture that no compression helps."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def unpack(uri):
    """The picture of a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_small_pictures_keep_every_pixel():
    """What the model drew at 48 pixels is what the page holds."""
    picture = noise(48, 32)
    assert np.array_equal(np.asarray(unpack(data_uri(picture))), np.asarray(picture))


def test_large_pictures_are_made_small():
    """A megapixel photograph must not make the page too large to send."""
    uri = data_uri(noise(1024, 512))
    assert unpack(uri).size == (MAX_SIDE, MAX_SIDE // 2)
    assert len(uri) < 200_000


@pytest.mark.parametrize(
    ("size", "fitted"), [((48, 48), (144, 144)), ((100, 40), (100, 40)), ((2000, 3), (144, 1)), ((300, 600), (72, 144))]
)
def test_fit(size, fitted):
    """Whole multiples upwards, the longer side exactly downwards, never a side of nothing."""
    assert fit(Image.new("RGB", size), 144).size == fitted


def test_files_that_are_no_pictures_are_none(tmp_path):
    """Missing, empty, cut off, broken inside, text: none of them stops a report."""
    whole = tmp_path / "whole.png"
    noise(48, 48).save(whole)
    content = whole.read_bytes()
    broken = bytearray(content)
    broken[len(content) // 2] ^= 255
    for name, data in {"empty": b"", "cut": content[:900], "broken": bytes(broken), "text": b"hello"}.items():
        (tmp_path / name).write_bytes(data)
        assert open_picture(tmp_path / name) is None, name
    assert open_picture(tmp_path / "absent") is None
    assert open_picture(whole).size == (48, 48)


def test_grey_and_transparent_pictures_become_rgb(tmp_path):
    """A grid has one mode."""
    for mode in ("L", "RGBA", "P", "I;16"):
        Image.new(mode, (8, 8)).save(tmp_path / "a.png")
        assert open_picture(tmp_path / "a.png").mode == "RGB"
