"""CLIPScore and PickScore, against the published formula on transformers' own forward pass."""

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards._clip import normalised, square
from flowrl.rewards.clip_score import ClipScoreReward
from flowrl.rewards.pickscore import PickScoreReward

from . import heads

BATCH = RewardBatch(
    torch.rand(2, 3, 40, 56, generator=torch.Generator().manual_seed(1)), ["a cat", "two dogs"], [{}] * 2
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny CLIP."""
    return str(heads.clip_folder(tmp_path_factory.mktemp("clip") / "clip"))


def logits(folder: str, prompts: list[str]) -> torch.Tensor:
    """The diagonal of the model's own ``logits_per_image``: ``exp(logit_scale) * cos``."""
    from transformers import AutoTokenizer, CLIPModel

    tokens = AutoTokenizer.from_pretrained(folder)(prompts, padding=True, return_tensors="pt")
    pixels = normalised(square(BATCH.images, heads.SIDE))
    with torch.no_grad():
        return CLIPModel.from_pretrained(folder).eval()(pixel_values=pixels, **tokens).logits_per_image.diag()


def test_pickscore_is_the_models_own_logit(clip: str) -> None:
    """No softmax over pictures, and the trained temperature."""
    torch.testing.assert_close(PickScoreReward(clip)(BATCH), logits(clip, BATCH.prompts), atol=1e-4, rtol=1e-4)


def test_clip_score_is_the_scaled_cosine(clip: str) -> None:
    """With the paper's 2.5 and its prefix; a CLIP that was not trained has the temperature exp(2.6592)."""
    reward = ClipScoreReward(clip, scale=2.5, prefix="A photo depicts ")
    wanted = 2.5 * logits(clip, ["A photo depicts " + prompt for prompt in BATCH.prompts]) / torch.tensor(2.6592).exp()
    torch.testing.assert_close(reward(BATCH), wanted, atol=1e-4, rtol=1e-4)
    assert reward.range == (-2.5, 2.5)


def test_scale_must_be_positive() -> None:
    """Before anything is loaded."""
    with pytest.raises(UserError, match="scale: wanted"):
        ClipScoreReward(scale=0.0)
