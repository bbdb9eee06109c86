"""Chat templates."""

from __future__ import annotations

import copy
from typing import Any

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

# With functions and their calls, as Qwen's and SmolLM's.
TOOLS = (
    "{% if tools %}Tools:{% for t in tools %} {{ t | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "</s>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def with_template(tokenizer: Any, template: str | None) -> Any:
    """A copy of a tokenizer with another template."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = template
    return own
