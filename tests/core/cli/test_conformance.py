import json

import pytest

from arcforge_core.cli import conformance
from arcforge_core.contracts.hardware import YES, Kernel
from arcforge_core.ops import reference
from arcforge_core.ops.hardware import TorchCpu


def wrong_swiglu(gate, up):
    return reference.swiglu(gate, up) * 1.001


@pytest.fixture
def kernels(monkeypatch):
    """Gives `torch_cpu` two kernels: rope is right, swiglu is off by a thousandth."""
    found = [
        Kernel("rope", "test.rope", reference.rope, lambda call: YES),
        Kernel("swiglu", "test.swiglu", wrong_swiglu, lambda call: YES),
    ]
    monkeypatch.setattr(TorchCpu, "kernels", lambda self: found)


def test_a_failing_op_is_named_and_the_code_is_2(kernels, capsys):
    assert conformance.main(["hardware=torch_cpu"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "failed: swiglu"
    row = next(line for line in lines if line.startswith("swiglu") and "float32" in line)
    assert "over tolerance 2e-05" in row


def test_only_the_asked_ops_run(kernels, capsys):
    assert conformance.main(["hardware=torch_cpu", "--op", "rope", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["op"] for row in rows} == {"rope"}
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16", "float64"}
    assert {row["verdict"] for row in rows} == {"ok"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["hardware=torch_cqu"], "did you mean 'torch_cpu'"), (["--op", "ropes"], "did you mean 'rope'")],
)
def test_unknown_names_are_refused(argv, message, capsys):
    assert conformance.main(argv) == 2
    assert message in capsys.readouterr().err
