"""Which picture people would pick for a prompt: a CLIP that was tuned on their choices.

See "Pick-a-Pic: An Open Dataset of User Preferences for Text-to-Image Generation", Kirstain et al.,
https://arxiv.org/abs/2305.01569.
"""

from __future__ import annotations

from torch import Tensor

from ..reward import Reward, RewardBatch
from ._clip import Clip

MODEL, REVISION = "yuvalkirstain/PickScore_v1", "a4e4367c6dfa7288a00c550414478f865b875800"
TOKENIZER, TOKENIZER_REVISION = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", "1c2b8495b28150b8a4922ee1c8edee224c284c0c"


class PickScoreReward(Reward):
    """PickScore: ``exp(logit_scale) * cos(image, text)``, about 20 to 23; no softmax over pictures.

    Flow-GRPO divides it by 26; here the weight of the config does that.
    """

    name = "pickscore"
    range = (-100.0, 100.0)
    differentiable = True
    license = "MIT"

    def __init__(
        self,
        model: str = MODEL,
        revision: str | None = None,
        *,
        tokenizer: str | None = None,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Load the model.

        Args:
            model: a hub id or a folder.
            revision: of the hub; the default model is pinned.
            tokenizer: a hub id or a folder; by default of the CLIP-H it was tuned from; of your own ``model``, its own.
            device: where it runs.
            dtype: ``float32``, ``bfloat16`` or ``float16``.

        Raises:
            UserError: an option is wrong, or the weights are missing.
        """
        default = model == MODEL
        words = tokenizer or (TOKENIZER if default else model)
        words_revision = TOKENIZER_REVISION if words == TOKENIZER else None
        revision = revision or (REVISION if default else None)
        self._clip = Clip(
            model, revision, f"reward {self.name!r}", tokenizer=(words, words_revision), device=device, dtype=dtype
        )
        self.range = (-self._clip.scale, self._clip.scale)
        self.source = (
            f"{model}@{revision or 'main'}, tokenizer {words}@{words_revision or 'main'}; "
            f"shorter side to {self._clip.size} bicubic, centre crop"
        )

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores, `[B]`."""
        return self._clip.scale * self._clip.cosines(batch.images, batch.prompts)
