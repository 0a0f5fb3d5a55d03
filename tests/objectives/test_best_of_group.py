"""flowrl.objectives.best_of_group: who has the weight."""

from __future__ import annotations

import torch

from flowrl.objectives.best_of_group import BestOfGroup, best_weights
from flowrl.objectives.exchange import groups_of
from flowrl.objectives.rwr import RWR, exponential_weights


def test_the_best_has_all_the_weight_of_its_group():
    """G for one, shared by two that are equal; a group without spread teaches nothing."""
    found = best_weights(torch.tensor([[0.5, 1.0, -1.5], [1.0, -2.0, 1.0], [0.0, 0.0, 0.0]]))
    assert found.tolist() == [[0.0, 3.0, 0.0], [1.5, 0.0, 1.5], [0.0, 0.0, 0.0]]


def test_it_is_rwr_without_temperature():
    """The exponential weights of a temperature near 0."""
    advantages = torch.tensor([[0.5, 1.0, -1.5], [1.0, -2.0, 0.9]])
    torch.testing.assert_close(best_weights(advantages), exponential_weights(advantages, 1e-3))


def test_the_objective_takes_these_weights():
    """And has no temperature to set."""
    group = groups_of(torch.tensor([1.0, -1.0]), torch.zeros(2, 0), 2)
    assert BestOfGroup().weights(group).tolist() == [[2.0, 0.0]] * 2
    assert set(RWR.Options.model_fields) - set(BestOfGroup.Options.model_fields) == {"temperature"}
