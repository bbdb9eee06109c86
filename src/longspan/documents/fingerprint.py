"""Fingerprints of a model and a machine."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from longspan import files
from longspan.files import cache_folder
from longspan.model.report import Report
from longspan.model.weights import named_weights, weights_hash

# Of a config, what says where it was loaded from or how it runs and nothing of what is computed.
_PASSING = {"transformers_version", "attn_implementation", "dtype", "torch_dtype"}
_PASSING |= {"use_cache", "output_attentions", "output_hidden_states", "return_dict", "architectures"}
_SAMPLES = 64  # numbers of each weight that are looked at before a hash is believed
_KEPT = 64  # hashes of weights that are remembered
_CPUINFO = Path("/proc/cpuinfo")
# Lines of it that say which processor it is; ARM has no name.
_TYPES = {"model name", "cpu family", "model", "stepping"}
_TYPES |= {"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Hardware"}


def config_of(config: PreTrainedConfig) -> dict[str, Any]:
    """A model's config, of its decoder alone, as plain values without what passes."""
    own = config.get_text_config(decoder=True).to_dict()
    plain = json.loads(json.dumps(own, default=str, sort_keys=True))
    return {name: value for name, value in plain.items() if name not in _PASSING and not name.startswith("_")}


def weights_of(model: PreTrainedModel, cache: Path | None = None) -> str:
    """``weights_hash``, remembered for weights that were loaded from files and are still those.

    The files' paths, sizes and times name them, and 64 numbers of each weight. Weights that torch saw change in place
    since they were loaded (``Tensor._version``) are hashed anew and not remembered. A change that torch does not see,
    through ``Tensor.data`` or numpy, is noticed if it changes one of the 64 numbers.

    Args:
        cache: the file of remembered hashes; the user's own unless given.
    """
    stated = _files_of(model)
    if stated is None or _changed(model):
        return weights_hash(model)
    key = hashlib.sha256(json.dumps([_sample(model), stated]).encode()).hexdigest()
    path = cache if cache is not None else _cache_file()
    if path is None:
        return weights_hash(model)
    known = _read(path)
    if key not in known:
        known[key] = weights_hash(model)
        with suppress(OSError):  # a hash that cannot be remembered is computed again
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, json.dumps(dict(list(known.items())[-_KEPT:]), indent=1))
    return known[key]


def ids_of(ids: torch.Tensor) -> str:
    """SHA-256 over token ids ``[T]``, as int64."""
    return hashlib.sha256(ids.to(torch.int64).contiguous().numpy().tobytes()).hexdigest()


def machine_of(model: PreTrainedModel, report: Report) -> str:
    """The machine of a model's forwards: if it is the same, their results are equal to the bit."""
    device = model.device
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{_processor()}, {torch.get_num_threads()} threads"
    )
    return f"{name}, torch {torch.__version__}, {report.kernels}"


def _changed(model: PreTrainedModel) -> bool:
    """Whether a weight was changed in place, or is a tensor of inference mode, of which torch does not know."""
    return any(weight.is_inference() or weight._version for _, weight in named_weights(model))


def _sample(model: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, weight in named_weights(model):
        flat = weight.detach().reshape(-1)
        ends = 0, max(flat.numel() - 1, 0)  # in fp64: fp32 has not every number from 2**24 on
        places = torch.linspace(*ends, min(_SAMPLES, flat.numel()), dtype=torch.float64).long().to(flat.device)
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(flat[places].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _files_of(model: PreTrainedModel) -> list[tuple[str, int, int]] | None:
    """Path, size and time of the files of a model's weights; None if these are unknown."""
    name = str(getattr(model.config, "_name_or_path", "") or "")
    folder = Path(name)
    if name and not folder.exists():
        with suppress(Exception):  # of many kinds: it is not in the hub's cache
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(name, "config.json")
            folder = Path(found).parent if isinstance(found, str) else folder
    if not name or not folder.exists():
        return None
    weights = sorted(path for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind))
    weights = [folder] if folder.is_file() else weights  # a GGUF file
    stats = [(str(path.resolve()), path.stat()) for path in weights]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats] or None


def _read(path: Path) -> dict[str, str]:
    try:
        held = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    plain = isinstance(held, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k, v in held.items())
    return dict(held) if plain else {}


def _cache_file() -> Path | None:
    """The file of remembered hashes; None for a user without a home."""
    try:
        return cache_folder() / "weights.json"
    except RuntimeError:
        return None


@lru_cache(maxsize=1)
def _processor() -> str:
    """The processor's name and type, all types if cores differ."""
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, check=True)
            return asked.stdout.decode().strip()
    with suppress(OSError):
        lines = (line.partition(":") for line in _CPUINFO.read_text().splitlines())
        found = dict.fromkeys(f"{name.strip()} {value.strip()}" for name, _, value in lines if name.strip() in _TYPES)
        if found:
            return ", ".join(found)
    return platform.processor() or platform.machine()
