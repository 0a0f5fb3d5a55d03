"""Which picture people prefer for a prompt: HPS v2 and v2.1, an open_clip ViT-H that was tuned on their choices.

See "Human Preference Score v2: A Solid Benchmark for Evaluating Human Preferences of Text-to-Image Synthesis",
Wu et al., https://arxiv.org/abs/2306.09341.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import plugins
from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._clip import normalised, placed, square, state_of, unit, weights_file

REPOSITORY, REVISION = "xswu/HPSv2", "697403c78157020a1ae59d23f111aa58ced35b0a"
VERSIONS = {"v2": "HPS_v2_compressed.pt", "v2.1": "HPS_v2.1_compressed.pt"}


class HpsReward(Reward):
    """HPS: 100 times the cosine of picture and prompt, as the paper prints it; about 22 to 33.

    The longer side of a picture is resized to 224 and the rest is black, as published; many training repositories
    crop or squash, which shifts the scores.
    """

    name = "hps"
    range = (-100.0, 100.0)
    differentiable = True
    license = "Apache-2.0"

    def __init__(
        self,
        version: str = "v2.1",
        *,
        weights: str | None = None,
        sha256: str = "",
        architecture: str = "ViT-H-14",
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Load the model.

        Args:
            version: ``v2`` or ``v2.1``.
            weights: a path, or ``owner/repository:file`` on the hub; by default the published file, pinned.
            sha256: what the file must have, in hexadecimal digits; empty for any.
            architecture: of open_clip.
            device: where it runs.
            dtype: ``float32``, ``bfloat16`` or ``float16``.

        Raises:
            UserError: an option is wrong, or the weights are missing or of another kind.
        """
        import open_clip

        label = f"reward {self.name!r}"
        for option, value, known in (
            ("version", version, list(VERSIONS)),
            ("architecture", architecture, open_clip.list_models()),
        ):
            if value not in known:
                hint = plugins.nearest(value, known) or f" Known: {', '.join(known[:5])}."
                raise UserError(f"{label}: {option}: unknown {value!r}.{hint}")
        file = VERSIONS[version]
        place, revision = (weights, None) if weights else (f"{REPOSITORY}:{file}", REVISION)
        path, digest = weights_file(place, revision, label, wanted=f"{file} of {REPOSITORY}", sha256=sha256)
        state = state_of(path, label)
        model = open_clip.create_model(architecture)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise UserError(f"{label}: {path} is no checkpoint of {architecture}: {error}") from error
        self._model = placed(model, device, dtype, label)
        self._tokenizer = open_clip.get_tokenizer(architecture)
        side = model.visual.image_size
        self._size: int = side if isinstance(side, int) else side[0]
        self.source = f"{file} sha256 {digest}; longer side to {self._size} bicubic, black margins; 100 * cosine"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores, `[B]`."""
        parameter = self._model.logit_scale
        pixels = normalised(square(batch.images.to(parameter.device), self._size, "pad")).to(parameter.dtype)
        with torch.no_grad():
            texts = unit(self._model.encode_text(self._tokenizer(batch.prompts).to(parameter.device)))
        return 100 * (unit(self._model.encode_image(pixels)) * texts).sum(dim=-1)
