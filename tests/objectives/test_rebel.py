"""flowrl.objectives.rebel: PRDP against the rollout's own policy."""

from __future__ import annotations

import pytest
import torch

from flowrl.objectives import GRPO, Seeds, Work
from flowrl.objectives.exchange import with_groups
from flowrl.objectives.rebel import REBEL

from .. import tiny


def _gradients(objective, policy, rollout, advantages=(1.0, -1.0)):
    pieces = objective.pieces(policy, rollout, Seeds(0, [1, 2]))
    work = with_groups(objective, policy, {0: (rollout, pieces, Work(torch.tensor(advantages), {}, True))}, 2)[0]
    terms = [objective.loss(policy, rollout, piece, work) for piece in pieces]
    loss = torch.stack([term.loss for term in terms]).mean()
    return terms, torch.autograd.grad(loss, list(policy.parameters.values()))


def test_at_the_first_update_it_is_the_policy_gradient():
    """Every log-ratio is 0, the error of the pair is -(A_0 - A_1) = -2, and the slopes are 2 * 2 * beta * -+2."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[0, 1])
    terms, found = _gradients(REBEL(beta=0.5), policy, rollout)
    assert [term.loss.tolist() for term in terms] == [[4.0, 4.0]] * 2
    _, plain = _gradients(GRPO(), policy, rollout)
    for gradient, wanted in zip(found, plain, strict=True):  # 4 * 0.5 * 2 = 4 times GRPO's, which is -A
        torch.testing.assert_close(gradient, 4 * wanted, rtol=1e-5, atol=1e-7)


def test_a_batch_of_two_is_two_batches_of_one():
    """The batch axis survives the steps: a sample's loss does not depend on who shares its micro-batch."""
    policy = tiny.policy("sd3", "flow_sde")
    call = tiny.arguments("sd3", guided=False)
    parts = [{**call, "prompts": call["prompts"][k : k + 1], "seeds": [call["seeds"][k]]} for k in (0, 1)]
    objective = REBEL()

    def losses(*calls):
        batches = {}
        for index, (one, advantages) in enumerate(calls):
            rollout = policy.rollout(**one, train_steps=[0, 2])
            pieces = objective.pieces(policy, rollout, Seeds(0, [1]))
            batches[index] = (rollout, pieces, Work(torch.tensor(advantages)))
        works = with_groups(objective, policy, batches, 2)
        return torch.cat([objective.loss(policy, batches[i][0], 2, works[i]).loss.detach() for i in batches])

    together, apart = losses((call, (1.0, -2.0))), losses((parts[0], (1.0,)), (parts[1], (-2.0,)))
    torch.testing.assert_close(apart, together, rtol=1e-5, atol=1e-6)
    assert together.tolist() == pytest.approx([9.0, 9.0], rel=1e-3)


def test_it_asks_no_reference_model(monkeypatch):
    """Only the policy itself is called, once a step."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3", guided=False), train_steps=[0, 1])
    monkeypatch.setattr(policy, "reference", lambda: pytest.fail("a reference"))
    policy.denoiser_calls = 0
    _gradients(REBEL(), policy, rollout)
    assert policy.denoiser_calls == 2 * 2
