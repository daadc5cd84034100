"""Compiles every Triton kernel ahead of time, without a GPU: registers, spilled bytes, shared memory, tensor cores.

    python -m arcforge_hw.cuda.ahead [--arch 90] [--json]

Sizes are GLM-5's: 64 heads over entries of 512 + 64, top-k 2048, 32 index heads of 128, hidden size 6144. A kernel that
spills registers to memory, or multiplies without tensor cores where it should use them, is correct but slow; this
command finds it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from arcforge_hw.cuda import indexer_kl, indexer_topk, linear_cross_entropy, mla_decode, newton_schulz, rows, sparse_mla
from arcforge_hw.cuda.launch import interpreted, row_warps, tuned, tuning

LATENT = {"BLOCK_H": sparse_mla.MOST_HEADS, "BLOCK_L": 512, "BLOCK_R": 64}


@dataclass(frozen=True)
class Resources:
    """The resources of a compiled kernel.

    Attributes:
        kernel: its name.
        registers: per thread.
        spilled: bytes of a thread's stack.
        shared: bytes of shared memory per block.
        tensor_cores: whether it uses them (``mma.sync`` or ``wgmma``).
    """

    kernel: str
    registers: int
    spilled: int
    shared: int
    tensor_cores: bool


def kernels() -> dict[str, tuple[Any, str, dict[str, Any]]]:
    """Returns kernel, types of its arguments and constants by name.

    Arguments of type ``i32:16`` are multiples of 16, which Triton detects at launch. So are all pointers.
    """
    attention = "*bf16 *bf16 *i64"
    index = {"INDEX_HEADS": 32, "INDEX_WIDTH": 128, "TOPK": 2048, "RELU": True, "BLOCK_I": 32, "BLOCK_D": 128}
    entries = {"HEADS": 64, "WIDTH": 576}
    hidden = {"BLOCK_D": 8192, "num_warps": row_warps(8192)}
    return {
        "rms_norm_forward": (rows.rms_norm_forward, "*bf16 *bf16 *bf16 *fp32 i32 i32 fp32", hidden),
        "rms_norm_backward": (
            rows.rms_norm_backward, "*bf16 *bf16 *bf16 *fp32 *bf16 *fp32 i32 i32 i32 i32", hidden,
        ),
        "rope_kernel": (rows.rope_kernel, "*bf16 *fp32 *fp32 *bf16 i32 i32 i32 i32 fp32", {"BLOCK_F": 32}),
        "swiglu_forward": (rows.swiglu_forward, "*bf16 *bf16 *bf16 i32", {"BLOCK_N": 1024}),
        "swiglu_backward": (rows.swiglu_backward, "*bf16 *bf16 *bf16 *bf16 *bf16 i32", {"BLOCK_N": 1024}),
        "sparse_forward": (
            sparse_mla.sparse_forward, f"{attention} *bf16 *fp32 i32 i32 i32 fp32", {"TOPK": 2048, **LATENT},
        ),
        "sparse_backward_queries": (
            sparse_mla.sparse_backward_queries, f"*bf16 {attention} *fp32 *fp32 *bf16 i32 i32 i32 fp32",
            {"TOPK": 2048, **LATENT},
        ),
        "sparse_backward_keys": (
            sparse_mla.sparse_backward_keys, "*bf16 *bf16 *bf16 *i32 *i64 *fp32 *fp32 *bf16 i32 i32 i32 fp32",
            {**LATENT, "BLOCK_H": 16},
        ),
        "decode_parts": (
            mla_decode.decode_parts, "*bf16 *bf16 *i64 *i64 *fp32 *fp32 *fp32 i32 i32 i32 fp32 i32 i32 i32",
            {"LENGTH": mla_decode.PART, **LATENT},
        ),
        "index_scores": (
            indexer_topk.index_scores, "*bf16 *bf16 *fp32 *fp32 i32 i32 i32 i32",
            {"HEADS": 32, "RELU": True, "BLOCK_D": 128},
        ),
        "kl_sums": (indexer_kl.kl_sums, f"{attention} *fp32 fp32", {"TOPK": 2048, **entries}),
        "kl_tiles": (
            indexer_kl.kl_tiles, "*bf16 *bf16 *bf16 *bf16 *fp32 *i64 *fp32 *fp32 *fp32 fp32", {**entries, **index},
        ),
        "kl_rows": (indexer_kl.kl_rows, "*fp32 *fp32 *fp32", {"TOPK": 2048, "BLOCK_K": 2048, "num_warps": 4}),
        "kl_backward_queries": (
            indexer_kl.kl_backward_queries, "*fp32 *fp32 *bf16 *bf16 *fp32 *i64 *bf16 *fp32", index,
        ),
        "kl_backward_keys": (
            indexer_kl.kl_backward_keys, "*fp32 *fp32 *bf16 *bf16 *fp32 *i64 *i64 *bf16", index,
        ),
        "cross_entropy_rows": (
            linear_cross_entropy.cross_entropy_rows, "*bf16 *i64 *fp32 *fp32", {"WIDTH": 154880, "GRAD": True},
        ),
        "symmetric_product": (
            newton_schulz.symmetric_product, "*bf16 *bf16 *bf16 i32:16 i32:16 i32:16 i32:16 fp32 fp32",
            {"stride_n": 1, "ADD": True},
        ),
    }  # fmt: skip


def resources(name: str, arch: int) -> Resources:
    """Compiles one kernel for ``sm_<arch>``.

    Raises:
        RuntimeError: this process interprets Triton kernels and cannot compile them.
    """
    if interpreted():
        raise RuntimeError("TRITON_INTERPRET=1: kernels are interpreted, not compiled")
    kernel, types, constants = kernels()[name]
    options = {**constants, **(tuned(name) if name in tuning()["default"] else {})}
    constants = {k: v for k, v in options.items() if k in kernel.arg_names}
    given = dict(zip((name for name in kernel.arg_names if name not in constants), types.split(), strict=True))
    aligned = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, type_ in given.items()
        if type_.startswith("*") or type_.endswith(":16")
    }
    signature = {name: given.get(name, "constexpr").removesuffix(":16") for name in kernel.arg_names}
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", arch, 32),
        options={k: v for k, v in options.items() if k.startswith("num_")},
    )
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        command = [str(tool), "--dump-resource-usage", str(cubin)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{field}:(\d+)", listing)[1]) for field in ("REG", "STACK"))  # type: ignore[index]
    return Resources(
        name, registers, stack, compiled.metadata.shared, bool(re.search(r"\b(wgmma|mma)\.", compiled.asm["ptx"]))
    )


def main() -> None:
    """Prints one line per kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, default=90, help="compute capability, e.g. 90 for Hopper")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [resources(name, options.arch) for name in kernels()]
    if options.json:
        print(json.dumps({"triton": triton.__version__, "kernels": [asdict(x) for x in found]}))
        return
    print(f"Triton {triton.__version__}, sm_{options.arch}")
    for x in found:
        cores = "tensor cores" if x.tensor_cores else ""
        print(f"{x.kernel:<26}{x.registers:>5} registers {x.spilled:>6} B spilled {x.shared:>8} B shared  {cores}")


if __name__ == "__main__":
    main()
