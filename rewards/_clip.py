"""What the rewards on image-text models share: pictures as those models take them, and their weights from hub or disk.

The published heads prepare pictures with PIL, in 8 bits, where no gradient passes. Here the same steps are torch
operations on floats: a bicubic resize with antialiasing has PIL's coefficients, and differs from it by the rounding of
each of PIL's two passes to 8 bits, by at most 2/255 on smooth pictures. (PIL also cuts off overshoot after its first
pass, which moves pixels at hard edges further.)
"""

from __future__ import annotations

import hashlib
import math
import pickle
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError

Fit = Literal["crop", "pad", "squash"]
"""How a picture becomes square."""

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIGLIP_MEAN, SIGLIP_STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
DTYPES = ("float32", "bfloat16", "float16")


def square(images: Tensor, size: int, fit: Fit = "crop") -> Tensor:
    """Resize pictures to a square, bicubic with antialiasing, and cut overshoot off.

    Args:
        images: `[B, 3, H, W]` in [0, 1].
        size: of the square, in pixels.
        fit: ``crop`` resizes the shorter side and keeps the centre; ``pad`` resizes the longer side and adds black
            margins; ``squash`` ignores the aspect ratio.

    >>> square(torch.ones(1, 3, 32, 64), 8, "pad")[0, 0].sum(dim=1).round().tolist()
    [0.0, 0.0, 8.0, 8.0, 8.0, 8.0, 0.0, 0.0]
    """
    height, width = images.shape[-2:]
    if fit == "crop":
        short = min(height, width)
        new = size * height // short, size * width // short
    elif fit == "pad":
        long = max(height, width)
        new = max(1, round(height * size / long)), max(1, round(width * size / long))
    else:
        new = size, size
    resized = images if new == (height, width) else _resize(images, new)
    if fit == "pad":
        top, left = (size - new[0]) // 2, (size - new[1]) // 2
        return F.pad(resized, (left, size - new[1] - left, top, size - new[0] - top))
    top, left = (new[0] - size) // 2, (new[1] - size) // 2
    return resized[..., top : top + size, left : left + size]


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(images, size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)


def normalised(images: Tensor, mean: tuple[float, ...] = CLIP_MEAN, std: tuple[float, ...] = CLIP_STD) -> Tensor:
    """``(x - mean) / std`` for each channel of `[B, 3, H, W]`.

    >>> normalised(torch.ones(1, 3, 1, 1), SIGLIP_MEAN, SIGLIP_STD).flatten().tolist()
    [1.0, 1.0, 1.0]
    """
    return (images - images.new_tensor(mean).view(3, 1, 1)) / images.new_tensor(std).view(3, 1, 1)


def unit(vectors: Tensor) -> Tensor:
    """Vectors `[B, D]` as float32, of length 1.

    >>> unit(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return F.normalize(vectors.float(), dim=-1)


def placed(model: Any, device: str, dtype: str, label: str) -> Any:
    """A frozen model for inference, where and in what precision the options say.

    Raises:
        UserError: there is no such device or dtype.
    """
    if dtype not in DTYPES:
        raise UserError(f"{label}: dtype: wanted one of {', '.join(DTYPES)}, got {dtype!r}.")
    try:
        return model.to(device=torch.device(device), dtype=getattr(torch, dtype)).eval().requires_grad_(False)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"{label}: device: wanted one such as 'cpu' or 'cuda:0', got {device!r}: {error}") from error


def pretrained(kind: Any, model: str, revision: str | None, label: str, **options: Any) -> Any:
    """``kind.from_pretrained`` of a hub id or a local folder, without remote code.

    Raises:
        UserError: it cannot be loaded; the message names what was wanted and where to put it.
    """
    folder = Path(model).expanduser()
    source = str(folder) if folder.is_dir() else model
    try:
        return kind.from_pretrained(source, revision=revision or "main", trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{label}: {kind.__name__} could not be loaded from {model!r} (revision {revision or 'main'}): {reason} "
            f"Offline: `hf download {model}` where there is a network, or give a folder with config.json, "
            "model.safetensors and the tokenizer's or processor's files."
        ) from error


def weights_file(source: str, revision: str | None, label: str, *, wanted: str, sha256: str = "") -> tuple[Path, str]:
    """A file of weights and its SHA-256.

    Args:
        source: a path, or ``owner/repository:file`` on the hub.
        revision: of the repository.
        label: opens the message of an error.
        wanted: what the file is, for the same message.
        sha256: what it must be, in hexadecimal digits; empty for any.

    Raises:
        UserError: there is no such file, or it is another one.
    """
    path = Path(source).expanduser()
    repository, colon, file = source.partition(":")
    if not path.is_file() and colon and repository.count("/") == 1 and not repository.startswith((".", "/", "~")):
        path = _download(repository, file, revision, label, wanted)
    if not path.is_file():
        raise UserError(f"{label}: wanted {wanted}; there is no file {source!r}. Give a path, or 'owner/name:file'.")
    digest = _sha256(path)
    if sha256 and digest != sha256.lower():
        raise UserError(f"{label}: {path}: wanted {wanted} with sha256 {sha256}, got {digest}: another file.")
    return path, digest


def _download(repository: str, file: str, revision: str | None, label: str, wanted: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, file, revision=revision or "main"))
    except (OSError, ValueError) as error:  # what the hub's client raises is one or the other
        raise UserError(
            f"{label}: wanted {wanted}: {file!r} of {repository!r} (revision {revision or 'main'}) is not in the "
            f"cache and could not be fetched: {str(error).splitlines()[0]} Offline: give the path of a copy."
        ) from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def state_of(path: Path, label: str) -> dict[str, Tensor]:
    """The tensors of a file of weights: ``.safetensors``, or a checkpoint of torch that holds nothing but tensors.

    Raises:
        UserError: it cannot be read without running code from the file, or it is no state dict.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise UserError(f"{label}: {path} is no file of tensors; nothing else is read: {error}") from error
    except Exception as error:  # safetensors' own error derives from Exception alone
        if type(error).__name__ != "SafetensorError":
            raise
        raise UserError(f"{label}: {path} is no safetensors file: {error}") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else None
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{label}: {path} is no state dict: wanted names and tensors, alone or under 'state_dict'.")
    return state


def folded(state: dict[str, Tensor], label: str) -> tuple[Tensor, float]:
    """A chain of linear layers without activations as the one affine map that it is: ``score = w . e + b``.

    Args:
        state: its weights, ``NAME.INDEX.weight`` and ``NAME.INDEX.bias``, or ``weight`` and ``bias`` of one layer.
        label: opens the message of an error.

    Returns:
        w `[D]` float32, and b.

    Raises:
        UserError: the layers do not follow one another, or do not end in one number.

    >>> layers = {"layers.0.weight": torch.tensor([[1.0, 0.0], [1.0, 1.0]]), "layers.0.bias": torch.tensor([0.0, 1.0])}
    >>> folded(layers | {"layers.2.weight": torch.tensor([[2.0, 3.0]]), "layers.2.bias": torch.tensor([4.0])}, "toy")
    (tensor([5., 3.]), 7.0)
    """
    weights = sorted((name for name in state if name.endswith("weight")), key=_depth)
    matrix, bias = None, None
    for name in weights:
        layer, offset = state[name].double(), state.get(name.removesuffix("weight") + "bias")
        if layer.ndim != 2 or offset is None or (matrix is not None and layer.shape[1] != matrix.shape[0]):
            raise UserError(f"{label}: {name}: not a linear layer that follows the one before it.")
        matrix = layer if matrix is None else layer @ matrix
        bias = offset.double() if bias is None else layer @ bias + offset.double()
    if matrix is None or bias is None or matrix.shape[0] != 1:
        raise UserError(f"{label}: wanted linear layers that end in one number, got {', '.join(state) or 'none'}.")
    return matrix[0].float(), bias.item()


def _depth(name: str) -> int:
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return numbers[-1] if numbers else 0


class Clip:
    """A CLIP of transformers with its tokenizer: embeddings of length 1 of pictures and of texts."""

    def __init__(
        self,
        model: str,
        revision: str | None,
        label: str,
        *,
        tokenizer: tuple[str, str | None],
        device: str,
        dtype: str,
    ) -> None:
        """Load ``model`` and ``tokenizer``, both a hub id or folder with its revision.

        Raises:
            UserError: one cannot be loaded, or the device or dtype is wrong.
        """
        from transformers import AutoTokenizer, CLIPModel

        self.tokenizer = pretrained(AutoTokenizer, *tokenizer, label)
        self.model = placed(pretrained(CLIPModel, model, revision, label), device, dtype, label)
        self.size: int = self.model.config.vision_config.image_size
        self.context: int = self.model.config.text_config.max_position_embeddings

    @property
    def scale(self) -> float:
        """The temperature that it was trained with, ``exp(logit_scale)``, about 100."""
        return math.exp(self.model.logit_scale.item())

    def images(self, images: Tensor) -> Tensor:
        """Embeddings `[B, D]` of pictures `[B, 3, H, W]` in [0, 1]; gradients reach the pictures."""
        parameter = self.model.logit_scale
        pixels = normalised(square(images.to(parameter.device), self.size)).to(parameter.dtype)
        return unit(features(self.model.get_image_features(pixel_values=pixels)))

    @torch.no_grad()
    def texts(self, prompts: list[str]) -> Tensor:
        """Embeddings `[B, D]` of texts, cut off after 77 tokens."""
        tokens = self.tokenizer(
            prompts, padding="max_length", truncation=True, max_length=self.context, return_tensors="pt"
        ).to(self.model.logit_scale.device)
        return unit(features(self.model.get_text_features(**tokens)))

    def cosines(self, images: Tensor, prompts: list[str]) -> Tensor:
        """The cosine `[B]` of each picture and its prompt."""
        return (self.images(images) * self.texts(prompts)).sum(dim=-1)


def features(output: Any) -> Tensor:
    """The embedding that a tower returns: a tensor before transformers 5, the ``pooler_output`` of an object since."""
    return output if isinstance(output, Tensor) else output.pooler_output
