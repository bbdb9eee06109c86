"""A quick check whether the model hub is reachable; its client alone would retry for half a minute."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_TIMEOUT = 10.0  # seconds, the client's timeout for its first request
_PORTS = {"http": 80, "https": 443}


@contextmanager
def within_reach() -> Iterator[str | None]:
    """Put the hub's client into offline mode if the hub is unreachable, so that downloaded models still load.

    Yields:
        The reason why the hub is unreachable, or None.
    """
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    reason = None if offline else unreachable_reason(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = offline or reason is not None
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = offline


def unreachable_reason(endpoint: str, *, timeout: float = _TIMEOUT) -> str | None:
    """The reason why a connection to an address, or to its proxy, fails; None if it succeeds."""
    host, port = _address(endpoint)
    results: list[str | None] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=timeout).close()
            results.append(None)
        except OSError as error:
            results.append(error.strerror or str(error))

    thread = threading.Thread(target=connect, daemon=True)  # the socket's timeout does not cover the DNS query
    thread.start()
    thread.join(timeout)
    reason = results[0] if results else f"no answer in {timeout:g} s"
    return None if reason is None else f"{host} cannot be reached: {reason}"


def _address(endpoint: str) -> tuple[str, int]:
    """Host and port of an address, or of the proxy for it."""
    url = urlsplit(endpoint)
    host = url.hostname or endpoint
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(host):
        url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        host = url.hostname or proxy
    return host, url.port or _PORTS.get(url.scheme, 443)
