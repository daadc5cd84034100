"""Contracts, ops and the conformance kit use names that torch 2.9, the oldest that core accepts, has.

``torch_2_9.txt`` holds them, read by ``scripts/torch_names`` from the sources and stubs of the wheel of torch 2.9.0.
"""

import ast
import re
from pathlib import Path

import pytest
import torch

CORE = Path(__file__).parents[3] / "packages" / "core"
SOURCE = CORE / "src" / "arcforge_core"
KIT = (
    "hardware_suite", "hardware_checks", "device_checks", "conformance_report", "case_export", "op_case", "op_inputs",
    "large_inputs", "fused_inputs", "quant_inputs", "attention_inputs", "model_checks",
    "collective_checks", "exchanges", "stream_checks", "autocast_checks", "compile_checks", "model_sizes",
)  # fmt: skip
FILES = sorted(
    [
        *SOURCE.glob("contracts/*.py"),
        *SOURCE.glob("ops/**/*.py"),
        *(SOURCE / "testing" / f"{name}.py" for name in KIT),
        SOURCE / "cli" / "conformance.py",
    ]
)
NAMES = {
    module: frozenset(names.split())
    for module, names in (
        line.split(": ", 1) for line in (Path(__file__).parent / "torch_2_9.txt").read_text().splitlines()
    )
}
OURS = frozenset({"name", "index"})
"""Attributes of tensors that the stubs leave out, and that here are those of kernels, files and lists."""


def imports(tree):
    """Returns local name -> dotted name in torch, of a file's imports."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    found[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def used(text):
    """Yields (line, dotted name) of each chain of attributes that begins with a name imported from torch."""
    tree = ast.parse(text)
    known = imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        parts, inner = [], node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in known:
            yield node.lineno, ".".join([known[inner.id], *reversed(parts)])


def missing(name):
    """Returns the part of a dotted name that torch 2.9 lacks, or an empty string."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        owner = ".".join(parts[:end])
        if owner in NAMES and parts[end] not in NAMES[owner]:
            return ".".join(parts[: end + 1])
    return ""


def methods(text):
    """Yields (line, name) of attributes that tensors of the installed torch have: methods of unknown values too."""
    for node in ast.walk(ast.parse(text)):
        known = isinstance(node, ast.Attribute) and not node.attr.startswith("__") and node.attr not in OURS
        if known and hasattr(torch.Tensor, node.attr):
            yield node.lineno, node.attr


def faults(files):
    """Returns what torch 2.9 lacks of the names in the files, by place."""
    found = []
    for place, text in files.items():
        found += [f"{place}:{line}: {lack}" for line, name in used(text) if (lack := missing(name))]
        lacking = {name for _, name in methods(text)} - NAMES["torch.Tensor"]
        found += [f"{place}:{line}: Tensor.{name}" for line, name in methods(text) if name in lacking]
    return sorted(set(found))


def test_core_s_oldest_torch_is_that_of_the_list():
    [line] = re.findall(r'"torch>=([\d.]+),', (CORE / "pyproject.toml").read_text())
    assert line == "2.9"


def test_contracts_and_kit_use_what_torch_2_9_has():
    assert faults({str(file.relative_to(SOURCE)): file.read_text() for file in FILES}) == []


def test_the_walk_reaches_most_of_the_names():
    names = {name for file in FILES for _, name in used(file.read_text())}
    unlisted = {name for name in names if name.rpartition(".")[0] not in NAMES}
    assert len(names) > 80
    assert all(name.startswith("torch.ops.") for name in unlisted), "torch_names.MODULES lacks their module"


@pytest.mark.parametrize(
    ("text", "lack"),
    [
        ("import torch\ntorch.not_yet(1)", "torch.not_yet"),
        ("import torch.nn.functional as F\nF.not_yet(1)", "torch.nn.functional.not_yet"),
        ("from torch import nn\nclass A(nn.NotYet): ...", "torch.nn.NotYet"),
        ("from torch.nn import NotYet", "torch.nn.NotYet"),
        ("from torch import Tensor\nTensor.not_yet", "torch.Tensor.not_yet"),
        ("import torch\ntorch._C._not_yet()", "torch._C._not_yet"),
        ("from torch.utils._pytree import not_yet", "torch.utils._pytree.not_yet"),
        ("def f():\n    import torch\n    return torch.utils.not_yet.x", "torch.utils.not_yet"),
    ],
)
def test_a_later_name_is_found(text, lack):
    assert [fault.split(": ")[1] for fault in faults({"a.py": text})] == [lack]


def test_a_later_method_of_tensors_is_found(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "not_yet", 1, raising=False)
    assert faults({"a.py": "def f(x):\n    return x.not_yet()"}) == ["a.py:2: Tensor.not_yet"]
