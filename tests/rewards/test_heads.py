"""What every reward on an image-text model must do, on tiny random models of the real classes."""

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import Reward, RewardBatch
from flowrl.rewards.aesthetic import AestheticReward
from flowrl.rewards.clip_score import ClipScoreReward
from flowrl.rewards.hps import HpsReward
from flowrl.rewards.pickscore import PickScoreReward
from flowrl.rewards.siglip_aesthetic import SiglipAestheticReward

from . import heads

PROMPTS = ["a red cube", "a photo of a cat, " * 40, "", "two dogs"]
HEADS = ("clip_score", "pickscore", "aesthetic", "hps", "siglip_aesthetic")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reward]:
    """Each head once, from files laid out as the published ones."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("heads")
    clip = str(heads.clip_folder(folder / "clip"))
    return {
        "clip_score": ClipScoreReward(clip),
        "pickscore": PickScoreReward(clip),
        "aesthetic": AestheticReward(str(heads.linear_head(folder / "v2.pth", "layers", [0, 2, 4, 6, 7])), model=clip),
        "hps": HpsReward(weights=str(heads.open_clip_file(folder / "hps")), architecture="flowrl-tiny"),
        "siglip_aesthetic": SiglipAestheticReward(
            str(heads.linear_head(folder / "v2_5.pth", "scoring_head", [0, 2, 4, 6, 8])),
            model=str(heads.siglip_folder(folder / "siglip")),
        ),
    }


def pictures(height: int = 40, width: int = 56) -> RewardBatch:
    """Four pictures of noise with their prompts; one prompt is longer than CLIP reads, one is empty."""
    return RewardBatch(torch.rand(4, 3, height, width), PROMPTS, [{}] * 4)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("size", [(32, 32), (17, 90), (64, 48)])
def test_batch_equals_singles(name: str, size: tuple[int, int], loaded: dict[str, Reward]) -> None:
    """A score depends on its sample alone, lies in the declared range, and is float32."""
    reward, batch = loaded[name], pictures(*size)
    together = reward(batch)
    alone = torch.cat([reward(batch.select([index])) for index in range(4)])
    low, high = reward.range
    assert together.dtype == torch.float32
    assert together.shape == (4,)
    assert ((low <= together) & (together <= high)).all()
    torch.testing.assert_close(together, alone, atol=1e-5 * max(1, high), rtol=0)


@pytest.mark.parametrize("name", HEADS)
def test_permuting_the_batch_permutes_the_scores(name: str, loaded: dict[str, Reward]) -> None:
    """Nothing leaks between samples."""
    reward, batch, order = loaded[name], pictures(), [2, 0, 3, 1]
    torch.testing.assert_close(reward(batch)[order], reward(batch.select(order)), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", HEADS)
def test_gradient_reaches_the_pictures(name: str, loaded: dict[str, Reward]) -> None:
    """Each declares that it is differentiable, and is: its slope along the gradient is the gradient's length."""
    reward, batch = loaded[name], RewardBatch(torch.rand(2, 3, 40, 40) * 0.5 + 0.25, PROMPTS[::3], [{}] * 2)
    pixels = batch.images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(reward(RewardBatch(pixels, batch.prompts, batch.metadata)).sum(), pixels)
    assert reward.differentiable
    step = 1e-2 * gradient / gradient.norm()
    moved = [reward(RewardBatch(batch.images + sign * step, batch.prompts, batch.metadata)).sum() for sign in (1, -1)]
    torch.testing.assert_close((moved[0] - moved[1]) / 2e-2, gradient.norm(), rtol=0.05, atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_says_what_it_is(name: str, loaded: dict[str, Reward]) -> None:
    """Name, licence and source go into environment.json."""
    reward = loaded[name]
    assert reward.name == name
    assert reward.license
    assert "bicubic" in reward.source


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (ClipScoreReward, "CLIP|Tokenizer"),
        (PickScoreReward, "CLIP|Tokenizer"),
        (lambda path: PickScoreReward(), "CLIP-ViT-H-14"),
        (AestheticReward, "sac.logos.ava1-l14-linearMSE.pth"),
        (lambda path: AestheticReward(), "sac.logos.ava1-l14-linearMSE.pth"),
        (lambda path: AestheticReward("someone/heads:v2.pth"), "someone/heads"),
        (lambda path: HpsReward(weights=path), "HPS_v2.1_compressed.pt"),
        (lambda path: HpsReward("v2"), "HPS_v2_compressed.pt"),
        (SiglipAestheticReward, "aesthetic_predictor_v2_5.pth"),
    ],
)
def test_missing_weights_are_named(make, wanted: str, tmp_path) -> None:
    """A wrong path, and weights that are not in the cache while offline."""
    with pytest.raises(UserError, match=wanted):
        make(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("option", [{"dtype": "float8"}, {"device": "toaster"}])
def test_wrong_device_or_dtype(option: dict, loaded: dict[str, Reward], tmp_path) -> None:
    """Both are a UserError that names the option."""
    (key,) = option
    with pytest.raises(UserError, match=f"{key}: wanted"):
        SiglipAestheticReward(
            str(heads.linear_head(tmp_path / "head.pth", "scoring_head", [0, 2, 4, 6, 8])),
            model=str(heads.siglip_folder(tmp_path / "siglip")),
            **option,
        )
