"""A GGUF file of Llama-3-8B's shape with random weights, to measure time and memory without the model: 4.5 GB.

    python benchmarks/random_8b.py FILE [--form Q4_0]

It answers nonsense. Its tokenizer is that of SmolLM2-135M-Instruct (`longspan fetch smollm2`), with tokens that no text
has up to Llama-3-8B's number.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType

from longspan.loading.names import path_of

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY = 32, 4096, 14_336, 32, 8, 128_256
# The scales that a block of weights begins with: with them random weights are around 0 and mostly below 0.03.
SCALES = {"Q4_K": (8e-5, 6e-4), "Q4_0": (0.0043,)}


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape of each tensor."""
    yield "token_embd.weight", (VOCABULARY, WIDTH)
    for n in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{n}.{name}.weight", (WIDTH,)
        for name, rows in (
            ("attn_q", WIDTH),
            ("attn_k", WIDTH * KV_HEADS // HEADS),
            ("attn_v", WIDTH * KV_HEADS // HEADS),
        ):
            yield f"blk.{n}.{name}.weight", (rows, WIDTH)
        yield f"blk.{n}.attn_output.weight", (WIDTH, WIDTH)
        yield f"blk.{n}.ffn_gate.weight", (INNER, WIDTH)
        yield f"blk.{n}.ffn_up.weight", (INNER, WIDTH)
        yield f"blk.{n}.ffn_down.weight", (WIDTH, INNER)
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (VOCABULARY, WIDTH)


def describe(writer: GGUFWriter) -> None:
    """Write what the file says of the model and its tokenizer."""
    writer.add_name("random 8B")
    writer.add_block_count(LAYERS)
    writer.add_context_length(8192)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    own = {name: field.contents() for name, field in GGUFReader(path_of("smollm2")).fields.items()}
    tokens, types = own["tokenizer.ggml.tokens"], own["tokenizer.ggml.token_type"]
    more = VOCABULARY - len(tokens)
    writer.add_tokenizer_model(own["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(own["tokenizer.ggml.pre"])
    writer.add_token_list([*tokens, *(f"<|unused {n}|>" for n in range(more))])
    writer.add_token_types([*types, *[TokenType.CONTROL] * more])
    writer.add_token_merges(own["tokenizer.ggml.merges"])
    writer.add_bos_token_id(own["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(own["tokenizer.ggml.eos_token_id"])
    writer.add_add_bos_token(False)


def make(path: Path, form: str) -> None:
    kind = GGMLQuantizationType[form]
    block, size = GGML_QUANT_SIZES[kind]
    stored = {  # numbers of the file's own type, and how many bytes a row has of them
        name: ((*shape[:-1], shape[-1] // block * size), np.uint8) if len(shape) > 1 else (shape, np.float32)
        for name, shape in shapes()
    }
    need = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in stored.values())
    if shutil.disk_usage(path.parent).free < 1.1 * need:
        sys.exit(f"random_8b: error: {path} takes {need / 1e9:.1f} GB, and its disk has less")
    writer = GGUFWriter(path, "llama")
    describe(writer)
    for name, (shape, dtype) in stored.items():
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        writer.add_tensor_info(name, shape, np.dtype(dtype), nbytes, kind if dtype is np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng, scales = np.random.default_rng(0), np.array(SCALES[form], np.float16).view(np.uint8)
    for shape, dtype in stored.values():
        if dtype is np.float32:
            writer.write_tensor_data(np.ones(shape, np.float32))
            continue
        blocks = np.frombuffer(rng.bytes(int(np.prod(shape))), np.uint8).reshape(-1, size).copy()
        blocks[:, : len(scales)] = scales
        writer.write_tensor_data(blocks)
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--form", choices=tuple(SCALES), default="Q4_K", help="of the weights")
    args = parser.parse_args()
    make(args.file, args.form)
