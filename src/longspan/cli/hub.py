"""Whether the model hub can be reached, found out before its client tries for half a minute."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PATIENCE = 10.0  # seconds, as long as the client itself waits for its first answer
_PORTS = {"http": 80, "https": 443}


@contextmanager
def within_reach() -> Iterator[str | None]:
    """Without a way to the hub its client is offline inside, and what was downloaded before still loads.

    Gives why it cannot be reached, or None.
    """
    from huggingface_hub import constants

    why = None if constants.HF_HUB_OFFLINE else why_not(constants.ENDPOINT)
    if why is None:
        yield None
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield why
    finally:
        constants.HF_HUB_OFFLINE = False


def why_not(endpoint: str) -> str | None:
    """Why nobody can be connected to at an address, or at the proxy that leads to it; None where somebody answers."""
    host, port = _door(endpoint)
    said: list[str | None] = []

    def knock() -> None:
        try:
            socket.create_connection((host, port), timeout=_PATIENCE).close()
            said.append(None)
        except OSError as error:
            said.append(error.strerror or str(error))

    thread = threading.Thread(target=knock, daemon=True)  # a name may take longer to look up than any timeout says
    thread.start()
    thread.join(_PATIENCE)
    why = said[0] if said else f"no answer in {_PATIENCE:g} s"
    return None if why is None else f"{host} cannot be reached: {why}"


def _door(endpoint: str) -> tuple[str, int]:
    url = urlsplit(endpoint)
    host = url.hostname or endpoint
    given = getproxies()
    proxy = given.get(url.scheme) or given.get("all")
    if proxy and not proxy_bypass(host):
        url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        host = url.hostname or proxy
    return host, url.port or _PORTS.get(url.scheme, 443)
