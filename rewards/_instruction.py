"""The texts around the prompt that a tuned Qwen2-VL was tuned with, read from the user's own copies."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError

PROMPT = "{text_prompt}"
"""Stands for the prompt in the published instructions."""


def instruction(place: str, names: Sequence[str], sha256: str, label: str) -> str:
    """The text around the prompt, from your copy of the file that published it; nothing of the file is run.

    Args:
        place: a text file, or a Python file that gives the texts ``names`` as literals, which are joined.
        names: of the texts in a Python file.
        sha256: of the text, UTF-8, in hexadecimal digits; empty for any.
        label: opens the message of an error.

    Raises:
        UserError: there is no such file or literal, it lacks ``{text_prompt}``, or it is another text.
    """
    path = Path(place).expanduser()
    wanted = f"{label}: instruction: wanted a text file, or a .py file with the texts {' and '.join(names)}"
    if not path.is_file():
        raise UserError(f"{wanted}; there is no file {place!r}. The reward's page says where the published one is.")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            found = _literals(text)
            text = "".join(found[name] for name in names)
    except (UnicodeDecodeError, SyntaxError, ValueError, KeyError) as error:
        raise UserError(f"{wanted}; {path}: {type(error).__name__}: {error}.") from error
    digest = hashlib.sha256(text.encode()).hexdigest()
    if sha256 and digest != sha256.lower():
        raise UserError(
            f"{wanted}, of sha256 {sha256}; the text of {path} has {digest}. Scores are those of the published text "
            "only; to use another, set instruction_sha256 to its own sum, or to ''."
        )
    if PROMPT not in text:
        raise UserError(f"{wanted}; {path} has no {PROMPT} in it.")
    return text


def _literals(source: str) -> dict[str, str]:
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return found
