"""Shapings by hand, what every function of the contract keeps, and how a config selects them."""

import inspect
import math
from pathlib import Path

import pytest
import torch

from flowrl import plugins
from flowrl.advantages import group
from flowrl.catalogue import parts_of
from flowrl.composition import compose
from flowrl.config import Plugin, RunConfig
from flowrl.errors import UserError
from flowrl.shaping.dropout_bins import dropout_bins
from flowrl.shaping.log_sigmoid import log_sigmoid
from flowrl.shaping.log_taming import log_taming
from flowrl.shaping.par import par
from flowrl.shaping.pessimism import pessimism
from flowrl.shaping.pow3r import pow3r
from flowrl.shaping.rank import rank
from flowrl.shaping.win_rate import win_rate

NAN = math.nan
NAMES = ("a", "b", "c")
OPTIONS = {
    win_rate: {},
    rank: {},
    par: {"names": NAMES},
    log_sigmoid: {"names": NAMES},
    log_taming: {"names": NAMES},
    pessimism: {"names": NAMES, "members": ["a", "b"]},
    dropout_bins: {"names": NAMES, "members": ["a", "b"], "z": 0.1},
    pow3r: {"names": NAMES},
}
EVERY = [pytest.param(function, options, id=function.__name__) for function, options in OPTIONS.items()]
WEIGHTS = torch.tensor([0.3, 0.7, 0.0])


def column(*values) -> torch.Tensor:
    """Scores `[1, G, 1]` of a single reward."""
    return torch.tensor(values, dtype=torch.float32)[None, :, None]


def shaped(function, scores, **options) -> list[float]:
    """The shaped scores of the first reward of a single group."""
    return function(scores, torch.ones(scores.shape[2]), **options)[0, :, 0].tolist()


def test_the_list_of_functions_is_complete():
    """Every public function of the package's files is in the list that the properties are tested over."""
    assert {function.__name__ for function in OPTIONS} == set(parts_of("flowrl.shaping", "shapings"))


@pytest.mark.parametrize(("function", "options"), EVERY)
@pytest.mark.parametrize("seed", range(3))
def test_what_all_functions_keep(function, options, seed):
    """Shape, type, equivariance, equal scores and NaN: the contract, for every function."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.rand(4, 7, 3, generator=random)
    scores[:, 2] = scores[:, 5]  # a tie
    scores[1] = 0.1  # no spread
    found = function(scores, WEIGHTS, **options)
    assert (found.shape, found.dtype) == (scores.shape, torch.float64)
    assert found.isfinite().all()
    assert torch.equal(found[:, 2], found[:, 5])
    assert torch.equal(found[1], found[1, :1].expand(7, 3))
    assert (group(found, WEIGHTS)[0][1] == 0).all()

    samples, groups = torch.randperm(7, generator=random), torch.randperm(4, generator=random)
    moved = function(scores[groups][:, samples], WEIGHTS, **options)
    torch.testing.assert_close(moved, found[groups][:, samples], rtol=0, atol=1e-12)

    more = torch.cat([scores, torch.full((4, 1, 3), 1e6)], dim=1)
    more[:, 7, 1] = NAN
    wider = function(more, WEIGHTS, **options)
    torch.testing.assert_close(wider[:, :7, :2], found[..., :2], rtol=0, atol=1e-12)
    assert wider[:, 7, :2].isnan().all()


@pytest.mark.parametrize(("function", "options"), EVERY)
@pytest.mark.parametrize("size", [1e-30, 1e30, 3e38])
def test_extreme_scores_stay_finite(function, options, size):
    """The ends of float32 stay finite; a step without any score stays without; a sample alone is shaped too."""
    low = 0.0 if function is log_taming else -size
    scores = torch.tensor([[[size, low, 0.0], [low, size, 0.0], [0.0, size, 0.0], [1.0, 0.0, 0.0]]])
    assert function(scores, WEIGHTS, **options).isfinite().all()
    assert function(torch.full((2, 3, 3), NAN), WEIGHTS, **options).isnan().all()
    assert function(torch.rand(2, 1, 3), WEIGHTS, **options).isfinite().all()


@pytest.mark.parametrize("function", [win_rate, rank, par, log_sigmoid])
def test_a_shift_of_all_scores_changes_nothing(function):
    """Functions that compare within the group see differences alone."""
    scores = torch.rand(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, moved = (function(s, WEIGHTS, **OPTIONS[function]) for s in (scores, scores + 3))
    torch.testing.assert_close(found, moved, rtol=0, atol=1e-9)


def test_win_rate_by_hand():
    """Eight in a row: k / 7, standard deviation .3273, largest advantage 1.5275; a gap within the margin is a tie."""
    scores = column(*(10.0**k for k in range(8)))
    assert shaped(win_rate, scores) == pytest.approx([k / 7 for k in range(8)])
    advantages, found = group(win_rate(scores, torch.ones(1)), torch.ones(1), eps=0.0)
    assert found["group_std"] == pytest.approx(0.3273, abs=1e-4)
    assert advantages.max().item() == pytest.approx(1.5275, abs=1e-4)
    assert shaped(win_rate, column(0, 1, 5), margin=1.0) == [0.25, 0.25, 1.0]


def test_rank_by_hand():
    """N = 4: log 3, log 3/2, 0, 0 over their sum 1.50408, less 1/4."""
    assert shaped(rank, column(9, 0, 5, -7)) == pytest.approx([0.48042, -0.25, 0.01958, -0.25], abs=1e-5)
    # The two best tie at the mean of .48042 and .01958.
    assert shaped(rank, column(9, 9, 5, -7)) == pytest.approx([0.25, 0.25, -0.25, -0.25], abs=1e-5)


def test_par_by_hand():
    """A score of 1 against 0 and 1: (.73106 + .5) / 2; one equal to all references: 1/2; large k: the win rate."""
    options = {"names": ["a"], "references": {"a": [0, 1]}}
    assert shaped(par, column(1.0), **options) == pytest.approx([0.61553], abs=1e-5)
    assert shaped(par, column(0.0, 7.0), names=["a"], references={"a": [7]})[1] == 0.5
    assert shaped(par, column(0, 1), names=["a"]) == pytest.approx([0.26894, 0.73106], abs=1e-5)
    scores = torch.rand(2, 6, 2, generator=torch.Generator().manual_seed(0))
    sharp = par(scores, torch.ones(2), names=["a", "b"], k=1e6)
    torch.testing.assert_close(sharp, win_rate(scores, torch.ones(2)), rtol=0, atol=1e-6)


def test_log_sigmoid_by_hand():
    """-2.127, -.693, -.127 at -2, 0, 2 over the reference; the group's own is mean + 1.0364 std."""
    wanted = pytest.approx([-2.12693, -0.69315, -0.12693], abs=1e-5)
    assert shaped(log_sigmoid, column(-2, 0, 2), names=["a"], references={"a": 0}) == wanted
    # 0 and 2: mean 1, std 1, reference 2.0364; log sigma(-.0364) = -log(1 + e^.0364) = -.71151.
    assert shaped(log_sigmoid, column(0, 2), names=["a"])[1] == pytest.approx(-0.71151, abs=1e-5)


def test_log_taming_by_hand():
    """2, 4, 6, 8 has h = .447, and .9, 1, 1.1, 1 has .0707: over their mean .259 is the first alone."""
    scores = torch.tensor([[[2.0, 0.9], [4.0, 1.0], [6.0, 1.1], [8.0, 1.0]]])
    found = log_taming(scores, torch.ones(2), names=["a", "b"])
    assert found[0, :, 0].tolist() == pytest.approx([math.log(k) for k in (3, 5, 7, 9)])
    assert torch.equal(found[..., 1], scores[..., 1].double())
    assert torch.equal(log_taming(scores, torch.ones(2), names=["a", "b"], delta=0.5), scores.double())
    with pytest.raises(UserError, match="reward 'b' scored -1, and the logarithm needs scores of 0 or more"):
        log_taming(torch.tensor([[[1.0, -1.0]]]), torch.ones(2), names=["a", "b"])


@pytest.mark.parametrize(
    ("rule", "beta", "wanted"),
    [
        ("exact", 0.001, -1.998),
        ("exact", 0.1, -1.839),
        ("exact", 1.0, -0.572),
        ("exact", 100.0, 0.3928),
        ("gaussian", 0.1, -2.0),  # .4 - 1.6 / .2 = -7.6 is below the minimum
        ("gaussian", 1.0, -0.4),  # .4 - 1.6 / 2
    ],
)
def test_pessimism_by_hand(rule, beta, wanted):
    """Eight members say 1, two say -2: mean .4, unbiased variance (8 x .36 + 2 x 5.76) / 9 = 1.6."""
    scores, names = torch.tensor([[[1.0] * 8 + [-2.0] * 2]]), list("abcdefghij")
    found = pessimism(scores, torch.ones(10), names=names, members=names, rule=rule, beta=beta)
    assert found.flatten().tolist() == pytest.approx([wanted] * 10, abs=6e-4)


def test_dropout_bins_by_hand():
    """Without noise every value is its own bin; with much, all are one, and nothing is left to learn."""
    options = {"names": ["a", "b"], "members": ["a", "b"]}
    sure = torch.tensor([[[3.0, 3.0], [1.0, 1.0], [3.0, 3.0]]])
    assert shaped(dropout_bins, sure, **options) == [3.0, 1.0, 3.0]
    # Means 1, 2, 4 and stds 4 / sqrt(2) = 2.83 each: no gap is over 2.83; with z = .5 the gap of 2 is (1.41).
    noisy = torch.tensor([[[-1.0, 3.0], [0.0, 4.0], [2.0, 6.0]]])
    assert shaped(dropout_bins, noisy, **options) == pytest.approx([7 / 3] * 3)
    assert shaped(dropout_bins, noisy, **options, z=0.5) == [1.5, 1.5, 4.0]


def test_pow3r_by_hand():
    """Stds .5 and 0 (+ .05), weights 1: .55 and .05 over their mean .3 are 1.8333 and .1667, the latter clipped."""
    scores = torch.tensor([[[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]])
    # Sum 2.0833 for a total weight of 2: 1.8333 x 2 / 2.0833 = 1.76, and .24.
    found = pow3r(scores, torch.tensor([1.0, 1.0, 0.0]), names=NAMES)
    assert found[0, 1].tolist() == pytest.approx([1.76, 0.24, 1.0], abs=1e-6)
    # Each a category of its own: nothing to shift.
    alone = pow3r(scores, torch.ones(3), names=NAMES, categories=[["a"], ["b"]])
    assert torch.equal(alone, scores.double())


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (win_rate, {"margin": -1}, "shaping win_rate: margin: wanted a number >= 0, got -1"),
        (par, {"k": 0}, "shaping par: k: wanted a number > 0, got 0"),
        (par, {"references": {"d": [1]}}, "references: 'd' is no reward of this run. Known: a, b, c"),
        (par, {"references": {"a": ["x"]}}, "references: a: wanted numbers"),
        (log_sigmoid, {"references": {"a": None}}, "references: a: wanted a number, got None"),
        (log_taming, {"delta": 0}, "delta: wanted a number > 0, got 0"),
        (pessimism, {"rule": "worst"}, "rule: wanted gaussian or exact, got 'worst'"),
        (pessimism, {"members": ["a"]}, "members: wanted at least 2 rewards, each once"),
        (dropout_bins, {"z": NAN}, "z: wanted a number >= 0, got nan"),
        (pow3r, {"low": 2}, "low: wanted a number over 0, at most 1, got 2"),
        (pow3r, {"categories": [["a"], ["a"]]}, "categories: wanted each reward once"),
    ],
)
def test_options_out_of_range_are_the_users(function, options, message):
    """Options come from a config, so a wrong value is a UserError."""
    with pytest.raises(UserError, match=message):
        function(torch.rand(1, 2, 3), torch.ones(3), **{**OPTIONS[function], **options})


def test_a_config_composes_in_order():
    """Two shapings, then the advantage; the mean that is logged is that of the raw scores."""
    shapings = [Plugin(name="flowrl.shaping.win_rate:win_rate"), Plugin(name="flowrl.shaping.par:par", k=2.0)]
    f = compose(Plugin(name="opo"), shapings, {"a": 1.0})
    found, diagnostics = f(column(3.0, 900.0), torch.ones(1))
    # Win rates 0 and 1; PAR sigma(-2) = .11920 and .88080, less their mean 1/2.
    assert found[0].tolist() == pytest.approx([-0.38080, 0.38080], abs=1e-5)
    assert (diagnostics["reward_mean"], diagnostics["reward_std"]) == (451.5, 448.5)


@pytest.mark.parametrize(
    ("shaping", "message"),
    [
        ({"name": "flowrl.shaping.par:par", "kk": 1}, "unknown option 'kk'"),
        ({"name": "flowrl.shaping.par:par", "k": -1}, "k: wanted a number > 0, got -1"),
        ({"name": "flowrl.shaping.par:par", "names": ["a"]}, "names: the run fills them in"),
        ({"name": "flowrl.shaping.pessimism:pessimism", "members": ["a", "b"]}, "'b' is no reward of this run"),
    ],
)
def test_mistakes_show_before_any_sample_is_drawn(shaping, message):
    """Names, values and rewards are tried out when the run is put together."""
    with pytest.raises(UserError, match=message):
        compose(Plugin(name="group"), [Plugin.model_validate(shaping)], {"a": 1.0})


def test_one_key_selects():
    """A name, a mapping or a list."""
    base = {"model": {"path": "shapes-sd3"}, "rewards": {"shapes": 1.0}}
    assert RunConfig(**base).shaping == []
    for value in ("rank", {"name": "rank"}, ["rank"]):
        assert [shaping.name for shaping in RunConfig(**base, shaping=value).shaping] == ["rank"]
    config = RunConfig(**base, shaping=["rank", {"name": "par", "k": 2}])
    assert config.shaping[1].options == {"k": 2}
    assert RunConfig(**config.model_dump(mode="json")) == config


@pytest.mark.parametrize(("kind", "package"), [("advantages", "flowrl.advantages"), ("shapings", "flowrl.shaping")])
def test_the_page_lists_every_function_with_its_options(kind, package):
    """`docs/advantages.md` has a row for each function, in which its keywords stand with their defaults."""
    text = (Path(__file__).parent.parent / "docs" / "advantages.md").read_text(encoding="utf-8")
    part = text.split(f"## {kind.capitalize()}")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in part.splitlines() if line.startswith("| `")]
    parts = parts_of(package, kind)
    assert sorted(row[1].strip("`") for row in rows) == sorted(parts)
    for row in rows:
        function = plugins.load(kind, parts[row[1].strip("`")])
        keywords = [
            p.name if p.default is p.empty else f"{p.name}: {p.default!r}"
            for p in list(inspect.signature(function).parameters.values())[2:]
            if p.name != "names"
        ]
        assert row[4].strip("`") == (", ".join(keywords) or "none")
