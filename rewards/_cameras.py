"""Geometry of a camera's path and of depth maps: pure functions of arrays, float64.

A pose is a camera-to-world matrix `[4, 4]`, x to the right, y down, z forward; depth is along z. Intrinsics `[3, 3]`
are in pixels of the depth map, with pixel centres at whole numbers.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from ..errors import UserError

_TINY = 1e-6


def steps_of(poses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The motion from each frame to the next, seen from the camera of the first of the two.

    Args:
        poses: `[F, 4, 4]`.

    Returns:
        translations `[F - 1, 3]`, and rotation vectors (axis times angle in radians) `[F - 1, 3]`.

    >>> path = np.tile(np.eye(4), (2, 1, 1))
    >>> path[1, :3, 3] = [0, 0, 2]
    >>> steps_of(path)[0].tolist()
    [[0.0, 0.0, 2.0]]
    """
    relative = np.linalg.inv(poses[:-1]) @ poses[1:]
    return relative[:, :3, 3], Rotation.from_matrix(relative[:, :3, :3]).as_rotvec()


def camera_motion(poses: np.ndarray, unit: float = 1.0) -> float:
    """How much a camera moves: mean length of a step over ``unit``, plus a tenth of its mean angle in radians.

    See "VideoGPA", https://arxiv.org/abs/2601.23286, for the sum.

    >>> path = np.tile(np.eye(4), (3, 1, 1))
    >>> path[:, 0, 3] = [0.0, 0.5, 1.0]
    >>> camera_motion(path)
    0.5
    """
    translations, rotations = steps_of(poses)
    return float(np.linalg.norm(translations, axis=1).mean() / unit + 0.1 * np.linalg.norm(rotations, axis=1).mean())


def gate(motion: float, floor: float) -> float:
    """``min(1, motion / floor)``; 1 for a floor of 0.

    >>> gate(0.005, 0.01), gate(3.0, 0.01), gate(0.0, 0.0)
    (0.5, 1.0, 1.0)
    """
    return 1.0 if floor <= 0 else min(1.0, float(motion) / floor)


def checked_floor(floor: float, name: str) -> float:
    """The floor, if it is one.

    Raises:
        UserError: it is no number from 0 to 1; the reward's name opens the message.
    """
    if not 0 <= floor < 1:
        raise UserError(f"reward {name!r}: floor: wanted a number from 0 to 1, such as 0.01, got {floor!r}.")
    return floor


def roughness(velocities: np.ndarray) -> float:
    """Mean over the steps of ``|v_(i+1) - v_i| / (|v_(i+1)| + |v_i| + 1e-6)``: 0 is even, 1 is back and forth.

    See "VGGRPO", https://arxiv.org/abs/2603.26599. It does not depend on the unit of length.

    Args:
        velocities: `[N, 3]`, of at least two steps.

    >>> round(roughness(np.array([[1.0, 0, 0], [-1.0, 0, 0]])), 5), roughness(np.ones((3, 3)))
    (1.0, 0.0)
    """
    speed = np.linalg.norm(velocities, axis=1)
    change = np.linalg.norm(np.diff(velocities, axis=0), axis=1)
    return float((change / (speed[1:] + speed[:-1] + _TINY)).mean())


def smoothness(poses: np.ndarray) -> float:
    """VGGRPO's ``r_motion = (1 / (1 + e_trans) + 1 / (1 + e_rot)) / 2``, in [1/2, 1], of camera centres and rotations.

    e_trans is the :func:`roughness` of the centres' steps in the world, e_rot that of the rotation vectors.

    Args:
        poses: `[F, 4, 4]`, F at least 3.

    >>> path = np.tile(np.eye(4), (4, 1, 1))
    >>> path[:, 0, 3] = [0, 1, 0, 1]  # back and forth: e_trans 1; no rotation: e_rot 0
    >>> round(smoothness(path), 4)
    0.75
    """
    centres = np.diff(poses[:, :3, 3], axis=0)
    return (1 / (1 + roughness(centres)) + 1 / (1 + roughness(steps_of(poses)[1]))) / 2


def cycle_errors(wanted: np.ndarray, realised: np.ndarray, *, align: bool = True) -> tuple[float, float]:
    """How far a realised path is from the one asked for, step by step.

    GrndCtrl's terms, https://arxiv.org/abs/2512.01952: the mean of ``|dt' - dt|``, here over the mean ``|dt|``, and the
    mean angle of ``dR'^T dR``, here not squared.

    Args:
        wanted: `[F, 4, 4]`.
        realised: `[F, 4, 4]`.
        align: scale the realised path by one number first, the median ratio of step lengths: a single camera does not
            tell the unit.

    Returns:
        the error of translation, in mean steps of the path asked for (in its units where it stands still), and of
        rotation, in radians.

    >>> path = np.tile(np.eye(4), (3, 1, 1))
    >>> path[:, 2, 3] = [0, 1, 2]
    >>> cycle_errors(path, path)
    (0.0, 0.0)
    """
    (t, r), (t_real, r_real) = steps_of(wanted), steps_of(realised)
    length, real_length = np.linalg.norm(t, axis=1), np.linalg.norm(t_real, axis=1)
    moves = (length > _TINY) & (real_length > _TINY)
    if align and moves.any():
        t_real = t_real * np.median(length[moves] / real_length[moves])
    error = np.linalg.norm(t_real - t, axis=1).mean()
    angles = (Rotation.from_rotvec(r_real).inv() * Rotation.from_rotvec(r)).magnitude()
    return float(error / length.mean() if length.mean() > _TINY else error), float(angles.mean())


def lifted(depth: np.ndarray, intrinsics: np.ndarray) -> np.ndarray:
    """The point of each pixel in the camera's coordinates, `[H * W, 3]`, row by row.

    >>> lifted(np.full((1, 2), 4.0), np.array([[2.0, 0, 0], [0, 2, 0], [0, 0, 1]])).tolist()
    [[0.0, 0.0, 4.0], [2.0, 0.0, 4.0]]
    """
    y, x = np.indices(depth.shape)
    rays = np.stack([x, y, np.ones_like(x)], axis=-1).reshape(-1, 3) @ np.linalg.inv(intrinsics).T
    return rays * depth.reshape(-1, 1)


def projected(points: np.ndarray, intrinsics: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The pixel that each point `[N, 3]` falls on, as an index into the flat picture, and whether it is in view."""
    z = points[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = np.round((points @ intrinsics.T)[:, :2] / z[:, None])
    height, width = size
    seen = (z > _TINY) & (pixels >= 0).all(axis=1) & (pixels[:, 0] < width) & (pixels[:, 1] < height)
    pixels = np.where(seen[:, None], pixels, 0).astype(np.int64)
    return pixels[:, 1] * width + pixels[:, 0], seen


def reprojection_inliers(
    depth: np.ndarray, poses: np.ndarray, intrinsics: np.ndarray, tolerance: float = 0.05
) -> np.ndarray:
    """GrndCtrl's depth reprojection: the share of a frame's points at which the next frame sees that depth.

    A point is lifted, moved by the poses, and projected; it is an inlier if
    ``|z - depth_next| < tolerance * depth_next``. Of points in view only; with less than a tenth of the frame in view
    the share is 0, since such frames say nothing.

    Args:
        depth: `[F, H, W]`; a pixel that is not positive has no depth.
        poses: `[F, 4, 4]`.
        intrinsics: `[3, 3]`.
        tolerance: relative.

    Returns:
        `[F - 1]`, in [0, 1].

    >>> reprojection_inliers(np.ones((2, 4, 4)), np.tile(np.eye(4), (2, 1, 1)), np.eye(3)).tolist()
    [1.0]
    """
    shares = []
    for first, second, step in zip(depth, depth[1:], np.linalg.inv(poses[1:]) @ poses[:-1], strict=False):
        points = lifted(first, intrinsics) @ step[:3, :3].T + step[:3, 3]
        index, seen = projected(points, intrinsics, second.shape)
        there = second.reshape(-1)[index]
        seen &= (first.reshape(-1) > 0) & (there > 0)
        inliers = np.abs(points[:, 2] - there)[seen] < tolerance * there[seen]
        shares.append(inliers.mean() if seen.mean() >= 0.1 else 0.0)
    return np.array(shares, dtype=np.float64)


def cloud_errors(
    depth: np.ndarray, poses: np.ndarray, intrinsics: np.ndarray, static: np.ndarray | None = None
) -> np.ndarray:
    """VGGRPO's error of each view: mean ``|depth - depth of the scene as all views see it|``.

    The static points of all views are drawn into the view, the nearest on each pixel. A view on which none falls has
    the error 1.

    Args:
        depth: `[F, H, W]`, in a unit in which the scene is about 1 away.
        poses: `[F, 4, 4]`.
        intrinsics: `[3, 3]`.
        static: `[F, H, W]` bool, the pixels that do not move by themselves; None is all.

    Returns:
        `[F]`.

    >>> cloud_errors(np.ones((3, 4, 4)), np.tile(np.eye(4), (3, 1, 1)), np.eye(3)).tolist()
    [0.0, 0.0, 0.0]
    """
    usable = (depth > 0) if static is None else (depth > 0) & static
    clouds = [
        lifted(d, intrinsics)[u.reshape(-1)] @ p[:3, :3].T + p[:3, 3]
        for d, p, u in zip(depth, poses, usable, strict=True)
    ]
    cloud, errors = np.concatenate(clouds), []
    for view, inverse, mask in zip(depth, np.linalg.inv(poses), usable, strict=True):
        points = cloud @ inverse[:3, :3].T + inverse[:3, 3]
        index, seen = projected(points, intrinsics, view.shape)
        nearest = np.full(view.size, np.inf)
        np.minimum.at(nearest, index[seen], points[seen, 2])
        valid = np.isfinite(nearest) & mask.reshape(-1)
        errors.append(np.abs(nearest - view.reshape(-1))[valid].mean() if valid.any() else 1.0)
    return np.array(errors, dtype=np.float64)


def worst_views(errors: np.ndarray, count: int = 3) -> float:
    """VGGRPO's ``r_geo = 1 / (1 + mean of the count largest errors)``.

    >>> worst_views(np.array([0.0, 0.3, 0.0, 0.0]))  # (0.3 + 0 + 0) / 3 = 0.1
    0.9090909090909091
    """
    return float(1 / (1 + np.sort(errors)[-count:].mean()))
