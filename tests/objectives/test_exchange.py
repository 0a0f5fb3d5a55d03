"""flowrl.objectives.exchange: what samples of a group know of each other."""

from __future__ import annotations

import pytest
import torch

from flowrl import parallel
from flowrl.objectives import GRPO, Work
from flowrl.objectives.base import Group, Objective
from flowrl.objectives.exchange import groups_of, with_groups


class Measuring(GRPO):
    """Measures a sample's advantage and its double."""

    measures = True

    def measure(self, policy, rollout, pieces, work):
        """Two columns."""
        assert not torch.is_grad_enabled()
        return torch.stack([work.advantages, 2 * work.advantages], dim=1)


def test_groups_by_hand():
    """Six samples in groups of three: each sees its three, and knows which one it is."""
    group = groups_of(torch.arange(6.0), torch.arange(6.0)[:, None], 3)
    assert group.advantages.tolist() == [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3
    assert group.own.tolist() == [0, 1, 2, 0, 1, 2]
    assert group.of_self()[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert group.others()[1].tolist() == [True, False, True]


@pytest.mark.parametrize("cut", [(6,), (2, 4), (1, 2, 3)])
def test_micro_batches_may_cut_groups_anywhere(cut):
    """Every sample knows its whole group, whichever micro-batches its samples lie in."""
    advantages = torch.tensor([1.0, -1.0, 2.0, 0.5, 0.0, -3.0])
    parts = {index: ((), (), Work(part)) for index, part in enumerate(advantages.split(list(cut)))}
    works = with_groups(Measuring(), None, parts, 3)
    assert list(works) == list(parts)
    seen = [works[index].group for index in works]
    assert torch.cat([group.advantages for group in seen]).tolist() == [[1.0, -1.0, 2.0]] * 3 + [[0.5, 0.0, -3.0]] * 3
    assert torch.equal(torch.cat([group.of_self() for group in seen]), torch.stack([advantages, 2 * advantages], dim=1))


def test_an_objective_that_measures_nothing_is_asked_nothing():
    """Its surroundings are as they were."""
    work = Work(torch.zeros(2))
    assert with_groups(GRPO(), None, {0: ((), (), work)}, 2)[0] is work
    assert work.group is None


def test_an_objective_that_says_it_measures_must():
    """The message names the class."""

    class Silent(GRPO):
        measures = True

    with pytest.raises(NotImplementedError, match="Silent says that it measures"):
        with_groups(Silent(), None, {0: ((), (), Work(torch.zeros(2)))}, 2)
    assert not Objective.measures


def test_one_loss_a_sample_has_the_gradient_of_all_pairs():
    """The statement of the module's docstring, for l(a, b) = (a - b)^4: both have the same derivative by each a."""
    a = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    pairs = sum((a[i] - a[j]) ** 4 for i in range(3) for j in range(i))
    own = sum((a[i] - a[j].detach()) ** 4 for i in range(3) for j in range(3) if i != j)
    one, other = (torch.autograd.grad(loss, a)[0] for loss in (pairs, own))
    torch.testing.assert_close(one, other)
    assert Group.__doc__


def test_samples_of_other_processes_are_known(monkeypatch):
    """The four of a group, of which this process has the micro-batches 0 and 2, and another one the sample between."""
    advantages = torch.tensor([1.0, -1.0, 2.0, 0.5])
    elsewhere = {1: (advantages[2:3], torch.stack([advantages[2:3], 2 * advantages[2:3]], dim=1))}
    monkeypatch.setattr(parallel, "gather", lambda mine: dict(sorted({**mine, **elsewhere}.items())))
    parts = {0: ((), (), Work(advantages[:2])), 2: ((), (), Work(advantages[3:]))}
    works = with_groups(Measuring(), None, parts, 4)
    assert list(works) == [0, 2]
    assert works[0].group.advantages.tolist() == [advantages.tolist()] * 2
    assert works[2].group.measured[0, :, 1].tolist() == (2 * advantages).tolist()
    assert works[2].group.own.tolist() == [3]
