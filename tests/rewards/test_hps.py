"""HPS, against open_clip's own embeddings, and its options."""

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards._clip import normalised, square
from flowrl.rewards.hps import HpsReward

from . import heads


def test_is_a_hundred_times_open_clips_cosine(tmp_path) -> None:
    """On the padded picture, from a checkpoint with the tensors under ``state_dict``."""
    import open_clip

    file = heads.open_clip_file(tmp_path / "hps")
    batch = RewardBatch(torch.rand(2, 3, 24, 48), ["a cat", "two dogs"], [{}] * 2)
    model = open_clip.create_model("flowrl-tiny").eval()
    model.load_state_dict(torch.load(file, weights_only=True)["state_dict"])
    with torch.no_grad():
        images = model.encode_image(normalised(square(batch.images, heads.SIDE, "pad")), normalize=True)
        texts = model.encode_text(open_clip.get_tokenizer("flowrl-tiny")(batch.prompts), normalize=True)
    scores = HpsReward(weights=str(file), architecture="flowrl-tiny")(batch)
    torch.testing.assert_close(scores, 100 * (images @ texts.T).diag(), atol=1e-4, rtol=1e-4)


def test_options_and_foreign_checkpoints(tmp_path) -> None:
    """An unknown version or architecture, and the weights of another model."""
    with pytest.raises(UserError, match="version: unknown 'v3'"):
        HpsReward("v3")
    with pytest.raises(UserError, match="Did you mean 'ViT-H-14'"):
        HpsReward(architecture="ViT-H14")
    heads.open_clip_file(tmp_path / "hps")
    other = heads.linear_head(tmp_path / "other.pth", "layers", [0, 2, 4, 6, 7])
    with pytest.raises(UserError, match="no checkpoint of flowrl-tiny"):
        HpsReward(weights=str(other), architecture="flowrl-tiny")
