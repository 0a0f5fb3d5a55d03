"""Objects, colours and relations: GenEval's rules by hand, and the reward on a tiny random detector."""

import json

import pytest
import torch

from flowrl.data import PromptRow
from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards.geneval import Found, GenEvalReward, relations, verdict

CLASSES = ("dog", "cup", "cat")


def box(x: float, y: float, size: float = 10.0, colour: str | None = None, score: float = 1.0) -> Found:
    """A square object with its upper left corner at (x, y)."""
    return Found((x, y, x + size, y + size), score, colour)


@pytest.fixture(scope="module")
def detector(tmp_path_factory) -> str:
    """A folder with a tiny random DETR-type model (YOLOS) of three queries, which sees what its biases say."""
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    folder = tmp_path_factory.mktemp("detector")
    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[32, 32],
        patch_size=16,
        num_detection_tokens=3,
        use_mid_position_embeddings=False,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: index for index, name in enumerate(CLASSES)},
    )
    model = YolosForObjectDetection(config)
    model.save_pretrained(folder)
    processor = YolosImageProcessor(size={"height": 32, "width": 32}, do_pad=False)
    processor.save_pretrained(folder)
    return str(folder)


def seeing(folder: str, logits: list[float], **options) -> GenEvalReward:
    """The reward with a detector whose three queries have these logits, for dog, cup, cat and nothing."""
    reward = GenEvalReward(folder, **options)
    last = reward._model.class_labels_classifier.layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(logits))
    return reward


def batch_of(*rows: dict) -> RewardBatch:
    """Random pictures with these metadata."""
    images = torch.rand(len(rows), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return RewardBatch(images, [""] * len(rows), list(rows))


DOGS = [9.0, 0.0, 0.0, 0.0]
"""Each of the three queries is a dog, with a chance of e^9 / (e^9 + 3) = 0.9996."""


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (box(0, 0), box(30, 0), {"left of"}),
        (box(30, 0), box(0, 0), {"right of"}),
        (box(0, 0), box(0, 30), {"above"}),
        (box(0, 30), box(0, 0), {"below"}),
        (box(0, 0), box(30, 30), {"left of", "above"}),  # both parts are 0.71
        (box(0, 0), box(30, 10), {"left of"}),  # less 2 of slack: 28 and 8, so 0.96 and 0.27
        (box(0, 0), box(0, 0), set()),
        (box(0, 0), box(2, 2), set()),  # within the slack of a tenth of both sizes
    ],
)
def test_relations_by_hand(a, b, expected):
    """Downwards is the larger y; a part of more than a half of the direction is a relation."""
    assert relations(a, b) == expected


def test_counts():
    """Two of three asked for are 2/3; more than asked for is right, unless it is excluded."""
    include, exclude = [{"class": "dog", "count": 3}], [{"class": "dog", "count": 4}]
    dogs = [box(20 * index, 0) for index in range(5)]
    assert verdict({"dog": dogs[:2]}, include, exclude) == [pytest.approx(2 / 3), 1.0]
    assert verdict({"dog": dogs[:3]}, include, exclude) == [1.0, 1.0]
    assert verdict({"dog": dogs[:4]}, include, exclude) == [1.0, 0.75]
    assert verdict({"dog": dogs[:5]}, include, exclude) == [1.0, 0.5]
    assert verdict({}, include) == [0.0]


def test_colours():
    """The share of the objects asked for that have the colour; only the surest ones are looked at."""
    include = [{"class": "dog", "count": 2, "color": "red"}]
    red, blue = box(0, 0, colour="red"), box(20, 0, colour="blue")
    assert verdict({"dog": [red, blue]}, include) == [1.0, 0.5]
    assert verdict({"dog": [red, red, blue]}, include) == [1.0, 1.0]
    assert verdict({"dog": [blue, blue, red]}, include) == [1.0, 0.0]


def test_positions():
    """The relation to the entry that is named; nothing found is no relation."""
    include = [{"class": "dog", "count": 1}, {"class": "cup", "count": 1, "position": ["right of", 0]}]
    assert verdict({"dog": [box(0, 0)], "cup": [box(30, 0)]}, include) == [1.0, 1.0, 1.0]
    assert verdict({"dog": [box(30, 0)], "cup": [box(0, 0)]}, include) == [1.0, 1.0, 0.0]
    assert verdict({"cup": [box(30, 0)]}, include) == [0.0, 1.0, 0.0]


def test_strict_and_partial(detector):
    """Three dogs in each picture: right for three, and not for two and no third one; half a point for a cup."""
    rows = [
        {"include": [{"class": "dog", "count": 3}]},
        {"include": [{"class": "dog", "count": 2}], "exclude": [{"class": "dog", "count": 3}]},
        {"include": [{"class": "dog", "count": 1}, {"class": "cup", "count": 1}]},
    ]
    batch = batch_of(*rows)
    assert seeing(detector, DOGS)(batch).tolist() == [1.0, 0.0, 0.0]
    # The excluded third dog: 1 for the count, 1 - 1/3 for the exclusion, in the mean 5/6.
    assert seeing(detector, DOGS, mode="partial")(batch).tolist() == pytest.approx([1.0, 5 / 6, 0.5])


def test_thresholds(detector):
    """Dogs with a chance of e / (e + 3) = 0.475 pass 0.3 and not the 0.9 of counting rows."""
    reward = seeing(detector, [1.0, 0.0, 0.0, 0.0])
    include = [{"class": "dog", "count": 1}]
    assert reward(batch_of({"include": include}, {"include": include, "tag": "counting"})).tolist() == [1.0, 0.0]
    assert seeing(detector, [1.0, 0, 0, 0], threshold=0.5)(batch_of({"include": include})).tolist() == [0.0]
    assert seeing(detector, [0, 0, 0, 9.0])(batch_of({"include": include})).tolist() == [0.0]


def test_colours_are_told_from_the_crop(detector):
    """The function sees the part of the picture inside the box, and the class, only where a colour is asked for."""
    seen = []

    def colours(crop, name):
        seen.append((crop.shape[0], crop.numel() > 0, name))
        return "red"

    reward = seeing(detector, DOGS, colours=colours)
    asked = {"include": [{"class": "dog", "count": 3, "color": "red"}]}
    plain = {"include": [{"class": "dog", "count": 3}]}
    assert reward(batch_of(asked, plain)).tolist() == [1.0, 1.0]
    assert seen == [(3, True, "dog")] * 3


def test_scores_stand_alone(detector):
    """A picture has the same score alone and in a batch, of a detector that does look at it."""
    reward = GenEvalReward(detector, mode="partial", threshold=0.0, counting_threshold=0.0)
    rows = [{"include": [{"class": name, "count": 2}, {"class": "dog", "count": 1}]} for name in CLASSES]
    batch = batch_of(*rows)
    assert reward(batch).tolist() == [reward(batch.select([index])).item() for index in range(3)]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "metadata.include: missing; the reward 'geneval' needs it"),
        ({"include": []}, "wanted at least one object, got none"),
        ({"include": [{"class": "dgo", "count": 1}]}, "no class 'dgo'. Did you mean 'dog'. Known: dog, cup, cat"),
        ({"include": [{"class": "dog"}]}, "wanted an entry such as"),
        ({"include": ["dog"]}, "wanted an entry such as"),
        ({"include": [{"class": "dog", "count": 1, "color": "red"}]}, "a colour is asked for"),
        ({"include": [{"class": "dog", "count": 1, "position": ["near", 0]}]}, "position: wanted one of left of"),
        ({"include": [{"class": "dog", "count": 1, "position": ["above", 1]}]}, "position: wanted one of left of"),
        ({"include": [{"class": "dog", "count": 1}], "exclude": [{"class": "cow", "count": 1}]}, "metadata.exclude"),
    ],
)
def test_rows_that_ask_for_what_cannot_be_found(detector, metadata, message):
    """The run stops before a generator is loaded; file, line and entry are named."""
    rows = [PromptRow(0, "a dog", json.loads(json.dumps(metadata)), "p.jsonl:1")]
    with pytest.raises(UserError, match=rf"p.jsonl:1: .*{message.replace('?', '.')}"):
        GenEvalReward(detector).check(rows)


def test_good_rows_pass(detector):
    """GenEval's own form of a row."""
    include = [{"class": "dog", "count": 1}, {"class": "cup", "count": 1, "position": ["left of", 0]}]
    row = PromptRow(0, "a cup left of a dog", {"tag": "position", "include": include}, "p.jsonl:1")
    reward = GenEvalReward(detector)
    reward.check([row])
    assert reward.source.startswith(detector)


def test_mistakes_in_options(tmp_path):
    """Named before anything loads; a folder without a detector is shown with what was wanted."""
    with pytest.raises(UserError, match="mode: wanted one of strict, partial, got 'soft'"):
        GenEvalReward(str(tmp_path), mode="soft")
    with pytest.raises(UserError, match="threshold: wanted a number from 0 to 1, got 2"):
        GenEvalReward(str(tmp_path), threshold=2)
    with pytest.raises(UserError, match="model: wanted a folder or a hub id with an object detector"):
        GenEvalReward(str(tmp_path))
