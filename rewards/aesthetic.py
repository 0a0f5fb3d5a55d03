"""How pleasing a picture is, whatever its prompt: LAION's linear heads on CLIP embeddings.

See https://github.com/christophschuhmann/improved-aesthetic-predictor (v2) and
https://github.com/LAION-AI/aesthetic-predictor (v1). The layers of v2 have no activation between them, so either head
is an affine map of an embedding on the unit sphere, and is folded into one.
"""

from __future__ import annotations

from torch import Tensor

from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._clip import Clip, folded, state_of, weights_file
from .clip_score import MODEL, REVISION

HEADS = {"21dd590f3ccdc646f0d53120778b296013b096a035a2718c9cb0d511bff0f1e0": "v2, sac+logos+ava1-l14-linearMSE.pth"}
"""SHA-256 of published heads."""
LAYOUTS = ([], [0, 2, 4, 6, 7])
"""Indices of the linear layers: v1, one layer without; v2. A head with ReLU has others, and is no affine map."""


class AestheticReward(Reward):
    """LAION's aesthetic score: ``w . e + b`` of the CLIP embedding e of length 1; photographs have about 5.

    The scale is nominally 1 to 10, but the map has no end there: w has length 18 in the v2 head, so it reaches from
    -12.8 to 23.2.
    """

    name = "aesthetic"
    differentiable = True
    license = "Apache-2.0 AND MIT"

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
        """Load a head and its CLIP.

        Args:
            head: the published file, as a path or as ``owner/repository:file`` on the hub.
            sha256: what the file must have, in hexadecimal digits; empty for any.
            model: the CLIP that the head was trained on, a hub id or a folder.
            revision: of the CLIP on the hub; the default model is pinned.
            device: where it runs.
            dtype: of the CLIP, ``float32``, ``bfloat16`` or ``float16``.

        Raises:
            UserError: an option is wrong, or a file is missing or of another kind.
        """
        label = f"reward {self.name!r}"
        path, digest = weights_file(
            head, None, label, sha256=sha256, wanted="LAION's head, such as sac+logos+ava1-l14-linearMSE.pth, as `head`"
        )
        state = state_of(path, label)
        indices = sorted({int(part) for name in state for part in name.split(".") if part.isdigit()})
        if indices not in LAYOUTS:
            raise UserError(f"{label}: {path}: wanted LAION's v1 or v2 linear head, got layers {', '.join(state)}.")
        self._weight, self._bias = folded(state, label)
        revision = revision or (REVISION if model == MODEL else None)
        self._clip = Clip(model, revision, label, tokenizer=(model, revision), device=device, dtype=dtype)
        if self._clip.model.config.projection_dim != len(self._weight):
            raise UserError(
                f"{label}: the head takes {len(self._weight)} numbers, {model!r} gives "
                f"{self._clip.model.config.projection_dim}: not the CLIP that it was trained on."
            )
        length = self._weight.norm().item()
        self.range = (self._bias - length, self._bias + length)
        known = HEADS.get(digest, path.name)
        self.source = f"{known} sha256 {digest}; {model}@{revision or 'main'}; {self._clip.size} bicubic, centre crop"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores, `[B]`."""
        embedded = self._clip.images(batch.images)
        return embedded @ self._weight.to(embedded.device) + self._bias
