"""What goes over the wire, and what is refused there."""

import base64
import io
import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.reward_protocol import (
    BadRequest,
    Limits,
    decode_batch,
    decode_json,
    encode_batch,
    read_picture,
)

SMALL = Limits(body=10_000, pixels=100, batch=4)


def png(width=4, height=2, mode="RGB", color=(255, 0, 51)) -> bytes:
    """A PNG of one colour."""
    file = io.BytesIO()
    Image.new(mode, (width, height), color).save(file, "PNG")
    return file.getvalue()


def text(data: bytes) -> str:
    """Base64."""
    return base64.b64encode(data).decode()


def body(**fields) -> bytes:
    """A JSON batch of one picture, changed."""
    return json.dumps({"images": [text(png())], "prompts": ["a"], **fields}).encode()


def file(header: object, data: bytes = b"") -> bytes:
    """A safetensors file with any header."""
    said = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(said)) + said + data


def said(**fields) -> dict[str, str]:
    """The metadata of a batch of one."""
    return {"prompts": '["a"]', "metadata": "[{}]", "fps": "null", **fields}


def test_float32_loses_nothing():
    """Every bit arrives, NaN and denormals too, with groups, for pictures and videos."""
    images = torch.rand(2, 3, 3, 5, 7)
    images[0, 0, 0, 0, :2] = torch.tensor([float("nan"), 1e-42])
    batch = RewardBatch(images, ["a", "b\n\u2603"], [{"n": [1, None]}, {}], torch.tensor([3, 4]), fps=12.5)
    again = decode_batch(encode_batch(batch), Limits())
    assert torch.equal(again.images.view(torch.int32), images.view(torch.int32))
    assert (again.prompts, again.metadata, again.fps) == (batch.prompts, batch.metadata, 12.5)
    assert again.groups.tolist() == [3, 4]


def test_uint8_rounds():
    """0.5 is 127.5 of 255, which rounds to the even 128."""
    batch = RewardBatch(torch.full((1, 3, 2, 2), 0.5), ["a"], [{}])
    again = decode_batch(encode_batch(batch, "uint8"), Limits())
    assert torch.equal(again.images, torch.full((1, 3, 2, 2), 128 / 255))
    assert len(encode_batch(batch, "uint8")) < len(encode_batch(batch))


def test_metadata_must_be_json():
    """What JSON cannot say is the user's mistake."""
    with pytest.raises(UserError, match="must be JSON"):
        encode_batch(RewardBatch(torch.zeros(1, 3, 2, 2), ["a"], [{"n": {1}}]))


def test_json_with_png():
    """Pictures `[H, W]` of bytes become `[3, H, W]` of fractions; a list of frames is a video."""
    batch = decode_json(body(metadata=[{"n": 1}], groups=[7]), Limits())
    assert batch.images.shape == (1, 3, 2, 4)
    assert batch.images[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2])
    assert (batch.prompts, batch.metadata, batch.groups.tolist(), batch.fps) == (["a"], [{"n": 1}], [7], None)
    clip = decode_json(body(images=[[text(png())] * 3], fps=8), Limits())
    assert (clip.images.shape, clip.fps, clip.metadata) == ((1, 3, 3, 2, 4), 8.0, [{}])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b"{", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b'{"images": [], "prompts": []}', "wanted 1 to 4, got 0"),
        (body(images=[text(png())] * 5, prompts=["a"] * 5), "wanted 1 to 4, got 5"),
        (body(prompts=["a", "b"]), "prompts: wanted 1, one a picture, got 2"),
        (body(metadata=[]), "metadata: wanted 1"),
        (body(groups=[2**63]), "groups"),
        (body(fps=0), "fps"),
        (body(surprise=1), "surprise: Extra inputs"),
        (body(images=["!"]), "no base64"),
        (body(images=[text(b"GIF89a")]), "not a whole picture"),
        (body(images=[text(png()[:-35])]), "not a whole picture"),
        (body(images=[text(png(11, 10))]), "a picture of 11 x 10; wanted at most 100 pixels"),
        (body(images=[[text(png(6, 10)), text(png(6, 10))]]), "a picture of 6 x 10; wanted at most 40 pixels"),
        (body(images=[text(png()), text(png(2, 4))], prompts=["a", "b"]), "pictures of one size"),
        (body(images=[[text(png())], [text(png())] * 2], prompts=["a", "b"]), "videos of one length"),
        (body(images=[[]]), "pictures of one size"),
    ],
)
def test_json_that_is_refused(broken, message):
    """Each mistake is named; none repeats what was sent."""
    with pytest.raises(BadRequest, match=message):
        decode_json(broken, SMALL)


IMAGES = {"dtype": "F32", "shape": [1, 3, 1, 1], "data_offsets": [0, 12]}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b"", "not whole"),
        (struct.pack("<Q", 2**63) + b"{}", "not whole"),
        (file(b"{"), "no JSON"),
        (file(b"[" * 5000), "no JSON"),
        (file([1]), "no JSON object"),
        (file({}), "wanted a tensor 'images'"),
        (file({"weights": IMAGES}), "unknown tensor 'weights'"),
        (file({"images": 3}), "images: no shape"),
        (file({"images": {**IMAGES, "shape": [1, -3, 1, 1]}}), "images: no shape"),
        (file({"images": {**IMAGES, "shape": [True, 3, 1, 1]}}), "images: no shape"),
        (file({"images": {**IMAGES, "dtype": "F64"}}), "wanted F32 or U8, got 'F64'"),
        (file({"images": {**IMAGES, "shape": [1, 4, 1, 1]}}), "wanted .B, 3, H, W."),
        (file({"images": {**IMAGES, "shape": [0, 3, 1, 1]}}), "none of them 0"),
        (file({"images": {**IMAGES, "shape": [5, 3, 1, 1]}}), "wanted at most 4, got 5"),
        (file({"images": {**IMAGES, "shape": [1, 3, 2**40, 2**40]}}), "wanted at most 100 pixels"),
        (file({"images": IMAGES, "__metadata__": said()}), "not whole"),  # no data
        (file({"images": {**IMAGES, "data_offsets": [0, 2**62]}, "__metadata__": said()}, bytes(12)), "not whole"),
        (file({"images": IMAGES}, bytes(12)), "Field required"),
        (file({"images": IMAGES, "__metadata__": said(prompts="[")}, bytes(12)), "a value is no JSON"),
        (file({"images": IMAGES, "__metadata__": said(fps="-1")}, bytes(12)), "fps"),
        (file({"images": IMAGES, "__metadata__": said(prompts="[]")}, bytes(12)), "prompts: wanted 1"),
        (save({"images": torch.full((1, 3, 1, 1), 2.0)}, said()), r"wanted values in \[0, 1\], got 2"),
        (save({"images": torch.zeros(1, 3, 1, 1), "groups": torch.tensor(1)}, said()), "len"),
    ],
)
def test_safetensors_that_are_refused(broken, message):
    """Lies about lengths, shapes and types are found before memory is spent on them."""
    with pytest.raises(BadRequest, match=message):
        decode_batch(broken, SMALL)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data):
    """Whatever comes, the answer is a refusal."""
    for decode in (decode_batch, decode_json):
        with pytest.raises(BadRequest):
            decode(data, SMALL)


@given(st.data())
def test_damaged_batches_are_refused_or_read(data):
    """A byte changed anywhere gives a refusal, or a batch that keeps the contract; never another exception."""
    whole = bytearray(encode_batch(RewardBatch(torch.rand(1, 3, 2, 2), ["a"], [{"n": 1}], torch.tensor([1]))))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decode_batch(bytes(whole), SMALL)
    except BadRequest:
        return
    assert batch.images.shape[1] == 3


def test_pictures_of_other_modes():
    """Grey, palette and transparent files all become three channels."""
    for mode, color in (("L", 51), ("P", 0), ("RGBA", (51, 51, 51, 0)), ("1", 1)):
        assert read_picture(png(mode=mode, color=color), 8).shape == (3, 2, 4)
