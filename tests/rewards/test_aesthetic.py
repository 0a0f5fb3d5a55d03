"""LAION's heads: the score worked out by hand, the layouts that are taken, and those that are not."""

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards.aesthetic import AestheticReward
from flowrl.rewards.siglip_aesthetic import SiglipAestheticReward

from . import heads


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny CLIP."""
    return str(heads.clip_folder(tmp_path_factory.mktemp("clip") / "clip"))


def test_v1_by_hand(clip: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For w = (3, 4, 0 ...), b = 5, e = (0.6, 0.8, 0 ...): 1.8 + 3.2 + 5 = 10; the length of w, 5, gives 0 to 10."""
    weight = torch.zeros(1, heads.WIDTH)
    weight[0, :2] = torch.tensor([3.0, 4.0])
    torch.save({"weight": weight, "bias": torch.tensor([5.0])}, tmp_path / "v1.pth")
    reward = AestheticReward(str(tmp_path / "v1.pth"), model=clip)
    assert reward.range == (0.0, 10.0)
    raw = torch.zeros(1, heads.WIDTH)
    raw[0, :2] = torch.tensor([6.0, 8.0])  # ten times too long: the head takes length 1
    monkeypatch.setattr(reward._clip.model, "get_image_features", lambda pixel_values: raw)
    scores = reward(RewardBatch(torch.rand(1, 3, 32, 32), ["a"], [{}]))
    torch.testing.assert_close(scores, torch.tensor([10.0]))


def test_a_head_with_activations_is_refused(clip: str, tmp_path) -> None:
    """The published ReLU head has its layers at other places, and no affine map."""
    with pytest.raises(UserError, match="v1 or v2 linear head"):
        AestheticReward(str(heads.linear_head(tmp_path / "relu.pth", "layers", [0, 3, 6, 9, 11])), model=clip)
    with pytest.raises(UserError, match=r"five linear layers of v2\.5"):
        SiglipAestheticReward(str(heads.linear_head(tmp_path / "v2.pth", "layers", [0, 2, 4, 6, 7])))


def test_a_head_of_another_clip_is_refused(clip: str, tmp_path) -> None:
    """768 numbers for an embedding of 16."""
    torch.save({"weight": torch.ones(1, 768), "bias": torch.ones(1)}, tmp_path / "l14.pth")
    with pytest.raises(UserError, match="takes 768 numbers"):
        AestheticReward(str(tmp_path / "l14.pth"), model=clip)
