"""A tiny random Qwen2-VL with a tokenizer of single bytes, and its tensors as the published rewards name them."""

import json
from pathlib import Path

import torch

WIDTH, PATCH = 32, 4
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ("endoftext", "im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")
SPECIAL = [f"<|{word}|>" for word in WORDS]


def folder(path: Path) -> Path:
    """Config, laid out as the published one, and tokenizer of the model that is tuned; no weights are needed."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    path.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    bytes_.pre_tokenizer, bytes_.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words = PreTrainedTokenizerFast(tokenizer_object=bytes_, pad_token=SPECIAL[0], eos_token=SPECIAL[2])
    words.add_tokens(SPECIAL, special_tokens=True)
    words.chat_template = CHAT
    words.save_pretrained(path)
    ids = dict(zip(SPECIAL, words.convert_tokens_to_ids(SPECIAL), strict=True))
    config = {
        "model_type": "qwen2_vl",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 999,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vision_config": {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": WIDTH, "patch_size": PATCH},
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
    }
    config |= {"image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"]}
    config |= {f"vision_{end}_token_id": ids[f"<|vision_{end}|>"] for end in ("start", "end")}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def tuned(path: Path, tokens: int) -> torch.nn.Module:
    """The whole model with random weights, and rows for ``tokens`` more words than its tokenizer has."""
    from transformers import AutoConfig, AutoTokenizer, Qwen2VLForConditionalGeneration

    config = AutoConfig.from_pretrained(path)
    config.text_config.vocab_size = len(AutoTokenizer.from_pretrained(path)) + tokens
    model = Qwen2VLForConditionalGeneration(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model
