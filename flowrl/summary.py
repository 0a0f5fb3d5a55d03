"""What a run prints after a step."""

from __future__ import annotations


def summary_line(metrics: dict[str, float], max_steps: int) -> str:
    """One line for the console.

    >>> summary_line({"step": 3.0, "reward/mean": 0.5, "eval/shapes/mean": 0.25}, 10)
    'step 3/10  reward 0.500  eval shapes 0.250'
    """
    parts = [f"step {metrics['step']:.0f}/{max_steps}"]
    if "reward/mean" in metrics:
        parts.append(f"reward {metrics['reward/mean']:.3f}")
    for key, label, form in (
        ("loss", "loss", ".4f"),
        ("grad_norm", "grad", ".3g"),
        ("ratio/clip_fraction", "clipped", ".2f"),
    ):
        if key in metrics:
            parts.append(f"{label} {metrics[key]:{form}}")
    parts += [
        f"eval {key.removeprefix('eval/').removesuffix('/mean').split('/')[-1]} {value:.3f}"
        for key, value in metrics.items()
        if key.startswith("eval/") and key.endswith("/mean")
    ]
    seconds = sum(value for key, value in metrics.items() if key.startswith("seconds/"))
    return "  ".join([*parts, *([f"{seconds:.1f}s"] if seconds else [])])
