"""Workers tell how far a long prompt is; whoever shows the bar over all prompts shows that below it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from longspan.bundled import load_bundled
from longspan.hf import prefill
from longspan.hf.prefill import Prefill
from longspan_eval import workers
from longspan_eval.measure import Bar, Watch
from longspan_eval.plan import Ask
from longspan_eval.rows import parse_row
from longspan_eval.tasks import TASKS


def slow():
    """The bundled model, every layer of which takes a while."""
    import time

    model, tokenizer = load_bundled()
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda *_: time.sleep(0.3))
    prefill.AFTER = prefill.OFTEN = 0.1  # of this process alone
    return model, tokenizer


@pytest.mark.long
def test_a_prompt_that_takes_long_is_told_about_and_answered_the_same():
    asks = [Ask(parse_row("dca"), replace(TASKS["passkey"], new_tokens=2), 600, n, None, str(n)) for n in range(2)]
    told = []
    watched = dict(workers.run([asks], slow, 1, seen=lambda ask, now: told.append((ask.key, now))))
    assert {key for key, _ in told} == {"0", "1"}
    assert all(isinstance(now, Prefill) and now.layers == 4 for _, now in told)
    assert any(now.total > 512 and now.layer > 1 and now.rate > 0 for _, now in told)  # others are extend's own
    plain = dict(workers.run([asks], load_bundled, 1))
    assert {ask.key: s.prediction for ask, s in watched.items()} == {ask.key: s.prediction for ask, s in plain.items()}
    assert all(sample.error is None for sample in watched.values())


def test_the_line_below_the_bar():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    ask = Ask(parse_row("dca:chunk_size=100"), TASKS["passkey"], 4096, 0, None, "key")
    watch = Watch()
    watch(ask, Prefill(4088, 2044.0, 3, 4, 2.0, 0.0))  # nobody shows it yet
    with Bar(console=console) as bar:
        watch.show = lambda line: setattr(bar, "below", line)
        watch(ask, Prefill(4088, 2044.0, 3, 4, 2.0, 0.0))
        bar.refresh()
    text = "passkey dca:chunk_size=100 at 4,096: 4,088 tokens, layer 3 of 4, 1,022 tokens/s, 0:02 left"
    assert text in console.file.getvalue()
