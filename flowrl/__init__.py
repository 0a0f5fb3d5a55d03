"""flowrl: reward tuning for diffusion and flow-matching generators.

Any diffusers pipeline is a policy; only its scheduler is exchanged::

    from diffusers import StableDiffusion3Pipeline
    from flowrl import Policy, kernels

    pipe = StableDiffusion3Pipeline.from_pretrained("assets/shapes-sd3")
    policy = Policy(pipe, kernel=kernels.flow_sde(noise_level=0.7))  # adds a LoRA
    rollout = policy.rollout(["a red circle"] * 4, seeds=[0, 1, 2, 3], steps=10)
    replay = policy.replay(rollout, step=3)  # mean, std and log_prob under the weights of now, with gradients
    ratio = (replay.log_prob - rollout.transitions[3].log_prob).exp()  # exactly 1 before the first update
    velocity = policy.predict(rollout, rollout.latents, sigma=0.5)  # the model's output, with gradients
    with policy.reference():  # the base model
        base = policy.replay(rollout, step=3)
    policy.save_lora("adapter")  # for pipe.load_lora_weights("adapter")

A whole training is ``train(load_config("my.yaml"))``, or ``flowrl train my.yaml`` on the command line.

``import flowrl`` is quick: each of the names below is imported from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import kernels
    from .adapters import LoRA, WeightCopy
    from .config import RunConfig, load_config
    from .data import PromptRow, load_prompts
    from .errors import RunStopped, UserError
    from .kernels import Kernel
    from .objectives import Objective
    from .policy import Policy, Replay
    from .report import write_report
    from .reward import FunctionReward, Reward, RewardBatch, RewardSet
    from .trainer import train
    from .trajectory import Rollout, Transition

__all__ = [
    "FunctionReward",
    "Kernel",
    "LoRA",
    "Objective",
    "Policy",
    "PromptRow",
    "Replay",
    "Reward",
    "RewardBatch",
    "RewardSet",
    "Rollout",
    "RunConfig",
    "RunStopped",
    "Transition",
    "UserError",
    "WeightCopy",
    "kernels",
    "load_config",
    "load_prompts",
    "train",
    "write_report",
]

_HOMES = {
    "adapters": ("LoRA", "WeightCopy"),
    "config": ("RunConfig", "load_config"),
    "data": ("PromptRow", "load_prompts"),
    "errors": ("RunStopped", "UserError"),
    "kernels": ("Kernel",),
    "objectives": ("Objective",),
    "policy": ("Policy", "Replay"),
    "report": ("write_report",),
    "reward": ("FunctionReward", "Reward", "RewardBatch", "RewardSet"),
    "trainer": ("train",),
    "trajectory": ("Rollout", "Transition"),
}


def __getattr__(name: str) -> Any:
    if name == "kernels":
        return import_module(".kernels", __name__)
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
