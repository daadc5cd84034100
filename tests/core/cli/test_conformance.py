import json

import pytest

from arcforge_core.cli import conformance
from arcforge_core.contracts.hardware import YES, Kernel, Verdict
from arcforge_core.ops import reference
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.testing import collective_checks, compile_checks, model_checks


def wrong_swiglu(gate, up):
    return reference.swiglu(gate, up) * 1.01


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Leaves out the exchanges, which start three processes, and torch's compiler; trains for three steps."""
    monkeypatch.setattr(compile_checks, "check_compile", lambda *_: iter(()))
    monkeypatch.setattr(model_checks, "STEPS", 3)
    monkeypatch.setattr(collective_checks, "check_collectives", lambda *_: iter(()))


@pytest.fixture
def kernels(monkeypatch):
    """Gives `torch_cpu` two kernels: rope is right, swiglu is off by a hundredth."""
    found = [
        Kernel("rope", "test.rope", reference.rope, lambda call: YES),
        Kernel("swiglu", "test.swiglu", wrong_swiglu, lambda call: YES),
    ]
    monkeypatch.setattr(TorchCpu, "kernels", lambda self: found)


def test_a_failing_op_is_named_and_the_code_is_2(kernels, capsys):
    assert conformance.main(["hardware=torch_cpu"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("failed: model ") and lines[-1].endswith(", swiglu")
    row = next(line for line in lines if line.startswith("swiglu") and "float32" in line)
    assert "over tolerance 2e-05" in row


def test_only_the_asked_ops_run(kernels, capsys):
    assert conformance.main(["hardware=torch_cpu", "--op", "rope", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["op"] for row in rows} == {"rope"}
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16", "float64"}
    assert {row["verdict"] for row in rows} == {"pass"}


def test_a_report_is_written_for_people_and_programs(kernels, tmp_path, capsys):
    assert (
        conformance.main(["hardware=torch_cpu", "--op", "swiglu", "--seed", "3", "--report", str(tmp_path / "r")]) == 2
    )
    data = json.loads((tmp_path / "r" / "report.json").read_text())
    assert data["hardware"] == "torch_cpu" and data["about"]["seed"] == 3 and data["capabilities"]["float64"] is True
    assert {row["verdict"] for row in data["results"]} == {"fail", "pass"}  # 1e-2 is within bfloat16's tolerance
    text, page = ((tmp_path / "r" / name).read_text() for name in ("report.md", "report.html"))
    assert "| swiglu | test.swiglu | float32 |" in text and "test.swiglu" in page
    assert "report.html" in capsys.readouterr().err


def test_a_backend_of_which_nothing_is_checked_fails(monkeypatch, capsys):
    refuses = Kernel("rope", "test.rope", reference.rope, lambda call: Verdict(False, "no such unit"))
    for found in ([], [refuses]):
        monkeypatch.setattr(TorchCpu, "kernels", lambda self, found=found: found)
        assert conformance.main(["hardware=torch_cpu", "--quick"]) == 2
        assert "hardware='torch_cpu': no kernel was checked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["hardware=torch_cqu"], "did you mean 'torch_cpu'"), (["--op", "ropes"], "did you mean 'rope'")],
)
def test_unknown_names_are_refused(argv, message, capsys):
    assert conformance.main(argv) == 2
    assert message in capsys.readouterr().err
