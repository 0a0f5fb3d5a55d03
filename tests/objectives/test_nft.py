"""flowrl.objectives.nft: the contrastive loss, in numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from flowrl.adapters import WeightCopy
from flowrl.errors import UserError
from flowrl.objectives import Seeds, Work, nft

from .. import tiny


def _rollout(policy, *, guided=False, pipeline="sd3", count=2):
    return policy.rollout(**tiny.arguments(pipeline, guided=guided, count=count), train_steps=())


def test_optimality_by_hand():
    """An advantage of c is certainly good, one of -c certainly bad, 0 undecided."""
    assert nft.optimality(torch.tensor([-5.0, -1.0, 0.0, 2.5, 9.0]), 5.0).tolist() == pytest.approx(
        [0.0, 0.4, 0.5, 0.75, 1.0]
    )


def test_errors_by_hand():
    """The residual of each implicit policy, squared and divided by its own size."""
    # beta = 0.5, v = 1, v_old = 0: v+ = 0.5, v- = -0.5. x_t = 1, sigma = 1, x_0 = 0: residuals 0.5 and 1.5,
    # so the errors are 0.25 / 0.5 and 2.25 / 1.5.
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    positive, negative = nft.implicit_errors(one, zero, one, zero, one, 0.5)
    assert positive.tolist() == pytest.approx([0.5])
    assert negative.tolist() == pytest.approx([1.5])


def test_at_the_old_policy_the_errors_agree_and_an_undecided_sample_teaches_nothing():
    """At v = v_old the two errors are equal and their gradients opposite, so p = 1/2 gives a gradient of 0."""
    v_old, x_t, x_0 = torch.randn(3, 2, 4), torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    v = v_old.clone().requires_grad_()
    positive, negative = nft.implicit_errors(v, v_old, x_t, x_0, torch.tensor(0.7), 0.3)
    torch.testing.assert_close(positive, negative)
    (0.5 * positive + 0.5 * negative).sum().backward()
    torch.testing.assert_close(v.grad, torch.zeros_like(v), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("advantage", "direction"), [(1.0, 1.0), (-1.0, -1.0)])
def test_gradient_pulls_towards_good_samples_and_away_from_bad_ones(advantage, direction):
    """A step against the gradient moves v towards the velocity of a good sample, and away from that of a bad one."""
    x_0, eps, sigma = torch.zeros(1, 3), torch.ones(1, 3), torch.tensor(0.5)
    x_t, v_old = sigma * eps, torch.zeros(1, 3)  # the sample's own velocity is eps - x_0 = 1
    v = v_old.clone().requires_grad_()
    p = nft.optimality(torch.tensor([advantage]), 5.0)
    positive, negative = nft.implicit_errors(v, v_old, x_t, x_0, sigma, 1.0)
    (p * positive + (1 - p) * negative).sum().backward()
    assert torch.equal(torch.sign(-v.grad), torch.full((1, 3), direction))


def test_the_old_policy_follows_by_its_options():
    """The decay rises by its slope from its start, up to its maximum."""
    decay = nft.NFT(decay_slope=0.0075, decay_max=0.999, decay_start=75).copies()["old"]
    assert [decay(step) for step in (0, 75, 76, 1000)] == pytest.approx([0.0, 0.0, 0.0075, 0.999])


def test_published_schedules_of_the_old_policy():
    """Three types in the authors' code: always the current one; up to .5; late, and up to .999."""
    types = {
        0: {"decay_slope": 0.0},
        1: {"decay_slope": 0.001, "decay_max": 0.5},
        2: {"decay_slope": 0.0075, "decay_max": 0.999, "decay_start": 75},
    }
    found = {kind: nft.NFT(**options).copies()["old"] for kind, options in types.items()}
    assert [found[0](step) for step in (0, 1000)] == [0.0, 0.0]
    assert [found[1](step) for step in (0, 200, 1000)] == pytest.approx([0.0, 0.2, 0.5])
    assert [found[2](step) for step in (75, 95, 1000)] == pytest.approx([0.0, 0.15, 0.999])


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("all", [-2.0, 0.0, 0.5]),
        ("positive_only", [0.0, 0.0, 0.5]),
        ("negative_only", [-2.0, 0.0, 0.0]),
        ("one_only", [0.0, 0.0, 1.0]),
        ("binary", [-1.0, 0.0, 1.0]),
    ],
)
def test_advantage_modes_by_hand(mode, wanted):
    """What counts of -2, 0 and 1/2; a sample without a score, 0, never counts."""
    assert nft.chosen(torch.tensor([-2.0, 0.0, 0.5]), mode).tolist() == wanted
    p = nft.optimality(nft.chosen(torch.tensor([-2.0, 0.0, 0.5]), mode), 2.0)
    assert p.tolist() == pytest.approx([0.5 + value / 4 for value in wanted])


def test_more_noise_levels_than_steps_are_refused():
    """A sample's noise levels differ, so there must be enough of them."""
    with pytest.raises(UserError, match=r"objective.times: 6 .* policy.steps is 5"):
        nft.NFT(times=6).check(5)


def test_as_many_noise_levels_as_steps_are_enough():
    """The check passes exactly as long as a sample's noise levels can differ."""
    nft.NFT(times=5).check(5)


def test_every_sample_has_levels_of_its_own():
    """Without guidance: ``times`` different levels of the rollout's schedule for each sample, by its own seed."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = _rollout(policy, count=4)
    pieces = nft.NFT(times=3).pieces(policy, rollout, Seeds(0, [1, 2, 3, 4]))
    drawn = torch.stack([piece.sigma for piece in pieces])
    assert drawn.shape == (3, 4)
    levels = {float(torch.tensor(place.sigma)) for place in rollout.places}
    assert all(len(set(column)) == 3 and set(column) <= levels for column in drawn.T.tolist())
    assert len({tuple(column) for column in drawn.T.tolist()}) > 1
    again = nft.NFT(times=3).pieces(policy, rollout, Seeds(99, [1, 2, 3, 4]))
    assert torch.equal(torch.stack([piece.sigma for piece in again]), drawn)


def test_with_guidance_the_step_decides_the_levels():
    """A pipeline that doubles its batch takes one level for all; noise stays each sample's own."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = _rollout(policy, guided=True)
    one, two, other = (
        nft.NFT().pieces(policy, rollout, Seeds(*seeds)) for seeds in ((5, [1, 2]), (5, [3, 4]), (6, [1, 2]))
    )
    assert all(piece.sigma.dim() == 0 for piece in one)
    assert [float(piece.sigma) for piece in one] == [float(piece.sigma) for piece in two]
    assert [float(piece.sigma) for piece in one] != [float(piece.sigma) for piece in other]
    assert not any(torch.equal(piece.eps, same.eps) for piece, same in zip(one, two, strict=True))
    assert all(torch.equal(piece.eps, same.eps) for piece, same in zip(one, other, strict=True))


def test_every_level_of_the_schedule_comes_up():
    """Over many seeds each of five levels is drawn first about as often as any other."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = _rollout(policy)
    objective = nft.NFT(times=1)
    firsts = [
        sigma
        for seed in range(250)
        for sigma in objective.pieces(policy, rollout, Seeds(0, [seed, 1000 + seed]))[0].sigma.tolist()
    ]
    counts = [firsts.count(float(torch.tensor(place.sigma))) for place in rollout.places]
    assert sum(counts) == 500
    assert all(65 <= count <= 135 for count in counts)  # 100 each, give or take 4 sigma


def test_noise_is_standard_normal():
    """Mean 0 and variance 1 over all that is drawn, and no two levels share their noise."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = _rollout(policy)
    pieces = [p for s in range(20) for p in nft.NFT().pieces(policy, rollout, Seeds(0, [2 * s, 2 * s + 1]))]
    eps = torch.stack([piece.eps for piece in pieces]).flatten(2).flatten(0, 1)
    count = eps.numel()  # 20 x 4 pieces of 2 samples of 256 numbers
    assert count == 160 * 256
    assert abs(float(eps.mean())) < 4 / count**0.5
    assert float(eps.var()) == pytest.approx(1, abs=4 * (2 / count) ** 0.5)
    assert torch.cdist(eps, eps).fill_diagonal_(torch.inf).min() > 1


def test_a_ddpm_type_model_learns_by_its_own_forward_process():
    """Noised with the model's signal share, its prediction of the noise gives the errors, and gradients."""
    policy = tiny.policy("sd15", "ddim")
    rollout, copy = _rollout(policy, pipeline="sd15"), WeightCopy(policy.parameters)
    piece = nft.NFT(times=1).pieces(policy, rollout, Seeds(0, [1, 2]))[0]
    terms = nft.NFT(kl=0.0).loss(policy, rollout, piece, Work(torch.tensor([1.0, -1.0]), {"old": copy}, True))
    level = piece.sigma.view(-1, 1, 1, 1)
    x_t = (1 - level**2).sqrt() * rollout.latents + level * piece.eps
    with torch.no_grad():
        eps = policy.predict(rollout, x_t, piece.sigma)
    # sqrt(1 - sigma^2) x_0 is off by sigma times the error of the noise.
    error = (level * (piece.eps - eps)).flatten(1)
    wanted = error.square().mean(dim=1) / error.abs().mean(dim=1)
    torch.testing.assert_close(terms.metrics["nft/positive"], wanted, rtol=1e-3, atol=0)
    terms.loss.sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in policy.parameters.values())


def _loss(policy, rollout, copy, advantages=(1.0, -1.0), **options):
    objective = nft.NFT(**options)
    pieces = objective.pieces(policy, rollout, Seeds(0, [1, 2]))
    return [
        objective.loss(policy, rollout, piece, Work(torch.tensor(advantages), {"old": copy}, True)) for piece in pieces
    ]


def test_sparing_the_old_policys_model_call_changes_no_bit(monkeypatch):
    """A copy that equals the current weights predicts what they predict: one call in place of two."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout, copy = _rollout(policy), WeightCopy(policy.parameters)
    results = []
    for current, calls in ((True, 1), (False, 2)):
        monkeypatch.setattr(WeightCopy, "is_current", lambda self, answer=current: answer)
        policy.denoiser_calls = 0
        terms = _loss(policy, rollout, copy, kl=0.0)
        assert policy.denoiser_calls == calls * len(terms) * 2
        loss = torch.stack([term.loss for term in terms])
        gradients = torch.autograd.grad(loss.mean(), list(policy.parameters.values()))
        results.append([loss.detach(), *gradients])
        assert all(torch.equal(term.metrics["nft/drift"], torch.zeros(2)) for term in terms)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_an_old_policy_that_lags_is_asked():
    """The prediction of a copy that differs from the current weights is its own: the policies have drifted apart."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout, copy = _rollout(policy), WeightCopy(policy.parameters)
    tiny.set_b(policy, 0.2)
    terms = _loss(policy, rollout, copy)
    assert all((term.metrics["nft/drift"] > 0).all() for term in terms)
    copy.update(0.0)
    assert all((term.metrics["nft/drift"] == 0).all() for term in _loss(policy, rollout, copy))


def test_an_undecided_sample_has_no_gradient():
    """At advantage 0, without drift and without the KL term, improved and worsened policies pull alike."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout, copy = _rollout(policy), WeightCopy(policy.parameters)
    parameters = list(policy.parameters.values())
    undecided, decided = (
        torch.autograd.grad(sum(term.loss.sum() for term in _loss(policy, rollout, copy, a, kl=0.0)), parameters)
        for a in ((0.0, 0.0), (1.0, 0.0))
    )
    largest = max(float(gradient.abs().max()) for gradient in decided)
    assert all(float(gradient.abs().max()) < 1e-5 * largest for gradient in undecided)


def test_the_kl_term_by_hand():
    """It adds its weight times the mean squared velocity difference to the base model; a new LoRA has none."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout, copy = _rollout(policy), WeightCopy(policy.parameters)
    plain, with_kl = _loss(policy, rollout, copy, kl=0.0), _loss(policy, rollout, copy, kl=10.0)
    for without, term in zip(plain, with_kl, strict=True):
        assert "kl/reference" not in without.metrics
        divergence = term.metrics["kl/reference"]
        assert (divergence > 0).all()
        torch.testing.assert_close(term.loss.detach(), without.loss.detach() + 10 * divergence)
    tiny.set_b(policy, 0.0)
    copy.update(0.0)
    assert all((term.metrics["kl/reference"] == 0).all() for term in _loss(policy, rollout, copy))
