"""Advantages by hand, and the properties that every function of the contract keeps."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowrl.advantages import gdpo, group
from flowrl.advantages.corr_grpo import corr_grpo
from flowrl.advantages.dvao import dvao
from flowrl.advantages.hero import hero
from flowrl.advantages.max_group_std import max_group_std
from flowrl.advantages.mc_grpo import mc_grpo
from flowrl.advantages.opo import opo
from flowrl.advantages.recast import recast
from flowrl.advantages.tail_rl import tail_rl
from flowrl.advantages.uncertainty import uncertainty
from flowrl.advantages.wapo import wapo
from flowrl.catalogue import parts_of
from flowrl.errors import UserError

FUNCTIONS = [group, gdpo]
CENTRED = [group, gdpo, max_group_std, dvao, corr_grpo, opo, tail_rl]
"""Those whose advantages add up to 0 in a group (for some, before the clip)."""

NAMES = ("a", "b", "c")


def named(function):
    """The function with the options that it cannot do without, for rewards called as in NAMES."""
    if function is hero:
        return lambda scores, weights, **o: hero(
            scores, weights, names=NAMES[: scores.shape[2]], verifier="a", dense="b", **o
        )
    if function is uncertainty:
        return lambda scores, weights, **o: uncertainty(
            scores, weights, names=NAMES[: scores.shape[2]], members=["a", "b"], **o
        )
    if function is recast:
        return one_step
    return function


def one_step(scores, weights, **options):
    """`recast` for a schedule of one step, where it has nothing to share out."""
    names = NAMES[: scores.shape[2]]
    found, diagnostics = recast(scores, weights, names=names, gains={name: [1.0] for name in names}, **options)
    return found[..., 0], diagnostics


ALL = [recast, max_group_std, dvao, corr_grpo, mc_grpo, opo, wapo, tail_rl, hero, uncertainty, *FUNCTIONS]
EVERY = [pytest.param(named(function), id=function.__name__) for function in ALL]
NAN = math.nan
ONE = torch.ones(1)


def scores_of(*groups) -> torch.Tensor:
    """`[P, G, 1]` scores of a single reward."""
    return torch.tensor(groups, dtype=torch.float32)[..., None]


@pytest.mark.parametrize(
    ("ddof", "wanted"),
    # 1, 2, 3, 6: mean 3, deviations -2, -1, 0, 3, squares 14; std sqrt(14 / 4) = 1.8708, sqrt(14 / 3) = 2.1602.
    [(0, [-1.0690, -0.5345, 0.0, 1.6036]), (1, [-0.9258, -0.4629, 0.0, 1.3887])],
)
def test_group_by_hand(ddof, wanted):
    """(s - mean) / std of the group, with either standard deviation."""
    advantages, _ = group(scores_of([1, 2, 3, 6]), ONE, ddof=ddof, eps=0.0)
    assert advantages[0].tolist() == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("size", [2, 3, 24])
def test_one_winner_in_a_group(size):
    """One 1 among G - 1 zeros: mean 1/G, std sqrt(G - 1) / G, so the winner gets sqrt(G - 1)."""
    advantages, _ = group(scores_of([1.0] + [0.0] * (size - 1)), ONE, eps=0.0)
    assert advantages[0, 0].item() == pytest.approx(math.sqrt(size - 1), rel=1e-6)
    assert advantages[0, 1].item() == pytest.approx(-1 / math.sqrt(size - 1), rel=1e-6)


def test_eps_is_added_to_the_deviation():
    """0 and 2 have std 1: with eps 1 the advantages are -1/2 and 1/2."""
    assert group(scores_of([0, 2]), ONE, eps=1.0)[0].tolist() == [[-0.5, 0.5]]


def test_global_std_by_hand():
    """Each group has its own mean, and all share the standard deviation of the eight scores together."""
    # 0, 2, 10, 18: mean 7.5, squares 56.25 + 30.25 + 6.25 + 110.25 = 203, std sqrt(203 / 4) = 7.1239.
    advantages, _ = group(scores_of([0, 2], [10, 18]), ONE, eps=0.0, global_std=True)
    assert advantages.flatten().tolist() == pytest.approx([-0.14037, 0.14037, -0.56149, 0.56149], abs=1e-5)


def test_clip():
    """Advantages beyond the clip become the clip: one winner of 24 would get 4.8."""
    advantages, _ = group(scores_of([1.0] + [0.0] * 23), ONE, clip=2.0)
    assert advantages.max() == 2.0
    assert advantages.min() > -2.0


def test_weights_act_before_normalisation():
    """The weighted sum is normalised: (0, 1) and (1, 0) with weights 2 and 1 are 1 and 2."""
    scores = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    advantages, diagnostics = group(scores, torch.tensor([2.0, 1.0]), eps=0.0)
    assert advantages.tolist() == [[-1.0, 1.0]]
    assert diagnostics["reward_mean"] == 1.5
    assert diagnostics["reward_std"] == 0.5


def test_a_negative_weight_turns_a_reward_round():
    """What a function cannot declare, a weight of -1 says."""
    assert group(scores_of([0, 1]), -ONE, eps=0.0)[0].tolist() == [[1.0, -1.0]]


def test_gdpo_by_hand():
    """The example of the paper: a winner in both rewards gets twice the advantage of a winner in one."""
    scores = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]])
    summed, _ = group(scores, torch.ones(2), ddof=1, eps=0.0)
    assert summed.abs().flatten().tolist() == pytest.approx([0.70711] * 4, abs=1e-5)
    # Each reward alone: -+0.70711 (ddof 1), or 0 without spread. Sums: -+0.70711 and -+1.41421; their squares add up to
    # 5, so the step's std is sqrt(5 / 3) = 1.29099, and 0.70711 / 1.29099 = 0.54772.
    advantages, _ = gdpo(scores, torch.ones(2), eps=0.0)
    assert advantages.flatten().tolist() == pytest.approx([-0.54772, 0.54772, -1.09545, 1.09545], abs=1e-5)


def test_gdpo_does_not_see_the_scale_of_a_reward():
    """A reward in percent and the same in shares give the same advantages."""
    scores = torch.rand(4, 6, 2)
    scaled = scores * torch.tensor([100.0, 1.0])
    assert torch.allclose(gdpo(scores, torch.ones(2), eps=0.0)[0], gdpo(scaled, torch.ones(2), eps=0.0)[0], atol=1e-5)


def test_gdpo_of_one_reward_is_group():
    """With one reward that counts there is nothing to decouple."""
    scores = torch.rand(3, 5, 2)
    wanted = group(scores, torch.tensor([1.0, 0.0]), ddof=1)[0]
    assert torch.equal(gdpo(scores, torch.tensor([1.0, 0.0]))[0], wanted)


def test_diagnostics_by_hand():
    """Means, deviations and counts of a step with a dead group, a NaN and a group that lost all but one sample."""
    scores = scores_of([1, 3, 5], [2, 2, 2], [NAN, 7, NAN])
    _, diagnostics = group(scores, ONE)
    # Valid: 1, 3, 5, 2, 2, 2, 7: mean 22 / 7 = 3.1429, mean square 96 / 7, variance 13.7143 - 9.8776 = 3.8367.
    # Deviations inside the two groups of two or more: sqrt(8 / 3) = 1.63299 and 0, mean 0.81650.
    assert diagnostics["reward_mean"] == pytest.approx(3.14286, abs=1e-5)
    assert diagnostics["reward_std"] == pytest.approx(1.95876, abs=1e-5)
    assert diagnostics["group_std"] == pytest.approx(0.81650, abs=1e-5)
    assert diagnostics["dead_groups"] == 2.0
    assert diagnostics["nan_samples"] == 2.0


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e9, -0.7, 1e-12], ids=["zero", "inexact", "large", "negative", "tiny"])
def test_a_group_without_spread_gets_exactly_zero(function, constant):
    """Constant scores of any size are dead, also where their mean is not exact, and others stay alive."""
    scores = torch.full((2, 7, 2), constant)
    scores[1] = torch.rand(7, 2)
    advantages, diagnostics = function(scores, torch.tensor([0.3, 0.7]), eps=0.0)
    assert (advantages[0] == 0).all()
    assert (advantages[1] != 0).all()
    assert diagnostics["dead_groups"] == 1.0


def test_a_group_without_spread_is_dead_under_a_global_deviation():
    """A group of equal scores is 0 also where others lend it a standard deviation."""
    advantages, diagnostics = group(scores_of([0.1, 0.1, 0.1], [0, 1, 2]), ONE, global_std=True)
    assert (advantages[0] == 0).all()
    assert diagnostics["dead_groups"] == 1.0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_step_without_any_score(function):
    """If nothing could be scored all advantages are 0, all groups dead, and the means are NaN."""
    advantages, diagnostics = function(torch.full((2, 3, 2), NAN), torch.ones(2))
    assert (advantages == 0).all()
    assert diagnostics["dead_groups"] == 2.0
    assert diagnostics["nan_samples"] == 6.0
    assert math.isnan(diagnostics["reward_mean"])


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("options", [{}, {"ddof": 1}, {"clip": 1.0}])
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_sample_without_a_score_moves_nobody(function, options, bad):
    """Seven advantages of a group of eight with one NaN equal those of the seven alone; its own is 0."""
    scores = torch.rand(1, 8, 2)
    scores[0, 3, 1] = bad
    rest = [0, 1, 2, 4, 5, 6, 7]
    advantages, diagnostics = function(scores, torch.ones(2), **options)
    alone, _ = function(scores[:, rest], torch.ones(2), **options)
    assert torch.allclose(advantages[:, rest], alone, rtol=0, atol=1e-6)
    assert advantages[0, 3] == 0
    assert diagnostics["nan_samples"] == 1.0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_watched_reward_has_no_say(function):
    """A reward of weight 0 changes nothing, whatever it gives, NaN included."""
    scores = torch.rand(2, 4, 3)
    wanted = function(scores[..., :2], torch.ones(2))
    scores[..., 2] = torch.tensor([NAN, math.inf, 1e30, -5.0])
    advantages, diagnostics = function(scores, torch.tensor([1.0, 1.0, 0.0]))
    assert torch.equal(advantages, wanted[0])
    assert diagnostics == wanted[1]


@pytest.mark.parametrize("function", FUNCTIONS)
@given(st.data())
def test_advantages_of_a_group_add_up_to_zero(function, data):
    """Whatever was scored, advantages are finite, add up to 0 in the step and follow their samples when these move."""
    values = st.floats(-10, 10, width=32) | st.just(NAN) | st.just(0.5)
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(2, 6), st.integers(1, 2)))
    numbers = data.draw(st.lists(values, min_size=math.prod(shape), max_size=math.prod(shape)))
    scores, weights = torch.tensor(numbers).reshape(shape), torch.ones(shape[2])
    advantages, _ = function(scores, weights)
    order = torch.tensor(data.draw(st.permutations(range(shape[1]))))
    assert advantages.dtype == torch.float32
    assert advantages.isfinite().all()
    assert advantages.sum().abs() < 1e-4
    assert torch.allclose(function(scores[:, order], weights)[0], advantages[:, order], atol=1e-5)


@given(shift=st.floats(-100, 100), scale=st.floats(0.01, 100))
def test_group_does_not_see_shift_and_scale(shift, scale):
    """Advantages are those of the scores in any other unit."""
    scores = torch.linspace(0, 1, 12, dtype=torch.float64).square().reshape(2, 6, 1)
    wanted, _ = group(scores, ONE, eps=0.0)
    assert torch.allclose(group(scores * scale + shift, ONE, eps=0.0)[0], wanted, atol=1e-5)


def test_small_spread_on_a_large_offset_is_kept():
    """Statistics are float64: scores of 10,000 and 10,000.01 still differ."""
    advantages, diagnostics = group(scores_of([10000.0, 10000.01]), ONE, eps=0.0)
    assert advantages.tolist() == [[-1.0, 1.0]]
    assert diagnostics["dead_groups"] == 0.0


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.zeros(2, 3), r"wanted scores \[P, G, R\] and weights \[R\], got \[2, 3\] and \[1\]"),
        (torch.zeros(2, 3, 2), r"got \[2, 3, 2\] and \[1\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(function, scores, message):
    """A missing axis, or another number of weights than of rewards, is told with what came."""
    with pytest.raises(ValueError, match=message):
        function(scores, ONE)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ddof": 2}, r"ddof: wanted 0 \(population\) or 1 \(unbiased\), got 2"),
        ({"eps": -1e-3}, "eps: wanted a number >= 0, got -0.001"),
        ({"eps": NAN}, "eps: wanted a number >= 0, got nan"),
        ({"eps": "small"}, "eps: wanted a number >= 0, got 'small'"),
        ({"clip": 0.0}, "clip: wanted a number > 0 or null, got 0.0"),
    ],
)
def test_options_out_of_range_are_the_users(function, options, message):
    """Options come from a config, so a wrong value is a UserError."""
    with pytest.raises(UserError, match=f"advantage: {message}"):
        function(torch.zeros(2, 3, 1), ONE, **options)


def test_the_list_of_functions_is_complete():
    """Every public function of the package's files is in the list that the properties are tested over."""
    assert {function.__name__ for function in ALL} == set(parts_of("flowrl.advantages", "advantages"))


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("seed", range(5))
def test_what_all_functions_keep(function, seed):
    """Shape, type, equivariance, dead groups and NaN: the contract, for every function."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.rand(4, 7, 3, generator=random)
    scores[..., 0] = scores[..., 0].round() if seed % 2 else scores[..., 0]  # a verifier, ties
    scores[1] = 0.1  # dead
    weights = torch.tensor([0.3, 0.7, 0.0])
    advantages, diagnostics = function(scores, weights)
    assert (advantages.shape, advantages.dtype) == ((4, 7), torch.float32)
    assert (advantages[1] == 0).all()
    assert diagnostics["dead_groups"] == 1.0
    assert (advantages[[0, 2, 3]] != 0).any(dim=1).all()

    samples, groups = torch.randperm(7, generator=random), torch.randperm(4, generator=random)
    moved, _ = function(scores[groups][:, samples], weights)
    torch.testing.assert_close(moved, advantages[groups][:, samples], rtol=1e-5, atol=1e-6)

    watched = scores.clone()
    watched[..., 2] = torch.tensor([NAN, math.inf, 1e30, -5.0, 0.0, 1.0, 2.0])
    assert torch.equal(function(watched, weights)[0], advantages)

    more = torch.cat([scores, torch.full((4, 1, 3), 0.9)], dim=1)
    more[:, 7, 1] = NAN
    more[:, 7, 0] = 1e6
    found, diagnostics = function(more, weights)
    torch.testing.assert_close(found[:, :7], advantages, rtol=1e-5, atol=1e-6)
    assert (found[:, 7] == 0).all()
    assert diagnostics["nan_samples"] == 4.0


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("size", [1e-30, 1e30, 3e38])
def test_extreme_scores_stay_finite(function, size):
    """The ends of float32, in both signs, give finite advantages; so does a step without any score."""
    scores = torch.tensor([[[size, -size], [-size, size], [0.0, size], [size, size], [1.0, 0.0]]])
    assert function(scores, torch.ones(2))[0].isfinite().all()
    assert (function(torch.full((2, 3, 2), NAN), torch.ones(2))[0] == 0).all()
    assert (function(torch.rand(2, 1, 2), torch.ones(2))[0] == 0).all()


@pytest.mark.parametrize("function", [f for f in EVERY if f.id != "hero"])
def test_a_shift_of_all_scores_changes_nothing(function):
    """What all samples have in common is no news; HERO has a threshold."""
    scores = torch.rand(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shifted = scores + torch.tensor([4.0, 4.0])
    torch.testing.assert_close(
        function(shifted, torch.ones(2))[0], function(scores, torch.ones(2))[0], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("function", CENTRED)
def test_groups_add_up_to_zero(function):
    """Centred advantages push up as much as they push down."""
    found, _ = function(torch.rand(3, 6, 2, generator=torch.Generator().manual_seed(0)), torch.ones(2), clip=None)
    assert found.sum().abs() < 1e-4


@pytest.mark.parametrize("function", EVERY)
def test_a_clip_bounds_every_function(function):
    """And a wrong one is refused."""
    scores = torch.tensor([[[0.0, 0.0], [0.0, 0.1], [0.0, 0.2], [100.0, 300.0]]])
    assert function(scores, torch.ones(2), clip=0.25)[0].abs().max() == 0.25
    with pytest.raises(UserError, match="clip: wanted a number > 0 or null, got -1"):
        function(scores, torch.ones(2), clip=-1)


def test_max_group_std_by_hand():
    """Stds 1/2 and 2: both groups are divided by 2; a dead group lends nothing."""
    found, _ = max_group_std(scores_of([0, 1], [0, 4], [9, 9]), ONE, eps=0.0)
    assert found.tolist() == [[-0.25, 0.25], [-1.0, 1.0], [0.0, 0.0]]
    narrow, _ = max_group_std(scores_of([0, 0.5], [3, 3]), ONE, eps=0.0)  # std 1/4, not the 1 of a dead group
    assert narrow.tolist() == [[-1.0, 1.0], [0.0, 0.0]]


def test_dvao_by_hand():
    """Stds .30822 and .5 share the weight as .38136 and .61864; the first sample's sum is .15 off the mean."""
    scores = torch.tensor([[[0.2, 1.0], [0.4, 0.0], [0.9, 1.0], [0.1, 0.0]]])
    found, _ = dvao(scores, torch.tensor([0.5, 0.5]))
    # .5 (.30822 + .5) = .40411;  .15 / .40411 = .37119,  -.25 / .40411 = -.61864,  .5 / ..., -.4 / ...
    assert found[0].tolist() == pytest.approx([0.37119, -0.61864, 1.23729, -0.98983], abs=1e-5)
    parts = sum(group(scores[..., [r]], ONE, eps=0.0)[0] * v for r, v in ((0, 0.38136), (1, 0.61864)))
    torch.testing.assert_close(found, parts, rtol=0, atol=1e-4)  # the weighted sum of the rewards' own advantages


def test_corr_grpo_by_hand():
    """Independent rewards are divided by sqrt(2), doubles by 2, one alone by 1."""
    independent = torch.tensor([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
    found, _ = corr_grpo(independent, torch.ones(2), eps=0.0)
    assert found[0].tolist() == pytest.approx([-0.70711, 0.0, 0.0, 0.70711], abs=1e-5)
    assert corr_grpo(scores_of([0, 1]).expand(1, 2, 2), torch.ones(2), eps=0.0)[0].tolist() == [[-0.5, 0.5]]
    assert corr_grpo(scores_of([0, 3]), ONE, eps=0.0)[0].tolist() == [[-1.5, 1.5]]


def test_corr_grpo_caps_contradicting_rewards():
    """1 - s and 1.1 s nearly cancel: the correlations add up to 0, and the clip holds what is left over eps."""
    s = torch.tensor([0.0, 1.0, 2.0])
    scores = torch.stack([1.0 - s, 1.1 * s], dim=-1)[None]
    # Sums 1, 1.1, 1.2: the outer ones are .1 off; .1 / sqrt(1e-4) = 10, beyond 5.
    assert corr_grpo(scores, torch.ones(2))[0][0].tolist() == pytest.approx([-5.0, 0.0, 5.0], abs=1e-4)


def test_mc_grpo_by_hand():
    """Median .25, median deviation .05 (+ .001): -.15 / .051 and so on, times 5 / 4 for the sample that drops out."""
    scores = scores_of([0.1, 0.9, 0.3, 0.2, 0.25])
    found, _ = mc_grpo(scores, ONE, clip=None)
    wanted = [1.25 * raw for raw in (-2.94118, 12.74510, 0.98039, -0.98039, 0.0)]
    assert found[0].tolist() == pytest.approx(wanted, abs=1e-4)
    assert mc_grpo(scores, ONE)[0][0, 1] == 5.0  # the clip
    # Of an even number the median lies between two: 0, 1, 3, 9 has 2, deviations 2, 1, 1, 7 with the median 1.5.
    even, _ = mc_grpo(scores_of([0, 1, 3, 9]), ONE, eps=0.0)
    assert even[0].tolist() == pytest.approx([-4 / 3, -2 / 3, 2 / 3, 14 / 3], abs=1e-6)


def test_opo_and_wapo_by_hand():
    """0, 1, 5 less their mean 2; of these the winners alone."""
    assert opo(scores_of([0, 1, 5]), ONE)[0].tolist() == [[-2.0, -1.0, 3.0]]
    assert wapo(scores_of([0, 1, 5]), ONE)[0].tolist() == [[0.0, 0.0, 3.0]]
    # Two ones of eight: each winner gets 1 - 1/4.
    assert wapo(scores_of([1, 1] + [0] * 6), ONE)[0].tolist() == [[0.75, 0.75] + [0.0] * 6]


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [
        # Thresholds 0 to .5 are passed by two of three, .5 to 1 by one: 0, 3/4, 3/4 + 3/2; mean 1.
        ([0, 0.5, 1], [-1, -0.25, 1.25]),
        # One of four passes: 4, mean 1. Two of four: 2, mean 1, and ties are equal.
        ([0, 0, 0, 1], [-1, -1, -1, 3]),
        ([1, 0, 0, 1], [1, -1, -1, 1]),
    ],
)
def test_tail_rl_by_hand(scores, wanted):
    """Each threshold counts one over the share of samples that pass it."""
    assert tail_rl(scores_of(scores), ONE)[0][0].tolist() == pytest.approx(wanted, abs=1e-6)


HERO = partial(hero, names=("z", "d"), verifier="z", dense="d", eps=0.0)


def test_hero_orders_within_the_verdicts():
    """Verdicts 0, 0, 1, 1 and d = 2, 4, 1, 5 become -.1, .1, .9, 1.1; a single group has the middle factor 1.7."""
    scores = torch.tensor([[[0.0, 2.0], [0.0, 4.0], [1.0, 1.0], [1.0, 5.0]]])
    found, _ = HERO(scores, torch.ones(2), width=0.1)
    # Mean .5, deviations .6, .4, .4, .6; std sqrt((.36 + .16) / 2) = .50990.
    wanted = [1.7 * deviation / 0.50990 for deviation in (-0.6, -0.4, 0.4, 0.6)]
    assert found[0].tolist() == pytest.approx(wanted, abs=1e-4)


def test_hero_weighs_groups_by_the_spread_of_the_dense_score():
    """Stds 1 and 0 lie .5 beside their mean: factors .4 + 2.6 / (1 + e^-3) = 2.877 and .4 + 2.6 / (1 + e^3) = .523."""
    scores = torch.tensor([[[0.0, 0.0], [1.0, 2.0]], [[0.0, 1.0], [1.0, 1.0]]])
    found, _ = HERO(scores, torch.ones(2))
    assert found.flatten().tolist() == pytest.approx([-2.87669, 2.87669, -0.52331, 0.52331], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dense": "e"}, "'e' is no reward of this run. Known: z, d."),
        ({"dense": "z"}, "at least 2 rewards, each once"),
        ({"width": 0.5}, "width: wanted a number between 0 and 0.5, got 0.5"),
        ({"high": 0.1}, r"high: wanted a number >= low \(0.4\), got 0.1"),
        ({"weights": torch.tensor([1.0, -1.0])}, "reward 'd' has the weight -1; wanted one > 0"),
    ],
)
def test_hero_refuses_what_it_cannot_combine(options, message):
    """Names, constants and weights come from a config."""
    with pytest.raises(UserError, match=message):
        HERO(torch.rand(1, 2, 2), options.pop("weights", torch.ones(2)), **options)


def test_hero_refuses_a_third_reward():
    """Its weight would do nothing."""
    with pytest.raises(UserError, match="give 'c' the weight 0"):
        hero(torch.rand(1, 2, 3), torch.ones(3), names=NAMES, verifier="a", dense="b")


def test_uncertainty_by_hand():
    """Members differ by 0 and 2 on two samples: u = 0 and sqrt(2), mean sqrt(2) / 2, factors 1 and e^-2."""
    scores = torch.tensor([[[0.0, 0.0], [0.0, 2.0]]])
    found, _ = uncertainty(scores, torch.ones(2), names=["a", "b"], members=["a", "b"], eps=0.0)
    assert found[0].tolist() == pytest.approx([-1.0, math.exp(-2)], abs=1e-6)
    with pytest.raises(UserError, match="members: wanted at least 2 rewards, each once"):
        uncertainty(scores, torch.ones(2), names=["a", "b"], members=["a"])


EARLY_LATE = {"a": [0.9, 0.1, 0.0], "b": [0.0, 0.1, 0.9]}


def test_recast_by_hand():
    """The matrix of the paper's example mixes two rewards that disagree about two samples."""
    # W = [[.31234, .16667, .02099], [.02099, .16667, .31234]], times T = 3. The rewards (2, 0) and (0, 1) become, by
    # step, 2 * .93702 = 1.874 against .06297; 2 * .5 = 1 against .5; 2 * .06297 = .126 against .93702.
    scores = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    found, diagnostics = recast(scores, torch.ones(2), names=["a", "b"], gains=EARLY_LATE, eps=1.0)
    gaps = [1.87404 - 0.06297, 1.0 - 0.5, 0.12594 - 0.93702]  # A = +-(gap / 2) / (|gap| / 2 + eps)
    wanted = [gap / 2 / (abs(gap) / 2 + 1) for gap in gaps]
    assert found.shape == (1, 2, 3)
    assert found[0, 0].tolist() == pytest.approx(wanted, abs=1e-4)
    assert found[0, 1].tolist() == pytest.approx([-a for a in wanted], abs=1e-4)
    assert diagnostics["reward_mean"] == 1.5


def test_recast_of_one_reward_is_group_at_every_step():
    """With one reward every step gets the same; a second one of weight 0 needs no gains."""
    scores = torch.rand(3, 5, 2, generator=torch.Generator().manual_seed(0))
    found, _ = recast(scores, torch.tensor([2.0, 0.0]), names=["a", "b"], gains={"a": [3.0, 1.0]}, eps=0.0)
    wanted, _ = group(scores, torch.tensor([2.0, 0.0]), eps=0.0)
    torch.testing.assert_close(found, wanted[..., None].expand(-1, -1, 2))


def test_recast_turns_a_reward_of_negative_weight_round():
    """Its budget is the weight's size."""
    scores = torch.rand(2, 5, 2, generator=torch.Generator().manual_seed(0))
    turned = torch.stack([scores[..., 0], -scores[..., 1]], dim=-1)
    options = {"names": ["a", "b"], "gains": EARLY_LATE}
    found, _ = recast(scores, torch.tensor([1.0, -0.5]), **options)
    torch.testing.assert_close(found, recast(turned, torch.tensor([1.0, 0.5]), **options)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gains": {"a": [1.0]}}, "reward 'b' has a weight and no gains"),
        ({"gains": {"a": [1.0], "b": [1.0, 2.0]}}, r"wanted as many numbers for each reward, got {'a': 1, 'b': 2}"),
        ({"gains": {"a": [1.0], "c": [1.0]}}, "'c' is no reward of this run"),
        ({"gains": {"a": [1.0], "b": [-1.0]}}, r"gains: b: wanted a list of numbers >= 0, one a step, got \[-1.0\]"),
        ({"gains": [1.0]}, "gains: wanted a list of numbers for each reward"),
        ({"gains": EARLY_LATE, "temperature": 0}, "temperature: wanted a number > 0, got 0"),
    ],
)
def test_recast_refuses(options, message):
    """Options come from a config."""
    with pytest.raises(UserError, match=message):
        recast(torch.rand(1, 3, 2), torch.ones(2), names=["a", "b"], **options)
