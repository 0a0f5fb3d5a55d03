"""Rewards of the tiny test runs, loaded as a user's own are: from a file, by name."""

import math

from flowrl.reward import Reward


class Glow(Reward):
    """The mean of the pixels, with gradients."""

    differentiable = True

    def __call__(self, batch):
        """One number a picture."""
        return batch.images.mean(dim=(1, 2, 3))


def brightness(images, prompts, metadata):
    """The mean of the pixels."""
    return images.mean(dim=(1, 2, 3))


def redness(images, prompts, metadata):
    """How far red stands above blue."""
    return images[:, 0].mean(dim=(1, 2)) - images[:, 2].mean(dim=(1, 2))


def constant(images, prompts, metadata):
    """The same for every picture."""
    return [0.5] * len(images)


def silent(images, prompts, metadata):
    """Scores nothing at all."""
    return [None] * len(images)


def flaky(images, prompts, metadata, trouble, bad):
    """Brightness, but trouble at the picture whose brightness is ``bad``."""
    scores = brightness(images, prompts, metadata).tolist()
    hit = [abs(score - bad) < 1e-7 for score in scores]
    if trouble == "exception" and any(hit):
        raise ZeroDivisionError("a picture that cannot be scored")
    if trouble == "length" and any(hit):
        return scores[:-1]
    instead = {"nan": math.nan, "none": None, "infinity": math.inf}.get(trouble)
    return [instead if bad_one else score for bad_one, score in zip(hit, scores, strict=True)]
