"""The judge of the shapes world: it accepts the truth, refuses everything else, and a part is worth a part."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from flowrl.data import PromptRow
from flowrl.errors import UserError
from flowrl.pipelines.shapes import world
from flowrl.pipelines.shapes.world import Scene
from flowrl.reward import RewardBatch, RewardSet
from flowrl.rewards.shapes import ShapesPartialReward, ShapesReward, judge

COUNT = 1000
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


def picture_of(scene: Scene, seed: int = 0) -> np.ndarray:
    """A rendered scene as float `[H, W, 3]` in [0, 1]."""
    return world.render(scene, np.random.default_rng(seed)).astype(np.float32) / 255


@pytest.fixture(scope="module")
def truths() -> list[tuple[Scene, np.ndarray]]:
    """1,000 scenes with a picture of each."""
    rng = np.random.default_rng(0)
    scenes = [world.sample_scene(rng) for _ in range(COUNT)]
    return [(scene, picture_of(scene, seed)) for seed, scene in enumerate(scenes)]


def recoloured(scene: Scene) -> Iterator[Scene]:
    """The scene with the colour of one object changed (of all, where they are counted)."""
    for colour in world.PALETTE:
        yield from _with_pair(scene, lambda pair, colour=colour: (colour, pair[1]))


def reshaped(scene: Scene) -> Iterator[Scene]:
    """The scene with the shape of one object changed (of all, where they are counted)."""
    for shape in world.SHAPES:
        yield from _with_pair(scene, lambda pair, shape=shape: (pair[0], shape))


def _with_pair(scene: Scene, change) -> Iterator[Scene]:
    objects = scene.objects
    if scene.relation is None:
        yield Scene((change(objects[0]),) * len(objects))
    else:
        yield replace(scene, objects=(change(objects[0]), objects[1]))
        yield replace(scene, objects=(objects[0], change(objects[1])))


def recounted(scene: Scene) -> Iterator[Scene]:
    """The scene with another number of its objects."""
    if scene.relation is None:
        yield from (Scene(scene.objects[:1] * count) for count in range(1, 5))


def related_otherwise(scene: Scene) -> Iterator[Scene]:
    """The scene with another relation."""
    if scene.relation is not None:
        yield from (replace(scene, relation=relation) for relation in world.RELATIONS)


def swapped(scene: Scene) -> Iterator[Scene]:
    """The scene with its two objects in each other's place."""
    if scene.relation is not None:
        yield replace(scene, objects=scene.objects[::-1])


def test_truths_are_accepted(truths):
    """Strict is at least 0.99 on 1,000 rendered truths, partial is 1 exactly where strict is."""
    scores = np.array([judge(picture, world.caption(scene)) for scene, picture in truths])
    assert len(scores) == COUNT
    assert scores[:, 0].mean() >= 0.99
    assert ((scores[:, 1] == 1) == (scores[:, 0] == 1)).all()


def test_mismatched_captions_are_refused(truths):
    """Strict is at most 0.01 on 1,000 pictures under the caption of another scene."""
    order = np.random.default_rng(1).permutation(COUNT)
    others = [truths[index][0] for index in order]
    wrong = []
    for index, (scene, picture) in enumerate(truths):
        other = next(other for other in others[index:] + others[:index] if other != scene)
        wrong.append(judge(picture, world.caption(other))[0])
    assert len(wrong) == COUNT
    assert np.mean(wrong) <= 0.01


@pytest.mark.parametrize("change", [recoloured, reshaped, recounted, related_otherwise, swapped])
def test_one_wrong_word_is_refused(truths, change):
    """Strict is at most 0.01 where one attribute of the caption is changed, the hardest mismatches that there are."""
    rng = np.random.default_rng(2)
    wrong = []
    for scene, picture in truths:
        changes = [other for other in change(scene) if other != scene]
        if changes:
            wrong.append(judge(picture, world.caption(changes[rng.integers(len(changes))])))
    assert len(wrong) > 300
    scores = np.array(wrong)
    assert scores[:, 0].mean() <= 0.01
    assert scores[:, 1].max() < 1
    assert scores[:, 1].mean() > 0.3


def test_a_scene_said_the_other_way_round_is_the_same(truths):
    """``A left of B`` and ``B right of A`` are both true of a picture."""
    scenes = [(scene, picture) for scene, picture in truths if scene.relation is not None]
    for scene, picture in scenes[:100]:
        other = Scene(scene.objects[::-1], OPPOSITE[scene.relation])
        assert judge(picture, world.caption(other)) == (1.0, 1.0)


@pytest.mark.parametrize("held_out", [False, True])
def test_held_out_pairs_are_judged_as_well(truths, held_out):
    """The judge does not prefer the pairs of training to those held out."""
    some = [judge(picture, world.caption(scene))[0] for scene, picture in truths if scene.held_out == held_out]
    assert len(some) > 200
    assert np.mean(some) >= 0.99


@pytest.mark.parametrize(
    ("shown", "asked", "partial"),
    [
        # F1 = 2 * found / (seen + asked for); an object right in only its colour or its shape counts 0.4.
        ("a red circle", "a blue circle", 0.4),  # 2 * 0.4 / (1 + 1)
        ("a red circle", "a red square", 0.4),
        ("a red circle", "a blue square", 0.0),
        ("two blue squares", "three blue squares", 0.8),  # 2 * 2 / (2 + 3)
        ("a red circle", "four red circles", 0.4),  # 2 * 1 / (1 + 4)
        ("four red circles", "a red circle", 0.4),
        ("a green cross above a red circle", "a green cross below a red circle", 0.6),  # all found, relation wrong
        ("a green cross above a red circle", "a green cross above a blue circle", 0.42),  # 2 * 1.4 / 4 * 0.6
        ("a red circle", "a red circle left of a green cross", 0.4),  # 2 * 1 / (1 + 2) * 0.6
    ],
)
def test_partial_by_hand(shown, asked, partial):
    """A part of what was asked for is worth the F1 score of its objects, less when they do not stand as asked."""
    strict, got = judge(picture_of(world.parse(shown)), asked)
    assert strict == 0
    assert got == pytest.approx(partial)


def test_noise_and_blank_pictures_get_nothing():
    """A picture without any object is worth 0; noise is no object."""
    rng = np.random.default_rng(0)
    for picture in (np.ones((48, 48, 3)), np.zeros((48, 48, 3)), np.full((48, 48, 3), 0.5), rng.random((48, 48, 3))):
        assert judge(picture.astype(np.float32), "a red circle")[0] == 0
    assert judge(np.ones((48, 48, 3), dtype=np.float32), "a red circle") == (0.0, 0.0)


def test_a_picture_filled_with_the_colour_is_refused():
    """The cheapest way to cheat, the colour asked for all over, earns nothing."""
    red = np.broadcast_to(np.array(world.PALETTE["red"], dtype=np.float32) / 255, (48, 48, 3))
    assert judge(red, "a red square") == (0.0, 0.0)


def test_an_extra_object_is_refused():
    """All that was asked for and one thing more is not strict, and worth less than 1: 2 * 1 / (1 + 2)."""
    picture = picture_of(world.parse("a red circle left of a blue cross"))
    assert judge(picture, "a red circle") == (0.0, pytest.approx(2 / 3))


def test_specks_are_a_flaw():
    """One speck of the decoder is let through; two are not, and cost a tenth."""
    picture = np.full((48, 48, 3), 0.9, dtype=np.float32)
    picture[20:36, 20:36] = np.array(world.PALETTE["red"]) / 255
    picture[4:6, 4:6] = 0
    assert judge(picture, "a red square") == (1.0, 1.0)
    picture[4:6, 40:42] = 0
    assert judge(picture, "a red square") == (0.0, pytest.approx(0.9))


def test_a_text_that_is_no_caption_raises():
    """The judge reads the grammar of the world and nothing else."""
    with pytest.raises(ValueError, match="is not a caption of the shapes world"):
        judge(np.ones((48, 48, 3), dtype=np.float32), "an astronaut on a horse")


def test_rewards_give_the_two_columns_of_the_judge(truths):
    """``shapes`` is strict, ``shapes_partial`` and the mode ``partial`` are partial."""
    shown, asked = truths[:20], [world.caption(scene) for scene, _ in truths[10:30]]
    images = torch.from_numpy(np.stack([picture for _, picture in shown])).permute(0, 3, 1, 2)
    batch = RewardBatch(images, asked, [{}] * 20)
    wanted = np.array([judge(picture, caption) for (_, picture), caption in zip(shown, asked, strict=True)])
    assert ShapesReward()(batch).tolist() == pytest.approx(wanted[:, 0])
    assert ShapesPartialReward()(batch).tolist() == pytest.approx(wanted[:, 1])
    assert torch.equal(ShapesReward(mode="partial")(batch), ShapesPartialReward()(batch))


def test_unknown_mode():
    """A mode that does not exist is a UserError with the two that do."""
    with pytest.raises(UserError, match="mode: wanted one of strict, partial, got 'fair'"):
        RewardSet.from_config({"shapes": {"weight": 1.0, "mode": "fair"}})


def test_check_names_the_row_that_is_no_caption():
    """A prompt that the judge could never score is found before the run, with file, line and the forms to write."""
    rows = [PromptRow(0, "a red circle", {}, "mine.txt:1"), PromptRow(1, "a red dog", {}, "mine.txt:2")]
    ShapesReward().check(rows[:1])
    with pytest.raises(UserError, match=r"^mine\.txt:2: prompt: 'a red dog' is not a caption .*'three blue squares'"):
        ShapesReward().check(rows)


def test_pictures_of_another_size_are_refused():
    """The judge's areas and margins are in pixels of the world's own size."""
    with pytest.raises(ValueError, match="wanted pictures of 48 x 48 pixels, got 64 x 48"):
        ShapesReward()(RewardBatch(torch.zeros(1, 3, 48, 64), ["a red circle"], [{}]))


def test_a_broken_prompt_hits_its_sample_only():
    """Inside a set, one text that cannot be parsed is NaN for that picture, and the others are scored."""
    good, _ = ShapesReward().examples()
    prompts = [good.prompts[0], "no caption", good.prompts[2]]
    scores = RewardSet.from_config({"shapes": 1.0}).score(RewardBatch(good.images, prompts, good.metadata))
    assert scores.raw[[0, 2], 0].tolist() == [1.0, 1.0]
    assert scores.raw[1, 0].isnan()
    assert scores.failures == {"shapes": 1}
