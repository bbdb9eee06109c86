"""One engine of vLLM in a process of its own: what it is asked, as JSON on standard input, and its answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# One process, one thread, one GiB of pages: the tests' models are small, and so may be the machine.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
ENGINE = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "disable_log_stats": False, "seed": 0}


def answers(
    folder: Path, model: Path, batches: list[list[list[int]]], new: int = 16, plugins: str = "longspan", **engine: Any
) -> dict[str, Any]:
    """Greedy answers to batches of prompts, one batch after the other.

    Args:
        folder: for the answers.
        model: a folder with a config, and weights unless ``load_format`` is ``"dummy"``.
        batches: token ids.
        new: tokens of each answer.
        plugins: the plugins that vLLM loads.
        engine: more arguments of ``vllm.LLM``.

    Returns:
        ``batches``: for each prompt its ``tokens``, their ``logprobs`` and how many of its tokens were ``cached``;
        ``attention``: the classes of the layers' attention, on each of ``ranks``; ``preemptions``: how often a request
        gave its pages back; ``log``: all that was printed. After a failure ``error`` is there alone with ``log``.
    """
    asked, answered = folder / "asked.json", folder / "answered.json"
    asked.write_text(json.dumps({"batches": batches, "new": new, "engine": {**ENGINE, "model": str(model), **engine}}))
    answered.unlink(missing_ok=True)
    environment = {**os.environ, **SETTINGS, "VLLM_PLUGINS": plugins}
    command = [sys.executable, __file__, str(asked), str(answered)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    found = json.loads(answered.read_text()) if answered.exists() else {"error": f"exit {ran.returncode}"}
    return {**found, "log": ran.stdout + ran.stderr}


def main(asked: str, answered: str) -> None:
    spec = json.loads(Path(asked).read_text())
    try:
        found = generate(spec)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    Path(answered).write_text(json.dumps(found))


def generate(spec: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    if spec["engine"].get("distributed_executor_backend") == "ray":
        start_ray(spec["engine"]["tensor_parallel_size"])
    llm = LLM(skip_tokenizer_init=True, **spec["engine"])
    settings = SamplingParams(temperature=0, max_tokens=spec["new"], ignore_eos=True, logprobs=1, detokenize=False)
    batches = []
    for prompts in spec["batches"]:
        outs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
        batches.append([answer(out) for out in outs])
    preemptions = [x.value for x in llm.get_metrics() if x.name == "vllm:num_preemptions"]
    # Of this file as a module: Ray's workers have another __main__.
    classes = llm.apply_model(import_module(Path(__file__).stem).attention)
    assert all(one == classes[0] for one in classes), f"ranks run different attention: {classes}"
    return {"batches": batches, "attention": classes[0], "preemptions": sum(preemptions), "ranks": len(classes)}


def start_ray(workers: int) -> None:
    """A Ray of this machine alone, with as many devices as vLLM asks for workers: they stand for no hardware."""
    import ray

    name_a_device()
    environment = {name: value for name, value in os.environ.items() if name in SETTINGS}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    hook = {"worker_process_setup_hook": name_a_device, "env_vars": environment}
    ray.init(num_cpus=1, num_gpus=workers, include_dashboard=False, runtime_env=hook)


def name_a_device() -> None:
    """vLLM's CPU platform says of no resource of Ray that it is a device, and refuses Ray's executor for that."""
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.ray_device_key = "GPU"


def answer(out: Any) -> dict[str, Any]:
    one = out.outputs[0]
    logprobs = [own[token].logprob for own, token in zip(one.logprobs, one.token_ids, strict=True)]
    return {"tokens": list(one.token_ids), "logprobs": logprobs, "cached": out.num_cached_tokens or 0}


def attention(model: Any) -> list[str]:
    return sorted({type(module.impl).__name__ for module in model.modules() if hasattr(module, "attn_backend")})


if __name__ == "__main__":
    main(*sys.argv[1:])
