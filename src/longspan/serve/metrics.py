"""The metrics of ``/metrics``, in a registry of the server's own. No label has text of a request."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from longspan.serve.events import Finished

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests that were answered.", "route", "status")
        self._tokens = self._counter("tokens", "Tokens of prompts and answers.", "kind")
        self._gone = self._counter("clients_gone", "Requests whose clients disconnected.")
        self._seconds = Histogram(
            "longspan_seconds", "Seconds of answers by phase: waiting, and computing.", ["phase"], buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(f"longspan_{name}", says, labels, registry=self.registry)

    def gauge(self, name: str, says: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is a function's at each scrape."""
        Gauge(f"longspan_{name}", says, registry=self.registry).set_function(value)

    def requested(self, route: str, status: int) -> None:
        """Count a response."""
        self._requests.labels(route, str(status)).inc()

    def answered(self, end: Finished) -> None:
        """Count the tokens and seconds of an answer."""
        for kind, count in (("prompt", end.prompt), ("cached", end.cached), ("completion", end.completion)):
            self._tokens.labels(kind).inc(count)
        if (drafts := end.drafts) is not None:
            self._tokens.labels("drafted").inc(drafts.drafted)
            self._tokens.labels("accepted").inc(drafts.accepted)
        for phase in ("queued", "prefill", "decode", "turns"):
            self._seconds.labels(phase).observe(getattr(end, phase))

    def gone(self) -> None:
        """Count a request whose client disconnected."""
        self._gone.inc()
