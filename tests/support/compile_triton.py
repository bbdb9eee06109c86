"""Compile every Triton kernel for GPUs that are not here; prints a line of JSON for each: which, and its shared memory.

Run with TRITON_INTERPRET=0: what is interpreted is not compiled. ``python compile_triton.py`` takes one head size,
dtype and generation, ``80``, ``89`` or ``90`` that generation with every dtype, ``--all`` every head size of each.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import product

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from longspan.kernels.banded import triton_jit as banded
from longspan.kernels.gathered import triton_jit as gathered
from longspan.kernels.gathered import triton_jit_chunk as gathered_chunk
from longspan.kernels.gpu import primitives, tiles
from longspan.kernels.gpu import rotate_jit as rotate
from longspan.kernels.scores import triton_jit as scores
from longspan.kernels.topk import triton_jit as topk

MEMORY = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}  # bytes of shared memory a program may have
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
GROUP = 4
ROTATED = {"START": 0, "INTERLEAVED": False}
SHARED = {"KV_SHARE": 1, "CHOICE_SHARE": 1, "POSITIONS_SHARE": 1}


def pointers(dtype: torch.dtype, split: bool) -> dict[str, str]:
    own = NAMES[dtype]
    fixed = {"cos": "fp32", "sin": "fp32", "key_cos": "fp32", "key_sin": "fp32", "lse": "fp32", "parts_lse": "fp32"}
    fixed |= {"ranges": "i32", "pages": "i32", "order": "i32", "tiles": "i32", "channels": "i32", "top": "fp32"}
    fixed |= {"units": "i64", "positions": "i64", "tokens": "i64", "ends": "i64", "stops": "i64", "chosen": "i64"}
    fixed |= {"scores": "fp32", "edges": "i64"}
    return {"out": "fp32" if split else own, "parts": own} | fixed


def compiled(fn, constants: dict, dtype: torch.dtype, split: bool, tile: tiles.Tiles, arch: int):
    types = pointers(dtype, split)
    signature, hints, values = {}, {}, {}
    for n, param in enumerate(fn.params):
        if param.is_constexpr:
            signature[param.name], values[(n,)] = "constexpr", constants[param.name]
        elif param.name.endswith("_ptr"):
            signature[param.name] = "*" + types.get(param.name.removesuffix("_ptr"), NAMES[dtype])
            hints[(n,)] = [["tt.divisibility", 16]]
        elif param.name in ("scale", "tie"):
            signature[param.name] = "fp32"
        else:
            signature[param.name] = "i32"
            if re.search("_s[a-z]+$", param.name):
                hints[(n,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn, signature, constexprs=values, attrs=hints)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def jobs(dtype: torch.dtype, width: int, arch: int):
    """Kernel, its constants, whether keys are split, tiles: as the launchers would choose them."""
    padded = tiles.power(width)
    common = {"D": width, "DV": width, "DP": padded, "DVP": padded, "SOFTCAP": 0.0, **ROTATED}

    def of(rows: int, keys: int = 1 << 20, rotated: bool = False, **more):
        tile = tiles.fitting(dtype.itemsize, padded, padded, rows, MEMORY[arch])
        tile = replace(tile, stages=1) if rotated else tile
        size = min(tile.keys, tiles.power(keys))
        heads = {"GROUP": GROUP, "TILE_HEADS": min(GROUP, tile.rows), "HALF": width // 2, "KEY_HALF": 0}
        return tile, common | heads | SHARED | {"R": tile.rows, "K": size, "MAPS": 1, "CHUNKS": False, "PAGE": 0} | more

    for rows, split in ((4096, False), (1, True)):
        tile, constants = of(rows * GROUP, SPLIT=split)
        yield "banded", banded.banded, constants, split, tile
        tile, constants = of(rows * GROUP, SPLIT=split, PAGE=16)
        yield "banded, in pages", banded.banded, constants, split, tile
        tile, constants = of(rows * GROUP, CHUNKS=not split)
        yield "by_query_chunk", gathered_chunk.by_query_chunk, constants, split, tile
    tile, constants = of(512, PARTS=8, KV_SHARE=1)
    tile = replace(tile, stages=min(tile.stages, 2))
    for tops, chunks in product((True, False), repeat=2):
        made = constants | {"TOPS": tops, "CHUNKS": chunks, "STOPPED": False}
        yield "token_scores", scores.token_scores, made, True, tile
    tile, constants = of(1, PARTS=8, KV_SHARE=1, TOPS=False, CHUNKS=False, STOPPED=True)
    tile = replace(tile, stages=min(tile.stages, 2))
    yield "token_scores of one query", scores.token_scores, constants, True, tile
    tile, constants = of(256, 256, SIZE=256, KV_SHARE=GROUP, ORDERED=width == 80)
    yield "representations", scores.representations, constants, True, tile
    tile, constants = of(4096 * GROUP, SPLIT=False, MAPS=2, SOFTCAP=30.0, INTERLEAVED=True)
    yield "banded, all options", banded.banded, constants, False, tile
    tile, constants = of(4096 * GROUP, SPLIT=False, HALF=0)
    yield "banded, rotated before", banded.banded, constants, False, tile
    tile, constants = of(GROUP, 256, SIZE=256, SLOTS=False)
    yield "by_row", gathered.by_row, constants, True, tile
    tile, constants = of(4096 * GROUP, rotated=True, KEY_HALF=width // 2)
    yield "by_query_chunk, keys rotated", gathered_chunk.by_query_chunk, constants, False, tile
    tile, constants = of(GROUP, 5, rotated=True, SIZE=1, SLOTS=True)
    yield "by_row slots", gathered.by_row, constants, False, tile
    tile, constants = of(4096, 256, SIZE=256)
    yield "by_unit", gathered.by_unit, constants, False, tile
    yield "schedule", gathered.schedule, {"PLACES": 32, "U": 256}, False, tiles.Tiles(16, 16, 4, 1)
    rows = {"R": 2048 // padded, "HALF": width // 2, "HP": tiles.power(width // 2, 1), "ROTATED": True}
    for source, to in ((False, True), (True, True), (False, False)):
        orders = {"FROM_PAIRS": source, "TO_PAIRS": to, "ROTATED": source or not to}
        yield "rotated", rotate.rotated, common | rows | orders, False, tiles.Tiles(16, 16, 4, 1)
    yield (
        "merge",
        primitives.merge,
        {"DV": width, "DVP": padded, "R": 2, "P": 16},
        False,
        tiles.Tiles(16, 16, 4, 1),
    )
    for block, warps in ((16, 1), (8192, 16)):
        every = {"STOPS": True, "TIE": True, "LAST": True, "BLOCK": block}
        yield "nearby", topk.nearby, every | {"BLOCK": min(block, 1024)}, True, tiles.Tiles(1, block, 4, 1)
        yield "topk", topk.topk, every, True, tiles.Tiles(1, block, warps, 1)


# Of each generation every dtype, over all of them every head size; the largest where the least memory is.
WIDTHS = (32, 64, 80, 96, 128, 256)
SOME = {
    80: [(torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 256)],
    89: [(torch.bfloat16, 256), (torch.float16, 96), (torch.float32, 256)],
    90: [(torch.bfloat16, 80), (torch.float16, 256), (torch.float32, 32)],
}


def main(asked: str) -> None:
    """A generation (a minute or two), ``--all`` (half an hour), or else one head size of one."""
    if asked == "--all":
        combinations = list(product(MEMORY, NAMES, WIDTHS))
    elif asked:
        combinations = [(int(asked), *one) for one in SOME[int(asked)]]
    else:
        combinations = [(90, torch.bfloat16, 32)]
    for arch, dtype, width in combinations:
        for name, fn, constants, split, tile in jobs(dtype, width, arch):
            made = compiled(fn, constants, dtype, split, tile, arch)
            known = {"kernel": name, "split": split, "arch": arch, "dtype": NAMES[dtype], "width": width}
            print(json.dumps(known | {"shared": made.metadata.shared, "limit": MEMORY[arch]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
