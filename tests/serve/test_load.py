"""Three hundred requests by thirty-two clients, a tenth of which hang up half way: none is lost, and none is wrong."""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from longspan.machine import usage
from support.serving import chat, events, wait_for

CLIENTS, REQUESTS, TOKENS = 32, 300, 12
PROMPTS = [f"{n} things were found on the way to the sea, and" for n in range(20)]


@pytest.mark.long
def test_many_requests_of_which_some_hang_up(start, book):
    served = start(max_running=16, max_queue=64, memory=0)
    id = served.add(book)
    questions = [(prompt, {}) for prompt in PROMPTS] + [(prompt, {"document": id}) for prompt in PROMPTS[:5]]

    def ask(number: int) -> tuple[int, str | None]:
        which = number % len(questions)
        prompt, more = questions[which]
        body = chat(prompt, max_tokens=TOKENS, stream=True, **more)
        with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            if number % 10 == 3:
                lines = response.iter_lines()
                for _ in range(random.Random(number).randrange(8)):
                    next(lines)
                return which, None
            told = events(response)
        assert told[-1]["choices"][0]["finish_reason"] in ("length", "stop")
        return which, "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in told)

    alone = dict(ask(n) for n in range(len(questions)) if n % 10 != 3)
    before = _memory(served)
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(ask, range(REQUESTS)))
    wait_for(served.idle)
    assert len(answers) == REQUESTS and sum(text is None for _, text in answers) == REQUESTS // 10
    wrong = [which for which, text in answers if text is not None and which in alone and text != alone[which]]
    assert wrong == [] and len(served.host.caches) == 0
    after = _memory(served)
    if before is not None and after is not None:
        assert after - before < 64 * 2**20, "memory is not back where it was"


def _memory(served) -> int | None:
    """Bytes of the process, once nobody is being answered."""
    wait_for(served.idle)
    gc.collect()
    return usage.anonymous()
