"""The shapes world: its grammar, its renderer, and the two prompt sets made from it."""

from collections import Counter
from importlib.resources import files

import numpy as np
import pytest

from flowrl.data import bundled_prompts, load_prompts
from flowrl.pipelines.shapes import prompts, world
from flowrl.pipelines.shapes.world import Scene

SCENES = list(world.all_scenes())


def pairs_of(name: str) -> set[tuple[str, str]]:
    """Every (colour, shape) pair that a bundled prompt set asks for."""
    return {pair for row in load_prompts(name) for pair in world.parse(row.prompt).objects}


def test_all_scenes():
    """24 pairs give 24 singles, 3 * 24 counts and 4 * 24 * 23 relations, each once."""
    assert Counter(scene.kind for scene in SCENES) == {"single": 24, "count": 72, "relation": 2208}
    assert len(set(SCENES)) == len(SCENES)


def test_the_world_is_as_large_as_promised():
    """Six or more colours, four or more shapes, counts to four, four relations, at least 48 pixels."""
    assert len(world.PALETTE) >= 6
    assert len(world.SHAPES) >= 4
    assert sorted(world.COUNTS.values()) == [2, 3, 4]
    assert len(world.RELATIONS) == 4
    assert world.SIZE >= 48


def test_every_caption_is_read_back():
    """Parsing a caption gives its scene, for every scene, so no two scenes share a caption."""
    assert all(world.parse(world.caption(scene)) == scene for scene in SCENES)


@pytest.mark.parametrize(
    ("text", "caption"),
    [
        ("A Red  Circle.", "a red circle"),
        ("a orange cross", "an orange cross"),
        (" two purple crosses\n", "two purple crosses"),
        ("an orange square ABOVE a blue circle", "an orange square above a blue circle"),
    ],
)
def test_grammar_forgives_writing(text, caption):
    """Case, white space, a full stop and the wrong article do not matter."""
    assert world.caption(world.parse(text)) == caption


@pytest.mark.parametrize(
    "text",
    [
        "",
        "red circle",
        "a pink circle",
        "a red hexagon",
        "five red circles",
        "two red circle",
        "a red circle near a blue square",
        "a red circle left of",
        "a red circle left of a blue square and a green cross",
    ],
)
def test_grammar_refuses_the_rest(text):
    """What is no caption raises, and the message shows the three forms and all words."""
    with pytest.raises(ValueError, match=r"a red circle.*three blue squares.*left of.*purple.*triangle.*below"):
        world.parse(text)


def test_held_out_scenes_hold_a_held_out_pair():
    """A scene is held out if any of its objects is."""
    assert Scene((("red", "square"),)).held_out
    assert Scene((("red", "circle"), ("red", "square")), "above").held_out
    assert not Scene((("red", "circle"), ("blue", "square")), "above").held_out


def test_every_colour_and_shape_is_seen_in_training():
    """Held out are combinations: each colour and each shape by itself occurs in a pair that is not."""
    seen = {(colour, shape) for colour in world.PALETTE for shape in world.SHAPES} - world.HELD_OUT_PAIRS
    assert {colour for colour, _ in seen} == set(world.PALETTE)
    assert {shape for _, shape in seen} == set(world.SHAPES)


def test_sample_scene_draws_the_promised_mixture():
    """A fifth singles, two fifths counts, two fifths relations, and only scenes of the world."""
    rng = np.random.default_rng(0)
    drawn = [world.sample_scene(rng) for _ in range(2000)]
    kinds = Counter(scene.kind for scene in drawn)
    # Four standard deviations of a share of 0.4 among 2,000 are 0.044.
    assert kinds["single"] / 2000 == pytest.approx(0.2, abs=0.044)
    assert kinds["count"] / 2000 == pytest.approx(0.4, abs=0.044)
    assert set(drawn) <= set(SCENES)


@pytest.mark.parametrize("scene", SCENES[::37], ids=world.caption)
def test_renderer_draws_what_is_asked_for(scene):
    """The picture has the promised format, and pixels near each palette colour that the scene names, and no other."""
    picture = world.render(scene, np.random.default_rng(0))
    assert picture.shape == (world.SIZE, world.SIZE, 3)
    assert picture.dtype == np.uint8
    asked = {colour for colour, _ in scene.objects}
    for colour, ink in world.PALETTE.items():
        near = (np.abs(picture.astype(int) - ink).max(axis=-1) <= 12).sum()
        assert (near > 40) == (colour in asked), colour


def test_renderer_is_a_function_of_the_generator():
    """One seed gives one picture; the next picture of a generator is another."""
    scene = world.parse("two red circles")
    rng = np.random.default_rng(5)
    first, second = world.render(scene, rng), world.render(scene, rng)
    assert (first == world.render(scene, np.random.default_rng(5))).all()
    assert (first != second).any()


@pytest.mark.parametrize("shape", world.SHAPES)
def test_masks_have_the_area_of_their_shape(shape):
    """The coverage of a unit square is that of geometry: pi / 4, 1, 1 / 2 and 5 / 9."""
    area = {"circle": np.pi / 4, "square": 1.0, "triangle": 0.5, "cross": 5 / 9}[shape]
    mask = world.shape_mask(shape, 24)
    assert mask.shape == (24, 24)
    assert mask.min() >= 0
    assert mask.max() == 1
    assert mask.mean() == pytest.approx(area, abs=0.02)


def test_unknown_shape():
    """A shape that does not exist is told with those that do."""
    with pytest.raises(ValueError, match="unknown shape 'star'; known: circle, square"):
        world.shape_mask("star", 8)


@pytest.mark.parametrize(
    ("relation", "second", "holds"),
    [
        # The first object stands at (20, 20); y grows downwards.
        ("left of", (30, 25), True),
        ("left of", (30, 31), False),  # further below than to the right
        ("left of", (23, 20), False),  # within the margin of 4 pixels
        ("right of", (10, 20), True),
        ("above", (20, 30), True),
        ("above", (20, 10), False),
        ("below", (22, 10), True),
    ],
)
def test_related_by_hand(relation, second, holds):
    """A relation holds if it is the larger of the two offsets, and more than the margin."""
    assert world.related(relation, (20, 20), second) == holds


def test_bundled_sets_are_what_the_script_writes(tmp_path):
    """Writing them anew gives the same bytes, so nobody has edited them by hand."""
    for path in prompts.write(tmp_path):
        assert path.read_bytes() == (files("flowrl.assets") / "prompts" / path.name).read_bytes()
    written = [name for name in bundled_prompts() if not name.startswith("words")]
    assert sorted(path.stem for path in tmp_path.iterdir()) == written


def test_training_and_held_out_prompts_share_no_pair():
    """Held-out prompts ask for the six held-out pairs alone, training prompts for the other 18."""
    everything = {(colour, shape) for colour in world.PALETTE for shape in world.SHAPES}
    assert pairs_of("shapes_heldout") == world.HELD_OUT_PAIRS
    assert pairs_of("shapes_train") == everything - world.HELD_OUT_PAIRS


@pytest.mark.parametrize(("name", "rows"), [("shapes_train", 972), ("shapes_heldout", 96)])
def test_sets_are_balanced(name, rows):
    """A third of the rows is of each kind, a quarter of the relations of each word, and repeats are spread evenly."""
    loaded = load_prompts(name)
    scenes = [world.parse(row.prompt) for row in loaded]
    assert [row.metadata for row in loaded] == [{"kind": scene.kind} for scene in scenes]
    assert Counter(scene.kind for scene in scenes) == dict.fromkeys(("single", "count", "relation"), rows // 3)
    related = Counter(scene.relation for scene in scenes if scene.relation is not None)
    assert related == dict.fromkeys(world.RELATIONS, rows // 12)
    for kind in ("single", "count", "relation"):
        times = Counter(scene for scene in scenes if scene.kind == kind).values()
        assert max(times) - min(times) <= 1


def test_the_first_rows_are_of_all_kinds():
    """Whoever looks at the first few pictures sees all kinds of prompts."""
    assert [row.metadata["kind"] for row in load_prompts("shapes_heldout")[:6]] == ["single", "count", "relation"] * 2


def test_the_script_writes_all_files(tmp_path, monkeypatch, capsys):
    """The command line makes the folder and prints what it wrote."""
    monkeypatch.setattr("sys.argv", ["prompts", "--out", str(tmp_path / "new")])
    prompts.main()
    written = [str(tmp_path / "new" / f"{name}.jsonl") for name in bundled_prompts() if not name.startswith("words")]
    assert sorted(capsys.readouterr().out.split()) == written
