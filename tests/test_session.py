"""Tests of `flowrl.session`: what is recorded, and that a walk arrives with what was recorded."""

import pytest
import torch
from diffusers import DDIMScheduler

from flowrl import kernels
from flowrl.errors import UserError
from flowrl.policy import SeededNoise
from flowrl.session import Done, Finishing, Probing, Replaying, trainable_steps

from .test_scheduler import FLOW, SD15, ready, recording


def test_recording_draws_from_the_kernel():
    """Each step draws mean + std x noise, counts through the schedule, and is recorded with its log-probability."""
    session = recording()
    scheduler = ready(FLOW(shift=3.0), 3, session)
    noise, x = SeededNoise([0, 1]), torch.randn(2, 4)
    for step, timestep in enumerate(scheduler.timesteps):
        output = torch.randn(2, 4)
        mean, std = kernels.flow_sde()(x, output, scheduler.places[step])
        wanted = mean if step == 2 else mean + std * noise(x)
        x_next = scheduler.step(output, timestep, x, return_dict=False)[0]
        assert torch.equal(x_next, wanted)
        if step < 2:
            transition = session.transitions[step]
            assert transition.place == scheduler.places[step]
            assert torch.equal(transition.x, x)
            assert torch.equal(transition.x_next, x_next)
            assert torch.equal(transition.log_prob, kernels.log_prob(x_next, mean, std))
        x = x_next
    assert sorted(session.transitions) == [0, 1]
    assert torch.equal(session.last, x)
    assert session.transitions[1].x is session.transitions[0].x_next


def test_recorded_log_prob_is_that_of_the_stored_dtype():
    """x_next is rounded to the model's dtype before its density is taken, so a replay sees the same number."""
    session = recording()
    scheduler = ready(FLOW(shift=3.0), 3, session)
    x, output = torch.randn(2, 2, 4).bfloat16()
    scheduler.step(output, scheduler.timesteps[0], x)
    transition = session.transitions[0]
    mean, std = kernels.flow_sde()(x, output, scheduler.places[0])
    assert transition.x_next.dtype == torch.bfloat16
    assert torch.equal(transition.log_prob, kernels.log_prob(transition.x_next.float(), mean, std))


@pytest.mark.parametrize("stock", [FLOW(shift=3.0), DDIMScheduler(**SD15)], ids=["flow", "ddim"])
@pytest.mark.parametrize("step", [0, 2, 3])
def test_replaying_walks_to_its_step(stock, step):
    """The pipeline sees the whole schedule, without models on the way, gets the recorded x there, and is cut short."""
    kernel = kernels.ddim() if isinstance(stock, DDIMScheduler) else kernels.flow_sde()
    session = recording(kernel)
    scheduler = ready(stock, 5, session)
    x = start = torch.randn(2, 4)
    output = torch.randn(2, 4)
    for timestep in scheduler.timesteps:
        x = scheduler.step(output, timestep, x).prev_sample
    transition = session.transitions[step]

    replaying = Replaying(kernel, transition, session.arrivals.get(step))
    shown = ready(stock, 5, replaying)
    assert shown.timesteps.tolist() == scheduler.timesteps.tolist()
    x = start
    for before in range(step):
        assert replaying.walking
        x = shown.step(torch.zeros(2, 4), shown.timesteps[before], x, return_dict=False)[0]
    assert not replaying.walking
    assert torch.equal(x, transition.x)
    with pytest.raises(Done):
        shown.step(output, shown.timesteps[step], x)
    assert torch.equal(replaying.log_prob, transition.log_prob)
    assert replaying.model_output is output


@pytest.mark.parametrize("stock", [FLOW(shift=3.0), DDIMScheduler(**SD15, clip_sample=False)], ids=["flow", "ddim"])
def test_finishing_goes_on_without_noise(stock):
    """From the step that was walked to, each step is the deterministic one, to the end, with gradients."""
    kernel = kernels.ddim() if isinstance(stock, DDIMScheduler) else kernels.flow_sde()
    session = recording(kernel, train_steps=(), noise_steps=[0, 1], keep_steps=[2])
    scheduler = ready(stock, 4, session)
    x = start = torch.randn(2, 4)
    output = torch.randn(2, 4)
    for timestep in scheduler.timesteps:
        x = scheduler.step(output, timestep, x).prev_sample
    finishing = Finishing(kernel, 2, session.arrivals[2])
    again, y = ready(stock, 4, finishing), start
    traced = output.clone().requires_grad_()
    for step, timestep in enumerate(again.timesteps):
        assert finishing.walking == (step < 2)
        y = again.step(torch.zeros(2, 4) if step < 2 else traced, timestep, y).prev_sample
    assert torch.equal(y, x)
    y.sum().backward()
    assert traced.grad.abs().min() > 0


def test_arrivals_are_what_the_step_before_returned():
    """The latents themselves, unless the pipeline changes them between two steps (as inpainting does)."""
    session = recording()
    scheduler, x = ready(FLOW(shift=3.0), 3, session), torch.randn(2, 4)
    first = scheduler.step(x, scheduler.timesteps[0], x).prev_sample
    scheduler.step(x, scheduler.timesteps[1], first + 1)
    assert 0 not in session.arrivals
    assert torch.equal(session.arrivals[1], first)
    assert torch.equal(session.transitions[1].x, first + 1)
    assert session.transitions[0].x_next is session.arrivals[1]


@pytest.mark.parametrize("stock", [FLOW(shift=3.0), DDIMScheduler(**SD15)], ids=["flow", "ddim"])
@pytest.mark.parametrize("level", [300, [300, 700]], ids=["shared", "one a sample"])
@pytest.mark.parametrize("start", [0, 3], ids=["from noise", "from a picture"])
def test_probing_shows_the_callers_timestep(stock, level, start):
    """The pipeline walks one step, sees the timestep that was asked for, and is cut short with its output."""
    output, x, x_t = torch.randn(2, 4), torch.randn(2, 4), torch.randn(2, 4)
    probing = Probing(torch.tensor(level), x_t)
    scheduler = ready(stock, 4, probing)
    shown = scheduler.timesteps[start:]  # as a pipeline that starts from a picture cuts them
    assert probing.walking
    assert torch.equal(scheduler.step(torch.zeros(2, 4), shown[0], x, return_dict=False)[0], x_t)
    assert not probing.walking
    assert shown[1].tolist() == level
    with pytest.raises(Done):
        scheduler.step(output, shown[1], x_t)
    assert probing.model_output is output


@pytest.mark.parametrize(
    ("stds", "wanted"),
    [
        ([], []),
        ([0.0, 0.0], []),
        ([0.5], [0]),
        ([0.7, 0.0, 0.4, 0.0], [0, 2]),
        # The median of the stochastic ones is 0.4, its share 0.02: the step with 0.019 is left out.
        ([0.7, 0.5, 0.4, 0.021, 0.019, 0.0], [0, 1, 2, 3]),
    ],
)
def test_trainable_steps(stds, wanted):
    """Deterministic steps and those with almost no noise are left out of "all"."""
    assert trainable_steps(stds) == wanted


def test_a_step_under_the_floor_is_trained_on_request():
    """SD3's last noisy step of flow_cps, whose std is tiny, is not in "all"; a list that names it has it."""
    kernel = kernels.flow_cps(0.7)
    everything, named = recording(kernel), recording(kernel, train_steps=[8])
    for session in (everything, named):
        scheduler, x = ready(FLOW(shift=3.0), 10, session), torch.randn(2, 4)
        for timestep in scheduler.timesteps:
            x = scheduler.step(x, timestep, x).prev_sample
    assert sorted(everything.transitions) == list(range(8))
    assert sorted(named.transitions) == [8]


@pytest.mark.parametrize("choice", ["train_steps", "noise_steps"])
@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([0, 10, 11], r"contains \[10, 11\], but the schedule has the steps 0 to 9"),
        ([-1], r"contains \[-1\]"),
        ("first", "is 'first'; wanted 'all' or a list of step indices"),
    ],
)
def test_steps_outside_the_schedule(choice, steps, wanted):
    """They are refused when the schedule is known, before any model call."""
    with pytest.raises(UserError, match=f"{choice} {wanted}"):
        ready(FLOW(shift=3.0), 10, recording(**{choice: steps}))


def test_deterministic_steps_cannot_be_trained():
    """The last step of a flow schedule, and every step of the ODE."""
    with pytest.raises(UserError, match=r"step 9, which is deterministic \(std 0\) with kernel 'flow_sde'"):
        ready(FLOW(shift=3.0), 10, recording(train_steps=[8, 9]))
    with pytest.raises(UserError, match=r"step 3.*kernel 'ode' at noise_level 0.0.*Stochastic steps here: none"):
        ready(FLOW(shift=3.0), 10, recording(kernels.ode(), train_steps=[3]))
