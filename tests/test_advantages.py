"""Advantages by hand, and the properties that every function of the contract keeps."""

import importlib
import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowrl import plugins
from flowrl.advantages import gdpo, group
from flowrl.errors import UserError

FUNCTIONS = [plugins.load("advantages", f"flowrl.advantages:{name}") for name in ("group", "gdpo")]
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
    """Every public function of the module is in the list that the properties are tested over."""
    module = importlib.import_module("flowrl.advantages")
    public = [
        function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    ]
    assert public == FUNCTIONS
