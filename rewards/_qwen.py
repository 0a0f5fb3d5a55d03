"""What the rewards on a tuned Qwen2-VL share: its weights, its pictures, and what it holds at a reward token.

The published rewards hand the language model embeddings without the ids, so that it counts positions 0, 1, 2, ... over
words and picture alike, where Qwen2-VL itself counts the rows and columns of a picture. They were trained so, and are
scored so here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from ._clip import normalised, placed, pretrained
from ._instruction import PROMPT

_KEYS: Sequence[tuple[str, str]] = (
    (r"^base_model\.model\.", ""),
    (r"^model\.language_model\.", "text."),
    (r"^model\.visual\.", "visual."),
    (r"^model\.", "text."),
)
"""Names by PEFT, by transformers since 4.52 and by older ones, and what they become."""


def resized(height: int, width: int, low: int, high: int, cell: int = 28) -> tuple[int, int]:
    """The size that Qwen2-VL gives a picture: sides are multiples of ``cell``, the area is from ``low`` to ``high``.

    Args:
        height: of the picture, in pixels.
        width: of the picture, in pixels.
        low: the least area, in pixels; what is smaller is made larger, and may then exceed ``high``.
        high: the largest area, in pixels.
        cell: the pixels that one token stands for are ``cell`` by ``cell``.

    >>> resized(512, 512, 200704, 200704), resized(100, 300, 200704, 200704)
    ((448, 448), (280, 784))
    """
    rows, columns = max(1, round(height / cell)), max(1, round(width / cell))
    area = rows * columns * cell**2
    if area > high:
        scale = math.sqrt(high / (height * width)) / cell
        rows, columns = max(1, math.floor(height * scale)), max(1, math.floor(width * scale))
    elif area < low:
        scale = math.sqrt(low / (height * width)) / cell
        rows, columns = math.ceil(height * scale), math.ceil(width * scale)
    return rows * cell, columns * cell


def fitted(images: Tensor, low: int, high: int, cell: int = 28) -> Tensor:
    """Pictures `[N, 3, H, W]` in the size that :func:`resized` gives, bicubic with antialiasing, overshoot cut off.

    >>> fitted(torch.ones(1, 3, 112, 448), 4 * 28**2, 4 * 28**2).shape
    torch.Size([1, 3, 28, 112])
    """
    size = resized(*images.shape[-2:], low, high, cell)
    if size == images.shape[-2:]:
        return images
    return F.interpolate(images, size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)


def patches(frames: Tensor, size: int, merged: int, depth: int) -> tuple[Tensor, tuple[int, int, int]]:
    """Cut videos as Qwen2-VL does: block by block of ``merged`` by ``merged`` patches, each ``depth`` frames deep.

    Args:
        frames: `[B, F, 3, H, W]`, normalised; the last frame is repeated until ``depth`` divides F.
        size: of a patch, in pixels.
        merged: patches a side that become one token.
        depth: frames of a patch.

    Returns:
        the patches `[B, T * H/size * W/size, 3 * depth * size * size]`, and the grid (T, H/size, W/size).
    """
    missing = -frames.shape[1] % depth
    frames = torch.cat([frames, frames[:, -1:].expand(-1, missing, -1, -1, -1)], dim=1)
    batch, count, channels, height, width = frames.shape
    grid = count // depth, height // size, width // size
    blocks = frames.reshape(
        batch, grid[0], depth, channels, grid[1] // merged, merged, size, grid[2] // merged, merged, size
    )
    # time, block row, block column, row and column in the block, channel, frame, pixel row and column
    return blocks.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(batch, math.prod(grid), -1), grid


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint as ``text.``, ``visual.`` and ``rm_head.``, whatever version wrote it.

    >>> sorted(
    ...     renamed({"model.layers.0.w": torch.ones(1), "model.visual.w": torch.ones(1), "rm_head.w": torch.ones(1)})
    ... )
    ['rm_head.w', 'text.layers.0.w', 'visual.w']
    """
    return {_renamed(name): value for name, value in state.items()}


def _renamed(name: str) -> str:
    for pattern, new in _KEYS:
        name = re.sub(pattern, new, name)
    return name


class QwenJudge:
    """A Qwen2-VL that reads pictures and an instruction, and what it holds at the reward tokens."""

    def __init__(
        self,
        state: Mapping[str, Tensor],
        label: str,
        *,
        base: tuple[str, str | None],
        tokens: Sequence[str],
        device: str,
        dtype: str,
    ) -> None:
        """Fill the model with ``state``.

        Args:
            state: all of its tensors, as :func:`renamed` names them; those of its own head are not used.
            label: opens the message of an error.
            base: the model that was tuned, a hub id or folder with its revision: its config and tokenizer are read.
            tokens: the reward tokens, in the order in which they were added to the tokenizer.
            device: where it runs.
            dtype: ``float32``, ``bfloat16`` or ``float16``.

        Raises:
            UserError: config or tokenizer are missing, the tensors are of another model, or an option is wrong.
        """
        from transformers import AutoConfig, AutoTokenizer

        self._label = label
        self._tokenizer = pretrained(AutoTokenizer, *base, label)
        if not getattr(self._tokenizer, "chat_template", None):
            raise UserError(f"{label}: the tokenizer of {base[0]!r} has no chat template; wanted Qwen2-VL's.")
        self._tokenizer.add_tokens(list(tokens), special_tokens=True)
        self._tokenizer.padding_side = "right"
        self._tokens = self._tokenizer.convert_tokens_to_ids(list(tokens))
        config = pretrained(AutoConfig, *base, label)
        self._visual, self._text = _towers(config, state, label, base=base[0], device=device, dtype=dtype)
        self._config, self.vision = config, config.vision_config
        if max(self._tokens) >= self._text.embed_tokens.weight.shape[0]:
            raise UserError(f"{label}: the checkpoint has no rows for {', '.join(tokens)}: not of this reward.")

    @property
    def cell(self) -> int:
        """Pixels a side that one token stands for."""
        return int(self.vision.patch_size * self.vision.spatial_merge_size)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._text.embed_tokens.weight.device  # type: ignore[no-any-return]

    def hidden(self, frames: Tensor, texts: Sequence[str], kind: str) -> Tensor:
        """What the last layer holds at the reward tokens, `[B, tokens, D]` float32; gradients reach the frames.

        Args:
            frames: `[B, F, 3, H, W]` in [0, 1], of a size that :func:`resized` gives.
            texts: B instructions, the prompt filled in.
            kind: ``image`` or ``video``.
        """
        weight = self._text.embed_tokens.weight
        cut, grid = patches(
            normalised(frames), self.vision.patch_size, self.vision.spatial_merge_size, self.vision.temporal_patch_size
        )
        seen = self._visual(
            cut.flatten(0, 1).to(weight.dtype), grid_thw=torch.tensor([grid] * len(cut)).to(weight.device)
        )
        # a tensor before transformers 5, an object since
        seen = seen if isinstance(seen, Tensor) else seen.pooler_output
        ids, mask = self._ids(texts, kind, math.prod(grid) // self.vision.spatial_merge_size**2)
        pad = getattr(self._config, f"{kind}_token_id")
        words = self._text.embed_tokens(ids)
        joined = words.masked_scatter((ids == pad)[..., None].expand_as(words), seen.to(words.dtype))
        places = torch.arange(ids.shape[1], device=ids.device).expand(3, len(ids), -1)
        last = self._text(inputs_embeds=joined, attention_mask=mask, position_ids=places, use_cache=False)[0]
        at = torch.stack([(ids == token).int().argmax(dim=1) for token in self._tokens], dim=1)
        return last.gather(1, at[..., None].expand(-1, -1, last.shape[-1])).float()

    def _ids(self, texts: Sequence[str], kind: str, count: int) -> tuple[Tensor, Tensor]:
        """The tokens `[B, L]` of the whole conversations, ``count`` of them for the picture, and their mask."""
        pad = self._tokenizer.convert_ids_to_tokens(getattr(self._config, f"{kind}_token_id"))
        chats = []
        for text in texts:
            message = {"role": "user", "content": [{"type": kind, kind: ""}, {"type": "text", "text": text}]}
            chat = self._tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
            chats.append(chat.replace(pad, pad * count))
        words = self._tokenizer(chats, padding=True, return_tensors="pt").to(self.device)
        return words["input_ids"], words["attention_mask"]

    def filled(self, template: str, prompts: Sequence[str]) -> list[str]:
        """The instruction with each prompt in it.

        Raises:
            UserError: a prompt holds a token of the model's own, such as ``<|im_end|>``, that would break the question.
        """
        for prompt in prompts:
            own = next((str(word) for word in self._tokenizer.get_added_vocab() if word in prompt), None)
            if own is not None:
                raise UserError(
                    f"{self._label}: the prompt {prompt!r} holds {own}, a token of the model's own: remove it."
                )
        return [template.replace(PROMPT, prompt) for prompt in prompts]


def _towers(
    config: Any, state: Mapping[str, Tensor], label: str, *, base: str, device: str, dtype: str
) -> tuple[Any, Any]:
    """The picture encoder and the language model, with the tensors of ``state`` in them."""
    from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen

    if config.model_type != "qwen2_vl":
        raise UserError(f"{label}: model: wanted a Qwen2-VL, got {base!r}, which is {config.model_type!r}.")
    # one config for all before transformers 4.52, a text_config and a Qwen2VLTextModel since
    text_config, text = getattr(config, "text_config", config), getattr(qwen, "Qwen2VLTextModel", qwen.Qwen2VLModel)
    rows = state.get("text.embed_tokens.weight")
    if rows is not None:
        text_config.vocab_size = len(rows)
    # transformers 4 asks for it when a picture encoder is loaded alone, and its config has none
    config.vision_config.initializer_range = getattr(config.vision_config, "initializer_range", 0.02)
    placed(torch.nn.Linear(1, 1), device, dtype, label)  # a wrong device or dtype is found before gigabytes are read
    kinds = (("visual", qwen.Qwen2VisionTransformerPretrainedModel, config.vision_config), ("text", text, text_config))
    visual, text = (_tower(*kind, state, dtype, label).to(torch.device(device)) for kind in kinds)
    return visual, text


def _tower(name: str, kind: Any, config: Any, state: Mapping[str, Tensor], dtype: str, label: str) -> Any:
    """One of them. ``from_pretrained`` leaves the positions' frequencies in float32; ``.to(dtype)`` would not."""
    import transformers

    own = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
    key = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    options = {key: getattr(torch, dtype), "output_loading_info": True, "ignore_mismatched_sizes": True}
    model, found = kind.from_pretrained(None, config=config, state_dict=own, **options)
    wrong = sorted(str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in found[kind])
    if wrong:
        raise UserError(
            f"{label}: the checkpoint is of no such Qwen2-VL: {len(wrong)} tensors of its {name} part are missing, "
            f"unknown or of another shape, such as {wrong[0]}."
        )
    return model.eval().requires_grad_(False)
