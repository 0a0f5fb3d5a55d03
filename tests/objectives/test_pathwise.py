"""flowrl.objectives.pathwise and its objectives: draft, alignprop, refl."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl.errors import UserError
from flowrl.objectives import Seeds, Work
from flowrl.objectives.alignprop import AlignProp
from flowrl.objectives.draft import DRaFT, DRaFTLV
from flowrl.objectives.pathwise import climbing, drawn_step
from flowrl.objectives.refl import ReFL

from .. import tiny


def brightness(images):
    """The mean of the pixels."""
    return images.mean(dim=(1, 2, 3))


@pytest.fixture(scope="module")
def scene():
    """A policy, and a rollout by the ODE that kept every step."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(
        **tiny.arguments("sd3", guided=False), train_steps=(), noise_steps=(), keep_steps=range(tiny.STEPS)
    )
    return policy, rollout


def _pieces(objective, scene, step=0):
    return objective.pieces(*scene, Seeds(step, [1, 2]))


def _loss(objective, scene, piece):
    policy, rollout = scene
    return objective.loss(policy, rollout, piece, Work(torch.zeros(2), score=brightness))


def test_climbing_by_hand():
    """-r, or 2 - r up to the margin; a sample without a score has no loss."""
    rewards = torch.tensor([0.5, 3.0, math.nan], requires_grad=True)
    assert climbing(rewards, None).tolist() == [-0.5, -3.0, 0.0]
    loss = climbing(rewards, 2.0)
    loss.sum().backward()
    assert loss.tolist() == [1.5, 0.0, 0.0]
    assert rewards.grad.tolist() == [-1.0, 0.0, 0.0]


def test_draft_climbs_the_rollouts_own_pictures(scene):
    """Without noise, the pictures with gradients are those that were scored, and the loss is minus their reward."""
    policy, rollout = scene
    objective = DRaFT(last_steps=2)
    assert _pieces(objective, scene) == [tiny.STEPS - 2]
    assert list(objective.keep_steps(tiny.STEPS)) == [tiny.STEPS - 2, tiny.STEPS - 1]
    policy.denoiser_calls = 0
    terms = _loss(objective, scene, tiny.STEPS - 2)
    assert policy.denoiser_calls == 2 * 2  # two samples at two steps: none before carries a gradient
    torch.testing.assert_close(terms.loss.detach(), -brightness(rollout.images))
    torch.testing.assert_close(terms.metrics["pathwise/reward"], brightness(rollout.images))


def test_the_gradient_is_that_of_finite_differences(scene):
    """Along a random direction of the LoRA, at a fixed step from which the trajectory is finished."""
    policy, _ = scene
    terms = _loss(DRaFT(last_steps=2, scale=3.0), scene, tiny.STEPS - 2)
    parameters = list(policy.parameters.values())
    gradients = torch.autograd.grad(terms.loss.sum(), parameters)
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(p.shape, generator=generator) for p in parameters]
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    values = []
    for sign in (1, -2, 1):  # one step forth, two back, and home again
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(sign * 0.01 * direction)
            values.append(float(_loss(DRaFT(last_steps=2, scale=3.0), scene, tiny.STEPS - 2).loss.sum()))
    assert (values[0] - values[1]) / 0.02 == pytest.approx(slope, rel=0.05, abs=1e-5)


def test_draft_lv_denoises_the_final_latents_again(scene):
    """The noise that leads back to where the last step began gives the rollout's own pictures."""
    policy, rollout = scene
    objective = DRaFTLV(draws=3)
    pieces = _pieces(objective, scene)
    assert len(pieces) == 3
    assert torch.cdist(*[torch.cat(pieces).flatten(1)] * 2).fill_diagonal_(torch.inf).min() > 1
    last = rollout.places[-1]
    eps = (rollout.arrivals[last.step] - (1 - last.sigma) * rollout.latents) / last.sigma
    policy.denoiser_calls = 0
    terms = _loss(objective, scene, eps)
    assert policy.denoiser_calls == 2
    torch.testing.assert_close(terms.loss.detach(), -brightness(rollout.images), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(_loss(objective, scene, pieces[0]).loss, terms.loss, atol=1e-6)


def test_alignprop_draws_once_a_training_step(scene):
    """One step for all samples, every one of the last ones over time; gradients from there on without a gap."""
    policy, _ = scene
    objective = AlignProp(max_steps=3)
    drawn = [_pieces(objective, scene, step) for step in range(30)]
    assert {tuple(pieces) for pieces in drawn} == {(2,), (3,), (4,)}
    assert drawn[0] == objective.pieces(*scene, Seeds(0, [8, 9]))
    assert {tuple(_pieces(AlignProp(), scene, step)) for step in range(60)} == {(k,) for k in range(5)}
    policy.denoiser_calls = 0
    _loss(objective, scene, 2)
    assert policy.denoiser_calls == 2 * (tiny.STEPS - 2)


def test_drawn_steps_are_as_likely_as_each_other():
    """Of four, each about a quarter of 800 times, give or take 4 sigma."""
    drawn = [drawn_step(2, 5, Seeds(step, []))[0] for step in range(800)]
    assert all(151 <= drawn.count(step) <= 249 for step in (2, 3, 4, 5))


def test_refl_decodes_what_the_model_predicts(scene):
    """Latents less sigma v at the drawn step, through the decoder: one model call, none for the steps after it."""
    policy, rollout = scene
    policy.denoiser_calls = 0
    terms = _loss(ReFL(), scene, 2)
    assert policy.denoiser_calls == 2
    place, vae = rollout.places[2], policy.pipe.vae
    with torch.no_grad():
        x = rollout.arrivals[2]
        clean = x - place.sigma * policy.predict(rollout, x, place.sigma)
        decoded = vae.decode(clean / vae.config.scaling_factor + vae.config.shift_factor).sample
        wanted = (decoded / 2 + 0.5).clamp(0, 1)
    torch.testing.assert_close(terms.loss.detach(), -brightness(wanted), rtol=1e-4, atol=1e-5)


def test_refl_at_the_last_step_is_draft_1(scene):
    """There the model's prediction is where the step leads."""
    last = tiny.STEPS - 1
    parameters = list(scene[0].parameters.values())
    one, other = (_loss(objective, scene, last) for objective in (ReFL(), DRaFT()))
    torch.testing.assert_close(one.loss, other.loss)
    pairs = zip(*(torch.autograd.grad(terms.loss.sum(), parameters) for terms in (one, other)), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-8) for a, b in pairs)


def test_steps_that_a_schedule_has_not_are_refused():
    """Before any weights load."""
    DRaFT(last_steps=5).check(5)
    AlignProp().check(1)
    for objective in (DRaFT(last_steps=6), AlignProp(max_steps=6), ReFL(last_steps=6)):
        message = f"objective {objective.name}: gradients through 6 steps, but policy.steps is 5"
        with pytest.raises(UserError, match=message):
            objective.check(5)
