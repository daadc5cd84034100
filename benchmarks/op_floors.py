"""The ops that most time goes into, each beside its floor, at sizes of a model of some billion parameters.

    python benchmarks/op_floors.py [--quick] [--threads N] [--only OP ...] [--json FILE]

A row is one call of the function that the ops of this machine choose, in fp32 and in bf16. Its floor counts the
products that the result needs, at the measured rate of large products in the same precision, and the bytes that it must
read and write, at the measured bandwidth; the larger of the two is the floor. Rates are those of this run. Operands are
taken in turns from copies that no cache holds together. bf16 is left out on a processor without its instructions.
`ATEN_CPU_CAPABILITY=avx2`, and `CXX` as a script that calls the compiler with ``-march=x86-64-v3``, measure torch's and
our kernels without AVX512.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _machine import describe_machine, read_bandwidth
from _rounds import Job, add, in_turns, ratio, show
from arcforge_core.contracts.batch import cumulative
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.ops.compat import has_bf16
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.train.throughput import matmul_rate
from arcforge_hw.torch_ops.newton_schulz import flops, reference_flops
from arcforge_optim.configs import COEFFICIENTS

HIDDEN, WIDTH, VOCAB = 2048, 6144, 32_768
HEADS, LATENT, ROTATED = 16, 512, 64
INDEX_HEADS, INDEX_DIM, TOPK = 8, 128, 2048
PROMPT, CACHED = 1024, 65_536
CACHES = 1 << 27
"""Bytes that no cache of a core holds: copies of the operands take at least as many."""
MOST_COPIES = 64
SPENT = 0.3
"""Seconds of a round of one op, about."""


@dataclass(frozen=True)
class Case:
    """A call of an op.

    Attributes:
        op: its name.
        rows: of the operand that is not a weight or a cache: tokens, queries or matrices.
        title: the computation and its size.
        sizes: that the op's kernels are chosen by.
        make: returns the arguments in a dtype.
        products: multiplications and additions, by dtype.
        values: numbers of the dtype that are read and written.
    """

    op: str
    rows: int
    title: str
    sizes: Mapping[str, int]
    make: Callable[[torch.dtype], tuple[Any, ...]]
    products: Mapping[torch.dtype, float] | float
    values: float


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    """Returns random values."""
    return torch.randn(*shape).to(dtype)


def linear(rows: int) -> Case:
    """A projection of the hidden state."""
    return Case(
        "linear", rows, f"{rows} x {HIDDEN} to {WIDTH}", {"inputs": HIDDEN, "outputs": WIDTH},
        lambda dtype: (drawn(dtype, rows, HIDDEN), drawn(dtype, WIDTH, HIDDEN)),
        2.0 * rows * HIDDEN * WIDTH, HIDDEN * WIDTH + rows * (HIDDEN + WIDTH),
    )  # fmt: skip


def absorbed(keys: int) -> Case:
    """One query over a cache of latents."""
    entry = LATENT + ROTATED
    return Case(
        "mla_decode", 1, f"1 query, {keys:,} keys", {"heads": HEADS, "key_dim": entry, "latent_dim": LATENT},
        lambda dtype: (drawn(dtype, 1, HEADS, entry), drawn(dtype, keys, entry), cumulative([1]), cumulative([keys]),
                       LATENT, entry**-0.5),
        2.0 * keys * HEADS * (entry + LATENT), keys * entry,
    )  # fmt: skip


def selected(queries: int, keys: int) -> Case:
    """Queries over the latents that an indexer selected, each its own."""
    entry = LATENT + ROTATED
    caches = dict[torch.dtype, Tensor]()  # one for all copies, which read other rows of it

    def make(dtype: torch.dtype) -> tuple[Any, ...]:
        if dtype not in caches:
            caches[dtype] = drawn(dtype, keys, entry)
        chosen = torch.stack([torch.randperm(keys)[:TOPK].sort().values for _ in range(queries)])
        return (drawn(dtype, queries, HEADS, entry), caches[dtype], chosen, cumulative([queries]),
                cumulative([keys]), LATENT, entry**-0.5)  # fmt: skip

    return Case(
        "sparse_mla", queries, f"{queries} x {TOPK:,} of {keys:,} keys",
        {"heads": HEADS, "key_dim": entry, "latent_dim": LATENT, "topk": TOPK}, make,
        2.0 * queries * TOPK * HEADS * (entry + LATENT), min(keys, queries * TOPK) * entry,
    )  # fmt: skip


def indexed(keys: int) -> Case:
    """One query's choice among all keys."""
    return Case(
        "indexer_topk", 1, f"1 query, {keys:,} keys", {"heads": INDEX_HEADS, "head_dim": INDEX_DIM, "topk": TOPK},
        lambda dtype: (drawn(dtype, 1, INDEX_HEADS, INDEX_DIM), drawn(dtype, keys, INDEX_DIM),
                       torch.rand(1, INDEX_HEADS).to(dtype), cumulative([1]), cumulative([keys]), TOPK),
        2.0 * keys * INDEX_HEADS * INDEX_DIM, keys * INDEX_DIM,
    )  # fmt: skip


def prompt(tokens: int) -> Case:
    """Causal attention of a whole prompt."""
    size = 128
    sizes = {"heads": HEADS, "kv_heads": HEADS, "key_dim": size, "value_dim": size}
    return Case(
        "attention_varlen", tokens, f"a prompt of {tokens:,} tokens", sizes,
        lambda dtype: (*(drawn(dtype, tokens, HEADS, size) for _ in range(3)), cumulative([tokens]),
                       cumulative([tokens]), size**-0.5),
        2.0 * HEADS * 2 * size * tokens * (tokens + 1) / 2, 4 * tokens * HEADS * size,
    )  # fmt: skip


def rows_of(op: str, tokens: int) -> Case:
    """A pass over the hidden states of a micro-batch."""
    args: dict[str, Callable[[torch.dtype], tuple[Any, ...]]] = {
        "rms_norm": lambda dtype: (drawn(dtype, tokens, HIDDEN), drawn(dtype, HIDDEN), 1e-6),
        "swiglu": lambda dtype: (drawn(dtype, tokens, HIDDEN), drawn(dtype, tokens, HIDDEN)),
    }
    passes = {"rms_norm": 2, "swiglu": 3}[op]
    return Case(op, tokens, f"{tokens:,} rows of {HIDDEN}", {"width": HIDDEN}, args[op], 0.0, passes * tokens * HIDDEN)


def loss(tokens: int) -> Case:
    """The loss of a micro-batch, without gradients."""
    return Case(
        "linear_cross_entropy", tokens, f"{tokens:,} tokens, {VOCAB:,} words", {"width": HIDDEN, "vocab": VOCAB},
        lambda dtype: (drawn(dtype, tokens, HIDDEN), drawn(dtype, VOCAB, HIDDEN), torch.randint(VOCAB, (tokens,)),
                       torch.full((tokens,), 1.0 / tokens)),
        2.0 * tokens * HIDDEN * VOCAB, VOCAB * HIDDEN + tokens * HIDDEN,
    )  # fmt: skip


def experts(tokens: int, chosen: int = 4, count: int = 16, width: int = 512) -> Case:
    """The experts of tokens, each token's own."""

    def make(dtype: torch.dtype) -> tuple[Any, ...]:
        picked = torch.stack([torch.randperm(count)[:chosen] for _ in range(tokens)])
        weights = drawn(dtype, count, 2 * width, HIDDEN), drawn(dtype, count, HIDDEN, width)
        return drawn(dtype, tokens, HIDDEN), *weights, picked, torch.full((tokens, chosen), 1.0 / chosen)

    read = min(count, tokens * chosen) * 3 * width * HIDDEN
    return Case(
        "moe_experts", tokens, f"{tokens} x {chosen} of {count} experts of {width}",
        {"experts": count, "hidden": HIDDEN, "width": width}, make,
        6.0 * tokens * chosen * width * HIDDEN, read + 2 * tokens * HIDDEN,
    )  # fmt: skip


def orthogonal(batch: int, rows: int, columns: int) -> Case:
    """Muon's iteration; bf16 is not precise enough for the form that needs fewer products."""
    steps = COEFFICIENTS["kj"]
    return Case(
        "newton_schulz", batch, f"{batch} matrices of {rows} x {columns}", {"rows": rows, "columns": columns},
        lambda dtype: (drawn(dtype, batch, rows, columns), steps),
        {torch.float32: batch * float(min(flops(rows, columns), reference_flops(rows, columns))),
         torch.bfloat16: batch * float(reference_flops(rows, columns))}, 2 * batch * rows * columns,
    )  # fmt: skip


CASES = (
    linear(1), linear(16), linear(512), absorbed(CACHED), indexed(CACHED), selected(1, CACHED), selected(64, CACHED),
    prompt(PROMPT), experts(1), experts(512), rows_of("rms_norm", 2048), rows_of("swiglu", 2048), loss(512),
    orthogonal(8, 256, 2048),
)  # fmt: skip


def job_of(case: Case, dtype: torch.dtype, ops: Ops) -> tuple[Job, float]:
    """Returns the calls of a round, in turns over the copies of the operands, and how many they are."""
    run = ops.bind(OpCall(case.op, "cpu", dtype, needs_grad=False, sizes=dict(case.sizes)))
    first = case.make(dtype)
    read = case.values * dtype.itemsize  # a call may read a part of its operands
    copies = [first, *(case.make(dtype) for _ in range(min(MOST_COPIES, int(CACHES / read))))]
    turns = itertools.cycle(copies)
    with torch.inference_mode():
        run(*next(turns))
        took = min(in_turns({"": lambda: run(*next(turns))}, 3)[""])
    calls = max(1, min(500, int(SPENT / took)))

    @torch.inference_mode()
    def job() -> None:
        for _ in range(calls):
            run(*next(turns))

    return job, calls


def main() -> None:
    """Measures each op and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="OP", choices=sorted({case.op for case in CASES}))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ops, report = Ops(select_hardware("cpu")), {"benchmark": "op_floors", "machine": describe_machine(options.threads)}
    rows: list[dict[str, Any]] = []
    dtypes = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if has_bf16() else {})
    for name, dtype in dtypes.items():
        for case in CASES:
            if options.only and case.op not in options.only:
                continue
            torch.manual_seed(0)
            job, calls = job_of(case, dtype, ops)
            seconds = [took / calls for took in in_turns({"": job}, 3 if options.quick else 9)[""]]
            rates = matmul_rate(dtype), read_bandwidth()
            products = case.products if isinstance(case.products, float) else case.products[dtype]
            floors = {"products": products / rates[0], "bytes": case.values * dtype.itemsize / rates[1]}
            floor = max(floors.values())
            over = ratio(seconds, [floor] * len(seconds))
            row = {
                "op": case.op,
                "of": case.title,
                "dtype": name,
                "ms": 1e3 * statistics.median(seconds),
                "floor_ms": 1e3 * floor,
            }
            rows.append(row | {"bound": max(floors, key=lambda kind: floors[kind]), "over": over.value})
            add(report, {f"{case.op}_{case.rows}_{name}_over_floor": over})
            print(f"{name} {case.op:21} {case.title:42} {rows[-1]['ms']:9.3f} ms, floor {1e3 * floor:8.3f} "
                  f"({rows[-1]['bound']}) {over}", flush=True)  # fmt: skip
    report["rows"] = rows
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
