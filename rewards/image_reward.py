"""How well a picture shows its prompt and how good it is, as people rank pictures: ImageReward.

See "ImageReward: Learning and Evaluating Human Preferences for Text-to-Image Generation", Xu et al.,
https://arxiv.org/abs/2304.05977. The published file is a BLIP of its authors' own code; here transformers' BLIP is
filled with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._clip import folded, normalised, placed, pretrained, square, state_of, weights_file

REPOSITORY, FILE, REVISION = "THUDM/ImageReward", "ImageReward.pt", "5736be03b2652728fb87788c9797b0570450ab72"
TOKENIZER, TOKENIZER_REVISION = "google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594"
MEAN, STD = 0.16717362830052426, 1.0333394966054072
"""Of the scores on the authors' pictures: published scores are standardised with them."""

_TOKENS, _HEAD_WIDTH = 35, 64
_VISION: Sequence[tuple[str, str]] = (
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^blocks\.(\d+)\.attn\.qkv\.", r"encoder.layers.\1.self_attn.qkv."),
    (r"^blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.projection."),
    (r"^blocks\.(\d+)\.norm(\d)\.", r"encoder.layers.\1.layer_norm\2."),
    (r"^blocks\.(\d+)\.mlp\.", r"encoder.layers.\1.mlp."),
    (r"^norm\.", "post_layernorm."),
)
"""Names of the authors' picture encoder, and of transformers'."""


class ImageRewardReward(Reward):
    """ImageReward, standardised: about -2.3 to 2; SD 1.5 has about 0.

    A BLIP reads the prompt while looking at the picture; a chain of linear layers makes a number of its first token.
    """

    name = "image_reward"
    differentiable = True
    license = "Apache-2.0"

    def __init__(
        self,
        weights: str = f"{REPOSITORY}:{FILE}",
        *,
        sha256: str = "",
        tokenizer: str = TOKENIZER,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Load the model.

        Args:
            weights: a path, or ``owner/repository:file`` on the hub; by default the published file, pinned.
            sha256: what the file must have, in hexadecimal digits; empty for any.
            tokenizer: BERT's, a hub id or a folder.
            device: where it runs.
            dtype: ``float32``, ``bfloat16`` or ``float16``.

        Raises:
            UserError: an option is wrong, or a file is missing or of another kind.
        """
        from transformers import AutoTokenizer

        label = f"reward {self.name!r}"
        revision = REVISION if weights == f"{REPOSITORY}:{FILE}" else None
        path, digest = weights_file(weights, revision, label, wanted=f"{FILE} of {REPOSITORY}", sha256=sha256)
        vision, text, head = _parts(state_of(path, label))
        try:
            self._vision, self._size = _vision_model(vision)
            self._text = _text_model(text, self._vision.config.hidden_size)
        except (KeyError, RuntimeError, ZeroDivisionError) as error:
            raise UserError(f"{label}: {path} is no ImageReward checkpoint: {error}") from error
        weight, self._bias = folded(head, label)
        self._weight = weight.to(torch.device(device))
        for model in (self._vision, self._text):
            placed(model, device, dtype, label)
        words_revision = TOKENIZER_REVISION if tokenizer == TOKENIZER else None
        self._tokenizer = pretrained(AutoTokenizer, tokenizer, words_revision, label)
        self.source = f"{FILE} sha256 {digest}; {self._size} bicubic, centre crop; {_TOKENS} tokens of {tokenizer}"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores, `[B]`."""
        parameter = next(self._vision.parameters())
        pixels = normalised(square(batch.images.to(parameter.device), self._size)).to(parameter.dtype)
        seen = self._vision(pixel_values=pixels).last_hidden_state
        words = self._tokenizer(
            batch.prompts, padding="max_length", truncation=True, max_length=_TOKENS, return_tensors="pt"
        ).to(parameter.device)
        read = self._text(
            input_ids=words["input_ids"],
            attention_mask=words["attention_mask"],
            encoder_hidden_states=seen,
            encoder_attention_mask=torch.ones(seen.shape[:2], dtype=torch.long, device=seen.device),
        ).last_hidden_state[:, 0]
        return (read.float() @ self._weight + self._bias - MEAN) / STD


def _parts(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """The picture encoder's tensors under transformers' names, the text encoder's, and the head's."""

    def below(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

    vision = {_renamed(name): value for name, value in below("blip.visual_encoder.").items()}
    # Older checkpoints hold the positions 0, 1, 2, ... themselves.
    text = {name: value for name, value in below("blip.text_encoder.").items() if not name.endswith("position_ids")}
    return vision, text, below("mlp.")


def _renamed(name: str) -> str:
    for pattern, new in _VISION:
        if re.search(pattern, name):
            return re.sub(pattern, new, name)
    return name


def _layers(state: Mapping[str, Tensor], pattern: str) -> int:
    return len({found[1] for name in state if (found := re.search(pattern, name))})


def _vision_model(state: dict[str, Tensor]) -> tuple[Any, int]:
    """The picture encoder, of the size that its tensors say, and the side of its pictures in pixels."""
    from transformers import BlipVisionConfig, BlipVisionModel

    width, patch = state["embeddings.class_embedding"].shape[-1], state["embeddings.patch_embedding.weight"].shape[-1]
    side = patch * round((state["embeddings.position_embedding"].shape[1] - 1) ** 0.5)
    config = BlipVisionConfig(
        hidden_size=width,
        intermediate_size=state["encoder.layers.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=_layers(state, r"^encoder\.layers\.(\d+)\."),
        num_attention_heads=width // _HEAD_WIDTH,
        image_size=side,
        patch_size=patch,
        layer_norm_eps=1e-6,  # of the authors' code; transformers' default is 1e-5
    )
    return _filled(BlipVisionModel(config), state), side


def _text_model(state: dict[str, Tensor], seen_width: int) -> Any:
    """The text encoder with attention to the picture."""
    from transformers import BlipTextConfig
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    words, width = state["embeddings.word_embeddings.weight"].shape
    config = BlipTextConfig(
        vocab_size=words,
        hidden_size=width,
        encoder_hidden_size=seen_width,
        intermediate_size=state["encoder.layer.0.intermediate.dense.weight"].shape[0],
        num_hidden_layers=_layers(state, r"^encoder\.layer\.(\d+)\."),
        num_attention_heads=width // _HEAD_WIDTH,
        max_position_embeddings=state["embeddings.position_embeddings.weight"].shape[0],
    )
    return _filled(BlipTextModel(config, add_pooling_layer=False), state)


def _filled(model: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    model.load_state_dict(state)
    return model
