"""Distances of sets as rewards: influence by hand and by recomputation, signs, subsets, pools, and what is refused."""

import pytest
import torch
from PIL import Image

from flowrl.errors import UserError
from flowrl.reward import RewardBatch, RewardSet, Unscored
from flowrl.rewards import _sets
from flowrl.rewards.distribution import FrechetReward, KidReward, MmdReward, subsets_of
from flowrl.set_reward import Members

REWARDS = (FrechetReward, KidReward, MmdReward)
each_reward = pytest.mark.parametrize("kind", REWARDS)


def mean_colour(images):
    """The features of these tests, `[N, 3]`."""
    return images.mean(dim=(2, 3))


COLOURS = f"{__file__}:mean_colour"


def colours(count, seed, low=0.0, high=1.0):
    """Features of flat pictures, float32 `[N, 3]`."""
    return low + (high - low) * torch.rand(count, 3, generator=torch.Generator().manual_seed(seed))


def folder_of(path, features, side=8):
    """Flat pictures of these colours, as PNG; returns what PNG keeps of the colours."""
    path.mkdir()
    kept = (features * 255).round()
    for number, colour in enumerate(kept):
        Image.new("RGB", (side, side), tuple(map(int, colour))).save(path / f"{number:03}.png")
    return kept.double() / 255


def members_of(features, group_size=4) -> Members:
    """Samples with these features, in groups."""
    groups = torch.arange(len(features)) // group_size
    return Members(features, groups, ["a"] * len(features), [{} for _ in features])


@pytest.fixture
def made(tmp_path):
    """Makes a reward with a reference of 40 dark colours."""
    reference = folder_of(tmp_path / "reference", colours(40, 0, high=0.5))

    def make(kind, **options):
        return kind(str(tmp_path / "reference"), COLOURS, **options), reference

    return make


def alone(reward, features) -> float:
    """The distance of one set, all of it."""
    return reward.measure(members_of(features.float()))


@each_reward
def test_influence_is_the_difference_with_and_without(kind, made):
    """Each sample's score, against the distances of the sets computed anew."""
    reward, _ = made(kind)
    x = colours(12, 1)
    scores = reward.combine(members_of(x))
    everyone = alone(reward, x)
    wanted = [everyone - alone(reward, torch.cat([x[:i], x[i + 1 :]])) for i in range(12)]
    assert scores.tolist() == pytest.approx(wanted, abs=1e-6)


@each_reward
def test_a_subset_shares_what_it_adds(kind, made):
    """Samples 0 and 4 have the same place in their groups of four: both are left out at once."""
    reward, _ = made(kind, credit="subset")
    x = colours(8, 2)
    scores = reward.combine(members_of(x))
    assert scores[:4].tolist() == scores[4:].tolist()
    assert len(set(scores[:4].tolist())) == 4
    kept = x[[1, 2, 3, 5, 6, 7]]
    assert float(scores[0]) == pytest.approx(alone(reward, x) - alone(reward, kept), abs=1e-6)


@each_reward
def test_a_subset_replaces_the_first_of_a_pool(kind, made, tmp_path):
    """Samples 1 and 5 in place of the pool's first two, less the pool alone."""
    pool = folder_of(tmp_path / "pool", colours(15, 3))
    reward, _ = made(kind, credit="subset", pool=str(tmp_path / "pool"))
    x = colours(8, 4)
    scores = reward.combine(members_of(x))
    changed = torch.cat([pool[2:].float(), x[[1, 5]]])
    assert float(scores[5]) == pytest.approx(alone(reward, changed) - alone(reward, pool), abs=1e-6)
    assert scores[:4].tolist() == scores[4:].tolist()


@each_reward
def test_what_is_unlike_the_reference_adds_to_the_distance(kind, made):
    """Four bright pictures of twelve, where the reference is dark: each adds more than a dark one, and more than 0."""
    reward, _ = made(kind)
    x = torch.cat([colours(8, 5, high=0.5), colours(4, 6, low=0.8)])
    scores = reward.combine(members_of(x))
    assert float(scores[8:].min()) > max(0.0, float(scores[:8].max()))
    assert not reward.higher_is_better
    assert alone(reward, x) > alone(reward, x[:8])


def test_kid_does_not_see_what_is_unlike_it_alone(made):
    """Its influence is the difference of what the others and the reference say of its place: if they agree, nothing.

    The others are the reference itself here, and the sample may be anywhere.
    """
    reward, y = made(KidReward)
    near, far = (reward.combine(members_of(torch.cat([y.float(), torch.full((1, 3), c)])))[-1] for c in (0.25, 1.0))
    assert abs(float(far)) < 2e-3
    assert abs(float(near)) < 2e-3


@each_reward
def test_a_missing_part_of_the_reference_is_worth_most(kind, tmp_path):
    """The reference is half dark, half bright: of 11 dark samples and one bright one, the bright one helps most."""
    folder_of(tmp_path / "both", torch.cat([colours(20, 0, high=0.2), colours(20, 1, low=0.8)]))
    x = torch.cat([colours(11, 2, high=0.2), colours(1, 3, low=0.8)])
    scores = kind(str(tmp_path / "both"), COLOURS).combine(members_of(x))
    assert int(scores.argmin()) == 11
    assert float(scores[11]) < 0


@each_reward
def test_the_order_of_the_samples_changes_nothing(kind, made):
    """Scores come in the order of the samples."""
    reward, _ = made(kind)
    x, order = colours(9, 6), torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(reward.combine(members_of(x[order])), reward.combine(members_of(x))[order])


def test_the_number_of_a_set_is_its_distance(made):
    """That of `_sets`, on the features of the pictures in the folder."""
    x = colours(12, 7)
    everyone = torch.ones(1, 12, dtype=torch.bool)
    reward, y = made(FrechetReward)
    assert alone(reward, x) == pytest.approx(float(_sets.frechet(everyone, x.double(), _sets.moments(y))), abs=1e-6)
    reward, y = made(MmdReward)
    assert reward.bandwidth == pytest.approx(float(torch.pdist(y).median()), rel=1e-6)
    kernel = _sets.rbf_kernel(x.double(), x.double(), reward.bandwidth)
    across, own = (_sets.rbf_kernel(z, y, reward.bandwidth) for z in (x.double(), y))
    wanted = _sets.squared_mmd(everyone, kernel, across, _sets.mean_of_pairs(own))
    assert alone(reward, x) == pytest.approx(float(wanted), abs=1e-6)


def test_pictures_are_scored_as_a_set(made):
    """Through the set of rewards: flat pictures, whose features are their colours."""
    reward, _ = made(KidReward)
    x = colours(6, 8)
    batch = RewardBatch(x[:, :, None, None].expand(6, 3, 8, 8).clone(), ["a"] * 6, [{}] * 6)
    raw = RewardSet(("kid",), (reward,), torch.ones(1)).score(batch).raw[:, 0]
    torch.testing.assert_close(raw, reward.combine(members_of(x)).float(), atol=1e-6, rtol=1e-4)


def test_scenes_of_the_shapes_world_are_nearer_to_it_than_noise():
    """With the built-in extractors, which need no weights."""
    from flowrl.rewards._features import pictures

    scenes = torch.stack(list(pictures("shapes", "here", "shapes_train"))[:24])
    noise = torch.rand(24, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    for features in ("filters", "pixels"):
        reward = KidReward("shapes", features, prompts="shapes_heldout")
        near, far = (reward.measure(members_of(reward._extract(images))) for images in (scenes, noise))
        assert near < far / 3, features


def test_subsets_have_one_of_each_group():
    """Whatever the order of the groups, and where one has lost a sample."""
    assert subsets_of(torch.tensor([1, 2, 1, 2, 1]), "subset").int().tolist() == [
        [1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert torch.equal(subsets_of(torch.tensor([0, 0]), "sample"), torch.eye(2, dtype=torch.bool))


def test_too_few_samples_have_no_score_and_a_reason(made, tmp_path):
    """A set without a sample must be a set still, and a pool larger than a subset."""
    reward, _ = made(KidReward)
    with pytest.raises(Unscored, match="wanted two samples beside a subset of 1, got 2 samples in all"):
        reward.combine(members_of(colours(2, 0)))
    assert reward.measure(members_of(colours(1, 0))) is None
    folder_of(tmp_path / "pool", colours(10, 3))
    reward, _ = made(KidReward, credit="subset", pool=str(tmp_path / "pool"))
    with pytest.raises(Unscored, match="wanted a pool of more pictures than a subset's 10, got 10"):
        reward.combine(members_of(colours(20, 0), group_size=2))


def test_mistakes_are_named(tmp_path):
    """Before the run: folders, names, numbers; and sizes that statistics of filters cannot compare."""
    folder_of(tmp_path / "few", colours(3, 0))
    cases = [
        ({"reference": str(tmp_path / "none")}, "wanted a folder of pictures, or 'shapes'"),
        ({"reference": str(tmp_path / "few"), "features": "pixels"}, "wanted ten pictures or more .*, got 3"),
        ({"reference": "shapes", "features": "inception"}, "wanted filters, pixels or 'module:function'"),
        ({"reference": "shapes", "credit": "group"}, "credit: wanted one of sample, subset, got 'group'"),
        ({"reference": "shapes", "prompts": "clips_heldout"}, "no prompt of the shapes world"),
        ({"reference": "shapes", "prompts": "shapes_heldout", "bandwidth": 0.0}, "bandwidth: wanted a number > 0"),
    ]
    for options, message in cases:
        with pytest.raises(UserError, match=message):
            MmdReward(**options)
    reward = FrechetReward("shapes", prompts="shapes_heldout")
    with pytest.raises(UserError, match=r"the pictures are 32 x 32 pixels, and those of the reference .* 48 x 48"):
        reward.features(RewardBatch(torch.zeros(1, 3, 32, 32), ["a"], [{}]))
    (tmp_path / "few" / "999.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"999\.png: cannot be read as a picture"):
        KidReward(str(tmp_path / "few"), "pixels")
