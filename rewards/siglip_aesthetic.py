"""How pleasing a picture is, whatever its prompt: the linear head of Aesthetic Predictor v2.5 on SigLIP.

See https://github.com/discus0434/aesthetic-predictor-v2-5. The head is under AGPL-3.0, so flowrl neither brings nor
fetches it: give your own copy.
"""

from __future__ import annotations

from torch import Tensor

from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._clip import SIGLIP_MEAN, SIGLIP_STD, folded, normalised, placed, pretrained, square, state_of, unit, weights_file

MODEL, REVISION = "google/siglip-so400m-patch14-384", "9fdffc58afc957d1a03a25b10dba0329ab15c2a3"
LAYOUT = [0, 2, 4, 6, 8]


class SiglipAestheticReward(Reward):
    """Aesthetic Predictor v2.5: ``w . e + b`` of the SigLIP embedding e of length 1; 5.5 and more is called great.

    The scale is nominally 1 to 10, but the published head reaches from -23.5 to 27.4.
    """

    name = "siglip_aesthetic"
    differentiable = True
    license = "AGPL-3.0-only AND Apache-2.0"

    def __init__(
        self,
        head: str = "",
        *,
        sha256: str = "",
        model: str = MODEL,
        revision: str | None = None,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Load a head and its SigLIP.

        Args:
            head: the path of your copy of ``aesthetic_predictor_v2_5.pth``.
            sha256: what the file must have, in hexadecimal digits; empty for any.
            model: the SigLIP that the head was trained on, a hub id or a folder.
            revision: of the SigLIP on the hub; the default model is pinned.
            device: where it runs.
            dtype: of the SigLIP, ``float32``, ``bfloat16`` or ``float16``.

        Raises:
            UserError: an option is wrong, or a file is missing or of another kind.
        """
        from transformers import SiglipVisionModel

        label = f"reward {self.name!r}"
        path, digest = weights_file(
            head, None, label, sha256=sha256, wanted="your own copy of aesthetic_predictor_v2_5.pth, as `head`"
        )
        state = state_of(path, label)
        if sorted({int(part) for name in state for part in name.split(".") if part.isdigit()}) != LAYOUT:
            raise UserError(f"{label}: {path}: wanted the five linear layers of v2.5, got {', '.join(state)}.")
        self._weight, self._bias = folded(state, label)
        revision = revision or (REVISION if model == MODEL else None)
        self._model = placed(pretrained(SiglipVisionModel, model, revision, label), device, dtype, label)
        config = self._model.config
        if config.hidden_size != len(self._weight):
            raise UserError(
                f"{label}: the head takes {len(self._weight)} numbers, {model!r} gives {config.hidden_size}: "
                "not the SigLIP that it was trained on."
            )
        self._size: int = config.image_size
        length = self._weight.norm().item()
        self.range = (self._bias - length, self._bias + length)
        self.source = f"{path.name} sha256 {digest}; {model}@{revision or 'main'}; squashed to {self._size} bicubic"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores, `[B]`."""
        parameter = next(self._model.parameters())
        pixels = square(batch.images.to(parameter.device), self._size, "squash")
        pixels = normalised(pixels, SIGLIP_MEAN, SIGLIP_STD).to(parameter.dtype)
        embedded = unit(self._model(pixel_values=pixels).pooler_output)
        return embedded @ self._weight.to(embedded.device) + self._bias
