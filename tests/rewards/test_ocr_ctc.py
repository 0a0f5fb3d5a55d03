"""The CTC likelihood of the text asked for: by hand, and what its gradient does."""

import importlib.util
import math

import numpy as np
import pytest
import torch

from flowrl.data import PromptRow
from flowrl.errors import UserError
from flowrl.pipelines.words import world
from flowrl.reward import RewardBatch
from flowrl.rewards import ocr_ctc
from flowrl.rewards.ocr_ctc import OcrCtcReward, log_likelihood

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("rapidocr", "onnx")),
    reason="the packaged recogniser is not installed: pip install 'flowrl[ocr]'",
)


def test_two_letters_over_three_columns_by_hand():
    """With every class at 1/3, "12" is 12-, 1-2, -12, 112 or 122: 5 of 27 ways; "11" is 1-1 alone."""
    logits = torch.zeros(2, 3, 3)
    found = log_likelihood(logits, [[1, 2], [1, 1]]).exp()
    torch.testing.assert_close(found, torch.tensor([5 / 27, 1 / 27]))


def test_a_text_that_does_not_fit_is_impossible():
    """Three letters have no place in two columns."""
    assert log_likelihood(torch.zeros(1, 2, 4), [[1, 2, 3]]).item() == -math.inf


@pytest.fixture(scope="module")
def reward() -> OcrCtcReward:
    """With the packaged recogniser."""
    return OcrCtcReward()


def pictures(*words: str) -> torch.Tensor:
    """Pictures `[B, 3, 32, 32]` of words."""
    rng = np.random.default_rng(0)
    drawn = np.stack([world.render(word, rng) for word in words])
    return torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255


@needs_onnx
def test_the_right_word_is_likely(reward):
    """Almost certain where it is written, and at odds with any other, be it one letter off."""
    images = pictures("CAT", "OWL", "EGG")
    right = reward(RewardBatch(images, [f'the word "{word}"' for word in ("CAT", "OWL", "EGG")], [{}] * 3))
    wrong = reward(RewardBatch(images, [f'the word "{word}"' for word in ("CAR", "OIL", "EGO")], [{}] * 3))
    assert right.min() > -0.05
    assert (right - wrong).min() > 2


@needs_onnx
def test_nothing_asked_for_is_nan(reward):
    """Neither a prompt without quotes, nor a text longer than the picture has columns; the others keep their score."""
    prompts = ["a cat", '"CAT"', f'"{"CAT" * 5}"']
    images = pictures("CAT", "CAT", "CAT").requires_grad_(True)
    scores = reward(RewardBatch(images, prompts, [{}] * 3))
    assert scores.isnan().tolist() == [True, False, True]
    scores.nansum().backward()
    assert images.grad.isfinite().all()
    assert images.grad.abs().sum(dim=(1, 2, 3)).gt(0).tolist() == [False, True, False]


@needs_onnx
def test_gradient_reaches_the_pixels_and_fools_it(reward):
    """A dozen steps up its gradient make it see CAR in a picture of CAT, by changes of at most a quarter."""
    batch = RewardBatch(pictures("CAT"), ['"CAR"'], [{}])
    start, images = reward(batch).item(), batch.images.clone()
    for _ in range(12):
        images.requires_grad_(True)
        (gradient,) = torch.autograd.grad(reward(RewardBatch(images, batch.prompts, [{}])).sum(), images)
        images = (images.detach() + 0.04 * gradient.sign()).clamp(batch.images - 0.25, batch.images + 0.25).clamp(0, 1)
    assert start < -3
    assert reward(RewardBatch(images, batch.prompts, [{}])).item() > -0.2


@needs_onnx
def test_it_tells_its_examples_apart(reward):
    """Those that ``flowrl doctor`` shows it."""
    good, bad = reward.examples()
    assert reward(good).min() > -0.1
    assert reward(bad).max() < -3


@needs_onnx
def test_check_names_the_row(reward):
    """Prompts without a text stop a run before a model loads."""
    reward.check([PromptRow(0, '"CAT"', {}, "p.txt:1")])
    with pytest.raises(UserError, match=r"p.txt:2: 'a cat': the reward 'ocr_ctc' wants a part in double quotes"):
        reward.check([PromptRow(1, "a cat", {}, "p.txt:2")])


def test_missing_package_names_the_extra(monkeypatch, tmp_path):
    """So does a version of it without these weights."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs rapidocr, not installed: pip install 'flowrl\[ocr\]'"):
        OcrCtcReward()
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(ocr_ctc.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(UserError, match=r"this version of rapidocr has no PP-OCRv6_rec_small\.onnx"):
        OcrCtcReward()
