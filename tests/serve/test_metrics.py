"""What ``/metrics`` counts."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.serving import wait_for


def counted(served) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    text = served.http.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Slow:
    """A job that takes a while for each of its steps."""

    cancelled = long = False

    def __init__(self, steps: int, seconds: float) -> None:
        self.left, self.seconds = steps, seconds

    def step(self) -> bool:
        time.sleep(self.seconds)
        self.left -= 1
        return self.left > 0

    def close(self) -> None:
        self.left = 0


@pytest.mark.long
def test_seconds_of_computing_are_no_seconds_of_waiting(start):
    served = start()
    served.ask("warm", max_tokens=2)
    before = counted(served)
    began = time.perf_counter()
    served.host.engine.submit(Slow(6, 0.5))
    wait_for(lambda: served.host.engine.running)
    served.ask("The road", max_tokens=5)
    total = time.perf_counter() - began
    after = counted(served)
    phases = ("queued", "prefill", "decode", "turns")
    seconds = {phase: after["longspan_seconds_sum", phase] - before["longspan_seconds_sum", phase] for phase in phases}
    # Of five tokens, four come after a turn of the slow job.
    assert seconds["turns"] > 4 * 0.5 * 0.9
    assert 0 < seconds["prefill"] < 0.5 and 0 < seconds["decode"] < 1
    assert sum(seconds.values()) <= total
    assert after["longspan_seconds_count", "decode"] == before["longspan_seconds_count", "decode"] + 1


def test_requests_and_tokens(start):
    served = start()
    before = counted(served)
    usage = served.ask("The road", max_tokens=5)["usage"]
    served.http.post("/v1/chat/completions", json={"model": "tiny"})
    after = counted(served)
    for kind, tokens in (("prompt", usage["prompt_tokens"]), ("completion", 5), ("cached", 0)):
        assert after["longspan_tokens_total", kind] == before.get(("longspan_tokens_total", kind), 0) + tokens
    assert after["longspan_requests_total", "/v1/chat/completions", "200"] == 1
    assert after["longspan_requests_total", "/v1/chat/completions", "400"] == 1
