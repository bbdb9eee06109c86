"""Chat templates."""

from __future__ import annotations

import copy
from typing import Any

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def with_template(tokenizer: Any, template: str | None) -> Any:
    """A copy of a tokenizer with another template."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = template
    return own
