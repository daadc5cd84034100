"""Writes the cases of ops as data, for kernels in a language or stack without Python.

Per op: ``OP.safetensors`` with the tensors, and ``OP.json`` that lists the cases and their arguments in order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.files.rundir import write_text
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.hardware_checks import cotangents, truth_of
from arcforge_core.testing.op_case import OpCase
from arcforge_core.testing.op_inputs import op_cases


def export_cases(folder: Path, ops: Sequence[str], seed: int) -> int:
    """Writes the cases of `ops` and returns their number.

    Inputs are float32; expected outputs are the reference's in float64 of these inputs. For a case with gradients,
    the cotangent of each output and the expected gradient of each listed argument follow.

    Args:
        folder: made if it is missing.
        ops: op names.
        seed: of all values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for op in ops:
        tensors: dict[str, Tensor] = {}
        cases = [_described(number, case, tensors) for number, case in enumerate(op_cases(op, seed))]
        spec = SPECS[op]
        tolerance = {str(dtype).removeprefix("torch."): error for dtype, error in spec.tolerance.items()}
        about = {"op": op, "seed": seed, "tolerance": tolerance, "outputs": spec.outputs, "cases": cases}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / f"{op}.safetensors")
        write_text(folder / f"{op}.json", json.dumps(about, indent=1))
        count += len(cases)
    return count


def _described(number: int, case: OpCase, tensors: dict[str, Tensor]) -> dict[str, Any]:
    def stored(name: str, tensor: Tensor) -> dict[str, Any]:
        key = f"{number}.{name}"
        tensors[key] = tensor.detach().clone()
        return {"tensor": key, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}

    def argument(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return stored(f"input.{name}", value)
        if isinstance(value, Pages):
            return {"table": stored(f"input.{name}", value.table_NP), "size": value.size, "rows": value.rows}
        return value

    given = case.inputs(torch.float32, "cpu")
    truth = truth_of(case, torch.float32, ())
    described: dict[str, Any] = {
        "name": case.name,
        "sizes": dict(case.sizes),
        "arguments": {name: argument(name, value) for name, value in given.items()},
        "expected": {name: stored(f"expected.{name}", value) for name, value in truth.items()},
    }
    if case.grad:
        with_gradients = truth_of(case, torch.float32, case.grad)
        outputs = [with_gradients[name] for name in truth]
        described["cotangents"] = [stored(f"cotangent.{n}", value) for n, value in enumerate(cotangents(outputs))]
        described["gradients"] = {name: stored(f"gradient.{name}", with_gradients[name]) for name in case.grad}
    return described
