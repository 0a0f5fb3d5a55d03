"""The world of clips: its grammar, its renderer, its prompt sets."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.data import load_prompts
from flowrl.pipelines.shapes import clips, world


def test_every_caption_reads_back():
    """6 colours, 4 shapes, 4 directions and 3 paces, each with a caption of its own."""
    motions = list(clips.all_motions())
    assert len(motions) == len({clips.caption(motion) for motion in motions}) == 6 * 4 * 4 * 3
    assert [clips.parse(clips.caption(motion)) for motion in motions] == motions


@pytest.mark.parametrize(
    "text",
    ["a red circle", "a red circle moves", "a red circle slowly quickly moves up", "two red circles move up", ""],
)
def test_other_texts_are_refused(text):
    """The message shows the forms."""
    with pytest.raises(ValueError, match=r"not a caption of the world of clips\. Write one like 'a red circle moves"):
        clips.parse(text)


def test_case_spaces_and_a_full_stop_do_not_matter():
    """As people write."""
    assert clips.parse("  A red  Circle moves UP. ") == clips.Motion("red", "circle", "up")


def test_objects_move_evenly_and_stay_inside():
    """The ink's bounding box keeps off the edge, and its middle moves by equal steps along one axis."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        motion = clips.sample_motion(rng)
        clip = clips.render(motion, rng).astype(float)
        ink = np.abs(clip - clip[:, :1, :1]).max(axis=-1) > 12
        places = [np.argwhere(frame) for frame in ink]
        assert all(place.min() >= 1 and place.max() <= clips.SIZE - 2 for place in places)
        middles = np.array([(place.min(axis=0) + place.max(axis=0))[::-1] / 2 for place in places])
        way = middles[-1] - middles[0]
        along = np.array(clips.DIRECTIONS[motion.direction])
        assert way @ along >= 4
        assert abs(way @ along[::-1]) <= 1
        assert np.abs(np.diff(middles, axis=0) - way / (clips.FRAMES - 1)).max() <= 1


def test_pace_is_a_distance():
    """Slow and quick clips are far apart, so that none is a close call."""
    rng = np.random.default_rng(0)
    ways = {"slowly": [], "quickly": []}
    for pace, found in ways.items():
        for _ in range(50):
            clip = clips.render(clips.Motion("blue", "square", "right", pace), rng).astype(float)
            columns = [np.argwhere(frame.min(axis=0).min(axis=1) < 150).mean() for frame in clip[[0, -1]]]
            found.append(columns[1] - columns[0])
    assert max(ways["slowly"]) < 8
    assert min(ways["quickly"]) > 11.5


def test_a_seed_gives_the_same_clip():
    """Another seed another one."""
    motion = clips.Motion("red", "cross", "down")
    first, again, other = (clips.render(motion, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_prompt_sets_share_no_object():
    """Held-out captions are of held-out pairs alone, and both sets hold every caption once."""
    train, held_out = (
        [clips.parse(row.prompt) for row in load_prompts(name)] for name in ("clips_train", "clips_heldout")
    )
    assert len(set(train)) == len(train) == 18 * 12
    assert len(set(held_out)) == len(held_out) == 6 * 12
    assert all((motion.colour, motion.shape) in world.HELD_OUT_PAIRS for motion in held_out)
    assert not any(motion.held_out for motion in train)
    assert [row.metadata["kind"] for row in load_prompts("clips_train")[:3]] == list(clips.PACES)
