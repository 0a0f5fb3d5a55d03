"""Tests of `flowrl.scheduler`: the schedule is the pipeline's own, and the session decides what a step does."""

import inspect
import json
import math
from pathlib import Path

import pytest
import torch
from diffusers import (
    CogVideoXDDIMScheduler,
    CogVideoXDPMScheduler,
    DDIMScheduler,
    DDPMScheduler,
    DDPMWuerstchenScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    SCMScheduler,
    UnCLIPScheduler,
    UniPCMultistepScheduler,
)

from flowrl import kernels
from flowrl.errors import UserError
from flowrl.kernels import DDPMPlace, FlowPlace
from flowrl.policy import SeededNoise
from flowrl.scheduler import DDPMPolicyScheduler, FlowPolicyScheduler, policy_scheduler
from flowrl.session import Probing, Recording, Replaying

GOLDEN = Path(__file__).parent / "data" / "golden"
FLOW = FlowMatchEulerDiscreteScheduler
SD15 = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


def recording(kernel=None, **choice):
    """A session that draws for two samples."""
    return Recording(kernel or kernels.flow_sde(), SeededNoise([0, 1]), **choice)


def ready(stock, steps, session=None, **schedule):
    """A policy scheduler with its schedule set."""
    scheduler = policy_scheduler(stock)
    kernel = kernels.ddim() if isinstance(scheduler, DDPMPolicyScheduler) else kernels.flow_sde()
    scheduler.session = session or recording(kernel, train_steps=())
    scheduler.set_timesteps(steps, "cpu", **schedule)
    return scheduler


@pytest.mark.parametrize("steps", [2, 10, 28])
@pytest.mark.parametrize(
    ("stock", "schedule"),
    [
        (FLOW(shift=3.0), {}),
        (FLOW(shift=1.0), {}),
        (FLOW(use_dynamic_shifting=True), {"mu": 0.8}),
        (FLOW(use_dynamic_shifting=True, time_shift_type="linear"), {"mu": 0.8}),
        (FLOW(shift=3.0, shift_terminal=0.02), {}),
        (FLOW(use_karras_sigmas=True), {}),
        (FLOW(num_train_timesteps=500, shift=2.0), {}),
    ],
    ids=["sd3", "unshifted", "flux", "linear", "terminal", "karras", "500"],
)
def test_flow_schedule_is_the_pipelines_own(stock, schedule, steps):
    """Timesteps and sigmas are those of the stock scheduler, bit for bit, and each place holds its pair of them."""
    ours = ready(stock, steps, **schedule)
    stock.set_timesteps(steps, "cpu", **schedule)
    assert torch.equal(ours.timesteps, stock.timesteps)
    assert torch.equal(ours.sigmas, stock.sigmas)
    sigmas = stock.sigmas.tolist()
    assert ours.places == [
        FlowPlace(k, stock.timesteps[k].item(), sigmas[k], sigmas[k + 1], sigmas[1]) for k in range(steps)
    ]


def test_flow_schedule_of_the_callers_sigmas():
    """FLUX passes its own sigmas; a shift that was set after the scheduler was made is kept."""
    stock, sigmas = FLOW(), [1.0, 0.7, 0.2]
    stock.set_shift(2.0)
    ours = ready(stock, None, sigmas=sigmas)
    # 2 s / (1 + s): 1.4 / 1.7 and 0.4 / 1.2.
    assert ours.sigmas.tolist() == pytest.approx([1.0, 0.823529, 0.333333, 0.0], abs=1e-6)
    assert ours.timesteps.tolist() == pytest.approx([1000, 823.529, 333.333], abs=1e-3)


def test_golden_flow_schedule():
    """The schedule of SD3 (shift 3, 10 steps) is the one under which the authors' code was run."""
    places = ready(FLOW(shift=3.0), 10).places
    records = json.loads((GOLDEN / "flow_kernels.json").read_text())["records"]
    records = [record for record in records if (record["shift"], record["num_inference_steps"]) == (3.0, 10)]
    assert len(records) >= 4
    for record in records:
        place = places[record["step"]]
        wanted = (record["sigma"], record["sigma_next"], record["sigma_second"])
        assert (place.sigma, place.sigma_next, place.sigma_second) == wanted


def test_golden_ddim_schedule():
    """The schedule of SD1.5 (20 steps) is the one under which the authors' code was run."""
    places = ready(DDIMScheduler(**SD15, set_alpha_to_one=False, clip_sample=False), 20).places
    for record in json.loads((GOLDEN / "ddim_kernels.json").read_text())["records"]:
        place = places[record["step"]]
        assert place.timestep == record["timestep"]
        wanted = (record["alpha_cumprod"], record["alpha_cumprod_next"])
        assert (place.alpha_cumprod, place.alpha_cumprod_next) == pytest.approx(wanted, rel=1e-6)


DDPM_TYPE = [
    DDIMScheduler(**SD15, clip_sample=False),
    DDIMScheduler(**SD15, timestep_spacing="trailing", prediction_type="v_prediction"),
    DDPMScheduler(timestep_spacing="linspace", clip_sample_range=2.0),
    PNDMScheduler(**SD15, skip_prk_steps=True),
    EulerDiscreteScheduler(**SD15, timestep_spacing="leading"),
    DPMSolverMultistepScheduler(**SD15),
    UniPCMultistepScheduler(**SD15),
]


@pytest.mark.parametrize("stock", DDPM_TYPE, ids=lambda stock: type(stock).__name__)
def test_ddpm_type_schedulers_become_ddim(stock, caplog):
    """Betas, spacing and prediction type are the stock scheduler's, and nothing is logged about foreign settings."""
    ours = ready(stock, 10)
    assert isinstance(ours, DDPMPolicyScheduler)
    assert torch.equal(ours.alphas_cumprod, stock.alphas_cumprod)
    for key in ("timestep_spacing", "prediction_type", "steps_offset", "num_train_timesteps"):
        assert ours.config[key] == stock.config[key]
    timesteps = ours.timesteps.tolist()
    assert [place.timestep for place in ours.places] == timesteps
    assert [place.alpha_cumprod for place in ours.places] == ours.alphas_cumprod[timesteps].tolist()
    assert ours.init_noise_sigma == 1
    assert caplog.records == []


@pytest.mark.parametrize("stock", DDPM_TYPE, ids=lambda stock: type(stock).__name__)
def test_clipping_is_the_stock_schedulers(stock):
    """x_0 is clipped where the stock scheduler clips it; DDIM's default would clip the latents of every model."""
    clips = stock.config.get("clip_sample", False)
    assert {place.clip_range for place in ready(stock, 10).places} == {
        stock.config.clip_sample_range if clips else None
    }


@pytest.mark.parametrize("stock", DDPM_TYPE[:2], ids=["leading", "trailing"])
def test_ddim_schedule_is_the_pipelines_own(stock):
    """For DDIM itself the timesteps are equal, and alpha_cumprod_next is that of the next place."""
    ours = ready(stock, 10)
    stock.set_timesteps(10)
    assert torch.equal(ours.timesteps, stock.timesteps)
    assert [p.alpha_cumprod_next for p in ours.places[:-1]] == [p.alpha_cumprod for p in ours.places[1:]]
    assert ours.places[-1].alpha_cumprod_next == stock.final_alpha_cumprod


@pytest.mark.parametrize(
    ("stock", "wanted"),
    [
        (FlowMatchHeunDiscreteScheduler(), "FlowMatchHeunDiscreteScheduler cannot be turned into a policy"),
        (UnCLIPScheduler(), "UnCLIPScheduler cannot be turned into a policy"),
        (FLOW(stochastic_sampling=True), "with stochastic_sampling"),
        (object(), "object cannot be turned into a policy; supported are FlowMatchEulerDiscreteScheduler"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_unsupported_schedulers(stock, wanted):
    """A scheduler with a protocol or a process of its own is refused, and the message says what is supported."""
    with pytest.raises(UserError, match=wanted):
        policy_scheduler(stock)


def test_dynamic_thresholding_is_refused():
    """Its clipping depends on the batch: the transition would not be a Gaussian."""
    with pytest.raises(UserError, match="thresholding=False"):
        ready(DDIMScheduler(thresholding=True), 10)


def test_sigmas_must_fall():
    """A schedule that stands still has steps without a density."""
    with pytest.raises(UserError, match=r"must fall strictly, but 0\.5 is followed by 0\.5"):
        ready(FLOW(), None, sigmas=[1.0, 0.5, 0.5])


@pytest.mark.parametrize("stock", [FLOW(shift=3.0), DDIMScheduler(**SD15)], ids=["flow", "ddim"])
def test_step_returns_a_tuple_or_an_object(stock):
    """Pipelines ask for either."""
    kernel = kernels.ddim() if isinstance(stock, DDIMScheduler) else kernels.flow_sde()
    scheduler = ready(stock, 4, recording(kernel))
    x = torch.randn(2, 4)
    made = scheduler.step(x, scheduler.timesteps[0], x)
    (again,) = scheduler.step(x, scheduler.timesteps[1], made.prev_sample, return_dict=False)[:1]
    assert made.prev_sample.shape == again.shape == x.shape


def test_what_a_pipeline_writes_into_its_latents_is_not_recorded():
    """Neither a step's result that it copies into them, nor a condition that it writes into a step's result."""
    session = recording()
    scheduler, whole = ready(FLOW(shift=3.0), 3, session), torch.randn(2, 4)
    start = whole.clone()
    whole[:] = scheduler.step(torch.ones(2, 4), scheduler.timesteps[0], whole[:]).prev_sample
    second = whole.clone()
    third = scheduler.step(torch.ones(2, 4), scheduler.timesteps[1], whole[:]).prev_sample
    whole.zero_()
    assert torch.equal(session.transitions[0].x, start)
    assert torch.equal(session.transitions[0].x_next, second)
    assert session.transitions[1].x is session.transitions[0].x_next
    wanted = third.clone()
    third.zero_()
    assert torch.equal(session.transitions[1].x_next, wanted)


def test_what_a_pipeline_writes_into_an_arrival_is_not_kept():
    """A replay and a probe hand out copies: the rollout's tensors and the caller's stay as they are."""
    session = recording()
    scheduler, x = ready(FLOW(shift=3.0), 3, session), torch.randn(2, 4)
    scheduler.step(x, scheduler.timesteps[1], scheduler.step(x, scheduler.timesteps[0], x).prev_sample)
    for walk, kept in (
        (Replaying(kernels.flow_sde(), session.transitions[1], session.arrivals[1]), session.arrivals[1]),
        (Probing(torch.tensor(500.0), x), x),
    ):
        again, wanted = ready(FLOW(shift=3.0), 3, walk), kept.clone()
        again.step(x, again.timesteps[0], x).prev_sample.zero_()
        assert torch.equal(kept, wanted)


FLOW_SOLVERS = [
    UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
    DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
]


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # diffusers', under numpy 2
@pytest.mark.parametrize("stock", FLOW_SOLVERS, ids=lambda stock: type(stock).__name__)
def test_flow_solvers_keep_their_schedule(stock):
    """A multistep solver set to flow matching becomes Euler on its own timesteps and sigmas, with finite noise."""
    ours = ready(stock, 6)
    stock.set_timesteps(6, "cpu")
    assert isinstance(ours, FlowPolicyScheduler)
    assert isinstance(ours, type(stock))
    assert torch.equal(ours.timesteps, stock.timesteps)
    assert torch.equal(ours.sigmas, stock.sigmas)
    assert inspect.signature(ours.set_timesteps) == inspect.signature(stock.set_timesteps)
    x, v = torch.randn(2, 4), torch.randn(2, 4)
    mean, _ = kernels.ode()(x, v, ours.places[2])
    torch.testing.assert_close(mean, x + (stock.sigmas[3] - stock.sigmas[2]) * v)
    stds = [kernels.flow_sde(0.7).std(place) for place in ours.places]
    assert 0 < stds[0] < 2


def test_cogvideox_keeps_its_own_signal_shares():
    """Its schedule is rescaled to no signal at the start; DDIM with the same betas would have another."""
    for stock in (CogVideoXDDIMScheduler(snr_shift_scale=3.0), CogVideoXDPMScheduler(snr_shift_scale=3.0)):
        ours = ready(stock, 5)
        stock.set_timesteps(5)
        assert torch.equal(ours.timesteps, stock.timesteps)
        assert [place.alpha_cumprod for place in ours.places] == stock.alphas_cumprod[stock.timesteps].tolist()


def test_timestep_of_a_noise_level():
    """Flow models are told 1000 sigma; DDPM-type models the timestep whose noise share is nearest."""
    flow, ddpm = ready(FLOW(shift=3.0), 10), ready(DDIMScheduler(**SD15), 10)
    for place in flow.places:
        assert flow.timestep_at(torch.tensor(place.sigma)).item() == place.timestep
    shares = torch.tensor([place.sigma for place in ddpm.places])
    assert ddpm.timestep_at(shares).tolist() == [place.timestep for place in ddpm.places]
    assert isinstance(flow, FlowPolicyScheduler)
    assert isinstance(ddpm.places[0], DDPMPlace)


@pytest.mark.parametrize("begin", [0, 2])
def test_what_a_mask_keeps_is_noised_as_by_the_stock_scheduler(begin):
    """Inpainting asks for the level of the next step after each step: `scale_noise` knows which one that is."""
    stock, ours = FLOW(shift=3.0), ready(FLOW(shift=3.0), 6)
    stock.set_timesteps(6)
    kept, noise = torch.randn(2, 4), torch.randn(2, 4)
    for scheduler in (stock, ours):
        scheduler.set_begin_index(begin)
    for timestep in stock.timesteps[begin:]:
        for scheduler in (stock, ours):
            scheduler.step(noise, timestep, kept)
        assert torch.equal(*(scheduler.scale_noise(kept, timestep[None], noise) for scheduler in (stock, ours)))


def test_what_a_mask_keeps_is_at_the_level_of_a_probe():
    """Whatever step the pipeline takes a probe for."""
    ours = ready(FLOW(shift=3.0), 6, Probing(torch.tensor(250.0), torch.zeros(2, 4), torch.tensor(0.25)))
    ours.set_begin_index(2)
    kept, noise = torch.randn(2, 4), torch.randn(2, 4)
    ours.step(noise, ours.timesteps[2], kept)
    torch.testing.assert_close(ours.scale_noise(kept, ours.timesteps[3][None], noise), 0.75 * kept + 0.25 * noise)


def test_flow_latents_need_no_scaling():
    """Pipelines that know no other flow scheduler than diffusers' own class ask for it."""
    x = torch.randn(2, 4)
    assert ready(FLOW(shift=3.0), 6).scale_model_input(x, 500.0) is x


@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_lcm_schedule_is_the_pipelines_own(strength):
    """Each step of LCM leads to the next timestep, whose signal share it has, and the last one to the data."""
    stock = LCMScheduler()
    scheduler = policy_scheduler(stock)
    scheduler.session = recording(kernels.consistency(), train_steps=())
    for each in (scheduler, stock):
        each.set_timesteps(4, original_inference_steps=50, strength=strength)
    assert torch.equal(scheduler.timesteps, stock.timesteps)
    shares = stock.alphas_cumprod[stock.timesteps].tolist()
    assert [place.alpha_cumprod for place in scheduler.places] == shares
    assert [place.alpha_cumprod_next for place in scheduler.places] == [*shares[1:], 1.0]
    for place, timestep in zip(scheduler.places, stock.timesteps, strict=True):
        assert (place.c_skip, place.c_out) == stock.get_scalings_for_boundary_condition_discrete(timestep)
    assert scheduler.session.stds == pytest.approx([*((1 - share) ** 0.5 for share in shares[1:]), 0.0])


def test_lcm_pipelines_read_the_clean_latents_too():
    """Beside the latents, that is; what they decode is those of the last step."""
    scheduler = policy_scheduler(LCMScheduler())
    scheduler.session = recording(kernels.consistency(0.0), train_steps=())
    scheduler.set_timesteps(1)
    x, output = torch.randn(2, 2, 4)
    latents, denoised = scheduler.step(output, scheduler.timesteps[0], x, return_dict=False)
    stock = LCMScheduler()
    stock.set_timesteps(1)
    assert torch.equal(denoised, stock.step(output, stock.timesteps[0], x, return_dict=False)[1])
    assert torch.equal(latents, denoised)


def test_guidances_double_batch_is_one_batch():
    """A pipeline may hand both halves of guidance's batch to its scheduler, as DiT's does: one is the micro-batch."""
    scheduler = ready(DDIMScheduler(**SD15), 3, recording(kernels.ddim(), train_steps="all"))
    scheduler.batch, x = 2, torch.randn(2, 4)
    x_next = scheduler.step(torch.zeros(4, 4), scheduler.timesteps[0], torch.cat([x, x])).prev_sample
    assert scheduler.copies == 2
    transition = scheduler.session.transitions[0]
    assert torch.equal(transition.x, x)
    assert torch.equal(x_next, torch.cat([transition.x_next] * 2))


def test_different_halves_are_no_copies():
    """A batch of twice as many latents that differ is not guidance's."""
    scheduler = ready(DDIMScheduler(**SD15), 3, recording(kernels.ddim(), train_steps="all"))
    scheduler.batch = 2
    scheduler.step(torch.zeros(4, 4), scheduler.timesteps[0], torch.randn(4, 4))
    assert scheduler.copies == 1


@pytest.mark.parametrize(("level", "mean", "std"), [(0.0, 0.9330127, 0.0), (1.0, 0.4330127, 0.5)])
def test_trigflow_step_by_hand(level, mean, std):
    """From pi / 2 to pi / 6, of a model with sigma_data 0.5, and from there to the data.

    At pi / 2 the data are ``-v = 0.25`` and the noise is ``x = 0.5``: 0.5 and 1 in units of sigma_data. At pi / 6 they
    have the shares 0.8660254 and 0.5. The last step is the jump ``cos(pi / 6) x - sin(pi / 6) v`` for every noise.
    """
    angles = [math.pi / 2, math.pi / 6, 0.0]
    session = Recording(kernels.consistency(level), SeededNoise([0]), train_steps=[0] if level else ())
    scheduler = policy_scheduler(SCMScheduler(sigma_data=0.5))
    scheduler.session = session
    scheduler.set_timesteps(2, timesteps=angles, max_timesteps=None, intermediate_timesteps=None)
    assert session.stds == pytest.approx([std, 0.0])
    x = scheduler.step(torch.tensor([[-0.25]]), scheduler.timesteps[0], torch.tensor([[0.5]])).prev_sample
    noise = SeededNoise([0])(x)
    torch.testing.assert_close(x, 0.5 * (mean + std * noise))
    if level:
        assert session.transitions[0].x.item() == 1
        torch.testing.assert_close(session.transitions[0].x_next, 2 * x)
    x, decoded = scheduler.step(torch.tensor([[0.1]]), scheduler.timesteps[1], torch.tensor([[0.3]]), return_dict=False)
    assert x.item() == pytest.approx(0.8660254 * 0.3 - 0.5 * 0.1)
    assert torch.equal(decoded, x)


def test_trigflow_levels_are_angles():
    """A noise level is the sine of its angle; a probe is shown it wherever the pipeline looks, behind the end too."""
    scheduler = policy_scheduler(SCMScheduler())
    scheduler.session = Probing(torch.tensor(0.7), torch.randn(1, 2))
    scheduler.set_timesteps(2)
    assert [place.timestep for place in scheduler.places] == pytest.approx([1.5708, 1.3])
    assert [place.sigma for place in scheduler.places] == pytest.approx([1.0, math.sin(1.3)])
    assert scheduler.places[-1].sigma_next == 0
    assert scheduler.timesteps[:-1].tolist() == pytest.approx([0.7] * 3)
    assert scheduler.timestep_at(torch.tensor([1.0, math.sin(1.3), 0.5])).tolist() == pytest.approx(
        [1.5708, 1.3, math.pi / 6]
    )


def test_wuerstchen_step_by_hand():
    """Time 1 is clamped to a signal share of 1e-4; half time has cos(pi / 4)^2 without the offset; the end is data."""
    session = Recording(kernels.ddim(0.0), SeededNoise([0]), train_steps=())
    scheduler = policy_scheduler(DDPMWuerstchenScheduler(s=0.0))
    scheduler.session = session
    scheduler.set_timesteps(2)
    assert [place.timestep for place in scheduler.places] == [1.0, 0.5]
    assert [place.alpha_cumprod for place in scheduler.places] == pytest.approx([1e-4, 0.5])
    assert [place.alpha_cumprod_next for place in scheduler.places] == pytest.approx([0.5, 1.0])
    # x_0 = (0.5 - sqrt(0.9999) 0.4) / 0.01 = 10.002, and then sqrt(0.5) (x_0 + eps).
    x = scheduler.step(torch.tensor([[0.4]]), scheduler.timesteps[:1], torch.tensor([[0.5]])).prev_sample
    assert x.item() == pytest.approx(0.70710678 * (10.002 + 0.4), rel=1e-5)
    x = scheduler.step(torch.tensor([[0.2]]), scheduler.timesteps[1:2], torch.tensor([[0.5]])).prev_sample
    assert x.item() == pytest.approx((0.5 - 0.70710678 * 0.2) / 0.70710678)
    sigma = torch.tensor([scheduler.places[1].sigma])
    assert scheduler.timestep_at(sigma).tolist() == [0.5]
    assert scheduler.timestep_at(torch.tensor(0.6)).item() == pytest.approx(0.4097, abs=1e-3)
