"""Whether a video's camera moves well, goes where it should, and sees one scene with the depth that it has.

``depth_reprojection`` and ``pose_cycle`` are GrndCtrl's, https://arxiv.org/abs/2512.01952; ``scene_geometry`` and
``camera_smoothness`` are VGGRPO's, https://arxiv.org/abs/2603.26599. They need camera poses, and two of them depth:
from an estimator of your own, such as VGGT, or from the metadata.

A camera that stands still is perfect by all of these, so each is multiplied by ``min(1, motion / floor)``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import plugins
from ..errors import UserError
from ..reward import Media, Reward, RewardBatch
from ._cameras import (
    camera_motion,
    checked_floor,
    cloud_errors,
    cycle_errors,
    gate,
    reprojection_inliers,
    smoothness,
    worst_views,
)

Estimator = Callable[[Tensor], Mapping[str, Any]]
"""From a video `[F, 3, H, W]` in [0, 1] to ``poses`` `[F, 4, 4]` and, where it can, ``depth`` `[F, H, W]`,
``intrinsics`` `[3, 3]` and ``static`` `[F, H, W]`; see :mod:`._cameras` for the conventions."""


@dataclass(frozen=True)
class Scene:
    """What is known of a video's camera and scene, checked."""

    poses: np.ndarray
    """`[F, 4, 4]`."""
    depth: np.ndarray | None = None
    """`[F, H, W]`."""
    intrinsics: np.ndarray | None = None
    """`[3, 3]`."""
    static: np.ndarray | None = None
    """`[F, H, W]` bool."""

    @classmethod
    def of(cls, values: Mapping[str, Any], frames: int, *, depth: bool) -> Scene:
        """Read arrays, tensors or nested lists.

        Raises:
            ValueError: one that is wanted is missing, of another shape, or not finite.
        """
        poses = _array(values, "poses", (frames, 4, 4))
        if not depth:
            return cls(poses)
        maps = _array(values, "depth", (frames, None, None))
        static = _array(values, "static", maps.shape) > 0.5 if values.get("static") is not None else None
        return cls(poses, maps, _array(values, "intrinsics", (3, 3)), static)

    @property
    def unit(self) -> float:
        """The length that motion is measured in: the median depth, or 1 where there is none."""
        return 1.0 if self.depth is None else float(np.median(self.depth[self.depth > 0]))


class _SceneReward(Reward):
    """A measure of a video's camera and scene, times its motion gate."""

    media: Media = "video"
    range = (0.0, 1.0)
    license = "Apache-2.0"
    depth = False
    """Whether depth and intrinsics are needed beside the poses."""

    def __init__(self, estimator: str | Estimator | None = None, floor: float = 0.01) -> None:
        self._estimator: Estimator | None
        self._estimator = plugins.load("rewards", estimator) if isinstance(estimator, str) else estimator
        self.source = estimator if isinstance(estimator, str) else "function" if estimator else "metadata"
        self.floor = checked_floor(floor, self.name)
        if estimator is None:
            self.needs = frozenset({"poses", "depth", "intrinsics"} if self.depth else {"poses"})

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each video, `[B]`."""
        rows = zip(batch.images, batch.metadata, strict=True)
        return torch.tensor([self._score(video, row) for video, row in rows], dtype=torch.float32)

    def _score(self, video: Tensor, row: Mapping[str, Any]) -> float:
        values = row if self._estimator is None else self._estimator(video)
        scene = Scene.of(values, len(video), depth=self.depth)
        return self.measure(scene, row) * self._gate(scene, row)

    def _gate(self, scene: Scene, row: Mapping[str, Any]) -> float:
        return gate(camera_motion(scene.poses, scene.unit), self.floor)

    @abstractmethod
    def measure(self, scene: Scene, row: Mapping[str, Any]) -> float:
        """The measure of one video, in [0, 1]; ``row`` is the metadata of its prompt."""


class DepthReprojectionReward(_SceneReward):
    """Mean of :func:`._cameras.reprojection_inliers` over pairs of neighbouring frames, times the motion gate.

    >>> DepthReprojectionReward().needs == {"poses", "depth", "intrinsics"}
    True
    """

    name = "depth_reprojection"
    depth = True

    def __init__(self, estimator: str | Estimator | None = None, floor: float = 0.01, tolerance: float = 0.05) -> None:
        """Set where poses and depth come from, and what counts as the same depth.

        Args:
            estimator: a plug-in name (``module:object``) or a function, see :data:`Estimator`; None reads the metadata.
            floor: motion of the camera under which a video counts as still; see :func:`._cameras.camera_motion`, in
                median depths.
            tolerance: relative.

        Raises:
            UserError: an option is out of range, or nothing has that name.
        """
        super().__init__(estimator, floor)
        if not 0 < tolerance < 1:
            raise UserError(f"reward {self.name!r}: tolerance: wanted a number from 0 to 1, got {tolerance!r}.")
        self.tolerance = tolerance

    def measure(self, scene: Scene, row: Mapping[str, Any]) -> float:
        """The mean share of inliers."""
        assert scene.depth is not None
        assert scene.intrinsics is not None
        return float(reprojection_inliers(scene.depth, scene.poses, scene.intrinsics, self.tolerance).mean())


class SceneGeometryReward(_SceneReward):
    """VGGRPO's ``r_geo``, from the three views that fit the common scene worst, times the motion gate.

    Lengths are in median depths: an estimator's unit is arbitrary.

    >>> SceneGeometryReward().needs == {"poses", "depth", "intrinsics"}
    True
    """

    name = "scene_geometry"
    depth = True

    def measure(self, scene: Scene, row: Mapping[str, Any]) -> float:
        """:func:`._cameras.worst_views`, of :func:`._cameras.cloud_errors`."""
        assert scene.depth is not None
        assert scene.intrinsics is not None
        poses = scene.poses.copy()
        poses[:, :3, 3] /= scene.unit
        return worst_views(cloud_errors(scene.depth / scene.unit, poses, scene.intrinsics, scene.static))


class CameraSmoothnessReward(_SceneReward):
    """VGGRPO's ``r_motion``, :func:`._cameras.smoothness`, times the motion gate; a video has at least three frames.

    >>> CameraSmoothnessReward().needs == {"poses"}
    True
    """

    name = "camera_smoothness"

    def measure(self, scene: Scene, row: Mapping[str, Any]) -> float:
        """:func:`._cameras.smoothness`."""
        if len(scene.poses) < 3:
            raise ValueError(f"wanted a video of at least 3 frames, got {len(scene.poses)}")
        return smoothness(scene.poses)


class PoseCycleReward(_SceneReward):
    """Whether the camera went where the prompt's row says: ``(1 / (1 + e_t) + 1 / (1 + e_R)) / 2``, times the gate.

    e_t and e_R are :func:`._cameras.cycle_errors` of the row's ``poses`` and the estimated ones. GrndCtrl takes the
    plain negative errors; in (0, 1] the gate can multiply them. Where less motion than the floor was asked for, that
    much is enough.

    >>> PoseCycleReward(lambda video: {}).needs == {"poses"}
    True
    """

    name = "pose_cycle"

    def __init__(self, estimator: str | Estimator, floor: float = 0.01, align: bool = True) -> None:
        """Set where the realised poses come from.

        Args:
            estimator: a plug-in name (``module:object``) or a function, see :data:`Estimator`.
            floor: motion of the camera under which a video counts as still; see :func:`._cameras.camera_motion`, in the
                poses' unit.
            align: scale each realised path by one number first, since a single camera does not tell the unit.

        Raises:
            UserError: the floor is out of range, or nothing has that name.
        """
        super().__init__(estimator, floor)
        self.align, self.needs = align, frozenset({"poses"})

    def measure(self, scene: Scene, row: Mapping[str, Any]) -> float:
        """From both errors, in (0, 1]."""
        translation, rotation = cycle_errors(self._wanted(scene, row), scene.poses, align=self.align)
        return (1 / (1 + translation) + 1 / (1 + rotation)) / 2

    def _gate(self, scene: Scene, row: Mapping[str, Any]) -> float:
        floor = min(self.floor, camera_motion(self._wanted(scene, row)))
        return gate(camera_motion(scene.poses), floor)

    def _wanted(self, scene: Scene, row: Mapping[str, Any]) -> np.ndarray:
        return Scene.of(row, len(scene.poses), depth=False).poses


def _array(values: Mapping[str, Any], key: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """One entry as float64 of a shape in which None is any length."""
    value = values.get(key)
    if value is None:
        raise ValueError(f"{key}: missing; there: {', '.join(sorted(values)) or 'nothing'}")
    plain = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    array = np.asarray(plain, dtype=np.float64)
    fits = array.ndim == len(shape) and all(w in (None, got) for w, got in zip(shape, array.shape, strict=True))
    if not fits or not np.isfinite(array).all():
        raise ValueError(f"{key}: wanted finite numbers {list(shape)}, got {list(array.shape)}")
    return array
