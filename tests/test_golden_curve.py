"""Ten steps of a tiny run, number for number: a refactor leaves them as they are, a change of method explains them."""

from __future__ import annotations

import json

import pytest

from . import runs


@runs.each_objective
def test_ten_steps(objective, tmp_path):
    """Rewards, losses and gradient norms are those of the file that ``python -m tests.runs`` writes anew."""
    wanted = json.loads(runs.GOLDEN.read_text())[objective]
    found = runs.curve(runs.save_model(tmp_path), tmp_path, objective)
    assert len(found) == 10
    for step, (row, golden) in enumerate(zip(found, wanted, strict=True)):
        # Another cut into micro-batches, which only rounds otherwise, moves them by up to 1e-7.
        assert row == pytest.approx(golden, rel=1e-5, abs=2e-7), f"step {step}"
