"""The matrix of rewards by steps, against numbers worked out by hand and its own marginals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowrl.credit_matrix import credit_matrix, divergences, gains


def test_divergences_and_gains_by_hand():
    """Ratios 1, e^.5 and e: log of their squares is 0, 1, 2, so the steps gain 0, 1, 1."""
    found = divergences(torch.tensor([[1.0, math.exp(0.5), math.e]]))
    assert found.tolist() == pytest.approx([0.0, 1.0, 2.0])
    assert gains(found).tolist() == pytest.approx([0.0, 1.0, 1.0])


def test_divergence_of_two_trajectories():
    """Ratios 1/2 and 3/2: order 2 gives log((1/4 + 9/4) / 2) = log 1.25; order 1/2 -2 log((.70711 + 1.22474) / 2)."""
    ratios = torch.tensor([[0.5], [1.5]])
    assert divergences(ratios).item() == pytest.approx(math.log(1.25))
    assert divergences(ratios, alpha=0.5).item() == pytest.approx(-2 * math.log(0.965926), abs=1e-6)


def test_noise_decides_nothing():
    """The divergence before the first step is 0, so all of the first is the first step's gain."""
    assert gains(torch.tensor([0.3, 0.2])).tolist() == pytest.approx([0.3, 0.0])


def test_matrix_by_hand():
    """Mirrored gains give a mirrored matrix, with the paper's numbers."""
    found = credit_matrix(torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]]), torch.ones(2))
    wanted = [[0.31234, 0.16667, 0.02099], [0.02099, 0.16667, 0.31234]]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=5e-6)


def test_one_reward_is_uniform():
    """Every step gets as much, so a single reward has no choice."""
    assert credit_matrix(torch.tensor([[5.0, 0.0, 1.0, 0.0]]), torch.ones(1))[0].tolist() == pytest.approx([0.25] * 4)


def test_a_reward_without_gains_is_uniform_where_others_are():
    """A row of zeros says nothing: with another such row, each step gets the budgets' shares."""
    assert credit_matrix(torch.zeros(2, 2), torch.tensor([3.0, 1.0])).flatten().tolist() == pytest.approx(
        [0.375, 0.375, 0.125, 0.125]
    )


@given(st.data())
def test_marginals(data):
    """Rows add up to the budgets' shares, columns to 1 / T."""
    rewards, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    numbers = st.lists(st.floats(0, 3), min_size=rewards * steps, max_size=rewards * steps)
    gained = torch.tensor(data.draw(numbers)).reshape(rewards, steps)
    budgets = torch.tensor(data.draw(st.lists(st.floats(0.1, 5), min_size=rewards, max_size=rewards)))
    found = credit_matrix(gained, budgets, temperature=2.0)
    torch.testing.assert_close(
        found.sum(dim=0), torch.full((steps,), 1 / steps, dtype=torch.float64), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(found.sum(dim=1), budgets.double() / budgets.double().sum(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: divergences(torch.tensor([[-1.0]])),
        lambda: divergences(torch.ones(2, 2), alpha=1.0),
        lambda: credit_matrix(torch.ones(2, 3), torch.ones(3)),
        lambda: credit_matrix(torch.ones(2, 3), torch.tensor([1.0, 0.0])),
        lambda: credit_matrix(torch.ones(2, 3), torch.ones(2), temperature=0.0),
    ],
)
def test_out_of_range(call):
    """What cannot be is refused."""
    with pytest.raises(ValueError, match="wanted"):
        call()
