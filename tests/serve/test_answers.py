"""Answers in the formats of the API."""

from __future__ import annotations

import json

from longspan.serve.answers import CompletionFormat
from longspan.serve.events import Delta, Finished, ShownToken


def test_of_likely_tokens_with_one_text_the_likeliest_is_told():
    token = ShownToken("", 0, -0.1, (("", -0.1), ("a", -2.5), ("", -4.0)))
    end = Finished("length", 1, 0, 1, 0.0, 0.0, 0.0, 0.0, None)
    form = CompletionFormat("tiny", logprobs=True, with_usage=False)
    for text in (form.whole([Delta("", (token,))], end, None), form.delta(Delta("", (token,)))[0]["data"]):
        told = json.loads(text)["choices"][0]["logprobs"]
        assert told["top_logprobs"] == [{"": -0.1, "a": -2.5}] and told["token_logprobs"] == [-0.1]
