"""Tests of `flowrl.scheduler`: what pipelines do with their schedulers beside calling ``step`` once for each sample."""

import copy

import numpy as np
import pytest
import torch
from diffusers import (
    EulerDiscreteScheduler,
    FlowMapEulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

from flowrl import kernels
from flowrl.calls import as_pictures
from flowrl.errors import UserError
from flowrl.policy import SeededNoise
from flowrl.scheduler import FlowPolicyScheduler, policy_scheduler
from flowrl.session import Done, Finishing, Probing, Recording, Replaying

from . import tiny

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # diffusers', under numpy 2

FLOW = FlowMatchEulerDiscreteScheduler
SVD = EulerDiscreteScheduler(
    prediction_type="v_prediction",
    sigma_max=700.0,
    sigma_min=0.002,
    timestep_type="continuous",
    use_karras_sigmas=True,
)


def recording(kernel=None, **choice):
    """A session that draws for two samples."""
    return Recording(kernel or kernels.flow_sde(), SeededNoise([0, 1]), **choice)


def ready(stock, steps, session=None, **schedule):
    """A policy scheduler with its schedule set."""
    scheduler = policy_scheduler(stock)
    scheduler.session = session or recording(train_steps=())
    scheduler.set_timesteps(steps, device="cpu", **schedule)
    return scheduler


def walk(scheduler, x, output, steps):
    """Latents after every step, with one output for all."""
    found = []
    for timestep in scheduler.timesteps[:steps]:
        x = scheduler.step(output, timestep, scheduler.scale_model_input(x, timestep) * 0 + x).prev_sample
        found.append(x)
    return found


def test_a_level_of_the_schedule_has_its_own_timestep():
    """UniPC's timesteps are whole numbers, cut off, and not 1000 sigma; other levels are cut off alike."""
    ours = ready(UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0), 7)
    for place in ours.places:
        assert ours.timestep_at(torch.tensor(place.sigma)) == place.timestep
    assert ours.timestep_at(torch.tensor(0.12345)) == 123
    assert not ours.timestep_at(torch.tensor(0.5)).is_floating_point()
    assert ready(FLOW(shift=3.0), 7).timestep_at(torch.tensor(0.125)) == 125


def test_inverted_time():
    """Mochi's model counts from noise at 0 to data at 1; a policy counts as it always does, and steps the same."""
    stock = FLOW(invert_sigmas=True)
    stock.set_timesteps(sigmas=np.linspace(1.0, 0.25, 4))
    ours = ready(
        FLOW(invert_sigmas=True), None, recording(kernels.ode(), train_steps=()), sigmas=np.linspace(1.0, 0.25, 4)
    )
    assert torch.equal(ours.sigmas, stock.sigmas)
    assert [place.sigma for place in ours.places] == [1.0, 0.75, 0.5, 0.25]
    assert ours.places[-1].sigma_next == 0
    assert ours.timestep_at(torch.tensor(0.4)) == 600
    x, output = torch.randn(2, 4), torch.randn(2, 4)
    for timestep in stock.timesteps:
        wanted = stock.step(output, timestep, x).prev_sample
        assert torch.equal(ours.step(output, timestep, x).prev_sample, wanted)


def test_a_timestep_for_each_token_comes_with_the_opposite_velocity():
    """LTX's conditions: diffusers' step then subtracts; where all tokens have one timestep, ours gives the same."""
    stock, ours = FLOW(), ready(FLOW(), 4, recording(kernels.ode(), train_steps=()))
    stock.set_timesteps(4)
    x, output = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    for timestep in stock.timesteps:
        tokens = {"per_token_timesteps": timestep.expand(2, 3)}
        wanted = stock.step(output, timestep, x, **tokens).prev_sample
        torch.testing.assert_close(ours.step(output, timestep, x, **tokens).prev_sample, wanted)


@pytest.mark.parametrize(
    ("stock", "schedule"),
    [(FLOW(use_karras_sigmas=True), {"sigmas": [1.0] * 6}), (SVD, {})],
    ids=["epsilon", "v"],
)
def test_growing_noise_is_a_flow(stock, schedule):
    """Cosmos' and SVD's sigmas go far beyond 1: the places are a flow's, and without noise the steps the stock's."""
    stock = copy.deepcopy(stock)
    if isinstance(stock, FLOW):
        stock.register_to_config(sigma_max=80.0, sigma_min=0.002)
    steps = None if schedule else 6
    ours = ready(stock, steps, recording(kernels.ode(), train_steps=()), **schedule)
    stock.set_timesteps(steps, device="cpu", **schedule)
    assert ours.exploding
    growth = stock.sigmas.double()
    torch.testing.assert_close(torch.tensor([p.sigma for p in ours.places]).double(), growth[:-1] / (1 + growth[:-1]))
    for place in ours.places:
        assert ours.timestep_at(torch.tensor(place.sigma)) == place.timestep
    x = y = growth[0].float() * torch.randn(2, 4)
    for timestep in stock.timesteps:
        output = torch.randn(2, 4)
        if not isinstance(stock, FLOW):
            torch.testing.assert_close(ours.scale_model_input(x, timestep), stock.scale_model_input(x, timestep))
        x, y = (scheduler.step(output, timestep, latents).prev_sample for scheduler, latents in ((ours, x), (stock, y)))
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_a_probe_stands_at_its_level_where_noise_grows():
    """It is given a flow's latents, and the pipeline gets them as they grow."""
    x_t = torch.randn(2, 4)
    ours = policy_scheduler(SVD)
    ours.session = recording(train_steps=())
    ours.set_timesteps(6)
    level = ours.places[2].sigma
    ours.session = Probing(ours.timestep_at(torch.tensor(level)), x_t, torch.tensor(level))
    ours.set_timesteps(6)
    shown = ours.step(torch.zeros(2, 4), ours.timesteps[0], torch.randn(2, 4)).prev_sample
    torch.testing.assert_close(shown, x_t / (1 - level))
    assert ours.timesteps[1] == ours.places[2].timestep
    with pytest.raises(Done):
        ours.step(torch.zeros(2, 4), ours.timesteps[1], shown)
    growth = level / (1 - level)
    eps = shown * growth / (growth**2 + 1)
    torch.testing.assert_close(ours.session.model_output, (eps - x_t) / (1 - level), rtol=1e-4, atol=1e-4)


def test_holding_still_at_the_end():
    """Cosmos sets the last sigma to the one before it, after the schedule is set: the last step changes nothing."""
    stock = FLOW(use_karras_sigmas=True)
    stock.register_to_config(sigma_max=80.0, sigma_min=0.002)
    ours = ready(stock, None, sigmas=[1.0] * 4)
    ours.sigmas[-1] = ours.sigmas[-2]
    *_, before, last = walk(ours, torch.randn(2, 4), torch.randn(2, 4), 4)
    torch.testing.assert_close(last, before)
    assert ours.places[-1].sigma_next == ours.places[-1].sigma


def test_a_schedule_that_is_run_again_is_refused():
    """A video in sections is not one trajectory: the second section would replace the transitions of the first."""
    ours = ready(FLOW(), 3, recording())
    walk(ours, torch.randn(2, 4), torch.randn(2, 4), 3)
    ours.set_timesteps(3)  # setting it anew alone does no harm
    with pytest.raises(UserError, match="more than once in a call"):
        walk(ours, torch.randn(2, 4), torch.randn(2, 4), 3)


def test_flow_maps_are_accepted():
    """AnyFlow's scheduler, in float64, is Euler steps too."""
    stock = FlowMapEulerDiscreteScheduler(shift=5.0)
    ours = ready(stock, 4, recording(kernels.ode(), train_steps=()))
    stock.set_timesteps(4)
    assert isinstance(ours, FlowPolicyScheduler)
    x, output = torch.randn(2, 4), torch.randn(2, 4)
    for timestep in stock.timesteps:
        wanted = stock.step(output, timestep, x).prev_sample
        torch.testing.assert_close(ours.step(output, timestep, x).prev_sample, wanted)


def test_frames_folded_into_the_batch():
    """Pipelines that step the frames of all videos as one batch: each video has its own noise, and one log_prob."""
    session = recording()
    ours = policy_scheduler(FLOW())
    ours.session, ours.batch = session, 2
    ours.set_timesteps(3)
    x, output = torch.randn(6, 4), torch.randn(6, 4)
    after = ours.step(output, ours.timesteps[0], x).prev_sample
    assert after.shape == (6, 4)
    assert session.transitions[0].log_prob.shape == (2,)
    assert torch.equal(session.transitions[0].x_next.flatten(0, 1), after)
    wanted, std = kernels.flow_sde()(x, output, ours.places[0])
    assert torch.equal(after, wanted + std * SeededNoise([0, 1])(torch.zeros(2, 3, 4)).flatten(0, 1))


def test_latents_beside_are_stepped_without_noise_and_handed_over():
    """A pipeline copies its scheduler for the sound of a video: a replay gets the sound of the rollout there."""
    kernel, generator = kernels.flow_sde(), torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 2, 2, 4, generator=generator)
    start = torch.randn(2, 2, 4, generator=generator)

    def call(session, answer):
        ours = policy_scheduler(FLOW())
        ours.session = session
        beside = copy.deepcopy(ours)
        beside.set_timesteps(4)
        ours.set_timesteps(4)
        x, sound = start
        seen = []
        for step, timestep in enumerate(ours.timesteps):
            seen.append(sound)
            video_output, sound_output = answer(session, outputs[step])
            x = ours.step(video_output, timestep, x).prev_sample
            sound = beside.step(sound_output, timestep, sound).prev_sample
        return x, sound, seen, ours.places

    session = recording(kernel)
    _, sound, seen, places = call(session, lambda _, output: output)
    wanted = start[1]
    for place, output in zip(places, outputs, strict=True):
        assert torch.equal(seen[place.step], wanted)
        wanted = kernels.ode()(wanted, output[1], place)[0]
    assert torch.equal(sound, wanted)
    assert sorted(session.transitions) == [0, 1, 2]
    assert all(torch.equal(session.arrivals_beside[step][0], seen[step]) for step in (1, 2))

    def blank(walking, output):
        return torch.zeros_like(output) if walking.walking else output

    for step in (1, 2):
        arrivals = session.arrivals.get(step), session.arrivals_beside.get(step)
        replaying = Replaying(kernel, session.transitions[step], arrivals[0], arrivals_beside=arrivals[1])
        with pytest.raises(Done):
            call(replaying, blank)
        assert torch.equal(replaying.log_prob, session.transitions[step].log_prob)
        _, again, _, _ = call(Finishing(kernel, step, *arrivals), blank)
        assert torch.equal(again, sound)


def test_copies_that_step_alone_are_refused():
    """Diffusion forcing steps each block of frames with a copy: nothing that the scheduler itself could record."""
    ours = ready(FLOW(), 4, recording())
    alone = copy.deepcopy(ours)
    x = alone.step(torch.zeros(2, 4), ours.timesteps[0], torch.randn(2, 4)).prev_sample
    with pytest.raises(UserError, match="copies of its scheduler alone"):
        alone.step(torch.zeros(2, 4), ours.timesteps[1], x)


def test_pictures_of_one_sample_have_a_batch_axis():
    """Cosmos 3 leaves it out; a picture of one sample has one already, and pictures of several always."""
    assert as_pictures(torch.zeros(5, 3, 8, 8), 1).shape == (1, 5, 3, 8, 8)
    assert as_pictures(torch.zeros(1, 3, 8, 8), 1).shape == (1, 3, 8, 8)
    assert as_pictures(torch.zeros(5, 3, 8, 8), 5).shape == (5, 3, 8, 8)


def test_pictures_have_their_channels_before_their_height():
    """LTX 2 in a high dynamic range gives tensors with the channels last."""
    assert as_pictures(torch.zeros(2, 5, 8, 6, 3), 2).shape == (2, 5, 3, 8, 6)
    assert as_pictures(torch.zeros(2, 3, 8, 3), 2).shape == (2, 3, 8, 3)


@pytest.mark.filterwarnings("ignore")
def test_one_sample_comes_without_lists():
    """Some pipelines (Wan VACE, Cosmos 3) take one prompt and one generator, not lists of one; the others take both."""
    made = tiny.policy("sd3", "flow_sde")
    call = {"seeds": [3], "steps": 2, "guidance_scale": 4.5, "train_steps": ()}
    alone = made.rollout(["a red circle"], negative_prompt=["a blue circle"], **call)
    assert (alone.call["prompt"], alone.call["negative_prompt"]) == ("a red circle", "a blue circle")
    assert len(alone.images) == len(made.sample(["a red circle"], seeds=[3], steps=2)) == 1
