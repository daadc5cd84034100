"""Kernels compile for Hopper without a GPU, keep what they compute in registers, and use tensor cores."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from arcforge_core.files.cache import cache_folder

PRODUCTS = {
    "sparse_forward",
    "sparse_backward_queries",
    "decode_parts",
    "index_scores",
    "kl_sums",
    "kl_tiles",
    "kl_backward_queries",
    "symmetric_product",
}
OLDER = "3.6.0"
"""Other than the installed version: what GPU images carry."""


def compile_all(extra_path=""):
    """Returns the resources of each kernel, from a process that does not interpret."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [extra_path, environment.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "arcforge_hw.cuda.ahead", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    report = json.loads(result.stdout.splitlines()[-1])
    return report["triton"], {x["kernel"]: x for x in report["kernels"]}


def older_triton():
    """Returns a folder with the older version, fetched once."""
    folder = cache_folder("triton") / OLDER
    if not (folder / "triton").is_dir():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(folder),
            f"triton=={OLDER}",
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"triton {OLDER} cannot be fetched: {result.stderr.strip().splitlines()[-1]}")
    return str(folder)


@pytest.mark.slow(reason="compiles all kernels to machine code")
@pytest.mark.parametrize(
    "version", ["installed", pytest.param(OLDER, marks=pytest.mark.nightly(reason="fetches another triton"))]
)
def test_kernels_compile_for_hopper(version):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    found, kernels = compile_all() if version == "installed" else compile_all(older_triton())
    assert version in ("installed", found)
    for name, kernel in kernels.items():
        assert kernel["spilled"] == 0, kernel
        assert kernel["registers"] <= 255, kernel
        assert kernel["shared"] <= 227 * 1024, kernel
        assert kernel["tensor_cores"] == (name in PRODUCTS), kernel
