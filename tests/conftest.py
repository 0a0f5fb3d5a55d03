"""What every test shares: no model hub, one thread, one seed."""

import os

# Before anything imports huggingface_hub or torch: both read their environment once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# The same examples in every run, and no deadline: the first call of a kernel pays for torch's own start.
settings.register_profile("flowrl", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("flowrl")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Each test starts from the same global seed, whatever ran before it."""
    torch.manual_seed(0)
