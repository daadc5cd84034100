"""Figures of the processor are measured once, and all processes use the same ones."""

import json

import pytest
import torch

from arcforge_core.errors import ConfigError
from arcforge_core.ops import calibration, compat
from arcforge_core.ops.calibration import calibrated, measure_rates, product_rates


@pytest.fixture(autouse=True)
def unforced(monkeypatch):
    monkeypatch.delenv("ARCFORGE_CALIBRATION", raising=False)


def test_rates_are_measured_once_for_a_processor_and_all_processes_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    measured = iter([{"bf16": 1.0, "fp32": 2.0}, {"bf16": 9.0, "fp32": 2.0}, {"bf16": 5.0, "fp32": 4.0}])
    monkeypatch.setattr(calibration, "measure_rates", lambda: next(measured))
    assert product_rates() == product_rates() == {"bf16": 1.0, "fp32": 2.0}
    (file,) = (tmp_path / "processor").iterdir()
    assert torch.__version__ in json.loads(file.read_text())["processor"]
    monkeypatch.setattr(calibration, "processor_model", lambda: "another")
    assert product_rates()["bf16"] == 9.0 and len(list((tmp_path / "processor").iterdir())) == 2
    monkeypatch.undo()
    monkeypatch.delenv("ARCFORGE_CALIBRATION", raising=False)
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "measure_rates", lambda: next(measured))
    file.write_text("{")
    assert product_rates() == {"bf16": 5.0, "fp32": 4.0} == json.loads(file.read_text())["flops"], "damage is replaced"


def test_a_processor_whose_instructions_are_hidden_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    measured = iter([{"bf16": 1.0, "fp32": 2.0}, {"bf16": 9.0, "fp32": 2.0}])
    monkeypatch.setattr(calibration, "measure_rates", lambda: next(measured))
    monkeypatch.setattr(calibration, "vector_instructions", lambda: ["avx2", "avx512f"])
    assert product_rates()["bf16"] == 1.0
    monkeypatch.setattr(calibration, "vector_instructions", lambda: ["avx2"])
    assert product_rates()["bf16"] == 9.0


def test_of_two_processes_that_measure_together_the_first_decides(tmp_path, monkeypatch):
    """The ranks of a run would take different precisions otherwise."""
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    first, second = {"bf16": 1.0, "fp32": 2.0}, {"bf16": 3.0, "fp32": 2.0}

    def measure():
        monkeypatch.setattr(calibration, "measure_rates", lambda: first)
        assert product_rates() == first, "the other process is done while this one still measures"
        return second

    monkeypatch.setattr(calibration, "measure_rates", measure)
    assert product_rates() == first == product_rates()


def test_a_cache_that_cannot_be_written_costs_a_measurement_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(calibration, "measure_rates", lambda: {"bf16": 1.0, "fp32": 2.0})
    assert product_rates() == {"bf16": 1.0, "fp32": 2.0}


def test_a_measurement_is_short_and_takes_the_fastest_product(monkeypatch):
    monkeypatch.setattr(calibration, "SIZE", 32)
    now = [0.0]

    def mm(a, b):
        now[0] += next(durations) if a.dtype == torch.bfloat16 else 0.01

    durations = iter([1.0, 0.1, 0.05, 0.1, 0.1, 0.1])
    monkeypatch.setattr(calibration.torch, "mm", mm)
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: now[0])
    rates = measure_rates()
    assert rates == {"bf16": pytest.approx(2 * 32**3 / 0.05), "fp32": pytest.approx(2 * 32**3 / 0.01)}
    assert now[0] < 1.01 + calibration.SECONDS + 0.2


def test_bf16_is_taken_where_it_is_measured_to_be_faster(monkeypatch):
    """A processor with AVX512_BF16 was seen at 145 GFLOP/s in bf16 and 316 in fp32."""
    monkeypatch.setattr(compat, "has_bf16", lambda: True)
    for bf16, fp32 in ((145e9, 316e9), (900e9, 316e9)):
        monkeypatch.setattr(compat, "product_rates", lambda bf16=bf16, fp32=fp32: {"bf16": bf16, "fp32": fp32})
        compat.fast_bf16.cache_clear()
        assert compat.fast_bf16("cpu") is (bf16 > fp32)
        name = "bf16" if bf16 > fp32 else "fp32"
        assert compat.why_precision("cpu") == f"{name}: measured bf16 {bf16 / 1e9:.0f} GFLOP/s, fp32 316 GFLOP/s"
    monkeypatch.setattr(compat, "has_bf16", lambda: False)
    compat.fast_bf16.cache_clear()
    assert compat.fast_bf16("cpu") is False and compat.fast_bf16("cuda") is True
    assert compat.why_precision("cpu") == "fp32: this processor has no bfloat16 instructions"
    compat.fast_bf16.cache_clear()


def test_files_that_are_damaged_or_from_elsewhere_are_measured_again_and_the_run_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    assert calibrated("rows", ["few"], lambda: {"few": 8.0}) == {"few": 8.0}
    (file,) = (tmp_path / "processor").iterdir()
    sound = json.loads(file.read_text())
    for number, text in enumerate(
        ["", "{", "[]", "7", json.dumps({**sound, "rows": {}}), json.dumps({**sound, "rows": {"few": "NaN"}}),
         json.dumps({**sound, "rows": {"few": -1}}), json.dumps({**sound, "processor": "another"})]
    ):  # fmt: skip
        file.write_text(text)
        capsys.readouterr()
        assert calibrated("rows", ["few"], lambda number=number: {"few": float(number)}) == {"few": number}
        assert f"{file} is damaged or of another processor: rows is measured again" in " ".join(
            capsys.readouterr().err.split()
        )
        assert calibrated("rows", ["few"], lambda: {"few": 99.0}) == {"few": number}, "written again"


def test_the_variable_replaces_measurements(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "measure_rates", lambda: {"bf16": 1.0, "fp32": 2.0})
    monkeypatch.setenv("ARCFORGE_CALIBRATION", "bf16=3e9")
    assert product_rates() == {"bf16": 3e9, "fp32": 2.0}
    monkeypatch.setenv("ARCFORGE_CALIBRATION", "bf16=3e9, fp32=1e9, fp32_expert_rows=0")
    monkeypatch.setattr(calibration, "measure_rates", lambda: pytest.fail("it is given"))
    assert product_rates() == {"bf16": 3e9, "fp32": 1e9}


@pytest.mark.parametrize("text", ["bf16", "bf16=fast", "bf16=-1", "bf16=nan", "fp16=1"])
def test_a_wrong_variable_is_one_line(text, monkeypatch):
    monkeypatch.setenv("ARCFORGE_CALIBRATION", text)
    with pytest.raises(
        ConfigError, match=r"ARCFORGE_CALIBRATION='.*': must be NAME=NUMBER,\.\.\. with names of bf16, fp32"
    ):
        product_rates()
