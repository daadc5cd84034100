"""Ops that modules declare: the reference first, then what a walk binds; fused ops; the old way for one version."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from arcforge_core.contracts.attention import AttentionOutput
from arcforge_core.contracts.hardware import YES, Kernel, OpCall, Verdict
from arcforge_core.ops import Fused, Ops, bind_ops, op, reference
from arcforge_core.ops.specs import SPECS


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = op(reference.rms_norm, width=width)

    def forward(self, x):
        return self.norm(x, torch.ones(x.shape[-1]), 1e-5)


def ops_of(*kernels: Kernel) -> Ops:
    return Ops(SimpleNamespace(name="fake", kernels=lambda: list(kernels)))


def binder(ops: Ops, dtype=torch.float32):
    return ops.binder(dtype, "cpu")


def threefold(x, weight, eps):
    return 3 * x


def test_an_op_is_the_reference_until_it_is_bound():
    module, x = Norm(4), torch.randn(2, 4)
    assert torch.equal(module(x), reference.rms_norm(x, torch.ones(4), 1e-5))


def test_the_walk_puts_the_kernel_s_function_in_its_place():
    model, asked = nn.Sequential(Norm(4), nn.Sequential(Norm(8))), []

    def supports(call: OpCall) -> Verdict:
        asked.append(call)
        return YES

    ops = ops_of(Kernel("rms_norm", "k", threefold, supports))
    bind_ops(model, binder(ops, torch.bfloat16))
    bound = model[0].norm, model[1][0].norm
    assert [norm.__wrapped__ for norm in bound] == [threefold] * 2  # only what names a failure is in between
    assert [(call.dtype, dict(call.sizes)) for call in asked] == [
        (torch.bfloat16, {"width": 4}),
        (torch.bfloat16, {"width": 8}),
    ]


def test_ops_are_bound_again_and_after_a_copy():
    module = Norm(4)
    bind_ops(module, binder(ops_of(Kernel("rms_norm", "k", threefold, lambda _: YES))))
    copied = copy.deepcopy(module)
    bind_ops(copied, binder(Ops(None)))
    assert copied.norm is reference.rms_norm and module.norm.__wrapped__ is threefold
    module.norm = op(reference.rms_norm, width=2)  # another size from now on
    calls = []
    bind_ops(module, binder(ops_of(Kernel("rms_norm", "k", threefold, lambda call: calls.append(call) or YES))))
    assert calls[0].sizes == {"width": 2}


def test_a_module_is_told_what_its_ops_were_bound_for():
    class Told(Norm):
        def ops_bound(self, binding):
            self.seen = (binding.dtype, binding.deterministic, self.norm)

    module = Told(4)
    bind_ops(module, Ops(None, deterministic=True).binder(torch.bfloat16, "cpu"))
    assert module.seen == (torch.bfloat16, True, reference.rms_norm)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 6, False), nn.Linear(4, 6, False), nn.Linear(6, 4, False)
        self.fused = Fused("mlp", ("gate", "up", "down"), (nn.Linear,), hidden=4, width=6)


def fused_of(module: Mlp, rows=None, dtype=torch.float32) -> Fused:
    kernel = Kernel("mlp", "k", reference.mlp, lambda _: YES, rows={} if rows is None else {torch.float32: rows})
    bind_ops(module, binder(ops_of(kernel), dtype))
    return module.fused


@torch.no_grad()
def test_a_kernel_names_the_rows_up_to_which_it_serves():
    fused = fused_of(Mlp(), rows=3)
    assert [fused.serves(n) for n in (0, 1, 3, 4)] == [False, True, True, False]
    assert fused_of(Mlp()).serves(10**9)
    x = torch.randn(2, 4)
    module = Mlp()
    weights = module.gate.weight, module.up.weight, module.down.weight
    assert torch.equal(fused_of(module)(x, *weights), reference.mlp(x, *weights))


def test_a_fused_op_serves_nothing_where_its_parts_must_be_called():
    module = Mlp()
    fused = fused_of(module)
    assert not fused.serves(1)  # gradients are recorded
    with torch.no_grad():
        assert fused.serves(1)
        handle = module.up.register_forward_hook(lambda *_: None)
        assert not fused.serves(1)
        handle.remove()
        assert not fused_of(module, dtype=torch.bfloat16).serves(1)  # weights in another dtype
        module.up = type("Quantised", (nn.Linear,), {})(4, 6, False)
        assert not fused_of(module).serves(1)
        assert not Fused("mlp", (), (nn.Linear,)).serves(1)


def test_without_a_kernel_or_in_deterministic_runs_nothing_is_fused():
    kernel = Kernel("mlp", "k", reference.mlp, lambda _: YES)
    with torch.no_grad():
        for ops in (Ops(None), Ops(SimpleNamespace(name="fake", kernels=lambda: [kernel]), deterministic=True)):
            module = Mlp()
            bind_ops(module, binder(ops))
            assert not module.fused.serves(1)


# ---- plugin API 1, for one version ---------------------------------------------------------------------------------


def test_modules_with_bind_ops_are_bound_with_a_warning():
    class Old(nn.Module):
        def bind_ops(self, bind):
            self.norm = bind("rms_norm", width=4)

    module = Old()
    with pytest.warns(FutureWarning, match=r"Old.bind_ops is deprecated: declare `self.rope = op\("):
        bind_ops(nn.Sequential(module), binder(Ops(None)))
    assert module.norm is reference.rms_norm


@pytest.mark.parametrize(("old", "new"), [("race", "sample"), ("likeliest", "argmax_logprob")])
def test_kernels_of_renamed_ops_are_taken_with_a_warning(old, new):
    with pytest.warns(FutureWarning, match=f"kernel acme: the op '{old}' is now called '{new}'"):
        ops = ops_of(Kernel(old, "acme", SPECS[new].reference, lambda _: YES))
    assert ops.kernel(OpCall(new, "cpu", torch.float32)).name == "acme"


def test_outputs_with_the_old_keyword_reach_the_next_layer_with_a_warning():
    with pytest.warns(FutureWarning, match="handed_on is now called to_next_layer"):
        output = AttentionOutput(torch.zeros(1), handed_on={"selection": 1})
    assert output.to_next_layer == {"selection": 1}
