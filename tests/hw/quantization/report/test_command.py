"""``arcforge-eval suite=quantization``: its figures are those of the models, and a killed comparison resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.config.schema import EvalConfig
from arcforge_core.configs import TorchCpuConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import CheckpointError, ConfigError, DataError
from arcforge_core.eval.bits_per_byte import bits_per_byte
from arcforge_core.eval.run import evaluate
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.quantization import command as quantising
from arcforge_hw.quantization.configs import METHODS, CalibratedConfig, QuantizationSuiteConfig, quantizer_of
from arcforge_hw.quantization.report import command
from arcforge_hw.quantization.report.measure import distance
from arcforge_hw.quantization.text import checkpoint_corpus
from arcforge_hw.quantization.transform import Transform
from support.calibration import save_source, small_text_model, text_config


def compared(folder: Path, output: str = "report", **options: Any) -> EvalConfig:
    """Returns the command's configuration for ``folder/source``."""
    few = {"methods": ["nearest", "quarot", "gptq"], "rows": 4, "sequence_length": 32, "max_tokens": 128}
    suite = QuantizationSuiteConfig(**{**few, "output": str(folder / output), **options})
    return EvalConfig(suite, str(folder / "source"), text_config(folder, heldout=0.3), TorchCpuConfig())


def test_rows_are_the_models_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_source(small_text_model(outliers=16.0), tmp_path)
    config = compared(tmp_path)
    result = evaluate(config)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    rows = {row["method"]: row for row in report["rows"]}
    assert list(rows) == ["float", "nearest", "quarot", "gptq"]
    assert sorted(p.name for p in (tmp_path / "report").iterdir()) == ["quantization.html", "report.json"]
    assert result.figures == {f"kl_w4a8_{name}": rows[name]["kl"] for name in ("nearest", "quarot", "gptq")}
    batches = list(checkpoint_corpus(config.data, tmp_path / "source", 280).heldout_batches(32, 32, 128))
    options = quantizer_of("nearest", "w4a8", config.suite)  # type: ignore[arg-type]
    quantising.run(quantising.QuantizeConfig(options, str(tmp_path / "source"), str(tmp_path / "again"), config.data))
    model = load_pretrained(tmp_path / "again", ops=Ops(None))
    assert rows["nearest"]["bits_per_byte"] == pytest.approx(bits_per_byte(model, batches).bits_per_byte, rel=1e-4)
    size = sum(file.stat().st_size for file in (tmp_path / "again").glob("model-*.safetensors"))
    assert rows["nearest"]["bytes"] == size < rows["float"]["bytes"]
    assert 0 < rows["gptq"]["kl"] < rows["nearest"]["kl"] and rows["float"]["kl"] == 0
    assert all(len(row["layers"]) == 2 and 0 < row["layers"][0] < 0.5 for n, row in rows.items() if n != "float")
    page = (tmp_path / "report" / "quantization.html").read_text()
    assert "awq" not in page and "quantizer.rounding=gptq" in page and "bits/byte" in page
    assert "bits/byte" in capsys.readouterr().out


@torch.no_grad()
def test_a_rotated_model_without_integers_has_no_distance(tmp_path: Path) -> None:
    model = small_text_model()
    transform = Transform(model.config, model.attention, 7)
    made = build_model(transform.transformed, model.attention, Ops(None)).eval()
    made.load_state_dict(dict(transform.of(state_of(model))))
    save_source(model, tmp_path)
    batches = list(
        checkpoint_corpus(text_config(tmp_path, heldout=0.3), tmp_path / "source", 280).heldout_batches(32, 32, 128)
    )
    assert transform.rotations is not None
    found = distance(model, made, batches, transform.rotations.hidden)
    assert max(found.layers) < 1e-5 and abs(found.kl) < 1e-6 and found.agreement > 0.99
    assert max(distance(model, made, batches, None).layers) > 0.5
    # the divergence, written out for one row
    noisy = small_text_model()
    noisy.lm_head.weight.mul_(1.1)
    one = batches[0]
    p, q = (m(one.tokens_T, SequenceBatch.build(one.batch.query_lengths())).logits.softmax(-1) for m in (model, noisy))
    wanted = ((p * (p / q).log()).sum(-1) * one.weights_T).sum() / one.weights_T.sum()
    assert distance(model, noisy, [one], None).kl == pytest.approx(float(wanted), rel=1e-4)


def test_a_killed_comparison_resumes_and_later_rows_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_source(small_text_model(), tmp_path)
    made: list[str] = []
    true = command.quantise

    def killing(config: Any) -> Any:
        made.append(Path(str(config.output)).name)
        if len(made) == 2:
            raise KeyboardInterrupt
        return true(config)

    monkeypatch.setattr(command, "quantise", killing)
    with pytest.raises(KeyboardInterrupt):
        evaluate(compared(tmp_path))
    evaluate(compared(tmp_path))
    evaluate(compared(tmp_path, methods=["quarot", "ssz"]))
    assert made == ["w4a8-nearest", "w4a8-quarot", "w4a8-quarot", "w4a8-gptq", "w4a8-ssz"]
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [row["method"] for row in report["rows"]] == ["float", "nearest", "quarot", "gptq", "ssz"]
    with pytest.raises(DataError, match="comparison with other settings"):
        evaluate(compared(tmp_path, rows=5))


def test_what_is_refused_before_work(tmp_path: Path) -> None:
    save_source(small_text_model(), tmp_path)
    with pytest.raises(ConfigError, match=r"suite\.methods='awp': must be one of nearest, .*awq"):
        compared(tmp_path, methods=["awp"])
    with pytest.raises(ConfigError, match=r"suite\.weights=\[\]: must name at least one of w8a8"):
        compared(tmp_path, weights=[])
    with pytest.raises(ConfigError, match=r"suite\.sequence_length=200: the model allows at most 128 positions"):
        evaluate(compared(tmp_path, sequence_length=200))
    with pytest.raises(ConfigError, match="rows of 48 must be a multiple of the group size 32"):
        evaluate(compared(tmp_path, weights=["w4a8", "int4"]))
    quantising.run(quantising.QuantizeConfig(quantizer_of("ssz", "w4a8", QuantizationSuiteConfig()),
        str(tmp_path / "source"), str(tmp_path / "done"), text_config(tmp_path)))  # fmt: skip
    config = compared(tmp_path)
    config.checkpoint = str(tmp_path / "done")
    with pytest.raises(CheckpointError, match="quantised already"):
        evaluate(config)
    config = compared(tmp_path)
    config.data.heldout = 0.0
    with pytest.raises(DataError, match="no documents are held out"):
        evaluate(config)
    assert not (tmp_path / "report").exists()


def test_every_method_is_a_quantizer() -> None:
    for method, options in METHODS.items():
        made = quantizer_of(method, "int4", QuantizationSuiteConfig(rows=3))
        assert made.weights == "int4" and isinstance(made, CalibratedConfig) == ("smoothing" in options)
        assert not isinstance(made, CalibratedConfig) or made.rows == 3
