"""The delta rule by fla: when it is taken, and what its functions are given."""

import sys
from types import ModuleType

import pytest
import torch

import arcforge_hw.cuda.gated_delta_rule as kernel
from arcforge_core.contracts.batch import cumulative
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.ops import reference
from arcforge_core.testing.hardware_checks import check_kernel
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.configs import CudaConfig
from arcforge_hw.cuda.backend import Cuda

CASES = op_cases("gated_delta_rule")


def call(dtype=torch.bfloat16, needs_grad=True, key_dim=64):
    return OpCall("gated_delta_rule", "cuda", dtype, needs_grad, {"heads": 2, "key_dim": key_dim, "value_dim": 64})


@pytest.fixture
def versions(monkeypatch):
    """Versions of installed distributions; fla is among them."""
    found = {"fla-core": "0.6.0", "triton": "3.7.1"}
    monkeypatch.setattr(kernel, "find_spec", lambda name: name)
    monkeypatch.setattr(kernel, "version", found.__getitem__)
    kernel.missing_fla.cache_clear()
    yield found
    kernel.missing_fla.cache_clear()


def test_without_fla_the_reason_says_how_to_get_it(monkeypatch):
    kernel.missing_fla.cache_clear()
    monkeypatch.setattr(kernel, "find_spec", lambda _: None)
    assert kernel.supports(call()).reason == "fla is not installed: pip install fla-core"
    kernel.missing_fla.cache_clear()


def test_it_is_preferred_where_it_is_installed(versions):
    kernels = [k for k in Cuda(CudaConfig()).kernels() if k.op == "gated_delta_rule"]
    best = max((k for k in kernels if k.supports(call()).ok), key=lambda k: k.priority)
    assert best.name == "cuda.gated_delta_rule.fla"
    assert not best.supports(OpCall("gated_delta_rule", "cpu", torch.bfloat16)).ok


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": torch.float32}, "not for torch.float32"),
        ({"key_dim": 320}, "key_dim=320"),
        ({}, ""),
    ],
)
def test_what_it_takes(given, reason, versions):
    verdict = kernel.supports(call(**given))
    assert verdict.ok == (not reason)
    assert reason in verdict.reason


def test_an_older_release_is_declined(versions):
    versions["fla-core"] = "0.5.9"
    assert "0.5.9 is older than 0.6" in kernel.supports(call()).reason


@pytest.mark.parametrize(
    ("triton", "capability", "grad", "ok"),
    [
        ("3.6.0", (9, 0), True, False),
        ("3.7.1+git5", (9, 0), True, True),
        ("3.6.0", (8, 0), True, True),
        ("3.6.0", (9, 0), False, True),
    ],
)
def test_no_gradients_where_triton_compiles_them_wrongly(triton, capability, grad, ok, versions, monkeypatch):
    versions["triton"] = triton
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    verdict = kernel.supports(call(needs_grad=grad))
    assert verdict.ok == ok
    assert ok or f"Triton {triton}" in verdict.reason


def in_flas_layout(used):
    """Returns a function of fla's signature that computes by the definition, and notes its calls."""

    def run(q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens):
        used.append((run, cu_seqlens))
        assert output_final_state and cu_seqlens.dtype == torch.int64 and cu_seqlens.device == q.device
        (batch, tokens, heads, keys), values = q.shape, v.shape[-1]
        assert batch == 1 and k.shape == q.shape and v.shape == (1, tokens, heads, values)
        assert g.shape == beta.shape == (1, tokens, heads)
        assert initial_state.shape == (len(cu_seqlens) - 1, heads, keys, values)
        outs, states = [], []
        for n in range(len(cu_seqlens) - 1):
            state = initial_state[n]
            for t in range(cu_seqlens[n], cu_seqlens[n + 1]):
                state = state * g[0, t].exp()[:, None, None]
                error = v[0, t] - torch.einsum("hk,hkv->hv", k[0, t], state)
                state = state + torch.einsum("hk,hv->hkv", k[0, t], beta[0, t][:, None] * error)
                outs.append(torch.einsum("hk,hkv->hv", q[0, t] * scale, state))
            states.append(state)
        return torch.stack(outs)[None], torch.stack(states)

    return run


@pytest.fixture
def fla(monkeypatch):
    """A module like fla's, and the functions that were called with their lengths."""
    used = []
    module = ModuleType("fla.ops.gated_delta_rule")
    module.chunk_gated_delta_rule, module.fused_recurrent_gated_delta_rule = in_flas_layout(used), in_flas_layout(used)
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", module)
    kernel.device_lengths.cache_clear()
    return module, used


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case.name)
def test_arguments_are_what_fla_takes(case, fla):
    results = []
    for fn in (kernel.gated_delta_rule, reference.gated_delta_rule):
        args = case.inputs(torch.float64, "cpu", strided=True)
        leaves = [args[name].requires_grad_() for name in case.grad]
        outs = fn(*args.values())
        results.append((*outs, *torch.autograd.grad([x.square().sum() for x in outs], leaves)))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("lengths", "grad", "chosen"),
    [
        ([1, 64], False, "fused_recurrent_gated_delta_rule"),
        ([1, 65], False, "chunk_gated_delta_rule"),
        ([1, 3], True, "chunk_gated_delta_rule"),
    ],
)
def test_few_tokens_take_recurrent_steps_unless_a_gradient_is_wanted(lengths, grad, chosen, fla):
    module, used = fla
    tokens = sum(lengths)
    given = [torch.zeros(tokens, 2, 4), torch.zeros(tokens, 2, 4), torch.zeros(tokens, 2, 3, requires_grad=grad)]
    rest = torch.zeros(tokens, 2), torch.zeros(tokens, 2), torch.zeros(2, 2, 4, 3)
    for _ in range(2):
        kernel.gated_delta_rule(*given, *rest, cumulative(lengths), 1.0)
    assert [fn for fn, _ in used] == 2 * [getattr(module, chosen)]
    assert used[0][1] is used[1][1]  # fla keeps its plans by the identity of the lengths


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_equals_the_reference_on_a_gpu():
    pytest.importorskip("fla")
    [fla_kernel] = [k for k in Cuda(CudaConfig()).kernels() if k.name == "cuda.gated_delta_rule.fla"]
    result = check_kernel(fla_kernel, "cuda", torch.bfloat16)
    assert result.verdict in ("pass", "declined"), result.reason
