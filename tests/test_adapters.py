"""Tests of `flowrl.adapters`: what is trained, the reference policy, weight copies, and the file that others load."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from flowrl.adapters import (
    ADAPTER,
    LoRA,
    WeightCopy,
    adapted,
    adapter_layers,
    adapter_name,
    adapters_off,
    add_lora,
    as_state,
    constant_decay,
    default_targets,
    export_lora,
    ramp_decay,
    take_lora,
    trainable_parameters,
    weight_norm,
)
from flowrl.errors import UserError
from flowrl.policy import Policy

from . import tiny

every_pipeline = pytest.mark.parametrize("pipeline", list(tiny.PIPELINES))
FITTING = dict(reversed(tiny.STOCHASTIC))


def switches(policy):
    """Activity of every adapter layer and requires_grad of every parameter."""
    modules = policy.modules.values()
    active = [layer.disable_adapters for module in modules for layer in adapter_layers(module)]
    return active, [p.requires_grad for module in modules for p in module.parameters()]


class Block(nn.Module):
    """An attention block with diffusers' names."""

    def __init__(self):
        super().__init__()
        self.to_q, self.to_k = nn.Linear(4, 4), nn.Linear(4, 4)
        self.to_out = nn.ModuleList([nn.Linear(4, 4), nn.Dropout()])
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        """Some function of every layer."""
        return self.to_out[0](self.to_q(x) * self.to_k(self.norm(x)))


def model(lora=None, *, b=0.5):
    """A small model with a LoRA that acts."""
    torch.manual_seed(0)
    made = nn.ModuleDict({"first": Block(), "last": Block()})
    add_lora(made, lora or LoRA(rank=2, alpha=6.0))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, b)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_pipeline
def test_trainable_parameters_are_float32(pipeline, dtype):
    """The LoRA is float32 whatever the dtype of the base, and the base keeps its own."""
    policy = tiny.policy(pipeline, FITTING[pipeline], dtype=dtype)
    assert {p.dtype for p in policy.parameters.values()} == {torch.float32}
    frozen = {p.dtype for module in policy.modules.values() for p in module.parameters() if not p.requires_grad}
    assert frozen == {dtype}
    assert policy.dtype == dtype


@every_pipeline
def test_every_default_target_is_an_attention_projection(pipeline):
    """By default every attention block has a LoRA, in A and in B."""
    policy = tiny.policy(pipeline, FITTING[pipeline])
    (module,) = policy.modules.values()
    blocks = {name.rpartition(".to_q")[0] for name, _ in module.named_modules() if name.endswith(".to_q")}
    (component,) = policy.modules
    for block in blocks:
        for kind in ("lora_A", "lora_B"):
            assert f"{component}.{block}.to_q.{kind}.{ADAPTER}.weight" in policy.parameters


def test_projection_without_effect_is_left_out():
    """The text queries of SD3's last block go nowhere: a LoRA there would never get a gradient."""
    names = {name.partition(".lora_")[0] for name in tiny.policy("sd3", "flow_sde").parameters}
    assert "transformer.transformer_blocks.0.attn.add_q_proj" in names
    assert "transformer.transformer_blocks.1.attn.add_q_proj" not in names
    assert "transformer.transformer_blocks.1.attn.add_k_proj" in names


def joint():
    """A block with joint attention, as diffusers names its layers."""
    names = ("to_q", "add_q_proj", "add_k_proj", "to_add_out")
    return nn.ModuleDict({"attn": nn.ModuleDict({name: nn.Linear(2, 2) for name in names})})


def test_last_joint_block_has_no_use_for_its_text():
    """Without a block behind it nobody reads the text that it makes; with one, everything acts."""
    model = nn.ModuleDict({"blocks": nn.ModuleList([joint(), joint()])})
    add_lora(model, LoRA(rank=1))
    adapted = {name.partition(".lora_")[0] for name, _ in model.named_parameters() if ".lora_" in name}
    assert {"blocks.0.attn.add_q_proj", "blocks.0.attn.to_add_out", "blocks.1.attn.add_k_proj"} <= adapted
    assert not {"blocks.1.attn.add_q_proj", "blocks.1.attn.to_add_out"} & adapted


@every_pipeline
def test_every_lora_tensor_gets_a_gradient(pipeline):
    """With a B that is not 0, no A and no B is out of reach of the log-probability."""
    policy = tiny.policy(pipeline, FITTING[pipeline])
    rollout = policy.rollout(**tiny.arguments(pipeline), train_steps=[0])
    policy.replay(rollout, 0).log_prob.sum().backward()
    assert [name for name, p in policy.parameters.items() if p.grad is None or not p.grad.abs().max() > 0] == []


def test_unknown_target():
    """A target that matches nothing is refused, also among others that do; the message lists the linear layers."""
    with pytest.raises(UserError, match=r"no layer of ModuleDict: to_v\. .* end in: to_k, to_out\.0, to_q\.$"):
        model(LoRA(targets=("to_q", "to_v")))


@pytest.mark.parametrize("target", ["to_out", "norm", "first", "o_q"])
def test_target_that_is_no_layer(target):
    """Nor may a target be a container, a norm, or the end of a word."""
    with pytest.raises(UserError, match=f"match no layer of ModuleDict: {target}\\."):
        model(LoRA(targets=(target,)))


def test_no_default_target():
    """A model without attention needs targets of its own."""
    with pytest.raises(UserError, match=r"any default\. Its linear modules end in: head\."):
        add_lora(nn.ModuleDict({"head": nn.Linear(2, 2)}), LoRA())


def test_targets_by_full_or_partial_name():
    """A target is the end of a module's name, on a dot."""
    made = model(LoRA(targets=("first.to_q", "to_out.0")))
    names = sorted({name.partition(".lora_")[0] for name in trainable_parameters({"m": made})})
    assert names == ["m.first.to_out.0", "m.first.to_q", "m.last.to_out.0"]


def test_bad_lora():
    """A rank below 1 is refused, and a second LoRA."""
    with pytest.raises(UserError, match="rank is 0; wanted at least 1"):
        model(LoRA(rank=0))
    with pytest.raises(UserError, match="has adapters already; pass lora=None"):
        add_lora(model(), LoRA())


def test_lora_starts_as_the_base_and_depends_on_its_seed_alone():
    """B is 0; A is drawn from the LoRA's seed, and the global random state is left alone."""
    torch.manual_seed(5)
    blocks = [Block() for _ in range(3)]
    before = torch.get_rng_state()
    for block, seed in zip(blocks, (1, 1, 2), strict=True):
        add_lora(block, LoRA(rank=2, seed=seed))
    assert torch.equal(torch.get_rng_state(), before)
    one, same, other = (trainable_parameters({"m": block}) for block in blocks)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert all(not p.any() for name, p in one.items() if "lora_B" in name)


@every_pipeline
def test_reference_is_the_base_model(pipeline):
    """Inside `reference()` the latents are those of an untouched pipeline bit for bit; outside they are not."""
    policy, arguments = tiny.policy(pipeline, FITTING[pipeline]), tiny.arguments(pipeline)
    wanted = tiny.stock(pipeline, **arguments)
    with policy.reference():
        inside = policy.rollout(noise_steps=(), **arguments).latents
    outside = policy.rollout(noise_steps=(), **arguments).latents
    assert torch.equal(inside, wanted)
    assert (outside - wanted).abs().max() > 1e-3


@every_pipeline
def test_reference_in_replay_and_predict(pipeline):
    """The reference's replay and prediction are those of a policy whose LoRA is 0, for a rollout of the current one."""
    policy, zero = (tiny.policy(pipeline, FITTING[pipeline], b=b) for b in (0.1, 0.0))
    rollout = policy.rollout(**tiny.arguments(pipeline), train_steps=[1])
    with policy.reference():
        replay, output = policy.replay(rollout, 1), policy.predict(rollout, rollout.latents, 0.5)
    assert torch.equal(replay.mean, zero.replay(rollout, 1).mean)
    assert torch.equal(output, zero.predict(rollout, rollout.latents, 0.5))
    assert not torch.equal(replay.mean, policy.replay(rollout, 1).mean)


class LeaveError(Exception):
    """Raised inside a block."""


def leave(*_):
    """Raise."""
    raise LeaveError


@every_pipeline
def test_reference_restores(pipeline):
    """Activity and requires_grad are as before: after the block, after an exception, and where blocks are nested."""
    policy = tiny.policy(pipeline, FITTING[pipeline])
    next(iter(policy.parameters.values())).requires_grad_(False)  # by hand; PEFT would thaw it on the way back
    before = switches(policy)
    with policy.reference():
        assert all(switches(policy)[0])
        with policy.reference():
            assert all(switches(policy)[0])
        assert all(switches(policy)[0])
    assert switches(policy) == before
    with pytest.raises(LeaveError), policy.reference():
        leave()
    assert switches(policy) == before
    rollout = policy.rollout(**tiny.arguments(pipeline), train_steps=[0])
    policy.replay(rollout, 0).log_prob.sum().backward()
    assert sum(p.grad is not None for p in policy.parameters.values()) == len(policy.parameters) - 1


def test_reference_of_adapters_that_are_off():
    """Adapters that the user had switched off stay off."""
    made = model()
    layers = adapter_layers(made)
    layers[0].enable_adapters(False)
    with adapters_off({"m": made}):
        assert all(layer.disable_adapters for layer in layers)
    assert [layer.disable_adapters for layer in layers] == [True] + [False] * (len(layers) - 1)


@every_pipeline
def test_reference_inside_a_weight_copy(pipeline):
    """The base model is the same whichever copy is active, and both blocks restore what they found."""
    policy = tiny.policy(pipeline, FITTING[pipeline])
    copy, rollout = WeightCopy(policy.parameters), policy.rollout(**tiny.arguments(pipeline), train_steps=())
    for tensor in copy.tensors.values():
        tensor.mul_(2)
    before, data = switches(policy), {name: p.data.clone() for name, p in policy.parameters.items()}

    def output():
        return policy.predict(rollout, rollout.latents, 0.5).detach()

    with policy.reference():
        base = output()
    current = output()
    with copy.active():
        old = output()
        with policy.reference():
            assert torch.equal(output(), base)
        assert torch.equal(output(), old)
    assert not torch.equal(old, current)
    assert torch.equal(output(), current)
    assert switches(policy) == before
    assert all(torch.equal(p, data[name]) for name, p in policy.parameters.items())


def test_weight_copy_update():
    """The copy moves to decay * copy + (1 - decay) * current."""
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    copy = WeightCopy({"w": parameter})
    parameter.data = torch.tensor([3.0, 6.0])
    assert copy.tensors["w"].tolist() == [1.0, -2.0]  # a copy, not the tensor itself
    copy.update(0.75)  # 0.75 * 1 + 0.25 * 3 and 0.75 * -2 + 0.25 * 6
    assert copy.tensors["w"].tolist() == [1.5, 0.0]
    copy.update(1.0)
    assert copy.tensors["w"].tolist() == [1.5, 0.0]
    copy.update(0.0)
    assert copy.tensors["w"].tolist() == [3.0, 6.0]
    parameter.data.zero_()
    assert copy.tensors["w"].tolist() == [3.0, 6.0]
    assert copy.nbytes() == 8


def test_weight_copy_active():
    """Inside the block the same parameters hold the copy; afterwards, also after an exception, their own data."""
    parameter = nn.Parameter(torch.tensor([1.0]))
    copy = WeightCopy({"w": parameter})
    data = torch.tensor([5.0])
    parameter.data = data
    with copy.active():
        assert parameter.item() == 1.0
    with pytest.raises(LeaveError), copy.active():
        leave()
    assert parameter.item() == 5.0
    assert parameter.data_ptr() == data.data_ptr()
    assert copy.tensors["w"].item() == 1.0


def test_weight_copy_after_an_optimizer_step():
    """The optimizer goes on with the same parameters: a step after the block moves them and not the copy."""
    parameter = nn.Parameter(torch.tensor([1.0]))
    optimizer, copy = torch.optim.SGD([parameter], lr=0.5), WeightCopy({"w": parameter})
    with copy.active():
        pass
    parameter.square().sum().backward()  # gradient 2
    optimizer.step()
    assert parameter.item() == 0.0  # 1 - 0.5 * 2
    assert copy.tensors["w"].item() == 1.0


def test_weight_copy_is_current():
    """True as long as every tensor equals the current weights, bit for bit; also inside its own block."""
    first, second = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0]))
    copy = WeightCopy({"a": first, "b": second})
    assert copy.is_current()
    with torch.no_grad():
        second[0] = torch.nextafter(second[0], torch.tensor(4.0))  # the smallest change that there is
    assert not copy.is_current()
    with copy.active():
        assert copy.is_current()
    assert not copy.is_current()
    copy.update(1.0)
    assert not copy.is_current()
    copy.update(0.0)
    assert copy.is_current()
    with torch.no_grad():
        first.fill_(float("nan"))
    copy.update(0.0)
    assert not copy.is_current()  # NaN equals nothing, so nothing is taken for granted


def test_decays():
    """DiffusionNFT's two ramps and a constant, by hand."""
    first, second = ramp_decay(0.001, 0.5), ramp_decay(0.0075, 0.999, start=75)
    assert [first(step) for step in (0, 1, 250, 500, 900)] == [0.0, 0.001, 0.25, 0.5, 0.5]
    # (77 - 75) 0.0075 = 0.015; the maximum is reached at 75 + 0.999 / 0.0075 = 208.2.
    assert [second(step) for step in (0, 75, 77, 209)] == [0.0, 0.0, 0.015, 0.999]
    assert second(208) == pytest.approx(0.9975)
    assert {constant_decay(0.9)(step) for step in (0, 1000)} == {0.9}


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_bad_decays(value):
    """A decay outside [0, 1] is refused, and a ramp that falls."""
    with pytest.raises(UserError, match="wanted a number in"):
        constant_decay(value)
    with pytest.raises(UserError, match="wanted slope >= 0 and maximum in"):
        ramp_decay(0.1, value)
    with pytest.raises(UserError, match=r"slope -0\.1"):
        ramp_decay(-0.1, 0.5)


def test_norm_and_state():
    """The norm runs over all tensors, sqrt(9 + 16); a state is detached and contiguous."""
    assert weight_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}) == 5.0
    x = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    state = as_state({"x": x.T})
    assert state["x"].is_contiguous()
    assert not state["x"].requires_grad
    assert state["x"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_export_folds_the_scale(tmp_path):
    """The file's B is alpha / rank = 3 times the layer's, its A the same, and no other tensor is in it."""
    made = model(LoRA(rank=2, alpha=6.0, targets=("first.to_q",)))
    path = export_lora({"transformer": made}, tmp_path / "adapter")
    assert path == tmp_path / "adapter" / "pytorch_lora_weights.safetensors"
    layer, weights = made["first"].to_q, load_file(path)
    assert sorted(weights) == [f"transformer.first.to_q.lora_{kind}.weight" for kind in "AB"]
    assert torch.equal(weights["transformer.first.to_q.lora_A.weight"], layer.lora_A[ADAPTER].weight)
    assert torch.equal(weights["transformer.first.to_q.lora_B.weight"], 3 * layer.lora_B[ADAPTER].weight)


def test_export_without_an_adapter(tmp_path):
    """There is nothing to save, and nothing is written."""
    with pytest.raises(UserError, match="Block has no adapter that is active"):
        export_lora({"m": Block()}, tmp_path / "adapter")
    assert list(tmp_path.iterdir()) == []


CHILD = """
import json, sys
from pathlib import Path
import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file

torch.set_num_threads(1)
from tests import tiny

folder, images, scales = Path(sys.argv[1]), {}, {}
for name in tiny.PIPELINES:
    pipe = tiny.base(name)
    pipe.load_lora_weights(folder / name)
    images[name] = tiny.stock(name, pipe=pipe, output_type="pt", **tiny.arguments(name)).contiguous()
    layers = [layer for part in (pipe.unet if name == "sd15" else pipe.transformer,) for layer in part.modules()]
    scales[name] = [list(layer.scaling.values()) for layer in layers if isinstance(layer, LoraLayer)]
save_file(images, folder / "images.safetensors")
print(json.dumps(scales))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """LoRAs of every pipeline, saved here and drawn in a fresh process by untouched pipelines."""
    folder, wanted, layers = tmp_path_factory.mktemp("lora"), {}, {}
    for name in tiny.PIPELINES:
        policy = tiny.policy(name, FITTING[name])
        policy.save_lora(folder / name)
        wanted[name], layers[name] = policy.sample(**tiny.arguments(name)), len(policy.parameters) // 2
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(folder)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return wanted, load_file(folder / "images.safetensors"), json.loads(child.stdout), layers, child.stderr


@every_pipeline
def test_saved_lora_in_a_fresh_process(pipeline, fresh):
    """`load_lora_weights` gives the policy's pictures to 1e-5, for alpha other than rank, in every layer at scale 1."""
    wanted, images, scales, layers, _ = fresh
    assert (images[pipeline] - wanted[pipeline]).abs().max() <= 1e-5
    base = tiny.stock(pipeline, output_type="pt", **tiny.arguments(pipeline))
    assert (images[pipeline] - base).abs().max() > 1e-3  # the LoRA does something
    assert scales[pipeline] == [[1.0]] * layers[pipeline]


def test_saved_lora_loads_without_a_word(fresh):
    """Nothing is warned of or logged: no unexpected key, no missing one, no guessed scale."""
    # What diffusers says of every LoRA without a part for the text encoders, and calls safe to ignore.
    usual = "No LoRA keys associated to CLIPTextModel"
    assert [line for line in fresh[-1].splitlines() if not line.startswith(usual)] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_pipeline
def test_training_a_loaded_lora(pipeline, dtype, tmp_path):
    """With lora=None the adapter that was loaded is trained: float32, the base frozen; saved again it is the same."""
    first = tiny.policy(pipeline, FITTING[pipeline])
    first.save_lora(tmp_path / "first")
    pipe = tiny.base(pipeline, dtype)
    pipe.load_lora_weights(tmp_path / "first", adapter_name="mine")
    policy = Policy(pipe, kernel=first.kernel, lora=None)
    assert [name.replace("mine", ADAPTER) for name in policy.parameters] == list(first.parameters)
    assert {p.dtype for p in policy.parameters.values()} == {torch.float32}
    policy.save_lora(tmp_path / "second")
    one, two = (load_file(tmp_path / name / "pytorch_lora_weights.safetensors") for name in ("first", "second"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key].to(dtype).float(), two[key]) for key in one)


def test_two_active_adapters():
    """One adapter is trained and saved: a second that is active would be left out of the file in silence."""
    made = model()
    for layer in adapter_layers(made):
        layer.update_layer("other", r=2, lora_alpha=2, config=made.peft_config[ADAPTER])
        layer.set_adapter([ADAPTER, "other"])
    with pytest.raises(UserError, match=r"active adapters flowrl, other; .* call pipe\.set_adapters\('flowrl'\)"):
        take_lora(made)
    for layer in adapter_layers(made):
        layer.set_adapter("other")
    assert adapter_name(made) == "other"


class Odd(nn.Module):
    """A denoiser whose attention has none of diffusers' names, if it has any."""

    def __init__(self, attention: str):
        super().__init__()
        block = {attention: nn.ModuleDict({"query": nn.Linear(4, 4), "out": nn.Linear(4, 4)})}
        block |= {"norm_attn": nn.Linear(4, 4), "mlp": nn.Linear(4, 4)}
        self.blocks = nn.ModuleList([nn.ModuleDict(block), nn.ModuleDict({"mlp": nn.Linear(4, 4)})])
        self.proj_in = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("attention", "wanted"),
    [
        ("self_attn", ("blocks.0.self_attn.query", "blocks.0.self_attn.out")),
        ("cross_attention", ("blocks.0.cross_attention.query", "blocks.0.cross_attention.out")),
        (
            "mixer",
            ("blocks.0.mixer.query", "blocks.0.mixer.out", "blocks.0.norm_attn", "blocks.0.mlp", "blocks.1.mlp"),
        ),
    ],
)
def test_targets_without_the_usual_names(attention, wanted):
    """By the names of the modules around them, attention layers; else every linear layer of the repeated blocks."""
    assert default_targets(Odd(attention)) == wanted
    made = Odd(attention)
    add_lora(made, LoRA(rank=2))
    assert {name for name, part in made.named_modules() if hasattr(part, "lora_A")} == set(wanted)
    assert adapted(made) == {name.rsplit(".", 1)[1] for name in wanted}


def test_nothing_to_adapt():
    """A module without any of these has no default."""
    assert default_targets(nn.Sequential(nn.Linear(2, 2))) == ()
