"""flowrl.objectives.forward: noise levels, targets, and what pieces of a group share."""

from __future__ import annotations

import math
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from flowrl import kernels
from flowrl.errors import UserError
from flowrl.objectives import Seeds
from flowrl.objectives.awm import AWM
from flowrl.objectives.base import Work
from flowrl.objectives.dgpo import DGPO
from flowrl.objectives.forward import Noising, draw_levels, mean_square, target
from flowrl.objectives.nft import NFT

from .. import tiny

SCHEDULE = torch.tensor([1.0, 0.8, 0.5, 0.2])


def _draw(kind, count, seed=0):
    return draw_levels(kind, SCHEDULE, count, torch.Generator().manual_seed(seed))


def test_levels_of_the_schedule_come_once_each():
    """All of them, in random order; the inner ones leave out the first, at which nothing of a sample is left."""
    assert sorted(_draw("schedule", 4).tolist()) == sorted(SCHEDULE.tolist())
    assert sorted(_draw("inner", 3).tolist()) == sorted(SCHEDULE[1:].tolist())
    assert len({tuple(_draw("schedule", 4, seed).tolist()) for seed in range(20)}) > 5


def test_levels_between_those_of_the_schedule():
    """Uniform: mean 1/2, variance 1/12. Logit-normal: the logits have mean 0 and variance 1."""
    uniform, normal = _draw("uniform", 20_000), _draw("logit_normal", 20_000)
    assert float(uniform.mean()) == pytest.approx(1 / 2, abs=4 * (1 / 12 / 20_000) ** 0.5)
    assert float(uniform.var()) == pytest.approx(1 / 12, rel=0.03)
    assert float(normal.logit().mean()) == pytest.approx(0, abs=4 / 20_000**0.5)
    assert float(normal.logit().var()) == pytest.approx(1, rel=0.04)
    assert all(float(levels.min()) > 0 and float(levels.max()) < 1 for levels in (uniform, normal))


@pytest.mark.parametrize("prediction", ["flow", "epsilon", "v_prediction", "sample"])
def test_the_target_is_what_gives_back_the_sample(prediction):
    """Put in for a model's output, it stands for exactly the x_0 that was noised."""
    x_0, eps, sigma = torch.tensor([2.0]), torch.tensor([-1.0]), torch.tensor(0.6)
    x_t = kernels.noised(x_0, eps, sigma, prediction)
    wanted = target(x_0, eps, sigma, prediction)
    assert kernels.clean(x_t, wanted, sigma, prediction).tolist() == pytest.approx([2.0])
    # By hand: eps - x_0 = -3; a eps - sigma x_0 = -0.8 - 1.2 = -2.
    assert wanted.tolist() == pytest.approx([{"flow": -3, "epsilon": -1, "v_prediction": -2, "sample": 2}[prediction]])


def test_mean_square_by_hand():
    """(1 + 9) / 2 = 5, sample by sample."""
    assert mean_square(torch.tensor([[[1.0, 3.0]], [[0.0, 0.0]]])).tolist() == [5.0, 0.0]


def test_too_few_levels_are_refused():
    """The inner ones are one less; levels between have no end."""
    AWM(times=4, levels="inner").check(5)
    AWM(times=9, levels="uniform").check(5)
    with pytest.raises(UserError, match=r"objective.times: 5 .* policy.steps is 5 \(the first one left out\)"):
        AWM(times=5, levels="inner").check(5)


def test_a_group_shares_noise_and_levels():
    """Where the objective says so: by the seeds of groups, and nothing of a sample's own."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3", guided=False, count=4), train_steps=())
    pieces = DGPO(times=2).pieces(policy, rollout, Seeds(0, [1, 2, 3, 4], [7, 7, 8, 8]))
    for piece in pieces:
        assert torch.equal(piece.eps[0], piece.eps[1])
        assert torch.equal(piece.eps[2], piece.eps[3])
        assert not torch.equal(piece.eps[1], piece.eps[2])
        assert piece.sigma[0] == piece.sigma[1]
        assert piece.sigma[2] == piece.sigma[3]
    assert [piece.number for piece in pieces] == [0, 1]
    assert math.isclose(float(pieces[0].eps.var()), 1, rel_tol=0.3)


def test_credit_is_that_of_the_nearest_step():
    """Levels .95, .5 and .3 lie nearest to the steps at 1, .5 and .2; one level serves all samples."""
    rollout = MagicMock(places=[SimpleNamespace(sigma=sigma) for sigma in SCHEDULE.tolist()])
    rollout.__len__.return_value = 3
    by_step = {step: torch.tensor([10.0, 20.0, 30.0]) + step for step in range(4)}
    work, own = Work(torch.zeros(3), by_step=by_step), NFT()
    assert own.credit(rollout, Noising(torch.tensor([0.95, 0.5, 0.3]), torch.zeros(3)), work).tolist() == [10, 22, 33]
    assert own.credit(rollout, Noising(torch.tensor(0.8), torch.zeros(3)), work).tolist() == [11, 21, 31]
    assert own.credit(rollout, Noising(torch.tensor(0.8), torch.zeros(3)), Work(torch.ones(3))).tolist() == [1, 1, 1]
