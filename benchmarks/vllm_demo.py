"""vLLM serves the bundled model, and the openai client asks it for pass keys beyond its window.

make vllm-demo, or python benchmarks/vllm_demo.py [--windows 8] [--count 3] [--method dca | --method stock]

``stock`` is vLLM's own attention, for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from longspan.bundled import FOLDER

WINDOW = 512
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def model_folder(folder: Path) -> Path:
    """The bundled model alone: vLLM takes every file of weights in a folder for the model's, a calibration too."""
    for path in FOLDER.iterdir():
        if path.suffix == ".json" or path.name == "model.safetensors":
            (folder / path.name).symlink_to(path)
    return folder


@contextmanager
def served(method: str, longest: int, seconds: float, more: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server that answers, until the block ends; ``more`` are arguments of vLLM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        own = [] if method == "stock" else ["--additional-config", json.dumps({"longspan": method})]
        model = Path(folder, "bundled")
        model.mkdir()
        # What `vllm serve` runs; that command itself looks for a package named vllm, and the CPU build is vllm-cpu.
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_folder(model)),
            "--served-model-name", "bundled", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
            "--max-model-len", str(longest), "--enforce-eager", *own, *more,
        ]  # fmt: skip
        print(" ".join(command), f"It starts in a minute or two; its log is {log}", sep="\n", flush=True)
        environment = {**os.environ, **SETTINGS}
        if method == "stock":
            environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
        with log.open("w") as out:
            # With its workers in a group of its own, which ends as a whole.
            server = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            wait(f"http://127.0.0.1:{port}/health", server, log, seconds)
            lines = log.read_text().splitlines()
            start = next((n for n, line in enumerate(lines) if "longspan is attached" in line), len(lines))
            print("\n".join(line.rpartition("] ")[2].rstrip() for line in lines[start : start + 16]), flush=True)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):  # a server that still starts does not listen
                server.wait(timeout=60)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait(address: str, server: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    status = server.poll()
    what = f"did not start within {seconds:.0f} s" if status is None else f"ended with status {status} before it served"
    sys.exit(f"vLLM {what}; the end of its log:\n{log.read_text()[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=8, help="length of a prompt and its answer, in windows of 512")
    parser.add_argument("--count", type=int, default=3, help="how many pass keys")
    parser.add_argument("--method", default="dca", help="a method of longspan, or stock for vLLM's own attention")
    parser.add_argument("--patience", type=float, default=1800, help="seconds that the server may take to start")
    args = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends, too

    from openai import OpenAI
    from transformers import PreTrainedTokenizerFast

    from longspan_eval.tasks import passkey

    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER, local_files_only=True)
    found = 0
    with served(args.method, args.windows * WINDOW, args.patience) as address:
        client = OpenAI(base_url=address, api_key="none", timeout=args.patience)
        for seed in range(args.count):
            asked = passkey.build(tokenizer, length=args.windows * WINDOW, seed=seed, answer_room=passkey.ANSWER_ROOM)
            reply = client.completions.create(
                model="bundled", prompt=asked.input_ids, max_tokens=passkey.ANSWER_ROOM, temperature=0
            )
            text = reply.choices[0].text
            right = passkey.first_integer(text, asked.references)
            found += int(right)
            print(
                f"{len(asked.input_ids):,} tokens, the key is {asked.references[0]}, the answer {text.strip()[:5]!r}: "
                f"{'right' if right else 'wrong'}",
                flush=True,
            )
    print(f"{found} of {args.count} pass keys at {args.windows} windows by {args.method}")
    if args.method == "dca" and found < args.count:
        sys.exit(1)


if __name__ == "__main__":
    main()
