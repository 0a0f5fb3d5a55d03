"""Tests of `flowrl.kernels`: the authors' numbers, the stock step, and Gaussian data in closed form."""

import json
import math
from pathlib import Path

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler, LCMScheduler
from torch.distributions import Normal, kl_divergence

from flowrl import kernels
from flowrl.errors import UserError
from flowrl.kernels import KERNELS, ConsistencyPlace, DDPMPlace, FlowPlace
from flowrl.scheduler import policy_scheduler

GOLDEN = Path(__file__).parent / "data" / "golden"
RECORDS = [record for file in sorted(GOLDEN.glob("*.json")) for record in json.loads(file.read_text())["records"]]
FLOW = [name for name in KERNELS if name not in ("ddim", "consistency")]
NOISY = [name for name in KERNELS if name != "ode"]
DDPM_FIELDS = ["step", "timestep", "alpha_cumprod", "alpha_cumprod_next", "prediction_type"]
PREDICTIONS = ["epsilon", "v_prediction", "sample"]


def make(name, noise_level=None):
    """A kernel by name, with its own default noise level."""
    return KERNELS[name]() if noise_level is None or name == "ode" else KERNELS[name](noise_level)


class AllSteps:
    """A session that looks at the whole schedule."""

    timestep = None
    sigma = None

    def begin(self, places):
        """Nothing to prepare."""


def places_of(stock, steps):
    """Every place of a stock scheduler's schedule."""
    scheduler = policy_scheduler(stock)
    scheduler.session = AllSteps()
    scheduler.set_timesteps(steps)
    return scheduler.places


def flow_scheduler(**config):
    """The scheduler of SD3."""
    return FlowMatchEulerDiscreteScheduler(**{"shift": 3.0, **config})


def ddim_scheduler(**config):
    """The scheduler of SD1.5."""
    fields = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "clip_sample": False}
    return DDIMScheduler(**{**fields, "set_alpha_to_one": False, "steps_offset": 1, **config})


def record_name(record):
    """A record's kernel and place, for the test's name."""
    kind = record.get("prediction_type", f"shift{record.get('shift', 0):.0f}")
    return f"{record['kernel']}-{kind}-{record.get('noise_level', record.get('eta'))}-step{record['step']}"


def read(record):
    """Kernel, place, x and model output of a record."""
    if record["kernel"] == "ddim":
        kernel, output = make("ddim", record["eta"]), "model_output"
        place = DDPMPlace(*(record[key] for key in DDPM_FIELDS))
    elif record["kernel"] == "consistency":
        kernel, output = make("consistency", record["noise_level"]), "model_output"
        scalings = {"c_skip": record["c_skip"], "c_out": record["c_out"]}
        place = ConsistencyPlace(*(record[key] for key in DDPM_FIELDS), **scalings)
    else:
        kernel, output = make(record["kernel"], record["noise_level"]), "velocity"
        sigma, sigma_next = record["sigma"], record["sigma_next"]
        place = FlowPlace(record["step"], 1000 * sigma, sigma, sigma_next, record.get("sigma_second", sigma_next))
    return kernel, place, shaped(record, "x"), shaped(record, output)


def shaped(record, key):
    """A tensor of a record."""
    return torch.tensor(record[key]).reshape(record["shape"])


@pytest.mark.parametrize("record", RECORDS, ids=record_name)
def test_golden_mean_std_and_log_prob(record):
    """Mean, std and log-probability are those of the authors' released code, to 1e-6."""
    kernel, place, x, output = read(record)
    wanted = shaped(record, "mean")
    mean, std = kernel(x, output, place)
    # Relative to the largest number of the record: the mean is a difference of x and a multiple of the output.
    assert (mean - wanted).abs().max() <= 1e-6 * max(x.abs().max(), wanted.abs().max())
    assert std.item() == pytest.approx(record["std"], rel=1e-6, abs=0)
    log_prob = kernels.log_prob(shaped(record, "x_next"), mean, std)
    assert log_prob.tolist() == pytest.approx(record["log_prob_gaussian_mean"], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "ode"])
def test_golden_covers_every_stochastic_kernel(kernel):
    """A new kernel needs numbers from its authors: first, middle and late steps, and two noise levels."""
    mine = [record for record in RECORDS if record["kernel"] == kernel]
    assert {"first", "later"} == {"first" if record["step"] == 0 else "later" for record in mine}
    assert len({record.get("noise_level", record.get("eta")) for record in mine}) >= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FLOW)
def test_noise_zero_is_the_stock_flow_step(name, dtype):
    """At noise 0 every flow kernel gives what diffusers' Euler gives, bit for bit, at every step."""
    stock, kernel = flow_scheduler(), make(name, 0.0)
    stock.set_timesteps(7)
    for place, timestep in zip(places_of(flow_scheduler(), 7), stock.timesteps, strict=True):
        x, output = torch.randn(2, 4, 3, 3).to(dtype), torch.randn(2, 4, 3, 3).to(dtype)
        wanted = stock.step(output, timestep, x, return_dict=False)[0]
        mean, std = kernel(x, output, place)
        assert torch.equal(mean.to(dtype), wanted)
        assert std == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", [{}, {"clip_sample": True, "set_alpha_to_one": True}], ids=["sd15", "clip"])
@pytest.mark.parametrize("prediction_type", PREDICTIONS)
@pytest.mark.parametrize("name", list(KERNELS))
def test_noise_zero_is_the_stock_ddim_step(name, prediction_type, config, dtype):
    """At noise 0 every kernel gives what diffusers' DDIM gives at eta 0, bit for bit, at every step."""
    fields = {"prediction_type": prediction_type, **config}
    stock, kernel = ddim_scheduler(**fields), make(name, 0.0)
    stock.set_timesteps(7)
    for place, timestep in zip(places_of(ddim_scheduler(**fields), 7), stock.timesteps, strict=True):
        x, output = torch.randn(2, 4, 3, 3).to(dtype), torch.randn(2, 4, 3, 3).to(dtype)
        wanted = stock.step(output, timestep, x, return_dict=False)[0]
        mean, std = kernel(x, output, place)
        assert torch.equal(mean.to(dtype), wanted)
        assert std == 0


@pytest.mark.parametrize("prediction_type", PREDICTIONS)
@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_ddim_is_diffusers_ddim_with_eta(eta, prediction_type):
    """With noise, ddim's mean and std are those of diffusers' DDIM with the same eta."""
    stock, kernel = ddim_scheduler(prediction_type=prediction_type), make("ddim", eta)
    stock.set_timesteps(7)
    for place, timestep in zip(places_of(stock, 7), stock.timesteps, strict=True):
        x, output, noise = torch.randn(3, 1, 4)
        wanted = stock.step(output, timestep, x, eta=eta, variance_noise=noise, return_dict=False)[0]
        mean, std = kernel(x, output, place)
        torch.testing.assert_close(mean + std * noise, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FLOW)
def test_step_to_clean_data_is_deterministic(name):
    """Noise drawn in the step to sigma 0 would stay in the picture: every kernel takes the stock step there."""
    mean, std = make(name)(torch.ones(1, 2), torch.full((1, 2), 2.0), FlowPlace(9, 250.0, 0.25, 0.0, 0.9))
    assert mean.tolist() == [[0.5, 0.5]]  # 1 + 2 (0 - 0.25)
    assert std == 0


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 50])
@pytest.mark.parametrize("name", list(KERNELS))
def test_every_step_is_finite(name, steps):
    """Mean and std are finite at every step of every schedule, the first and the last among them."""
    flow, ddpm = (
        (flow_scheduler(), flow_scheduler(shift=1.0)),
        (ddim_scheduler(), ddim_scheduler(set_alpha_to_one=True)),
    )
    kernel = make(name)
    lcm = (LCMScheduler(), LCMScheduler(prediction_type="v_prediction"))
    for stock in {"ode": flow + ddpm + lcm, "ddim": ddpm, "consistency": lcm}.get(name, flow):
        for place in places_of(stock, steps):
            mean, std = kernel(torch.randn(1, 64), torch.randn(1, 64), place)
            assert mean.isfinite().all()
            assert 0 <= std.item() < math.inf
            assert kernel.std(place) == pytest.approx(std.item(), rel=1e-7, abs=0)


@pytest.mark.parametrize("name", NOISY)
def test_kernel_for_the_other_kind_of_model(name):
    """A stochastic kernel refuses a model that it was not derived for, and the message names those that fit."""
    flow, ddpm = FlowPlace(0, 500.0, 0.5, 0.25, 0.5), DDPMPlace(0, 500.0, 0.5, 0.75)
    other = name in ("ddim", "consistency")
    place, wanted = (flow, "flow model; write one of: ode, flow_sde") if other else (ddpm, "ode, ddim")
    with pytest.raises(UserError, match=wanted):
        make(name)(torch.ones(1, 1), torch.ones(1, 1), place)
    with pytest.raises(UserError, match=wanted):
        make(name).std(place)


def test_flow_sde_at_sigma_one_takes_the_second_sigma():
    """Where sqrt(sigma / (1 - sigma)) is infinite, the schedule's second sigma stands in, in the std and the mean."""
    # s^2 = 0.6^2 * 1 / (1 - 0.75) = 1.44, dt = -0.25: std = 1.2 * 0.5. The pull is 1.44 / 2 * -0.25 = -0.18 on x, and
    # v counts -0.25 alone, since 1 - sigma = 0: mean = 2 (1 - 0.18) - 0.25.
    mean, std = make("flow_sde", 0.6)(torch.tensor([[2.0]]), torch.tensor([[1.0]]), FlowPlace(0, 1000.0, 1, 0.75, 0.75))
    assert std.item() == pytest.approx(0.6)
    assert mean.item() == pytest.approx(1.39)


def test_flow_sde_and_dance_sde_by_hand():
    """In the middle of the schedule the two differ in s alone."""
    x, v, place = torch.tensor([[2.0]]), torch.tensor([[1.0]]), FlowPlace(1, 500.0, 0.5, 0.25, 0.75)
    # flow_sde: s^2 = 0.4^2 * 0.5 / 0.5 = 0.16, pull = 0.16 / (2 * 0.5) = 0.16.
    # mean = 2 + (1 + 0.16 (2 + 0.5)) * -0.25 = 1.65, std = 0.4 * 0.5.
    mean, std = make("flow_sde", 0.4)(x, v, place)
    assert (mean.item(), std.item()) == pytest.approx((1.65, 0.2))
    # dance_sde with the same a has the same s at sigma = 1/2.
    mean, std = make("dance_sde", 0.4)(x, v, place)
    assert (mean.item(), std.item()) == pytest.approx((1.65, 0.2))
    # At sigma = 0.8 flow_sde's s is twice dance_sde's: sqrt(0.8 / 0.2) = 2.
    place = FlowPlace(1, 800.0, 0.8, 0.55, 0.9)
    assert make("flow_sde", 0.4).std(place) == pytest.approx(2 * make("dance_sde", 0.4).std(place))


@pytest.mark.parametrize("noise_level", [0.1, 0.7, 1.0])
def test_flow_cps_keeps_the_total_noise(noise_level):
    """Of pure noise, x_0 = 0 and eps = 1, what is kept and what is new add up to sigma_next: c^2 + s^2 = 0.3^2."""
    place = FlowPlace(1, 500.0, 0.5, 0.3, 0.75)
    mean, std = make("flow_cps", noise_level)(torch.tensor([[0.5]]), torch.tensor([[1.0]]), place)
    assert mean.item() ** 2 + std.item() ** 2 == pytest.approx(0.09, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", list(KERNELS))
def test_results_are_float32(name, dtype):
    """Mean and std are float32 whatever the model's dtype, and the mean carries gradients to the model output."""
    ddpm = {"ddim": DDPMPlace, "consistency": ConsistencyPlace}
    place = ddpm[name](0, 500.0, 0.5, 0.75) if name in ddpm else FlowPlace(0, 500.0, 0.5, 0.25, 0.75)
    output = torch.ones(2, 3, dtype=dtype, requires_grad=True)
    mean, std = make(name)(torch.ones(2, 3, dtype=dtype), output, place)
    assert (mean.dtype, std.dtype, std.dim()) == (torch.float32, torch.float32, 0)
    mean.sum().backward()
    assert (output.grad != 0).all()


@pytest.mark.parametrize(("name", "level"), [(n, a) for n in NOISY for a in (-0.1, math.inf, math.nan)])
def test_noise_level_must_be_a_finite_number(name, level):
    """A negative, infinite or undefined noise level is refused when the kernel is made."""
    with pytest.raises(UserError, match=f"noise_level of {name}"):
        KERNELS[name](level)


@pytest.mark.parametrize("name", ["flow_cps", "ddim", "consistency"])
def test_noise_level_of_at_most_one(name):
    """For these more than 1 is meaningless: it is the share of new noise, or eta."""
    with pytest.raises(UserError, match=r"1\.1; wanted a number in"):
        KERNELS[name](1.1)


def test_consistency_by_hand():
    """The jump is noised to the next level; the smaller a, the more of that noise is the old one."""
    # x_0 = (2 - sqrt(0.75) * 1) / sqrt(0.25) = 2.267949, f = 0.9 x_0 + 0.1 x = 2.241154, eps = 1.
    x, eps = torch.tensor([[2.0]]), torch.tensor([[1.0]])
    place = ConsistencyPlace(1, 500, 0.25, 0.64, c_skip=0.1, c_out=0.9)
    mean, std = make("consistency")(x, eps, place)
    assert (mean.item(), std.item()) == pytest.approx((0.8 * 2.241154, 0.6))
    mean, std = make("consistency", 0.6)(x, eps, place)
    assert (mean.item(), std.item()) == pytest.approx((0.8 * 2.241154 + 0.6 * 0.8, 0.36))
    mean, std = make("consistency", 0.0)(x, eps, place)
    assert (mean.item(), std.item()) == pytest.approx((0.8 * 2.241154 + 0.6, 0.0))
    last = ConsistencyPlace(1, 500, 0.25, 1.0, c_skip=0.1, c_out=0.9)
    mean, std = make("consistency")(x, eps, last)
    assert (mean.item(), std.item()) == pytest.approx((2.241154, 0.0))


@pytest.mark.parametrize("prediction_type", PREDICTIONS)
def test_consistency_is_the_step_of_lcm(prediction_type, monkeypatch):
    """At its own noise level the kernel is LCM's step: the same jump, and the same amount of new noise."""
    stock, kernel, noise = LCMScheduler(prediction_type=prediction_type), make("consistency"), torch.randn(2, 4)
    monkeypatch.setattr("diffusers.schedulers.scheduling_lcm.randn_tensor", lambda *_, **__: noise)
    stock.set_timesteps(4)
    for place, timestep in zip(places_of(stock, 4), stock.timesteps, strict=True):
        x, output = torch.randn(2, 2, 4)
        wanted = stock.step(output, timestep, x, return_dict=False)[0]
        mean, std = kernel(x, output, place)
        torch.testing.assert_close(mean + std * noise, wanted, rtol=1e-5, atol=1e-6)


def test_unknown_prediction_type():
    """A model that predicts something else is refused, with the known ones listed."""
    with pytest.raises(UserError, match="'flow'; known: epsilon, v_prediction, sample"):
        make("ddim")(torch.ones(1, 1), torch.ones(1, 1), DDPMPlace(0, 500.0, 0.5, 0.75, "flow"))


def exact_velocity(x, sigma, m, s):
    """``E[eps - x_0 | x]`` for ``x_0 ~ N(m, s^2)`` and ``x = (1 - sigma) x_0 + sigma eps``.

    ``x`` has the mean ``(1 - sigma) m`` and the variance ``V = (1 - sigma)^2 s^2 + sigma^2``; with the residual
    ``r = x - (1 - sigma) m``, regression gives ``E[eps | x] = sigma r / V`` and
    ``E[x_0 | x] = m + (1 - sigma) s^2 r / V``.
    """
    variance = (1 - sigma) ** 2 * s**2 + sigma**2
    return (sigma - (1 - sigma) * s**2) / variance * (x - (1 - sigma) * m) - m


def exact_noise(x, alpha_cumprod, m, s):
    """``E[eps | x]`` for ``x_0 ~ N(m, s^2)`` and ``x = sqrt(A) x_0 + sqrt(1 - A) eps``."""
    variance = alpha_cumprod * s**2 + 1 - alpha_cumprod
    return math.sqrt(1 - alpha_cumprod) / variance * (x - math.sqrt(alpha_cumprod) * m)


def exact_jump(x, alpha_cumprod, m, s):
    """The noise that a perfect consistency model of ``N(m, s^2)`` sees: its x_0 is where the ODE leads from x.

    The ODE keeps ``r = (x - sqrt(A) m) / sqrt(A s^2 + 1 - A)``, and leads to ``m + s r``.
    """
    share = math.sqrt(alpha_cumprod)
    r = (x - share * m) / (alpha_cumprod * s**2 + 1 - alpha_cumprod).sqrt()
    return (x - share * (m + s * r)) / math.sqrt(1 - alpha_cumprod)


def sample_gaussian(name, steps, m, s, count):
    """``count`` samples of ``N(m, s^2)`` by a kernel with the exact model, m and s of shape `[D]`."""
    z = torch.randn(count, len(m))
    if name == "ddim":
        places = places_of(ddim_scheduler(set_alpha_to_one=True), steps)
        a = places[0].alpha_cumprod  # the schedule does not begin at pure noise: 0.7 % of the data is left in x
        x, model = math.sqrt(a) * m + (a * s**2 + 1 - a).sqrt() * z, lambda x, p: exact_noise(x, p.alpha_cumprod, m, s)
    elif name == "consistency":
        places = places_of(LCMScheduler(original_inference_steps=steps), steps)
        a = places[0].alpha_cumprod
        x, model = math.sqrt(a) * m + (a * s**2 + 1 - a).sqrt() * z, lambda x, p: exact_jump(x, p.alpha_cumprod, m, s)
    else:
        places = places_of(flow_scheduler(shift=1.0), steps)
        x, model = z, lambda x, p: exact_velocity(x, p.sigma, m, s)
    # flow_cps makes a share of the noise new at each step, so a must shrink as the steps grow (see its docstring).
    kernel = make(name, 0.7 * math.sqrt(10 / steps)) if name == "flow_cps" else make(name)
    for place in places:
        mean, std = kernel(x, model(x, place), place)
        x = mean + std * torch.randn_like(x)
    return x


ONE = (torch.tensor([1.5]), torch.tensor([0.5]))
EIGHT = (torch.linspace(-2, 2, 8), torch.tensor([0.25, 0.5, 0.5, 0.75, 1.0, 1.0, 1.5, 2.0]))


@pytest.mark.parametrize(("m", "s"), [ONE, EIGHT], ids=["1-D", "8-D"])
@pytest.mark.parametrize("name", list(KERNELS))
def test_gaussian_data_in_closed_form(name, m, s):
    """With the exact model, 400 steps of every kernel end with the data's mean and std, within Monte-Carlo error."""
    count = 5_000
    x = sample_gaussian(name, 400, m, s, count)
    # Four standard errors: of a mean s / sqrt(n), of a std s / sqrt(2 n). The steps' own bias is under 2 % of s.
    assert ((x.mean(dim=0) - m).abs() <= 4 * s / math.sqrt(count)).all()
    assert ((x.std(dim=0) - s).abs() <= 4 * s / math.sqrt(2 * count)).all()


@pytest.mark.parametrize("name", ["flow_sde", "dance_sde"])
def test_wrong_noise_would_be_seen(name):
    """The closed form has teeth: with the mean of one noise level and the std of another, the data's std is missed."""
    m, s = ONE
    x = torch.randn(10_000, 1)
    for place in places_of(flow_scheduler(shift=1.0), 400):
        mean, _ = make(name, 0.5)(x, exact_velocity(x, place.sigma, m, s), place)
        x = mean + make(name, 0.7).std(place) * torch.randn_like(x)
    assert (x.std() - s).abs() > 8 * s / math.sqrt(20_000)


def test_log_prob_and_kl_are_those_of_torch():
    """Log-probability and KL equal torch.distributions, averaged or summed over all but the batch axis."""
    mean, other, x_next = torch.randn(3, 2, 4, 5)
    std = torch.tensor(0.3)
    density = Normal(mean, std).log_prob(x_next)
    divergence = kl_divergence(Normal(mean, std), Normal(other, std))
    torch.testing.assert_close(kernels.log_prob(x_next, mean, std), density.mean(dim=(1, 2)))
    torch.testing.assert_close(kernels.log_prob(x_next, mean, std, "sum"), density.sum(dim=(1, 2)))
    torch.testing.assert_close(kernels.kl(mean, other, std), divergence.mean(dim=(1, 2)))
    torch.testing.assert_close(kernels.kl(mean, other, std, "sum"), divergence.sum(dim=(1, 2)))


def test_log_prob_by_hand():
    """A deviation of 0 and one of a std: -ln 2 - ln(2 pi) / 2 - {0, 1/2} = -1.612086 and -2.112086."""
    x_next, mean, std = torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [1.0]]), torch.tensor(2.0)
    assert kernels.log_prob(x_next, mean, std).tolist() == pytest.approx([-1.612086, -2.112086], abs=1e-6)


@pytest.mark.parametrize("function", [kernels.log_prob, kernels.kl])
def test_unknown_reduction(function):
    """A misspelt reduction is refused."""
    with pytest.raises(UserError, match="reduction is 'avg'; wanted 'mean' or 'sum'"):
        function(torch.ones(1, 1), torch.ones(1, 1), torch.tensor(1.0), "avg")


@pytest.mark.parametrize("prediction", ["flow", "epsilon", "v_prediction", "sample"])
def test_clean_undoes_noised(prediction):
    """From noised latents and the exact output, the clean latents come back."""
    x_0, eps, sigma = torch.randn(2, 3), torch.randn(2, 3), torch.tensor([[0.3], [0.8]])
    signal = (1 - sigma**2) ** 0.5
    exact = {"flow": eps - x_0, "epsilon": eps, "v_prediction": signal * eps - sigma * x_0, "sample": x_0}[prediction]
    x_t = kernels.noised(x_0, eps, sigma, prediction)
    torch.testing.assert_close(kernels.clean(x_t, exact, sigma, prediction), x_0)
    share = x_t - sigma * eps
    torch.testing.assert_close(share, ((1 - sigma) if prediction == "flow" else signal) * x_0)
