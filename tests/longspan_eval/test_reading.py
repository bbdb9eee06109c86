"""Workers tell how far a long prompt is; whoever shows the bar over all prompts shows that below it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from longspan.bundled import load_bundled
from longspan.hf import progress_bar as prefill
from longspan.hf.progress_bar import Prefill
from longspan_eval import workers
from longspan_eval.measure import TaskPrompt
from longspan_eval.run import Bar, PromptWatch
from longspan_eval.schedule import Request
from longspan_eval.session import Session, bundled
from longspan_eval.spec import parse_spec
from longspan_eval.tasks import TASKS


def slow():
    """The bundled model, every layer of which takes a while."""
    import time

    model, tokenizer = load_bundled()
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda *_: time.sleep(0.3))
    prefill.AFTER = prefill.OFTEN = 0.1  # of this process alone
    return Session(model, tokenizer)


@pytest.mark.long
def test_a_prompt_that_takes_long_is_told_about_and_answered_the_same():
    task = replace(TASKS["passkey"], new_tokens=2)
    asked = [Request(str(n), TaskPrompt(parse_spec("dca"), 600, n, task=task), 0) for n in range(2)]
    told = []
    seen = {"seen": lambda request, now: told.append((request.key, now))}
    watched, plain = (
        {request.key: sample for request, sample in workers.run([asked], load=source, workers=1, **more)}
        for source, more in ((slow, seen), (bundled, {}))
    )
    assert {key for key, _ in told} == {"0", "1"}
    layers = load_bundled()[0].config.num_hidden_layers
    assert all(isinstance(now, Prefill) and now.layers == layers for _, now in told)
    assert any(now.total > 512 and now.layer > 1 and now.rate > 0 for _, now in told)  # others are extend's own
    assert {key: one.prediction for key, one in watched.items()} == {key: one.prediction for key, one in plain.items()}
    assert all(sample.error is None for sample in watched.values())


def test_the_line_below_the_bar():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    request = Request("key", TaskPrompt(parse_spec("dca:chunk_size=100"), 4096, task=TASKS["passkey"]), 0)
    watch = PromptWatch()
    watch(request, Prefill(4088, 2044.0, 3, 4, 2.0, 0.0))  # nobody shows it yet
    with Bar(console=console) as bar:
        watch.show = lambda line: setattr(bar, "below", line)
        watch(request, Prefill(4088, 2044.0, 3, 4, 2.0, 0.0))
        bar.refresh()
    text = "passkey, dca:chunk_size=100, 4,096: 4,088 tokens, layer 3 of 4, 1,022 tokens/s, 0:02 left"
    assert text in console.file.getvalue()
