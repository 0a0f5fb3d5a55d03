"""Feature extractors by name, and the features of sets of pictures that are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import plugins
from ..data import load_prompts
from ..errors import UserError
from ..reward_protocol import BadRequest, read_picture
from ._artifact_head import filter_features
from .temporal import pixel_features

Features = Callable[[Tensor], Tensor]
"""From pictures `[N, 3, H, W]` in [0, 1] to features `[N, D]`."""

BUILT_IN: dict[str, Features] = {"filters": filter_features, "pixels": pixel_features}
"""Those that need no weights: statistics of local filters, and a small copy of the picture less its mean colour."""

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_PIXELS = 2**26


def extractor(features: str, label: str) -> Features:
    """The extractor of a name.

    Raises:
        UserError: nothing has that name.

    >>> extractor("pixels", "reward 'vendi'")(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 768])
    """
    if features in BUILT_IN:
        return BUILT_IN[features]
    if ":" not in features:
        raise UserError(
            f"{label}: features: wanted {', '.join(BUILT_IN)} or 'module:function', from [N, 3, H, W] to [N, D], got "
            f"{features!r}."
        )
    found: Features = plugins.load("rewards", features)
    if not callable(found):
        raise UserError(f"{label}: features: {features!r} is {found!r}; wanted a function.")
    return found


def pictures(source: str, label: str, prompts: str = "shapes_train") -> Iterator[Tensor]:
    """The pictures `[3, H, W]` of a folder, by name; or ``shapes``: a scene of the shapes world for each prompt.

    Args:
        source: a folder of PNG, JPEG and WebP, or ``shapes``.
        label: of the reward, for messages.
        prompts: a prompt file, or a bundled one; for ``shapes``.

    Raises:
        UserError: there is no such folder, a picture cannot be read, or a prompt is none of the world's.

    >>> next(pictures("shapes", "reward 'kid'")).shape
    torch.Size([3, 48, 48])
    """
    if source == "shapes":
        yield from _scenes(prompts, label)
        return
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise UserError(f"{label}: wanted a folder of pictures, or 'shapes', got {source!r}, which is no folder.")
    for file in sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES):
        try:
            yield read_picture(file.read_bytes(), _PIXELS).float().clamp(0, 1)
        except (OSError, BadRequest) as error:
            raise UserError(f"{label}: {file}: cannot be read as a picture: {error}.") from error


def _scenes(prompts: str, label: str) -> Iterator[Tensor]:
    from ..pipelines.shapes import world

    for row in load_prompts(prompts):
        try:
            scene = world.parse(row.prompt)
        except ValueError as error:
            raise UserError(f"{label}: {row.where}: no prompt of the shapes world: {error}.") from error
        picture = world.render(scene, np.random.default_rng(row.row))
        yield torch.from_numpy(picture.astype(np.float32) / 255).permute(2, 0, 1)


@torch.no_grad()
def features_of_set(source: str, extract: Features, label: str, prompts: str) -> tuple[Tensor, set[tuple[int, ...]]]:
    """The features `[M, D]` float64 of :func:`pictures`, and the sizes that these have.

    Raises:
        UserError: there are less than ten, or one has features that are not finite.
    """
    rows, sizes = [], set()
    for picture in pictures(source, label, prompts):
        rows.append(extract(picture[None]).double().cpu().flatten(1))
        sizes.add(tuple(picture.shape[1:]))
    if len(rows) < 10:
        raise UserError(f"{label}: {source}: wanted ten pictures or more ({', '.join(_SUFFIXES)}), got {len(rows)}.")
    features = torch.cat(rows)
    if not features.isfinite().all():
        raise UserError(f"{label}: {source}: the features of a picture are not finite.")
    return features, sizes
