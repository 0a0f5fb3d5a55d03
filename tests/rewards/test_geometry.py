"""Cameras, depth and poses: closed forms on synthetic paths and scenes, and the rewards made of them."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from flowrl.errors import UserError
from flowrl.reward import RewardBatch, RewardSet
from flowrl.rewards import _cameras as cameras
from flowrl.rewards.geometry import (
    CameraSmoothnessReward,
    DepthReprojectionReward,
    PoseCycleReward,
    SceneGeometryReward,
)

SIDE = 24
INTRINSICS = np.array([[SIDE, 0, (SIDE - 1) / 2], [0, SIDE, (SIDE - 1) / 2], [0, 0, 1.0]])


def path(centres, degrees=0.0) -> np.ndarray:
    """Poses at centres `[F, 3]`, turned about the vertical axis by ``degrees``, one number or one a frame."""
    poses = np.tile(np.eye(4), (len(centres), 1, 1))
    poses[:, :3, 3] = centres
    turns = np.broadcast_to(np.asarray(degrees, dtype=float), len(centres))
    poses[:, :3, :3] = Rotation.from_euler("y", turns[:, None], degrees=True).as_matrix()
    return poses


def straight(frames: int = 5, step: float = 0.1) -> np.ndarray:
    """A camera that moves sideways, evenly."""
    return path([[step * t, 0, 0] for t in range(frames)])


def plane(poses: np.ndarray, distance: float = 2.0) -> np.ndarray:
    """Depth `[F, H, W]` of the plane z = ``distance`` of the world, seen from each pose by casting rays."""
    y, x = np.indices((SIDE, SIDE))
    rays = np.stack([x, y, np.ones_like(x)], axis=-1) @ np.linalg.inv(INTRINSICS).T
    return np.stack([(distance - pose[2, 3]) / (rays @ pose[:3, :3].T)[..., 2] for pose in poses])


def scene(poses: np.ndarray, depth: np.ndarray | None = None) -> dict:
    """Metadata of a video, as it comes out of a JSON file."""
    values = {"poses": poses, "depth": plane(poses) if depth is None else depth, "intrinsics": INTRINSICS}
    return json.loads(json.dumps({key: value.tolist() for key, value in values.items()}))


def score(reward, *rows: dict, frames: int = 5) -> list[float]:
    """Its scores of videos with this metadata."""
    return reward(RewardBatch(torch.zeros(len(rows), frames, 3, 8, 8), [""] * len(rows), list(rows))).tolist()


def test_steps_are_seen_from_the_camera():
    """Facing the world's x (a quarter turn to the right), a step along x is a step ahead; the turn is in radians."""
    poses = path([[0, 0, 0], [3, 0, 0]], degrees=[90, 120])
    translations, rotations = cameras.steps_of(poses)
    np.testing.assert_allclose(translations, [[0, 0, 3]], atol=1e-12)
    np.testing.assert_allclose(rotations, [[0, math.radians(30), 0]], atol=1e-12)


def test_motion_by_hand():
    """Steps of 0.4 in units of 2 are 0.2; turns of 0.5 radians count a tenth: 0.25."""
    poses = path([[0, 0, 0.4 * t] for t in range(3)], degrees=np.degrees([0, 0.5, 1.0]))
    assert cameras.camera_motion(poses, unit=2.0) == pytest.approx(0.2 + 0.05)


def test_smoothness_by_hand():
    """Even: 1. Back and forth: |a| = 2 over 2, so e = 1 and half of the score is 1/2. It has no unit of length."""
    assert cameras.smoothness(straight()) == pytest.approx(1)
    zigzag = path([[t % 2, 0, 0] for t in range(5)])
    assert cameras.smoothness(zigzag) == pytest.approx((1 / 2 + 1) / 2, abs=1e-5)
    assert cameras.smoothness(path([[50.0 * (t % 2), 0, 0] for t in range(5)])) == pytest.approx(0.75, abs=1e-5)


def test_smoothness_of_a_turn():
    """An even turn on the spot is smooth; one that goes to and fro has e_rot 1."""
    still = np.zeros((5, 3))
    assert cameras.smoothness(path(still, degrees=np.arange(5) * 3.0)) == pytest.approx(1)
    assert cameras.smoothness(path(still, degrees=[0, 3, 0, 3, 0])) == pytest.approx(0.75, abs=1e-4)


def test_roughness_by_hand():
    """Speeds 1, 3, 3: changes 2 and 0, over 4 and 6: the mean of 1/2 and 0."""
    velocities = np.array([[1.0, 0, 0], [3.0, 0, 0], [3.0, 0, 0]])
    assert cameras.roughness(velocities) == pytest.approx(0.25, abs=1e-6)


def test_cycle_errors_by_hand():
    """A constant offset of 0.05 a step of 0.1 is half a step; 2 degrees more a step are 2 degrees."""
    wanted = straight()
    assert cameras.cycle_errors(wanted, wanted) == (0, 0)
    offset = path([[0.1 * t, 0.05 * t, 0] for t in range(5)])
    translation, rotation = cameras.cycle_errors(wanted, offset, align=False)
    assert translation == pytest.approx(0.5)
    assert rotation == 0
    turned = path(np.zeros((5, 3)), degrees=2.0 * np.arange(5))
    assert cameras.cycle_errors(path(np.zeros((5, 3))), turned)[1] == pytest.approx(math.radians(2))


def test_cycle_errors_have_no_unit_and_no_world():
    """A path ten times as long is the same once aligned; turning the realised world as a whole changes nothing."""
    wanted = path([[0.1 * t, 0, 0.02 * t * t] for t in range(5)], degrees=3.0 * np.arange(5))
    longer = wanted.copy()
    longer[:, :3, 3] *= 10
    assert cameras.cycle_errors(wanted, longer)[0] == pytest.approx(0, abs=1e-12)
    assert cameras.cycle_errors(wanted, longer, align=False)[0] == pytest.approx(9)
    world = np.eye(4)
    world[:3, :3], world[:3, 3] = Rotation.from_euler("xyz", [20, 40, 60], degrees=True).as_matrix(), [1, 2, 3]
    np.testing.assert_allclose(cameras.cycle_errors(wanted, world @ wanted), 0, atol=1e-7)


def test_lifting_and_projecting_are_inverse():
    """Every pixel's point falls back on it; points behind the camera are not in view."""
    depth = np.random.default_rng(0).uniform(1, 5, (SIDE, SIDE))
    points = cameras.lifted(depth, INTRINSICS)
    index, seen = cameras.projected(points, INTRINSICS, (SIDE, SIDE))
    assert seen.all()
    assert (index == np.arange(SIDE * SIDE)).all()
    assert not cameras.projected(-points, INTRINSICS, (SIDE, SIDE))[1].any()


@pytest.mark.parametrize(
    "poses",
    [straight(), path([[0, 0, 0.1 * t] for t in range(5)]), path(np.zeros((5, 3)), degrees=2.0 * np.arange(5))],
    ids=["sideways", "ahead", "turning"],
)
def test_a_true_plane_reprojects(poses):
    """Exact depth and poses: all points are inliers, whatever the path, and views agree but for rounding to pixels."""
    depth = plane(poses)
    assert cameras.reprojection_inliers(depth, poses, INTRINSICS).tolist() == [1.0] * 4
    assert cameras.cloud_errors(depth, poses, INTRINSICS).max() < 0.03


def test_half_of_the_depths_wrong():
    """Upper half 1.2 times too far in the second view: half the points are off by a sixth or so."""
    poses = straight(2, step=0.0)
    depth = plane(poses)
    depth[1, : SIDE // 2] *= 1.2
    assert cameras.reprojection_inliers(depth, poses, INTRINSICS).tolist() == [0.5]
    assert cameras.reprojection_inliers(depth, poses, INTRINSICS, tolerance=0.25).tolist() == [1.0]


def test_wrong_poses_show_in_the_depth():
    """A plane seen from an approaching camera, with poses that stand still: 2.0 against 1.8 is off by a ninth."""
    depth = plane(path([[0, 0, 0], [0, 0, 0.2]]))
    still = straight(2, step=0.0)
    assert cameras.reprojection_inliers(depth, still, INTRINSICS).tolist() == [0.0]
    assert cameras.reprojection_inliers(depth, still, INTRINSICS, tolerance=0.12).tolist() == [1.0]


def test_frames_that_share_no_view():
    """A camera that has turned away sees nothing of the first frame: no inliers, rather than no answer."""
    poses = path(np.zeros((2, 3)), degrees=[0, 170])
    assert cameras.reprojection_inliers(np.full((2, SIDE, SIDE), 2.0), poses, INTRINSICS).tolist() == [0.0]


def test_pixels_without_depth_do_not_count():
    """Half a frame without depth leaves the other half."""
    poses = straight(2, step=0.0)
    depth = plane(poses)
    depth[0, : SIDE // 2] = 0
    assert cameras.reprojection_inliers(depth, poses, INTRINSICS).tolist() == [1.0]


def test_one_view_behind_the_others():
    """VGGRPO's own example: one of five views delta too far, the others exact: r_geo = 1 / (1 + delta / 3)."""
    poses = straight(5, step=0.0)
    depth = plane(poses)
    depth[2] += 0.3
    errors = cameras.cloud_errors(depth, poses, INTRINSICS)
    np.testing.assert_allclose(errors, [0, 0, 0.3, 0, 0], atol=1e-12)
    assert cameras.worst_views(errors) == pytest.approx(1 / 1.1)


def test_what_moves_is_left_out():
    """A thing in front of the plane, in one view only: an error, unless it is marked as moving."""
    poses = straight(3, step=0.0)
    depth = plane(poses)
    depth[1, 5:10, 5:10] = 1.0
    assert cameras.cloud_errors(depth, poses, INTRINSICS).max() > 0.01
    assert cameras.cloud_errors(depth, poses, INTRINSICS, static=depth > 1.5).max() == 0


def test_a_view_on_which_nothing_falls():
    """Its error is 1, as in the code that follows the paper."""
    depth = np.ones((2, 4, 4))
    depth[1] = 0
    poses = path(np.zeros((2, 3)), degrees=[0, 180])
    assert cameras.cloud_errors(depth, poses, np.eye(3))[1] == 1


def test_rewards_on_a_true_scene():
    """A plane seen from an even path is perfect by all three; metadata may come from a JSON file."""
    row = scene(straight())
    assert score(DepthReprojectionReward(), row) == [1.0]
    assert score(SceneGeometryReward(), row)[0] > 0.98
    assert score(CameraSmoothnessReward(), row) == pytest.approx([1.0])


@pytest.mark.parametrize("reward", [DepthReprojectionReward, SceneGeometryReward, CameraSmoothnessReward])
def test_a_still_camera_does_not_win(reward):
    """It scores 0; half the floor is half the score; without a floor it is perfect."""
    still, slow = scene(straight(step=0.0)), scene(straight(step=0.01))
    assert score(reward(), still) == [0.0]
    # Steps of 0.01 at a median depth of 2 are a motion of 0.005; the smoothness has no depth and sees 0.01.
    floor = 0.02 if reward is CameraSmoothnessReward else 0.01
    assert score(reward(floor=floor), slow) == pytest.approx([0.5], abs=0.01)
    assert score(reward(floor=0.0), still) == pytest.approx([1.0])


def test_an_estimator():
    """Its results are read in place of the metadata, as tensors or arrays; it sees the video."""
    seen = []

    def estimate(video):
        seen.append(video.shape)
        return {key: torch.tensor(value) for key, value in scene(straight()).items()}

    reward = DepthReprojectionReward(estimate)
    assert reward.needs == frozenset()
    assert score(reward, {}) == [1.0]
    assert seen == [(5, 3, 8, 8)]


def test_pose_cycle_by_hand():
    """Realised half a step aside: e_t = 0.5 and e_R = 0, so (1/1.5 + 1)/2."""
    offset = path([[0.1 * t, 0.05 * t, 0] for t in range(5)])
    row = {"poses": straight().tolist()}
    assert score(PoseCycleReward(lambda video: {"poses": straight()}), row) == [1.0]
    unaligned = PoseCycleReward(lambda video: {"poses": offset}, align=False)
    assert score(unaligned, row) == pytest.approx([(1 / 1.5 + 1) / 2])


def test_pose_cycle_of_a_still_camera():
    """Standing still where motion was asked for scores 0; where stillness was asked for, 1."""
    reward = PoseCycleReward(lambda video: {"poses": straight(step=0.0)})
    assert score(reward, {"poses": straight().tolist()}, {"poses": straight(step=0.0).tolist()}) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "poses: missing; there: nothing"),
        ({"poses": straight(3)}, r"poses: wanted finite numbers \[5, 4, 4\], got \[3, 4, 4\]"),
        ({"poses": np.full((5, 4, 4), np.nan)}, "poses: wanted finite numbers"),
        ({"poses": straight()}, "depth: missing; there: poses"),
        ({"poses": straight(), "depth": np.ones((4, 2, 2))}, r"depth: wanted finite numbers \[5, None, None\]"),
        ({"poses": straight(), "depth": np.ones((5, 2, 2))}, "intrinsics: missing"),
    ],
)
def test_what_is_missing_or_misshapen(row, message):
    """The entry is named, with what was wanted and what came."""
    with pytest.raises(ValueError, match=message):
        score(DepthReprojectionReward(), row)


def test_options_out_of_range():
    """Named when the reward is made; smoothness needs three frames."""
    with pytest.raises(UserError, match=r"reward 'scene_geometry': floor: wanted a number from 0 to 1"):
        SceneGeometryReward(floor=1.0)
    with pytest.raises(UserError, match=r"tolerance: wanted a number from 0 to 1, got 0"):
        DepthReprojectionReward(tolerance=0)
    with pytest.raises(ValueError, match="at least 3 frames, got 2"):
        score(CameraSmoothnessReward(), {"poses": straight(2)}, frames=2)


def test_in_a_set():
    """A sample whose geometry is broken is NaN there and nowhere else."""
    rewards = RewardSet.from_config({"camera_smoothness": 1.0})
    rows = [{"poses": straight()}, {"poses": straight(2)}]
    raw = rewards.score(RewardBatch(torch.zeros(2, 5, 3, 8, 8), ["", ""], rows)).raw[:, 0]
    assert raw[0] == pytest.approx(1)
    assert raw[1].isnan()
