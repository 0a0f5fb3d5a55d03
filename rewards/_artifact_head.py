"""A trainable head on frozen features that tells flawed pictures from clean ones; see :mod:`.artifact`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from ..files import whole_file

Features = Callable[[Tensor], Tensor]
"""From pictures `[N, 3, H, W]` in [0, 1] to features `[N, D]`."""

_FORMAT = "flowrl-artifact-1"
_TENSORS = ("mean", "scale", "hidden.weight", "hidden.bias", "out.weight", "out.bias")
_SCALES = 3
_FLOOR = 1e-3
"""Added below the logarithm: a quarter of a step of 8 bits, so that rounding is no feature."""


def filter_features(images: Tensor) -> Tensor:
    """Statistics of local filters at three scales, `[N, 408]`: texture and edges, without where they are.

    The eight 3 x 3 cosine filters that are no mean, on luma and two colour differences, give the logarithms of the mean
    absolute response, of its root mean square and of its fourth-power mean. The absolute responses of luma, at half the
    scale, are filtered once more, which tells how edges bend and end. Differentiable; any size from 24 x 24 on.

    Raises:
        ValueError: the pictures are smaller.

    >>> filter_features(torch.rand(2, 3, 48, 48)).shape
    torch.Size([2, 408])
    """
    if min(images.shape[-2:]) < 24:
        raise ValueError(f"wanted pictures of at least 24 x 24 pixels, got {images.shape[-1]} x {images.shape[-2]}")
    level, features = torch.einsum("dc,nchw->ndhw", _opponent().to(images), images), []
    for _ in range(_SCALES):
        response = _filtered(level)
        features += _moments(response)
        features.append(_log_mean(_filtered(F.avg_pool2d(response[:, :8].abs(), 2))))
        level = F.avg_pool2d(level, 2)
    return torch.cat(features, dim=1)


def _opponent() -> Tensor:
    """Luma, blue less yellow, red less green."""
    return torch.tensor([[0.299, 0.587, 0.114], [-0.25, -0.25, 0.5], [0.5, -0.5, 0.0]])


def _filtered(maps: Tensor) -> Tensor:
    """The eight filters on each map: `[N, C, H, W]` to `[N, 8 C, H - 2, W - 2]`."""
    basis = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [0.5, -1.0, 0.5]]) / torch.tensor([[3.0], [2.0], [2.0]])
    filters = torch.einsum("iy,jx->ijyx", basis, basis).reshape(9, 1, 3, 3)[1:].to(maps)
    channels = maps.shape[1]
    return F.conv2d(maps, filters.repeat(channels, 1, 1, 1), groups=channels)


def _log_mean(maps: Tensor, power: int = 1) -> Tensor:
    return (maps.abs().pow(power).mean(dim=(2, 3)) + _FLOOR**power).log() / power


def _moments(maps: Tensor) -> list[Tensor]:
    return [_log_mean(maps, power) for power in (1, 2, 4)]


@dataclass(frozen=True, eq=False)
class Head:
    """A trained head: features less their mean, over their scale, then a layer of ReLU units, then the logit."""

    tensors: dict[str, Tensor]
    """``mean`` and ``scale`` `[D]`, ``hidden.weight`` `[K, D]`, ``hidden.bias`` `[K]`, ``out.weight`` `[1, K]`,
    ``out.bias`` `[1]`."""
    features: str
    """The name of the features that it was trained on: ``filters``, or a plug-in's."""

    def logits(self, features: Tensor) -> Tensor:
        """Log-odds of an artifact, `[N]`, of features `[N, D]`."""
        parts = {name: tensor.to(features) for name, tensor in self.tensors.items()}
        x = ((features - parts["mean"]) / parts["scale"]).clamp(-8, 8)  # what lies far outside says no more
        x = F.relu(F.linear(x, parts["hidden.weight"], parts["hidden.bias"]))
        return F.linear(x, parts["out.weight"], parts["out.bias"])[:, 0]

    def save(self, path: Path, about: dict[str, str] | None = None) -> None:
        """Write it as safetensors, whole; ``about`` goes into the file's metadata."""
        from safetensors.torch import save

        metadata = {"format": _FORMAT, "features": self.features, **(about or {})}
        with whole_file(path) as temporary:
            # `save_file` would replace the temporary file by one that only its owner can read.
            temporary.write_bytes(save({name: tensor.contiguous() for name, tensor in self.tensors.items()}, metadata))

    @classmethod
    def load(cls, path: Path) -> Head:
        """Read what :meth:`save` wrote.

        Raises:
            UserError: there is no such file, or it is not a head.
        """
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise UserError(f"there is no file {str(path)!r}; train a head: flowrl.rewards.artifact.train_artifact.")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        except SafetensorError as error:
            raise UserError(f"{path}: not a safetensors file: {error}.") from error
        _require_head(path, metadata, tensors)
        return cls(tensors, metadata["features"])


def _require_head(path: Path, metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
    if metadata.get("format") != _FORMAT or "features" not in metadata or set(tensors) != set(_TENSORS):
        raise UserError(
            f"{path}: wanted a head of the format {_FORMAT} with the tensors {', '.join(_TENSORS)}, got the format "
            f"{metadata.get('format', 'none')!r} with {', '.join(sorted(tensors)) or 'none'}."
        )
    units, width = tensors["hidden.weight"].shape if tensors["hidden.weight"].ndim == 2 else (-1, -1)
    wanted = {"mean": [width], "scale": [width], "hidden.bias": [units], "out.weight": [1, units], "out.bias": [1]}
    got = {name: list(tensors[name].shape) for name in wanted}
    if got != wanted or not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise UserError(f"{path}: its tensors do not fit together, or are not finite: wanted {wanted}, got {got}.")


def fit_head(
    features: Tensor, flawed: Tensor, name: str = "filters", *, units: int = 32, steps: int = 1000, seed: int = 0
) -> Head:
    """Train a head by cross entropy on balanced batches.

    ``L = (mean over flawed of softplus(-z) + mean over clean of softplus(z)) / 2`` with the logit z, by AdamW with a
    weight decay of 0.01; a batch draws 128 of each kind.

    Args:
        features: `[N, D]`.
        flawed: `[N]` bool; both kinds must be there.
        name: of the features, kept in the head.
        units: K, of the hidden layer.
        steps: of the optimizer.
        seed: of the first weights and the batches.

    Raises:
        ValueError: shapes differ, or one of the kinds is missing.

    >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> head = fit_head(x, x[:, 0] > 0, steps=100)
    >>> bool(((head.logits(x) > 0) == (x[:, 0] > 0)).float().mean() > 0.95)
    True
    """
    if features.ndim != 2 or flawed.shape != features.shape[:1] or flawed.dtype != torch.bool:
        raise ValueError(f"wanted features [N, D] and bool [N], got {list(features.shape)} and {list(flawed.shape)}")
    if flawed.all() or not flawed.any():
        raise ValueError(f"wanted clean and flawed pictures, got {int((~flawed).sum())} and {int(flawed.sum())}")
    tensors = {"mean": features.mean(dim=0), "scale": features.std(dim=0).clamp(min=1e-3)}
    generator, width = torch.Generator().manual_seed(seed), features.shape[1]
    kinds = [features[~flawed], features[flawed]]
    shapes = {"hidden.weight": (units, width), "hidden.bias": (units,), "out.weight": (1, units), "out.bias": (1,)}
    weights = {
        key: torch.empty(shape).normal_(std=width**-0.5, generator=generator).requires_grad_()
        for key, shape in shapes.items()
    }
    optimizer = torch.optim.AdamW(weights.values(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = [kind[torch.randint(len(kind), (128,), generator=generator)] for kind in kinds]
        z = Head(tensors | weights, name).logits(torch.cat(batch))
        loss = (F.softplus(z[:128]).mean() + F.softplus(-z[128:]).mean()) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return Head(tensors | {key: value.detach() for key, value in weights.items()}, name)


def auc(flawed: Tensor, clean: Tensor) -> float:
    """Area under the ROC curve: the chance that a flawed picture has the larger logit, ties counted half.

    >>> auc(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]))  # three pairs of four in order, one tie
    0.875
    """
    pairs = flawed[:, None] - clean
    return ((pairs > 0).double() + (pairs == 0).double() / 2).mean().item()


def measure(flawed: Tensor, clean: Tensor) -> dict[str, float]:
    """What logits of flawed `[N]` and of clean pictures `[M]` say of a head.

    >>> measure(torch.tensor([2.0, -1.0]), torch.tensor([-3.0, -2.0]))
    {'auc': 1.0, 'false_alarms': 0.0, 'missed': 0.5, 'n': 4.0}
    """
    return {
        "auc": auc(flawed, clean),
        "false_alarms": (clean > 0).double().mean().item(),
        "missed": (flawed <= 0).double().mean().item(),
        "n": float(len(flawed) + len(clean)),
    }
