"""`trainer.deterministic`: it reaches the model's ops and torch, and two runs are one."""

import pytest
import torch

from arcforge_core import load_pretrained
from arcforge_core.ops import compat
from arcforge_core.train import run as run_module
from arcforge_core.train.run import train
from support.runs import tiny_run


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Leaves torch's switch as it was, and spares drawing the report."""

    def write_report(run_dir):
        (run_dir / "report.html").touch()
        return run_dir / "report.html"

    monkeypatch.setattr(run_module, "write_report", write_report)
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)
    compat.fast_bf16.cache_clear()


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_switch_reaches_the_ops_and_torch(monkeypatch, tmp_path, deterministic):
    built = []

    class StopError(Exception):
        pass

    def record(config, attention, ops):
        built.append((ops.deterministic, torch.are_deterministic_algorithms_enabled()))
        raise StopError

    monkeypatch.setattr(run_module, "build_model", record)
    with pytest.raises(StopError):
        train(tiny_run(tmp_path, f"trainer.deterministic={deterministic}"))
    assert built == [(deterministic, deterministic)]


def test_two_runs_are_the_same_bits_whatever_was_measured(tmp_path, monkeypatch):
    """The processor has bfloat16 instructions here, slower and faster than float32."""
    monkeypatch.setattr(compat, "has_bf16", lambda: True)
    states = []
    slower, faster = "bf16=1,fp32=2,fp32_expert_rows=0,fp32_rows=1e9", "bf16=2,fp32=1,fp32_expert_rows=1e9,fp32_rows=0"
    for n, calibration in enumerate((slower, faster)):
        monkeypatch.setenv("ARCFORGE_CALIBRATION", calibration)
        compat.fast_bf16.cache_clear()
        config = tiny_run(
            tmp_path, "trainer.deterministic=true", f"name=run{n}", "trainer.max_steps=2", "trainer.samples=0",
            "trainer.precision=auto",
        )  # fmt: skip
        state = load_pretrained(train(config).dir / "checkpoints" / "step-00000002").state_dict()
        states.append(state)
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
