"""Every op creates its tensors where its inputs are.

Without a second device: what is created with no word of a device goes to one that holds no data, and meets the inputs
there with an error. Plans are made on the host and moved, so they are exempt, and looked at for themselves.
"""

import functools
import inspect

import pytest
import torch

import arcforge_hw.torch_ops.gated_delta_rule as delta
import arcforge_hw.torch_ops.hadamard as butterfly
import arcforge_hw.torch_ops.window_attention as window
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.configs import CudaConfig
from arcforge_hw.cuda.backend import Cuda
from arcforge_hw.torch_ops import add_rows, block_values
from arcforge_hw.torch_ops.kernels import METHODS

HOST, META = torch.device("cpu"), torch.device("meta")
KERNELS = {fn.__name__: fn for fn in METHODS}
PLANS = (delta, "lay_chunks"), (window, "lay_blocks"), (butterfly, "hadamard_matrix")


def under(device, fn):
    """Returns `fn` where `device` is what tensors are created on that name none."""

    @functools.wraps(fn)
    def wrapped(*args):
        with device:
            return fn(*args)

    return wrapped


def custom_ops(fn):
    """Returns the custom ops of a function's module, and those that it closes over."""
    values = (*vars(inspect.getmodule(fn)).values(), *inspect.getclosurevars(fn).nonlocals.values())
    return [value for value in values if isinstance(value, torch._library.custom_ops.CustomOpDef)]


def results(fn, case):
    args = case.inputs(torch.float32, "cpu")
    leaves = {name: args[name].requires_grad_() for name in case.grad}
    outs = fn(*args.values())
    outs = outs if isinstance(outs, tuple) else (outs,)
    grads = torch.autograd.grad([x.square().sum() for x in outs], list(leaves.values())) if leaves else ()
    return *outs, *grads


def test_the_gpu_has_all_of_them():
    names = {kernel.name for kernel in Cuda(CudaConfig()).kernels()}
    assert {f"cuda.{fn.__name__}.{method}" for fn, method in METHODS.items()} <= names


@pytest.mark.parametrize("op", sorted(KERNELS.keys() - {"selected_attention"}))  # which creates lengths, on the host
def test_tensors_are_created_beside_the_inputs(op, monkeypatch):
    for module, plan in PLANS:
        monkeypatch.setattr(module, plan, under(HOST, getattr(module, plan)))
    for custom in custom_ops(KERNELS[op]):  # a call of one ends `with META`
        monkeypatch.setitem(custom._backend_fns, None, under(META, custom._init_fn))
    for case in op_cases(op)[:2]:
        wanted = results(SPECS[op].reference, case)
        with META:
            got = results(KERNELS[op], case)
        for value, exact in zip(got, wanted, strict=True):
            torch.testing.assert_close(value, exact, rtol=1e-3, atol=1e-4)


def test_plans_are_moved():
    lengths = cumulative([70])
    for plan in (delta.lay_chunks((0, 70), 2, META)[0], window.lay_blocks(lengths, lengths, 9, META)):
        tensors = [value for value in vars(plan).values() if isinstance(value, torch.Tensor)]
        assert len(tensors) >= 3 and all(x.device == META for x in tensors)


def test_other_devices_take_larger_blocks():
    assert block_values(10, HOST) == 10 < block_values(10, META)


class Elsewhere(torch.Tensor):
    """A tensor that says it is on no host."""

    device = META


@pytest.mark.parametrize("kind", [torch.Tensor, Elsewhere])
def test_rows_are_added(kind):
    out_SE = torch.zeros(3, 2)
    add_rows(out_SE.as_subclass(kind), torch.tensor([2, 0, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert out_SE.tolist() == [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]
