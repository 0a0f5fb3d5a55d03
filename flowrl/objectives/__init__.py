"""Objectives: how scored samples change the policy. One file a family; `flowrl.objectives.base` has the contract."""

from .base import Objective, Seeds, Terms, Work
from .grpo import GRPO
from .nft import NFT

__all__ = ["GRPO", "NFT", "Objective", "Seeds", "Terms", "Work"]
