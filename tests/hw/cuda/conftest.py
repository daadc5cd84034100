"""Where kernels run: on a GPU, or in Triton's interpreter, which tests/conftest.py asks for."""

import importlib.util

import pytest
import torch

KERNELS = ["test_kernels.py", "test_indexer_kl.py", "test_linear_cross_entropy.py"]
collect_ignore_glob = [] if importlib.util.find_spec("triton") else KERNELS


@pytest.fixture
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"
