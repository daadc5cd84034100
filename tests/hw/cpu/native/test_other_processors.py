"""The kernels compiled for processors that can do less: the same tests, in a process and with a cache of their own."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core.ops.cxx import cxx
from arcforge_hw.cpu.native import processor

HERE = Path(__file__).parent
WITHOUT = {
    "bfloat16": "-mno-avx512bf16", "bytes": "-mno-avx512vnni", "512 bits": "-march=x86-64-v3",
    "pairs": "-DWIDE_PAIRS", "a measurement of pairs": "-UWIDE_PAIRS",
}  # fmt: skip

KERNELS = (
    "attention_decode", "attention_varlen", "few_rows", "index_keys", "layer", "moe_experts", "quant", "rms_norm",
)  # fmt: skip


@pytest.mark.nightly(reason="compiles all kernels again and runs their tests")
@pytest.mark.skipif("avx2" not in processor(), reason="the flags are of processors with AVX2")
@pytest.mark.parametrize("flag", WITHOUT.values(), ids=WITHOUT)
def test_products_without(flag, tmp_path):
    wrapper = tmp_path / "compiler"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(cxx())} "$@" {flag}\n')
    wrapper.chmod(0o755)
    environment = {**os.environ, "CXX": str(wrapper), "ARCFORGE_CACHE": str(tmp_path)}
    files = [str(HERE / f"test_{name}.py") for name in KERNELS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *files]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[3])
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert list((tmp_path / "native").glob("*.so"))
