"""The chance that a picture is free of artifacts: a small head, trained in a minute, on features that stay as they are.

Pictures full of artifacts can score high on every reward of preference and of likeness to the prompt; a score for the
absence of artifacts, added to them, takes that way out. See "ArtifactReward", https://arxiv.org/abs/2601.03468, which
asks a large model whether a picture has artifacts; here a head does, trained on pictures with and without.

The head that comes with flowrl is for the shapes world. For your own pictures train one: :func:`train_artifact`.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .. import plugins
from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._artifact_head import Features, Head, filter_features, fit_head, measure
from ._artifacts import TRAINING, spoil

_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_SPOILED = 4
"""Flawed pictures made from each clean one."""


def train_artifact(
    data: str | Path, out: str | Path, *, features: str | None = None, side: int = 256, seed: int = 0
) -> dict[str, float]:
    """Train a head on a folder of pictures and write it.

    A fifth of the pictures is kept out of the training and measures the head.

    Args:
        data: a folder with ``clean/`` and ``flawed/``. Without ``flawed/`` every clean picture is spoiled four times
            by rule: that teaches blur, blocks, noise and melted shapes, and no wrong hands.
        out: the file to write, ``.safetensors``.
        features: a plug-in name (``module:object``) of your own :data:`Features`; None for :func:`filter_features`.
        side: pictures are reduced to this shorter side, in pixels: that of the pictures to score.
        seed: of the split, the artifacts and the head.

    Returns:
        ``auc``, ``false_alarms`` and ``missed`` (at equal odds), all on the ``n`` pictures kept out.

    Raises:
        UserError: there are less than ten pictures of a kind, or one cannot be read.
    """
    folder, out = Path(data).expanduser(), Path(out).expanduser()
    if out.suffix != ".safetensors":
        raise UserError(f"out: wanted a file that ends in .safetensors, got {str(out)!r}.")
    extract, rng = _features_of(features), np.random.default_rng(seed)
    clean, flawed = _table(folder, extract, side, rng)
    repeats = 1 if (folder / "flawed").is_dir() else _SPOILED
    kept = _fifth(len(clean), rng)
    # A spoiled picture is kept out with its original, or the measure would know the scenes.
    kept_flawed = kept.repeat_interleave(repeats) if repeats > 1 else _fifth(len(flawed), rng)
    train = clean[~kept], flawed[~kept_flawed]
    labels = torch.arange(sum(map(len, train))) >= len(train[0])
    head = fit_head(torch.cat(train), labels, features or "filters", seed=seed)
    report = measure(head.logits(flawed[kept_flawed]), head.logits(clean[kept]))
    head.save(out, {"clean": str(len(train[0])), "flawed": str(len(train[1])), "kept_out": json.dumps(report)})
    return report


def _features_of(name: str | None) -> Features:
    found: Features = filter_features if name is None else plugins.load("rewards", name)
    return found


def _table(folder: Path, extract: Features, side: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The features of the clean pictures, and of the flawed ones or those made from the clean ones in their order."""
    clean, flawed = [], []
    given = _files(folder / "flawed") if (folder / "flawed").is_dir() else None
    for file in _files(folder / "clean"):
        picture = _picture(file, side)
        clean.append(_extracted(extract, picture))
        if given is None:
            flawed += [_extracted(extract, spoil(picture, rng, TRAINING)) for _ in range(_SPOILED)]
    if given is not None:
        flawed = [_extracted(extract, _picture(file, side)) for file in given]
    return torch.cat(clean), torch.cat(flawed)


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in _PICTURES)
    if len(files) < 10:
        raise UserError(f"{folder}: wanted at least 10 pictures ({', '.join(_PICTURES)}), got {len(files)}.")
    return files


def _picture(file: Path, side: int) -> np.ndarray:
    """`[H, W, 3]` float32 in [0, 1], the shorter side at most ``side``."""
    try:
        with Image.open(file) as image:
            picture = image.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{file}: cannot be read as a picture: {error}.") from error
    if min(picture.size) > side:
        scale = side / min(picture.size)
        width, height = (round(length * scale) for length in picture.size)
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture, dtype=np.float32) / 255


@torch.no_grad()
def _extracted(extract: Features, picture: np.ndarray) -> Tensor:
    return extract(torch.from_numpy(picture.copy()).permute(2, 0, 1)[None]).float().cpu()


def _fifth(count: int, rng: np.random.Generator) -> Tensor:
    """`[count]` bool, a fifth of it True."""
    return torch.from_numpy(rng.permutation(count) < count // 5)


class ArtifactReward(Reward):
    """The chance that a picture is free of artifacts, ``1 - sigmoid(logit)``, by a trained :class:`Head`.

    >>> good, bad = ArtifactReward().examples()
    >>> bool(ArtifactReward()(good).min() > 0.5 > ArtifactReward()(bad).max())
    True
    """

    name = "artifact"
    range = (0.0, 1.0)
    license = "Apache-2.0"

    def __init__(self, head: str = "shapes", features: str | None = None) -> None:
        """Load a head.

        Args:
            head: ``shapes``, for the pictures of the shapes world; or a file that :func:`train_artifact` wrote.
            features: the plug-in name that the head was trained with, if not with the filters. It is not taken from the
                file: a file of weights must not name code to run.

        Raises:
            UserError: the file is no head, or was trained on other features.
        """
        bundled = importlib.resources.files("flowrl.assets") / "artifact" / "shapes.safetensors"
        path = Path(str(bundled)) if head == "shapes" else Path(head).expanduser()
        self.head = Head.load(path)
        if self.head.features != (features or "filters"):
            raise UserError(
                f"reward {self.name!r}: {path} was trained on the features {self.head.features!r}, got "
                f"{features or 'filters'!r}. Write features: {self.head.features}, if you trust that code."
            )
        self._features = _features_of(features)
        self.differentiable = features is None
        self.source = f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}, on {self.head.features}"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each picture, `[B]`."""
        return torch.sigmoid(-self.head.logits(self._features(batch.images).float()))

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """A scene of the shapes world, and the same one with each artifact that the head was trained on."""
        from ..pipelines.shapes import world

        rng = np.random.default_rng(0)
        picture = world.render(world.parse("three blue squares"), rng).astype(np.float32) / 255
        spoiled = [kind(picture, rng, 0.7) for kind in TRAINING.values()]
        good, bad = (torch.from_numpy(np.stack(p)).permute(0, 3, 1, 2).float() for p in ([picture], spoiled))
        return RewardBatch(good, ["clean"], [{}]), RewardBatch(bad, list(TRAINING), [{}] * len(bad))
