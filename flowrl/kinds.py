"""What a scheduler's class and config say of the model, without loading anything. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Scheduler = Literal["flow", "ddpm", "consistency", "unknown"]
"""Kinds of schedulers: flow matching; DDPM-type; consistency models, which re-noise; not known to flowrl."""

DDPM_TYPE = ("DDIM", "DDPM", "PNDM", "EulerDiscrete", "EulerAncestral", "LMS", "DPMSolver", "UniPC", "Heun", "KDPM2")
"""Beginnings of the names of schedulers that become DDIM, unless their config says that the model is a flow."""


def scheduler_kind(name: str | None, config: Mapping[str, Any]) -> Scheduler:
    """What a scheduler's class and config say of the model.

    >>> scheduler_kind("FlowMatchEulerDiscreteScheduler", {}), scheduler_kind("UniPCMultistepScheduler", {})
    ('flow', 'ddpm')
    >>> scheduler_kind("UniPCMultistepScheduler", {"use_flow_sigmas": True})
    'flow'
    """
    name = name or ""
    if name.startswith(("LCM", "SCM")):
        return "consistency"
    if name == "EulerDiscreteScheduler" and config.get("timestep_type") == "continuous":
        return "flow"
    if name.startswith(("FlowMatchEuler", "FlowMapEuler")) or config.get("use_flow_sigmas", False):
        return "flow"
    return "ddpm" if name.startswith(("CogVideoX", *DDPM_TYPE)) else "unknown"
