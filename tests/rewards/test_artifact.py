"""The artifact detector: its artifacts, its features by hand, its head, its training, and the head that is bundled."""

import importlib.resources
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards import _artifact_shapes
from flowrl.rewards._artifact_head import Head, auc, filter_features, fit_head, measure
from flowrl.rewards._artifacts import HELD_OUT, TRAINING, spoil
from flowrl.rewards.artifact import ArtifactReward, train_artifact

KINDS = TRAINING | HELD_OUT
BUNDLED = Path(str(importlib.resources.files("flowrl.assets") / "artifact" / "shapes.safetensors"))


def scenes(count: int, seed: int = 0, *, held_out: bool = True) -> list[np.ndarray]:
    """Rendered scenes of the shapes world."""
    return _artifact_shapes.rendered(count, np.random.default_rng(seed), held_out=held_out)


def tiny_head(weight: float = 2.0, bias: float = -1.0, features: str = "filters", width: int = 408) -> Head:
    """A head whose logit is ``weight * relu(first feature) + bias``."""
    hidden = torch.zeros(1, width)
    hidden[0, 0] = 1.0
    tensors = {
        "mean": torch.zeros(width),
        "scale": torch.ones(width),
        "hidden.weight": hidden,
        "hidden.bias": torch.zeros(1),
        "out.weight": torch.tensor([[weight]]),
        "out.bias": torch.tensor([bias]),
    }
    return Head(tensors, features)


def write_pictures(folder: Path, pictures: list[np.ndarray]) -> None:
    """PNG files, numbered."""
    folder.mkdir(parents=True)
    for index, picture in enumerate(pictures):
        Image.fromarray((picture * 255).round().astype(np.uint8)).save(folder / f"{index:03}.png")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_every_artifact_shows(kind, strength):
    """It changes a picture by at least a half of a step of 8 bits in the mean, and keeps shape and range."""
    picture = scenes(1)[0]
    spoiled = KINDS[kind](picture, np.random.default_rng(0), strength)
    assert spoiled.shape == picture.shape
    assert 0 <= spoiled.min() <= spoiled.max() <= 1
    assert np.abs(spoiled - picture).mean() > 0.5 / 255


@pytest.mark.parametrize("kind", KINDS)
def test_every_artifact_takes_any_size(kind):
    """Sides that are no multiple of 8, and no square; the original is not written to."""
    picture = np.random.default_rng(0).random((50, 70, 3)).astype(np.float32)
    before = picture.copy()
    assert KINDS[kind](picture, np.random.default_rng(1), 0.5).shape == (50, 70, 3)
    assert (picture == before).all()


def test_spoil_is_a_function_of_its_seed():
    """The same seed draws the same artifact; the next one another."""
    picture = scenes(1)[0]
    first, again, other = (spoil(picture, np.random.default_rng(seed), KINDS) for seed in (3, 3, 4))
    assert first.dtype == np.float32
    assert (first == again).all()
    assert not (first == other).all()


def test_features_of_a_flat_picture():
    """No filter answers to a constant: every feature is the logarithm of the floor."""
    features = filter_features(torch.full((1, 3, 48, 48), 0.7))
    torch.testing.assert_close(features, torch.full((1, 408), math.log(1e-3)), atol=0.01, rtol=0)


def test_features_of_a_ramp():
    """A grey ramp of slope 0.01: the first filter is the mean of three rows of (left - right) / 2, so 0.01.

    Its moments are log(0.01 + 0.001), and log(0.01^2 + 0.001^2) / 2. The colour differences of a grey are 0.
    """
    ramp = (torch.arange(48) * 0.01).expand(1, 3, 48, 48)
    features = filter_features(ramp)[0]
    assert features[0].item() == pytest.approx(math.log(0.011), abs=1e-3)
    assert features[24].item() == pytest.approx(math.log(0.01**2 + 0.001**2) / 2, abs=1e-3)
    # At half the size the slope is twice as steep; a scale has 72 moments and 64 filtered responses.
    assert features[136].item() == pytest.approx(math.log(0.021), abs=1e-3)
    torch.testing.assert_close(features[8:24], torch.full((16,), math.log(1e-3)), atol=0.01, rtol=0)


def test_features_do_not_say_where():
    """A shape in another place, at a distance that all three scales divide, has the same features."""
    picture = torch.full((1, 3, 96, 96), 0.9)
    picture[:, 0, 40:48, 40:48] = 0.2
    moved = picture.roll((8, 16), dims=(2, 3))
    torch.testing.assert_close(filter_features(picture), filter_features(moved), atol=1e-4, rtol=0)


def test_small_pictures_are_refused():
    """The third scale would have nothing left."""
    with pytest.raises(ValueError, match="at least 24 x 24 pixels, got 48 x 16"):
        filter_features(torch.zeros(1, 3, 16, 48))


def test_auc_and_measure_by_hand():
    """Of six pairs four are in order and one is a tie: 4.5/6. A third of the clean ones alarms."""
    flawed, clean = torch.tensor([2.0, 0.0]), torch.tensor([-1.0, 0.0, 1.0])
    assert auc(flawed, clean) == pytest.approx(4.5 / 6)
    assert measure(flawed, clean) == {"auc": pytest.approx(0.75), "false_alarms": 1 / 3, "missed": 0.5, "n": 5.0}


def test_logit_by_hand():
    """The first feature 1.5, less its mean 0.5, over its scale 2, is 0.5; times 2, less 1, is 0. There is a cap."""
    head = tiny_head()
    head.tensors["mean"][0], head.tensors["scale"][0] = 0.5, 2.0
    features = torch.zeros(3, 408)
    features[:, 0] = torch.tensor([1.5, -9.0, 1000.0])
    assert head.logits(features).tolist() == [0.0, -1.0, 15.0]


def test_fit_head_learns_and_repeats():
    """It finds a rule that is not linear; the same seed gives the same weights; the global generator is left alone."""
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(0))
    flawed = x[:, 0].abs() > 0.7
    state = torch.get_rng_state()
    head = fit_head(x, flawed, steps=300)
    assert torch.equal(torch.get_rng_state(), state)
    assert ((head.logits(x) > 0) == flawed).float().mean() > 0.93
    again, other = fit_head(x, flawed, steps=300), fit_head(x, flawed, steps=300, seed=1)
    assert torch.equal(again.tensors["hidden.weight"], head.tensors["hidden.weight"])
    assert not torch.equal(other.tensors["hidden.weight"], head.tensors["hidden.weight"])


def test_fit_head_balances_the_kinds():
    """Three clean pictures of a hundred, all alike, are called clean: a batch holds as many of them."""
    x = torch.cat([torch.zeros(3, 2), torch.ones(97, 2) + 0.1 * torch.randn(97, 2)])
    head = fit_head(x, torch.arange(100) >= 3, steps=200)
    assert (head.logits(x[:3]) < 0).all()


def test_fit_head_wants_both_kinds():
    """A head that has seen one kind only would call everything so."""
    with pytest.raises(ValueError, match="wanted clean and flawed pictures, got 0 and 4"):
        fit_head(torch.zeros(4, 2), torch.ones(4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"wanted features \[N, D\]"):
        fit_head(torch.zeros(4, 2), torch.ones(3, dtype=torch.bool))


def test_head_survives_its_file(tmp_path):
    """What is read equals what was written."""
    tiny_head().save(tmp_path / "head.safetensors", {"note": "x"})
    loaded = Head.load(tmp_path / "head.safetensors")
    assert loaded.features == "filters"
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in tiny_head().tensors.items())


def test_files_that_are_no_heads(tmp_path):
    """A missing file, another format, shapes that do not fit, NaN, and no safetensors at all."""
    path = tmp_path / "head.safetensors"
    with pytest.raises(UserError, match="there is no file"):
        Head.load(path)
    path.write_bytes(b"x" * 64)
    with pytest.raises(UserError, match="not a safetensors file"):
        Head.load(path)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(UserError, match=r"wanted a head of the format flowrl-artifact-1 .* got the format 'none'"):
        Head.load(path)
    for name, tensor in (("mean", torch.zeros(3)), ("out.bias", torch.tensor([math.nan]))):
        head = tiny_head()
        head.tensors[name] = tensor
        head.save(path)
        with pytest.raises(UserError, match="do not fit together, or are not finite"):
            Head.load(path)


def test_score_by_hand(tmp_path):
    """A flat picture has the first feature log(0.001) < 0, so the logit is the bias -1 and the score sigmoid(1)."""
    tiny_head().save(tmp_path / "head.safetensors")
    reward = ArtifactReward(str(tmp_path / "head.safetensors"))
    score = reward(RewardBatch(torch.full((1, 3, 32, 32), 0.5), ["a"], [{}]))
    assert score.item() == pytest.approx(1 / (1 + math.exp(-1)))
    assert reward.source.startswith("head.safetensors sha256 ")


def test_a_file_of_weights_names_no_code(tmp_path):
    """Features of one's own are taken from the config and compared with the file, never loaded from the file."""
    (tmp_path / "mine.py").write_text("def colour(images):\n    return images.mean(dim=(2, 3))\n")
    name = f"{tmp_path}/mine.py:colour"
    path = str(tmp_path / "head.safetensors")
    tiny_head(features=name, width=3).save(Path(path))
    with pytest.raises(UserError, match=r"was trained on the features .*mine.py:colour', got 'filters'"):
        ArtifactReward(path)
    reward = ArtifactReward(path, features=name)
    assert not reward.differentiable
    # The mean red is 0.5: logit 2 * 0.5 - 1 = 0.
    assert reward(RewardBatch(torch.full((1, 3, 8, 8), 0.5), ["a"], [{}])).item() == 0.5


def test_training_from_clean_pictures(tmp_path):
    """Eighty scenes spoiled by rule are enough to tell most flaws; the file is a head, and says what was measured."""
    write_pictures(tmp_path / "data" / "clean", scenes(80))
    report = train_artifact(tmp_path / "data", tmp_path / "head.safetensors")
    assert report["n"] == 16 + 4 * 16
    assert report["auc"] > 0.9
    reward = ArtifactReward(str(tmp_path / "head.safetensors"))
    good, bad = reward.examples()
    assert reward(good).mean() > reward(bad).mean() + 0.3


def test_training_from_labelled_pictures(tmp_path):
    """With ``flawed/`` it learns what lies there: here, pictures that are mirrored in colour."""
    clean = scenes(40)
    write_pictures(tmp_path / "clean", clean)
    write_pictures(tmp_path / "flawed", [1 - picture for picture in scenes(30, seed=1)])
    (tmp_path / "mine.py").write_text("def colour(images):\n    return images.mean(dim=(2, 3))\n")
    features = f"{tmp_path}/mine.py:colour"
    report = train_artifact(tmp_path, tmp_path / "head.safetensors", features=features)
    assert report == {"auc": 1.0, "false_alarms": 0.0, "missed": 0.0, "n": 14.0}
    assert Head.load(tmp_path / "head.safetensors").features == features


def test_large_pictures_are_reduced(tmp_path):
    """To the shorter side that was asked for."""
    seen = []
    write_pictures(tmp_path / "clean", [np.random.default_rng(0).random((40, 60, 3)) for _ in range(10)])
    write_pictures(tmp_path / "flawed", [np.zeros((24, 24, 3))] * 10)
    (tmp_path / "mine.py").write_text("seen = []\ndef f(x):\n    seen.append(x.shape)\n    return x.mean(dim=(2, 3))\n")
    train_artifact(tmp_path, tmp_path / "h.safetensors", features=f"{tmp_path}/mine.py:f", side=30)
    from flowrl import plugins

    seen = plugins.load("rewards", f"{tmp_path}/mine.py:seen")
    assert set(seen) == {(1, 3, 30, 45), (1, 3, 24, 24)}


def test_mistakes_in_training(tmp_path):
    """Too few pictures, a broken one, and a file of another kind to write to."""
    with pytest.raises(UserError, match=r"wanted a file that ends in .safetensors"):
        train_artifact(tmp_path, tmp_path / "head.pt")
    write_pictures(tmp_path / "clean", scenes(9))
    with pytest.raises(UserError, match="wanted at least 10 pictures"):
        train_artifact(tmp_path, tmp_path / "head.safetensors")
    (tmp_path / "clean" / "x.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"x.png: cannot be read as a picture"):
        train_artifact(tmp_path, tmp_path / "head.safetensors")
    assert not (tmp_path / "head.safetensors").exists()


def test_bundled_head_is_small():
    """A head, not a model."""
    assert BUNDLED.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("kinds", "limit"), [(TRAINING, 0.98), (HELD_OUT, 0.9)], ids=["trained kinds", "held-out kinds"]
)
def test_bundled_head_on_scenes_that_it_never_saw(kinds, limit):
    """It tells flawed from clean pictures of colour and shape pairs of which it saw none; few clean ones alarm it."""
    head, rng = Head.load(BUNDLED), np.random.default_rng(5)
    clean = scenes(150, seed=6)
    flawed = [spoil(picture, rng, kinds) for picture in clean]
    report = measure(*(head.logits(_artifact_shapes.features_of(pictures)) for pictures in (flawed, clean)))
    assert report["auc"] > limit
    assert report["false_alarms"] < 0.1


def test_bundled_head_scores_alone_as_in_a_batch():
    """And gradients reach the pictures."""
    images = torch.from_numpy(np.stack(scenes(3))).permute(0, 3, 1, 2).requires_grad_()
    reward, batch = ArtifactReward(), RewardBatch(images, [""] * 3, [{}] * 3)
    scores = reward(batch)
    torch.testing.assert_close(torch.cat([reward(batch.select([i])) for i in range(3)]), scores)
    scores.sum().backward()
    assert reward.differentiable
    assert images.grad.abs().sum() > 0


@pytest.mark.slow
def test_bundled_head_on_pictures_of_the_bundled_model():
    """Pictures that the model drew, and the judge found right, are told from flawed ones; few alarm the head."""
    from diffusers import DiffusionPipeline

    from flowrl.data import load_prompts

    pipe = DiffusionPipeline.from_pretrained(str(importlib.resources.files("flowrl.assets") / "shapes-sd3"))
    pipe.set_progress_bar_config(disable=True)
    pictures, right = _artifact_shapes.drawn(pipe, load_prompts("shapes_heldout"), seed=77_000)
    kept = [picture for picture, good in zip(pictures, right, strict=True) if good]
    assert len(kept) > 30
    head, rng = Head.load(BUNDLED), np.random.default_rng(7)
    flawed = [spoil(picture, rng, TRAINING) for picture in scenes(150, seed=8)]
    report = measure(*(head.logits(_artifact_shapes.features_of(p)) for p in (flawed, kept)))
    assert report["auc"] > 0.95
    assert report["false_alarms"] < 0.1
