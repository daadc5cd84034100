"""A small model on a backend, compared with the host's references."""

import pytest
import torch

from arcforge_core.configs import TorchCpuConfig
from arcforge_core.contracts.hardware import YES, Kernel
from arcforge_core.ops import reference
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.testing import model_checks
from arcforge_core.testing.model_checks import check_model, curve, curve_fault, decode_fault, host_spread


def backend(*kernels):
    """Returns the plain CPU with these kernels."""
    found = TorchCpu(TorchCpuConfig())
    found.kernels = lambda: list(kernels)
    return found


def test_a_cpu_passes(monkeypatch):
    monkeypatch.setattr(model_checks, "STEPS", 2)
    results = {result.op: (result.verdict, result.reason) for result in check_model(TorchCpu(TorchCpuConfig()))}
    names = ("training", "training in bf16", "save", "weight update", "greedy decode")
    assert results == {f"model {name}": ("pass", "") for name in names}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_no_seed_finds_a_fault_on_a_cpu(seed):
    assert [result for result in check_model(TorchCpu(TorchCpuConfig()), seed) if result.verdict != "pass"] == []


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_doubled_gradient_shows_in_the_norm_although_adamw_hides_it():
    wrong = Kernel("rms_norm", "test", lambda x, w, eps: Doubled.apply(reference.rms_norm(x, w, eps)), lambda _: YES)
    assert curve_fault(backend(wrong), torch.float32, 0).startswith("the gradient norm of step 1 is")


TIED = 17
"""A seed with a router's tie, which rounding decides."""


@pytest.mark.slow(reason="ten training curves of each of two kernels")
def test_a_tie_that_rounding_decides_is_no_fault_and_hides_none():
    host = list(curve(model_checks.model_on(None, TIED), torch.float32, TIED))
    spread = host_spread(host, TIED)
    assert spread[-1]["loss"] > 2e-3 > spread[0]["loss"]
    assert host_spread(list(curve(model_checks.model_on(None, 1), torch.float32, 1)), 1)[-1]["loss"] < 1e-3
    g = torch.Generator().manual_seed(1)

    def rounded(x, w, eps):
        return reference.rms_norm(x, w, eps) * (1 + 1e-6 * torch.randn(x.shape, generator=g))

    assert curve_fault(backend(Kernel("rms_norm", "test", rounded, lambda _: YES)), torch.float32, TIED) == ""
    wrong = Kernel("rms_norm", "test", lambda x, w, eps: Doubled.apply(reference.rms_norm(x, w, eps)), lambda _: YES)
    assert curve_fault(backend(wrong), torch.float32, TIED).startswith("the gradient norm of step 1 is")


def test_a_kernel_that_is_wrong_in_a_cache_only_decodes_other_tokens():
    def shifted(q, k, w, cu_query, cu_key, topk, use_relu=True, pages=None):
        found = reference.indexer_topk(q, k, w, cu_query, cu_key, topk, use_relu, pages)
        return found if int(cu_key[-1]) == int(cu_query[-1]) else torch.where(found > 0, found - 1, found)

    wrong = Kernel("indexer_topk", "test", shifted, lambda _: YES)
    assert curve_fault(backend(wrong), torch.float32, 0) == ""
    assert decode_fault(backend(wrong), 0).startswith("token ")


def test_a_host_near_tie_may_be_decided_otherwise(monkeypatch):
    wrong = Kernel("argmax_logprob", "test", lambda x: reference.argmax_logprob(x.flip(-1)), lambda _: YES)
    assert decode_fault(backend(wrong), 0)
    monkeypatch.setattr(model_checks, "CLOSE", 1e9)
    assert decode_fault(backend(wrong), 0) == ""
