"""Reward heads, one file each; installed as ``flowrl.rewards``."""
