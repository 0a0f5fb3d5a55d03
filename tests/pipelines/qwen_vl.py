"""A tiny vision-language model, its tokenizer and its processor, as many image pipelines read their prompts."""

from __future__ import annotations

from typing import Any

from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

WIDTH = 16
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_CHAT = """{% for message in messages %}<|im_start|>{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}<|im_start|>"""


def tokenizer() -> Qwen2Tokenizer:
    """One token a byte, and those of Qwen's templates."""
    words = ["<|endoftext|>", *_SPECIAL, *sorted(ByteLevel.alphabet())]
    made = Qwen2Tokenizer(
        vocab={word: number for number, word in enumerate(words)}, merges=[], additional_special_tokens=list(_SPECIAL)
    )
    made.chat_template = _CHAT
    return made


_TEXT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0},
}
_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": WIDTH,
    "patch_size": 4,
}


def parts(layers: int = 2) -> dict[str, Any]:
    """Qwen 3 VL as ``text_encoder``, its ``tokenizer`` and ``processor``."""
    words = tokenizer()
    config = Qwen3VLConfig(
        text_config={**_TEXT, **_vocabulary(words), "num_hidden_layers": layers},
        vision_config={**_VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        **_numbers(words),
    )
    processor = Qwen3VLProcessor(
        image_processor=_image_processor(),
        tokenizer=words,
        video_processor=Qwen3VLVideoProcessor(patch_size=4),
        chat_template=_CHAT,
    )
    model = Qwen3VLForConditionalGeneration(config)
    return {"text_encoder": model.eval(), "tokenizer": words, "processor": processor}


def older_parts() -> dict[str, Any]:
    """The same with Qwen 2.5 VL."""
    words = tokenizer()
    config = Qwen2_5_VLConfig(
        text_config={**_TEXT, **_vocabulary(words), "num_hidden_layers": 2},
        vision_config={**_VISION, "window_size": 16, "fullatt_block_indexes": [0]},
        **_numbers(words),
    )
    processor = Qwen2VLProcessor(
        image_processor=_image_processor(),
        tokenizer=words,
        video_processor=Qwen2VLVideoProcessor(patch_size=4),
        chat_template=_CHAT,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    return {"text_encoder": model.eval(), "tokenizer": words, "processor": processor}


def _image_processor() -> Qwen2VLImageProcessor:
    return Qwen2VLImageProcessor(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 256})


def _vocabulary(words: Qwen2Tokenizer) -> dict[str, Any]:
    return {"vocab_size": len(words), "pad_token_id": words.pad_token_id}


def _numbers(words: Qwen2Tokenizer) -> dict[str, int]:
    names = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    return {f"{kind}_token_id": words.convert_tokens_to_ids(f"<|{name}|>") for kind, name in names.items()}
