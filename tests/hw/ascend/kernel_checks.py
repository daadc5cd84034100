"""Run by test_kernels.py in a process with a simulated NPU: kernels against the references, and wrong calls.

Prints JSON: the error of each case, and what became of each mutation; with ``kit``, the rows of `check_hardware`.
"""

import json
import os
import sys
from contextlib import contextmanager

import torch
from mutations import MUTATIONS, Mutation

from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_core.ops.quant import to_records
from arcforge_core.testing.fake_chip.npu.library import install_npu
from arcforge_core.testing.hardware_checks import check_hardware, compare, relative_error
from arcforge_core.testing.model_sizes import model_cases
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.ascend.backend import Ascend
from arcforge_hw.configs import AscendConfig

install_npu()
ASCEND = Ascend(AscendConfig(mla_prologue="late"))
KERNELS = {kernel.op: kernel for kernel in ASCEND.kernels() if ".npu_" in kernel.name}
TOLERANCE = 2e-2


KIT = {
    "experts": ("moe_experts", 0), "moe": ("moe", 1), "w8a8": ("quant_linear", 0), "w8a8 mlp": ("quant_mlp", 1),
    "w8a8 experts": ("quant_experts", 1), "w4a8": ("quant_experts", 3), "w4a8 moe": ("quant_moe", 3),
    "norm": ("rms_norm", 0), "rotate": ("rope", 0), "swiglu": ("swiglu", 0), "dense": ("attention_varlen", 2),
    "dense decode": ("attention_decode", 1),
}  # fmt: skip
MODEL = {
    "topk": ("indexer_topk", 0), "topk in pages": ("indexer_topk", 1), "attend": ("sparse_mla", 0),
    "learn": ("sparse_mla", 0), "one key": ("sparse_mla", 1), "attend in pages": ("sparse_mla", 2),
    "one key in pages": ("sparse_mla", 3), "loss": ("indexer_kl", 0), "decode": ("mla_decode", 0),
    "decode in pages": ("mla_decode", 1), "prologue": ("mla_project", 0),
}  # fmt: skip
"""Name -> op and number of the case."""


def drawn(seed):
    """Returns name -> a case."""
    small = {name: op_cases(op, seed)[number] for name, (op, number) in KIT.items()}
    return small | {name: model_cases(op, seed)[number] for name, (op, number) in MODEL.items()}


FORWARD_ONLY = ("attend",)
CASES = drawn(0)


def learns(name):
    return bool(CASES[name].grad) and name not in FORWARD_ONLY


@contextmanager
def mutated(mutation: Mutation):
    """Changes every call of an operator."""
    right = getattr(torch.ops.npu, mutation.op)

    def wrong(*args, **kwargs):
        args, kwargs = list(args), dict(kwargs)
        mutation.change(args, kwargs)
        return right(*args, **kwargs)

    setattr(torch.ops.npu, mutation.op, wrong)
    try:
        yield
    finally:
        setattr(torch.ops.npu, mutation.op, right)


def outcome(mutation):
    """Returns how a wrong call was noticed; empty if it was not."""
    case = CASES[mutation.case]
    try:
        with mutated(mutation):
            function = KERNELS[case.op].function
            error = relative_error(function, case, "npu", torch.bfloat16, learns(mutation.case), strided=False)
    except Exception as error:  # a stand-in refuses by VendorError, torch by others
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "" if error <= TOLERANCE else f"error {error:.1e}"


def same_keys():
    """Returns the share of the reference's keys that the int8 indexer selects too, for ordinary values."""
    g = torch.Generator().manual_seed(0)
    q, k, w = (torch.randn(*shape, generator=g) for shape in ((6, 8, 128), (200, 128), (6, 8)))
    given = [q.bfloat16(), to_records(k), w, cumulative([2, 4]), cumulative([90, 110]), 16]
    want = reference.indexer_topk(*given)
    kernel = Ascend(AscendConfig(quant_indexer=True)).kernels()
    select = next(each for each in kernel if each.name == KERNELS["indexer_topk"].name)
    on_npu = [x.to("npu") for x in given[:3]]
    assert select.limits(*given).ok and not KERNELS["indexer_topk"].limits(*given).ok
    got = select.function(*on_npu, *given[3:]).cpu()
    return sum(len(set(a) & set(b)) for a, b in zip(got.tolist(), want.tolist(), strict=True)) / want.numel()


if sys.argv[1:] == ["kit"]:
    rows = [(r.kernel, r.dtype, r.verdict, r.reason) for r in check_hardware(ASCEND)]
    print(json.dumps(rows), flush=True)
    os._exit(0)
with torch.inference_mode():  # what a kernel keeps from here must serve training too
    KERNELS["attention_varlen"].function(*CASES["dense"].inputs(torch.bfloat16, "npu").values())
others, errors = drawn(1), {}
for name, case in CASES.items():
    function = KERNELS[case.op].function
    errors[name] = compare(function, case, others[name], "npu", torch.bfloat16, learns(name))
found = {"errors": errors, "mutations": {m.name: outcome(m) for m in MUTATIONS}, "same keys": same_keys()}
print(json.dumps(found), flush=True)
os._exit(0)  # torch's threads of the backward pass sometimes abort an interpreter that exits
