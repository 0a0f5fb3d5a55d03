"""What a reward server and its clients say to each other; `docs/reward_server.md` describes it for other languages.

A request is a batch: a safetensors file of float32, which loses nothing, or JSON with PNG pictures. The answer is JSON.
Both sides take what arrives as hostile: lengths, shapes and types are checked before memory is spent on them.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from torch import Tensor

from .errors import UserError
from .reward import RewardBatch

VERSION: Literal[1] = 1
"""Of the protocol."""
SAFETENSORS, JSON = "application/vnd.safetensors", "application/json"
"""The content types of a request."""
FORMATS = ("PNG", "JPEG", "WEBP")
"""The picture files that :func:`read_picture` takes; each has its size in front."""

_SHAPES = {"images": ("F32", "U8"), "groups": ("I64",)}


@dataclass(frozen=True)
class Limits:
    """What a server takes at most."""

    body: int = 2**28
    """Bytes of a request; sixteen pictures of 1024 x 1024 take 201 million as float32."""
    pixels: int = 2**26
    """Pixels of all pictures of a request together."""
    batch: int = 256
    """Pictures, or videos, of a request."""
    requests: int = 4
    """Requests that are held in memory at once; others wait."""
    seconds: float = 60.0
    """In which a request must have arrived."""


class BadRequest(ValueError):
    """A request that cannot be served as it is; the message is for the client, and shows nothing of the server."""


Text = Annotated[str, Field(max_length=20_000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Description(BaseModel):
    """What a server says of a reward; the fields are those of :class:`flowrl.reward.Reward`."""

    protocol: Literal[1]
    name: Text
    media: Literal["image", "video"]
    higher_is_better: bool
    range: tuple[Finite | None, Finite | None]
    """An open end is null."""
    needs: Annotated[list[Text], Field(max_length=100)]
    cacheable: bool
    license: Text
    source: Text
    identity: Text
    """A digest of what the reward is, so that a cache does not take one for another."""
    limits: dict[str, Finite]
    """The server's :class:`Limits`."""


class Reply(BaseModel):
    """The answer to a batch."""

    model_config = ConfigDict(strict=True)

    scores: list[Finite | None]
    """One a sample; null where it could not be scored."""
    reason: Text | None = None
    """Why some scores are null."""


class JsonBatch(BaseModel):
    """A batch as JSON; for clients that have no safetensors. Pictures are PNG files in base64."""

    model_config = ConfigDict(extra="forbid")

    images: list[str] | list[list[str]]
    """One picture a prompt; a list of frames for a video."""
    prompts: list[str]
    """What was asked for."""
    metadata: list[dict[str, Any]] | None = None
    """The metadata of each prompt's row; null is ``{}`` for each."""
    groups: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] | None = None
    """Equal for pictures of one group."""
    fps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Frames a second of videos."""


class _Said(BaseModel):
    """The JSON beside the tensors of a safetensors file."""

    prompts: list[str]
    metadata: list[dict[str, Any]]
    fps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def encode_batch(batch: RewardBatch, encoding: Literal["float32", "uint8"] = "float32") -> bytes:
    """A batch as a safetensors file; latents stay behind.

    Args:
        batch: pictures or videos; they must be finite for ``uint8``.
        encoding: ``float32`` loses nothing; ``uint8`` takes a fourth of the bytes, and rounds to 1 / 255.

    Raises:
        UserError: metadata that is no JSON.

    >>> batch = RewardBatch(torch.rand(2, 3, 4, 4), ["a", "b"], [{"n": 1}, {}], fps=8.0)
    >>> again = decode_batch(encode_batch(batch), Limits())
    >>> torch.equal(again.images, batch.images), again.prompts, again.metadata, again.fps
    (True, ['a', 'b'], [{'n': 1}, {}], 8.0)
    """
    from safetensors.torch import save

    images = batch.images.detach().cpu()
    if encoding == "uint8":
        images = (images * 255).round().to(torch.uint8)
    tensors = {"images": images.contiguous()}
    if batch.groups is not None:
        tensors["groups"] = batch.groups.to("cpu", torch.int64).contiguous()
    said = {"prompts": batch.prompts, "metadata": batch.metadata, "fps": batch.fps}
    try:
        return save(tensors, metadata={name: json.dumps(value) for name, value in said.items()})
    except TypeError as error:
        raise UserError(f"metadata for a reward server must be JSON: {error}.") from error


def decode_batch(body: bytes, limits: Limits) -> RewardBatch:
    """The batch of a safetensors file.

    Raises:
        BadRequest: it is none, or is larger than ``limits`` allow.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    header = _header(body)
    said = header.pop("__metadata__", {})
    for name, tensor in header.items():
        _check_tensor(name, tensor)
    if "images" not in header:
        raise BadRequest("wanted a tensor 'images'")
    _check_size(header["images"]["shape"], limits)
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise BadRequest("the file is not whole, or no safetensors") from error
    images = tensors["images"]
    if images.dtype == torch.uint8:
        images = images.float() / 255
    return _batch(images, tensors.get("groups"), _read_said(said))


def decode_json(body: bytes, limits: Limits) -> RewardBatch:
    """The batch of a JSON body.

    Raises:
        BadRequest: it is none, or is larger than ``limits`` allow.
    """
    try:
        asked = JsonBatch.model_validate_json(body)
    except ValidationError as error:
        raise BadRequest(_first(error)) from error
    if not 0 < len(asked.images) <= limits.batch:
        raise BadRequest(f"images: wanted 1 to {limits.batch}, got {len(asked.images)}")
    left, clips = limits.pixels, []
    for given in asked.images:
        frames = []
        for text in [given] if isinstance(given, str) else given:
            frames.append(read_picture(_unpack(text), left, ("PNG",)))
            left -= frames[-1][0].numel()
        clips.append(frames)
    if len({tuple(frame.shape) for frames in clips for frame in frames}) != 1 or len({len(f) for f in clips}) != 1:
        raise BadRequest("images: wanted pictures of one size, and videos of one length")
    stacked = torch.stack([torch.stack(frames) for frames in clips])
    images = stacked[:, 0] if isinstance(asked.images[0], str) else stacked
    metadata = [{} for _ in asked.prompts] if asked.metadata is None else asked.metadata
    said = _Said(prompts=asked.prompts, metadata=metadata, fps=asked.fps)
    return _batch(images, None if asked.groups is None else torch.tensor(asked.groups), said)


def read_picture(data: bytes, pixels: int, formats: tuple[str, ...] = FORMATS) -> Tensor:
    """A picture file as `[3, H, W]` float32 in [0, 1]; of an animation, the first frame.

    Args:
        data: the file.
        pixels: that it may have; its header is asked before anything is unpacked.
        formats: of Pillow, that it may be.

    Raises:
        BadRequest: it is no whole picture of these formats, or has too many pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=formats) as picture:
            width, height = picture.size
            if width * height > pixels:
                raise BadRequest(f"a picture of {width} x {height}; wanted at most {pixels} pixels")
            values = np.array(picture.convert("RGB"))
    except BadRequest:
        raise
    except Exception as error:
        raise BadRequest(f"not a whole picture ({', '.join(formats)})") from error
    return torch.from_numpy(values).permute(2, 0, 1).float() / 255


def limits_of(limits: Limits) -> dict[str, float]:
    """The limits as JSON."""
    return {name: float(value) for name, value in asdict(limits).items()}


def _header(body: bytes) -> dict[str, Any]:
    """The JSON at the front of a safetensors file: 8 bytes for its length, little-endian, then the text."""
    length = int.from_bytes(body[:8], "little")
    if len(body) < 8 or length > len(body) - 8:
        raise BadRequest("the file is not whole, or no safetensors")
    try:
        header = from_json(body[8 : 8 + length])  # has a limit for nesting
    except ValueError as error:
        raise BadRequest("the header is no JSON") from error
    if not isinstance(header, dict):
        raise BadRequest("the header is no JSON object")
    return header


def _check_tensor(name: str, tensor: Any) -> None:
    if name not in _SHAPES:
        raise BadRequest(f"unknown tensor {name[:80]!r}; known: {', '.join(_SHAPES)}")
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise BadRequest(f"{name}: no shape")
    if tensor.get("dtype") not in _SHAPES[name]:
        raise BadRequest(f"{name}: wanted {' or '.join(_SHAPES[name])}, got {str(tensor.get('dtype'))[:80]!r}")


def _check_size(shape: Sequence[int], limits: Limits) -> None:
    if len(shape) not in (4, 5) or shape[-3] != 3 or 0 in shape:
        raise BadRequest(f"images: wanted [B, 3, H, W] or [B, F, 3, H, W], none of them 0, got {shape[:8]}")
    if shape[0] > limits.batch:
        raise BadRequest(f"images: wanted at most {limits.batch}, got {shape[0]}")
    if math.prod(shape) > 3 * limits.pixels:
        raise BadRequest(f"images: wanted at most {limits.pixels} pixels, got {math.prod(shape) // 3}")


def _read_said(said: Any) -> _Said:
    if not isinstance(said, Mapping) or not all(isinstance(value, str) for value in said.values()):
        raise BadRequest("__metadata__: wanted prompts, metadata and fps, each as JSON")
    try:
        return _Said.model_validate({name: from_json(value) for name, value in said.items()})
    except ValidationError as error:
        raise BadRequest(f"__metadata__: {_first(error)}") from error
    except ValueError as error:
        raise BadRequest("__metadata__: a value is no JSON") from error


def _batch(images: Tensor, groups: Tensor | None, said: _Said) -> RewardBatch:
    try:
        return RewardBatch(images, said.prompts, said.metadata, groups, fps=said.fps)
    except (ValueError, TypeError) as error:  # a tensor without an axis has no length
        raise BadRequest(str(error)) from error


def _unpack(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest("images: a picture is no base64") from error


def _first(error: ValidationError) -> str:
    """The first mistake, without the value, which may be long."""
    mistake = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, mistake['loc']))[:80]}: {mistake['msg'][:200]}"
