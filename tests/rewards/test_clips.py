"""The judge of clips: truths pass, every change of one thing fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flowrl.data import PromptRow
from flowrl.errors import UserError
from flowrl.pipelines.shapes import clips, world
from flowrl.reward import RewardBatch, RewardSet
from flowrl.rewards.clips import ClipsPartialReward, ClipsReward, judge


def drawn(text: str, seed: int = 0) -> np.ndarray:
    """A rendered clip, float in [0, 1]."""
    return clips.render(clips.parse(text), np.random.default_rng(seed)) / 255


@pytest.fixture(scope="module")
def truths():
    """Captions and clips of 300 motions."""
    rng = np.random.default_rng(0)
    motions = [clips.sample_motion(rng) for _ in range(300)]
    return [(motion, clips.render(motion, rng) / 255) for motion in motions]


def test_truths_pass(truths):
    """Rendered clips are right under their own captions, with a full score in each part."""
    for motion, clip in truths:
        verdict = judge(clip, clips.caption(motion))
        assert verdict.strict, clips.caption(motion)
        assert (verdict.identity, verdict.smoothness, verdict.partial) == (1.0, 1.0, 1.0)


def test_a_caption_with_one_word_changed_fails(truths):
    """Colour, shape, direction and pace: whatever differs is seen."""
    for motion, clip in truths[:24]:
        others = [replace(motion, colour=colour) for colour in world.PALETTE if colour != motion.colour]
        others += [replace(motion, shape=shape) for shape in world.SHAPES if shape != motion.shape]
        others += [replace(motion, direction=way) for way in clips.DIRECTIONS if way != motion.direction]
        if motion.pace != "plain":
            others.append(replace(motion, pace="slowly" if motion.pace == "quickly" else "quickly"))
        for other in others:
            verdict = judge(clip, clips.caption(other))
            assert not verdict.strict, f"{clips.caption(motion)} passes as {clips.caption(other)}"
            assert verdict.partial <= 0.95


def frozen(clip):
    """The first frame again and again."""
    return np.repeat(clip[:1], len(clip), axis=0)


def shuffled(clip):
    """The frames in another order, with the ends in place."""
    return clip[[0, 4, 2, 6, 1, 5, 3, 7, 8]]


def swapped(clip):
    """Red becomes blue in the middle."""
    changed = clip.copy()
    changed[4] = changed[4][..., ::-1]
    return changed


def doubled(clip):
    """The object, and once more half a frame away."""
    return np.minimum(clip, np.roll(clip, clips.SIZE // 2, axis=1))


def haunted(clip):
    """The object, and half a frame away its ghost at a third of the contrast."""
    return np.minimum(clip, 0.65 * clip + 0.35 * np.roll(clip, clips.SIZE // 2, axis=1))


def lost(clip):
    """One frame holds nothing."""
    changed = clip.copy()
    changed[5] = changed[5, 0, 0]
    return changed


@pytest.mark.parametrize("spoil", [frozen, shuffled, swapped, doubled, haunted, lost, lambda clip: clip[::-1]])
def test_spoiled_clips_fail_and_score_less(spoil):
    """Each part of the judge has clips that only it turns down."""
    clip = drawn("a red square quickly moves right", seed=3)
    verdict = judge(spoil(clip), "a red square quickly moves right")
    assert not verdict.strict
    assert verdict.partial < 0.96


def test_parts_of_the_score_by_hand():
    """One frame of nine in another colour: 8.5 / 9 of the identity. A shuffled clip loses its smoothness alone."""
    clip = drawn("a red square quickly moves right", seed=3)
    assert judge(swapped(clip), "a red square quickly moves right").identity == pytest.approx(8.5 / 9)
    verdict = judge(shuffled(clip), "a red square quickly moves right")
    assert (verdict.identity, verdict.motion) == (1.0, judge(clip, "a red square quickly moves right").motion)
    assert verdict.smoothness < 0.5
    assert judge(frozen(clip), "a red square moves right").motion == 0


def test_more_jitter_scores_less():
    """Noise on the places of the frames: the smoothness falls with it."""
    caption, rng = "a blue circle moves up", np.random.default_rng(0)
    clip = drawn(caption, seed=1)
    moves = rng.choice([-1, 1], size=len(clip))
    scores = [
        judge(
            np.stack([np.roll(f, by * m, axis=1) for f, m in zip(clip, moves, strict=True)]), "a blue circle moves up"
        )
        for by in (0, 1, 2, 3)
    ]
    assert [score.smoothness for score in scores] == sorted((s.smoothness for s in scores), reverse=True)
    assert scores[0].smoothness > scores[3].smoothness


def test_rewards_score_a_batch_like_single_clips():
    """Both rewards, on right and wrong captions at once."""
    good, bad = ClipsReward().examples()
    for reward in (ClipsReward(), ClipsPartialReward()):
        whole = reward(bad)
        singles = torch.cat([reward(bad.select([index])) for index in range(len(bad))])
        assert torch.equal(whole, singles)
        assert reward(good).tolist() == [1.0, 1.0, 1.0]
        assert whole.max() < 1


def test_frames_of_another_size_cannot_be_scored():
    """The judge's margins are in pixels."""
    batch = RewardBatch(torch.zeros(1, 9, 3, 64, 64), ["a red circle moves up"], [{}])
    with pytest.raises(ValueError, match="wanted frames of 32 x 32 pixels, got 64 x 64"):
        ClipsReward()(batch)


def test_prompts_and_modes_are_checked_first():
    """File and line of a prompt, and the known modes."""
    with pytest.raises(UserError, match=r"p\.txt:1: prompt: 'a cat' is not a caption .*\(The reward 'clips' reads"):
        ClipsReward().check([PromptRow(0, "a cat", {}, "p.txt:1")])
    with pytest.raises(UserError, match="mode: wanted one of strict, partial, got 'loose'"):
        ClipsReward("loose")
    assert RewardSet.from_config({"clips": 1.0, "clips_partial": 0.5}).rewards[0].media == "video"
