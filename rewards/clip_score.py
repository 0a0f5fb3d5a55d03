"""How well a picture fits its prompt: the cosine of their CLIP embeddings.

See "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", Hessel et al.,
https://arxiv.org/abs/2104.08718.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._clip import Clip

MODEL, REVISION = "openai/clip-vit-large-patch14", "32bd64288804d66eefd0ccbe215aa642df71cc41"


class ClipScoreReward(Reward):
    """CLIPScore: ``scale * cos(image, text)``, with scale 1, so about 0.2 to 0.35 for pictures of their prompt.

    The paper multiplies by 2.5 and cuts off below 0, torchmetrics multiplies by 100.
    """

    name = "clip_score"
    range = (-1.0, 1.0)
    differentiable = True
    license = "MIT"

    def __init__(
        self,
        model: str = MODEL,
        revision: str | None = None,
        *,
        scale: float = 1.0,
        prefix: str = "",
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Load a CLIP.

        Args:
            model: a hub id or a folder.
            revision: of the hub; the default model is pinned.
            scale: what the cosine is multiplied by.
            prefix: goes before each prompt; the paper takes "A photo depicts ".
            device: where it runs.
            dtype: ``float32``, ``bfloat16`` or ``float16``.

        Raises:
            UserError: an option is wrong, or the weights are missing.
        """
        label = f"reward {self.name!r}"
        if not 0 < scale < math.inf:
            raise UserError(f"{label}: scale: wanted a number above 0, got {scale!r}.")
        revision = revision or (REVISION if model == MODEL else None)
        self._clip = Clip(model, revision, label, tokenizer=(model, revision), device=device, dtype=dtype)
        self.scale, self.prefix, self.range = scale, prefix, (-scale, scale)
        self.source = (
            f"{model}@{revision or 'main'}; shorter side to {self._clip.size} bicubic, centre crop; {scale} * cosine"
        )

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scaled cosines, `[B]`."""
        return self.scale * self._clip.cosines(batch.images, [self.prefix + prompt for prompt in batch.prompts])
