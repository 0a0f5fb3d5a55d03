"""What every objective promises, on the tiny SD3 pipeline; the list is the config's own, so a new one is in it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from flowrl import plugins
from flowrl.adapters import WeightCopy
from flowrl.config import ObjectiveConfig, RunConfig
from flowrl.errors import UserError
from flowrl.objectives import Objective, Seeds, Work
from flowrl.objectives.exchange import with_groups
from flowrl.preflight import make_objective

from .. import tiny

OBJECTIVES = plugins.known("objectives")
METHODS = Path(__file__).parent.parent.parent / "docs" / "methods"
SEEDS = (10, 11, 12, 13)
ADVANTAGES = torch.tensor([1.0, -1.0, 0.5, -2.0])
ATTRACTED = ("rwr", "best_of_group")
"""Regressions on the policy's own samples: what comes closer to the good ones may come closer to a bad one too."""

pytestmark = pytest.mark.parametrize("name", OBJECTIVES)


def brightness(images):
    """A reward with gradients: the mean of the pixels."""
    return images.mean(dim=(1, 2, 3))


class Scene:
    """An objective, a policy whose LoRA acts, and the copies that the objective wants.

    Args:
        name: of the objective.
        b: spread of the LoRA's B; 0 is a LoRA as it starts.
        dtype: of the base model.
        guided: whether the rollouts have guidance.
    """

    def __init__(self, name, *, b=0.1, dtype=torch.float32, guided=False):
        self.objective = plugins.load("objectives", name)()
        self.policy = tiny.policy("sd3", "flow_sde", b=b, dtype=dtype)
        self.parameters = list(self.policy.parameters.values())
        self.copies = {copy: WeightCopy(self.policy.parameters) for copy in self.objective.copies()}
        self.guided = guided

    def batch(self, start=0, stop=4):
        """A micro-batch of samples ``start`` to ``stop`` of the four, recorded as far as the objective wants it."""
        call = tiny.arguments("sd3", guided=self.guided, count=4, seeds=SEEDS)
        call |= {"prompts": call["prompts"][start:stop], "seeds": SEEDS[start:stop]}
        train, keep = "all" if self.objective.transitions else (), self.objective.keep_steps(tiny.STEPS)
        rollout = self.policy.rollout(**call, train_steps=train, keep_steps=keep)
        return rollout, self.pieces(rollout, range(start, stop))

    def pieces(self, rollout, numbers=range(4), step=7, offset=100):
        """The pieces of a micro-batch of the samples with these numbers."""
        seeds = Seeds(step, [offset + number for number in numbers])
        return self.objective.pieces(self.policy, rollout, seeds)

    def all_terms(self, batches, *, on_policy=False):
        """Loss and metrics of every piece of several micro-batches, whose samples are one group.

        Args:
            batches: rollout, pieces and advantages of each.
            on_policy: whether the weights are those of the rollouts.
        """
        parts = {
            index: (rollout, pieces, Work(advantages, self.copies, on_policy, score=brightness))
            for index, (rollout, pieces, advantages) in enumerate(batches)
        }
        works = with_groups(self.objective, self.policy, parts, sum(len(rollout) for rollout, _, _ in batches))
        return [
            [self.objective.loss(self.policy, rollout, piece, works[index]) for piece in pieces]
            for index, (rollout, pieces, _) in parts.items()
        ]

    def terms(self, rollout, pieces, advantages=ADVANTAGES, *, on_policy=False):
        """Loss and metrics of every piece of a micro-batch that is a group."""
        return self.all_terms([(rollout, pieces, advantages)], on_policy=on_policy)[0]

    def gradients(self, rollout, pieces, advantages=ADVANTAGES, *, on_policy=False):
        """The gradient of every parameter, of the mean over samples and pieces."""
        return self.gradients_of(self.terms(rollout, pieces, advantages, on_policy=on_policy))

    def gradients_of(self, terms):
        """The same, of terms that are there."""
        return torch.autograd.grad(torch.stack([term.loss for term in terms]).mean(), self.parameters)

    def move(self):
        """Change the LoRA a little, so that the weights are no longer those of the rollout."""
        tiny.set_b(self.policy, 0.101)


def tensors(piece):
    """Every tensor and number in a piece, by its place."""
    if isinstance(piece, torch.Tensor):
        return {"": piece}
    if isinstance(piece, int | float):
        return {"": torch.tensor(piece)}
    if dataclasses.is_dataclass(piece):
        parts = {field.name: getattr(piece, field.name) for field in dataclasses.fields(piece)}
    elif isinstance(piece, Mapping):
        parts = dict(piece)
    elif isinstance(piece, Sequence) and not isinstance(piece, str):
        parts = dict(enumerate(piece))
    else:
        raise TypeError(f"a piece holds a {type(piece).__name__}; say here how to compare it")
    return {f"{key}.{inner}": tensor for key, part in parts.items() for inner, tensor in tensors(part).items()}


def assert_equal(found, wanted):
    """Two lists of pieces hold the same, bit for bit."""
    assert len(found) == len(wanted)
    for piece, other in zip(map(tensors, found), map(tensors, wanted), strict=True):
        assert piece.keys() == other.keys()
        assert [key for key in piece if not torch.equal(piece[key], other[key])] == []


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("cut", [1, 2])
def test_pieces_do_not_depend_on_the_cut(name, cut, guided):
    """Samples have the same noise, noise levels and steps in a micro-batch of four as in two smaller ones."""
    scene = Scene(name, guided=guided)
    _, whole = scene.batch()
    parts = [scene.batch(0, cut)[1], scene.batch(cut, 4)[1]]
    assert [len(pieces) for pieces in parts] == [len(whole)] * 2
    for number, piece in enumerate(whole):
        inner = [tensors(pieces[number]) for pieces in parts]
        for key, tensor in tensors(piece).items():
            if tensor.dim() == 0:  # what all samples share
                assert all(torch.equal(part[key].squeeze(), tensor) for part in inner)
            else:
                rows = zip(inner, (cut, 4 - cut), strict=True)
                assert torch.equal(
                    torch.cat([part[key].reshape(size, *tensor.shape[1:]) for part, size in rows]), tensor
                )


@pytest.mark.parametrize("guided", [False, True])
def test_losses_and_gradients_do_not_depend_on_the_cut(name, guided):
    """The losses of a batch are those of its halves, and its gradient is the mean of theirs, but for rounding."""
    scene = Scene(name, guided=guided)
    batches = [scene.batch(0, 4), scene.batch(0, 2), scene.batch(2, 4)]
    scene.move()
    parts = [slice(0, 4), slice(0, 2), slice(2, 4)]
    cases = [(*batch, ADVANTAGES[part]) for batch, part in zip(batches, parts, strict=True)]
    everything = [*scene.all_terms(cases[:1]), *scene.all_terms(cases[1:])]
    for terms in zip(*everything, strict=True):
        whole, *halves = (term.loss.detach() for term in terms)
        # A beta of 100 magnifies rounding, and so does the division of gains by their spread of 1e-3.
        torch.testing.assert_close(torch.cat(halves), whole, rtol=3e-4, atol=1e-5)
    of_whole, *of_halves = (scene.gradients_of(terms) for terms in everything)
    for gradient, one, other in zip(of_whole, *of_halves, strict=True):
        assert gradient.abs().max() > 0
        torch.testing.assert_close((one + other) / 2, gradient, rtol=1e-4, atol=float(gradient.abs().max()) * 1e-3)


def test_pieces_come_from_their_seeds_alone(name):
    """The same seeds give the same pieces, whatever else was drawn; and nothing global is drawn."""
    scene = Scene(name)
    rollout, wanted = scene.batch()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert_equal(scene.pieces(rollout), wanted)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_two_samples_share_their_noise(name):
    """What is drawn for a sample differs from what another gets, and from what it gets by another seed.

    Where the samples of a group share their noise by design, it is one for the four of them, by the group's seed.
    """
    scene = Scene(name)
    rollout, pieces = scene.batch()
    others = scene.pieces(rollout, offset=200)
    if all(tensor.dim() == 0 for piece in pieces for tensor in tensors(piece).values()):
        assert_equal(others, pieces)  # nothing is drawn for a sample, so its seed decides nothing
        return
    noise = [
        torch.cat([tensor, other[key]]).flatten(1)
        for piece, other in zip(map(tensors, pieces), map(tensors, others), strict=True)
        for key, tensor in piece.items()
        if tensor.shape == rollout.latents.shape
    ]
    assert noise
    if getattr(scene.objective, "shared", False):
        assert_equal(others, pieces)
        noise = [rows[:1] for rows in noise] + [scene.pieces(rollout, step=8)[0].eps[:1].flatten(1)]
        noise = [torch.cat(noise)]
    for rows in noise:
        assert torch.cdist(rows, rows).fill_diagonal_(torch.inf).min() > 1


def test_the_loss_is_one_number_a_sample_and_metrics_have_no_gradient(name):
    """The loss is `[B]` float32 with gradients; metrics are `[B]` or 0-dim, finite, without graph, and documented."""
    scene = Scene(name)
    page = (METHODS / f"{name}.md").read_text(encoding="utf-8")
    rollout, pieces = scene.batch()
    assert pieces
    for terms in scene.terms(rollout, pieces, on_policy=True):
        assert terms.loss.shape == (4,)
        assert terms.loss.dtype == torch.float32
        assert terms.loss.requires_grad
        assert terms.metrics
        for metric, value in terms.metrics.items():
            assert f"`{metric}`" in page
            assert not value.requires_grad, metric
            assert value.shape in ((), (4,)), metric
            assert value.isfinite().all(), metric


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("b", [0.0, 0.1])
def test_losses_and_gradients_are_finite(name, b, dtype):
    """On a base in float32 and in bfloat16, for a LoRA that has just started and for one that acts."""
    scene = Scene(name, b=b, dtype=dtype)
    rollout, pieces = scene.batch()
    assert all(term.loss.isfinite().all() for term in scene.terms(rollout, pieces, on_policy=True))
    gradients = scene.gradients(rollout, pieces, on_policy=True)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert max(float(gradient.abs().max()) for gradient in gradients) > 0


def closeness(policy, rollout):
    """How well the policy denoises each sample's latents, `[B]`: minus its velocity error, a bound on a likelihood."""
    x_0, error = rollout.latents.float(), 0
    for place in rollout.places:
        for seed in range(4):
            eps = torch.randn(x_0.shape, generator=torch.Generator().manual_seed(seed))
            v = policy.predict(rollout, (1 - place.sigma) * x_0 + place.sigma * eps, place.sigma)
            error = error + (v - (eps - x_0)).square().flatten(1).mean(dim=1)
    return -error


def climbed(policy, rollout):
    """The reward of each sample's picture, finished from the last step on, `[B]`."""
    last = len(rollout.places) - 1
    return brightness(policy.finish(rollout, last))


@pytest.mark.parametrize("advantages", [(1.0, -1.0), (-1.0, 1.0)])
def test_a_step_raises_the_better_of_two_samples_and_lowers_the_worse(name, advantages):
    """A small step against the gradient brings the policy closer to the good sample, and away from the bad one.

    Where objectives only attract, the good sample still gains more. Those that climb the reward itself raise it.
    """
    if name == "stepwise_grpo":
        pytest.skip("its advantages are its own, step by step: see test_stepwise_grpo.py")
    scene = Scene(name)
    rollout, pieces = scene.batch(0, 2)
    gradients = scene.gradients(rollout, pieces, torch.tensor(advantages), on_policy=True)
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    with torch.no_grad():
        measure = climbed if scene.objective.differentiates else closeness
        before = measure(scene.policy, rollout)
        for parameter, gradient in zip(scene.parameters, gradients, strict=True):
            parameter.sub_(0.05 * gradient / norm)
        change = measure(scene.policy, rollout) - before
    if scene.objective.differentiates:
        assert (change > 0).all()
        return
    better, worse = change[torch.tensor(advantages).argsort(descending=True)].tolist()
    assert better > max(worse, 0)
    assert worse < 0 or name in ATTRACTED


def test_two_updates_move_every_lora_tensor_and_not_the_reference(name):
    """B starts at 0, so it moves first and A second; the base model gives the same, bit for bit, all along."""
    scene = Scene(name, b=0.0)
    rollout, pieces = scene.batch()
    policy, optimizer = scene.policy, torch.optim.AdamW(scene.parameters, lr=1e-2)
    start = [parameter.detach().clone() for parameter in scene.parameters]
    with torch.no_grad(), policy.reference():
        base = policy.predict(rollout, rollout.latents, 0.5)
    for update in range(2):
        gradients = scene.gradients(rollout, pieces, on_policy=update == 0)
        for parameter, gradient in zip(scene.parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    named = zip(policy.parameters, scene.parameters, start, strict=True)
    assert [tensor for tensor, parameter, before in named if torch.equal(parameter, before)] == []
    with torch.no_grad(), policy.reference():
        assert torch.equal(policy.predict(rollout, rollout.latents, 0.5), base)
    with torch.no_grad():
        assert not torch.equal(policy.predict(rollout, rollout.latents, 0.5), base)


def test_a_loss_leaves_weights_and_copies_as_they_are(name):
    """A loss may look through other weights, and hands back the policy as it was; it draws nothing."""
    scene = Scene(name)
    rollout, pieces = scene.batch()
    scene.move()
    weights = [parameter.detach().clone() for parameter in scene.parameters]
    copies = {copy: dict(kept.tensors) for copy, kept in scene.copies.items()}
    values = {copy: {key: tensor.clone() for key, tensor in held.items()} for copy, held in copies.items()}
    random = torch.get_rng_state()
    first = [term.loss.detach() for term in scene.terms(rollout, pieces)]
    second = [term.loss.detach() for term in scene.terms(rollout, pieces)]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(torch.equal(parameter, kept) for parameter, kept in zip(scene.parameters, weights, strict=True))
    assert all(parameter.requires_grad for parameter in scene.parameters)
    for copy, held in copies.items():
        assert all(scene.copies[copy].tensors[key] is tensor for key, tensor in held.items())
        assert all(torch.equal(tensor, values[copy][key]) for key, tensor in held.items())
    assert torch.equal(torch.get_rng_state(), random)


def test_the_config_finds_it(name):
    """The name alone makes it, and its defaults fit the default schedule."""
    objective = make_objective(ObjectiveConfig(name=name))
    assert isinstance(objective, Objective)
    objective.check(RunConfig(model={"path": "a"}, rewards={"b": 1}).policy.steps)


def test_what_it_declares_fits_together(name):
    """A behaviour policy is one of the copies, and every decay is one at every step."""
    objective = plugins.load("objectives", name)()
    copies = objective.copies()
    assert objective.behaviour is None or objective.behaviour in copies
    assert "ema" not in copies  # that is the run's own
    for decay in copies.values():
        assert all(0 <= decay(step) <= 1 for step in (0, 1, 10, 10_000))


def test_an_unknown_option_is_refused_by_name(name):
    """The message lists the known ones, and every known one says what it is."""
    options = plugins.load("objectives", name).Options.model_fields
    known = re.escape(", ".join(options))
    with pytest.raises(UserError, match=rf"objective {name}: unknown key 'nonsense'\..* Known: {known}\."):
        make_objective(ObjectiveConfig.model_validate({"name": name, "nonsense": 1}))
    assert [option for option, field in options.items() if not field.description] == []
    defaults = plugins.load("objectives", name).Options().model_dump()
    assert make_objective(ObjectiveConfig.model_validate({"name": name, **defaults})).options.model_dump() == defaults


def test_options_are_checked_before_the_weights_load(name):
    """A value of a wrong type names the option."""
    option = next(iter(plugins.load("objectives", name).Options.model_fields))
    with pytest.raises(UserError, match=f"objective {name}: {option} is 'much'"):
        make_objective(ObjectiveConfig.model_validate({"name": name, option: "much"}))
