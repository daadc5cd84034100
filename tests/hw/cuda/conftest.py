"""Where kernels run: on a GPU, or in Triton's interpreter, which tests/conftest.py asks for."""

import importlib.util

import pytest
import torch

KERNELS = [f"test_{name}.py" for name in ("kernels", "indexer_kl", "linear_cross_entropy", "newton_schulz")]
collect_ignore_glob = [] if importlib.util.find_spec("triton") else KERNELS


@pytest.fixture
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"
