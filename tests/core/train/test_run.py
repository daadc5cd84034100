"""Whole runs of the test-sized model: files, resume, interruption, faults."""

import csv
import json
import os
import re
import signal

import pytest
import torch

from arcforge_core import load_pretrained
from arcforge_core.checkpoint.starters import is_base
from arcforge_core.config.schema import StepsConfig
from arcforge_core.configs import FilesDataConfig
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import CheckpointError, ConfigError, DataError
from arcforge_core.eval.mtp_acceptance import mtp_acceptance
from arcforge_core.files import atomic
from arcforge_core.ops.dispatch import Ops
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train import prepare
from arcforge_core.train import run as run_module
from arcforge_core.train.callbacks.stopping import Stopping
from arcforge_core.train.module import LanguageModelModule, Progress
from arcforge_core.train.run import train
from arcforge_core.train.state import checkpoints
from arcforge_core.train.step import NonFiniteError
from support.marks import nightly_case
from support.runs import tiny_run

LONG = ("trainer.sequence_length=20000", "trainer.micro_batch_tokens=20000", "model.max_position_embeddings=20000")


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def weights(run_dir):
    return load_pretrained(checkpoints(run_dir)[-1]).state_dict()


def assert_same_weights(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture(autouse=True)
def quick_report(monkeypatch):
    """Drawing the page takes seconds; test_report.py draws it."""

    def write_report(run_dir):
        (run_dir / "report.html").write_text((run_dir / "summary.json").read_text())
        return run_dir / "report.html"

    monkeypatch.setattr(run_module, "write_report", write_report)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    return root, train(tiny_run(root))


def test_writes_everything_a_reader_needs(finished):
    root, result = finished
    names = {p.name for p in result.dir.iterdir()}
    assert names >= {
        "config.yaml", "versions.json", "corpus.json", "metrics.csv", "eval.csv", "experts.csv",
        "samples.json", "summary.json", "report.html", "checkpoints", "tensorboard",
    }  # fmt: skip
    assert (root / "outputs" / "latest").resolve() == result.dir.resolve()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result.dir.parent.name)
    assert list((result.dir / "tensorboard").glob("events.*"))


def test_a_model_of_documents_says_that_it_is_a_base_model(finished):
    assert is_base(checkpoints(finished[1].dir)[-1])


def test_metrics_are_means_that_move(finished):
    _, result = finished
    metrics = rows(result.dir / "metrics.csv")
    assert [int(r["step"]) for r in metrics] == [1, 2, 4, 6]
    assert float(metrics[-1]["loss"]) < float(metrics[0]["loss"])
    assert {"lr", "grad_norm", "tokens_per_s", "mfu", "balance_loss", "mtp_loss_1", "mtp_loss_3"} <= metrics[0].keys()
    assert int(metrics[-1]["tokens"]) == 6 * 256
    for layer in {r["layer"] for r in rows(result.dir / "experts.csv")}:
        last = [r for r in rows(result.dir / "experts.csv") if (r["layer"], r["step"]) == (layer, "6")]
        shares = [float(r["share"]) for r in last]
        assert sum(shares) == pytest.approx(1.0)


def test_learning_rates_are_those_of_the_schedule_at_every_step(tmp_path):
    """None is made from the one before."""
    config = tiny_run(tmp_path, "schedule=constant", "schedule.warmup=0.5", "optimizer.lr=0.01", "trainer.log_every=1")
    rates = [float(row["lr"]) for row in rows(train(config).dir / "metrics.csv")]
    assert rates == pytest.approx([0.0, 0.01 / 3, 0.02 / 3, 0.01, 0.01, 0.01])


def test_summary_holds_the_final_figures(finished):
    _, result = finished
    summary = json.loads((result.dir / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["steps"] == 6
    assert summary["bits_per_byte"] == pytest.approx(float(rows(result.dir / "eval.csv")[-1]["bits_per_byte"]))
    assert 0 < summary["gzip_bits_per_byte"] < 8 and summary["parameters"] > summary["active_parameters"]
    assert result.figures == summary


def test_accepted_drafts_are_among_the_final_figures(tmp_path):
    """Those of the last weights, at the run's sequence length."""
    result = train(tiny_run(tmp_path, "trainer.max_steps=2", "trainer.mtp_acceptance=16", "trainer.samples=0"))
    written = json.loads((result.dir / "summary.json").read_text())
    places = ("length", 1, 2, 3, 4)
    names = {f"mtp_accept_{place}_{kind}" for place in places for kind in ("generated", "text")}
    assert {name for name in written if name.startswith("mtp_accept")} == names <= set(result.figures)
    data = FilesDataConfig(paths=[str(tmp_path / "corpus")], cache_dir=str(tmp_path / "cache"), heldout=0.2)
    corpus = build_data(data, model_vocab_size=512, progress=False)
    model = load_pretrained(checkpoints(result.dir)[-1], ops=Ops(None))
    found = mtp_acceptance(model, corpus, 16, 64).figures()
    assert {name: written[name] for name in names} == pytest.approx(found)


def test_no_drafts_without_a_module(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.mtp_acceptance=16: must be 0: with model\.mtp\.depths=0"):
        tiny_run(tmp_path, "model.mtp.depths=0", "trainer.mtp_acceptance=16")


def test_keeps_the_last_checkpoints_only(finished):
    _, result = finished
    assert [p.name for p in checkpoints(result.dir)] == ["step-00000004", "step-00000006"]


@pytest.mark.parametrize("stop_after", [nightly_case(1), 3])
def test_interrupted_and_resumed_equals_uninterrupted(finished, tmp_path, monkeypatch, stop_after):
    """Ctrl-C in the middle of a step saves at its end; resuming gives the same weights bit for bit."""
    _, whole = finished
    original = LanguageModelModule.training_step

    def interrupt(self, batch, batch_idx):
        if self.progress.step == stop_after:
            os.kill(os.getpid(), signal.SIGINT)
        original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", interrupt)
    part = train(tiny_run(tmp_path))
    assert part.figures["status"] == "interrupted" and part.figures["steps"] == stop_after + 1
    monkeypatch.setattr(LanguageModelModule, "training_step", original)
    again = train(tiny_run(tmp_path, "resume=latest"))
    assert again.dir == part.dir and again.figures["steps"] == 6
    assert_same_weights(weights(again.dir), weights(whole.dir))
    by_step = {r["step"]: r["loss"] for r in rows(whole.dir / "metrics.csv")}
    assert rows(again.dir / "metrics.csv")[-1]["loss"] == by_step["6"]


def test_resuming_a_finished_run_with_more_steps_goes_on(finished, tmp_path):
    short = train(tiny_run(tmp_path, "trainer.max_steps=4"))
    longer = train(tiny_run(tmp_path, "resume=latest"))
    assert longer.dir == short.dir and longer.figures["steps"] == 6
    assert_same_weights(weights(longer.dir), weights(finished[1].dir))


def test_resume_refuses_another_model_and_an_absent_run(finished, tmp_path):
    root, _ = finished
    config = tiny_run(root, "resume=latest", "model.hidden_size=32")
    with pytest.raises(CheckpointError, match=r"model\.hidden_size was 64, now 32"):
        train(config)
    with pytest.raises(CheckpointError, match="no run at"):
        train(tiny_run(tmp_path, "resume=latest"))


def test_not_finite_loss_names_step_and_tensor_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    original = LanguageModelModule.training_step

    def poison(self, batch, batch_idx):
        if self.progress.step == 3:
            self.model.model.norm.weight.data[0] = float("nan")
        original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", poison)
    with pytest.raises(NonFiniteError, match=r"step 4: loss is nan; the checkpoint of step 2 is kept"):
        train(tiny_run(tmp_path))
    run_dir = (tmp_path / "outputs" / "latest").resolve()
    assert all(torch.isfinite(w).all() for w in weights(run_dir).values())
    assert json.loads((run_dir / "summary.json").read_text())["status"].startswith("failed")


def test_not_finite_gradient_names_the_parameter(tmp_path, monkeypatch):
    original = LanguageModelModule.training_step

    def poison(self, batch, batch_idx):
        self.model.lm_head.weight.register_hook(lambda g: g * float("inf"))
        original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", poison)
    with pytest.raises(NonFiniteError, match=r"step 1: the gradient of lm_head\.weight is not finite; no checkpoint"):
        train(tiny_run(tmp_path))


def test_full_disk_on_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    flush = atomic.flush

    def full(path):
        if "step-00000004" in str(path):
            raise OSError(28, "No space left on device")
        flush(path)

    monkeypatch.setattr(atomic, "flush", full)
    with pytest.raises(CheckpointError, match=r"step-00000004.*No space left"):
        train(tiny_run(tmp_path))
    run_dir = (tmp_path / "outputs" / "latest").resolve()
    assert [p.name for p in checkpoints(run_dir)] == ["step-00000002"]
    assert weights(run_dir)


def test_bad_requests_fail_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "build_model", lambda *a: pytest.fail("a model was built"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        train(tiny_run(tmp_path, f"data.paths=[{tmp_path / 'empty'}]"))
    with pytest.raises(DataError, match="shorter"):
        train(tiny_run(tmp_path, *LONG))
    assert not (tmp_path / "outputs").exists()


def test_extra_reaches_lightning_and_refuses_what_is_ours(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.extra=\['max_epochs'\]"):
        train(tiny_run(tmp_path, "+trainer.extra.max_epochs=3"))
    with pytest.raises(ConfigError, match="not accepted by lightning"):
        train(tiny_run(tmp_path, "+trainer.extra.no_such_argument=3"))
    assert train(tiny_run(tmp_path, "+trainer.extra.limit_train_batches=2")).figures["steps"] == 2


def test_a_budget_of_time_ends_the_run_and_decays_fully(tmp_path):
    config = tiny_run(tmp_path, "trainer.max_steps=null", "trainer.minutes=0.02", "schedule.final=0.0")
    result = train(config)
    metrics = rows(result.dir / "metrics.csv")
    assert float(metrics[-1]["progress"]) == 1.0 and float(metrics[-1]["seconds"]) < 30
    lrs = [float(r["lr"]) for r in metrics]
    assert lrs[-1] <= max(lrs)


def test_a_budget_of_tokens_decays_with_them_whatever_the_time(tmp_path):
    config = tiny_run(tmp_path, "trainer.max_steps=null", "trainer.max_tokens=1000", "trainer.log_every=1")
    config.schedule.final, config.trainer.minutes = 0.0, 1000.0
    result = train(config)
    metrics = rows(result.dir / "metrics.csv")
    assert [int(row["tokens"]) for row in metrics] == [256, 512, 768, 1024], "rows are whole: the last one ends it"
    assert [float(row["progress"]) for row in metrics] == [0.256, 0.512, 0.768, 1.0]


def test_time_may_end_a_budget_of_tokens_and_it_is_said(tmp_path, capsys):
    train(tiny_run(tmp_path, "trainer.max_steps=null", "trainer.max_tokens=1_000_000", "trainer.minutes=0.001"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "trainer.minutes=0.001 ended the run after 256 of trainer.max_tokens=1,000,000 tokens" in printed


@pytest.mark.parametrize(("used", "steps"), [(40.0, True), (50.0, True), (50.1, False), (60.0, False)])
def test_a_step_that_does_not_fit_into_the_time_is_not_begun(used, steps):
    progress, budget = Progress(seconds=used, step_seconds=10.0), StepsConfig(minutes=1.0)
    assert (progress.fraction(budget) < 1.0) is steps


def test_samples_fit_a_short_context(tmp_path):
    result = train(tiny_run(tmp_path, "trainer.max_steps=1", "model.max_position_embeddings=64"))
    samples = json.loads((result.dir / "samples.json").read_text())
    assert samples["before"][0]["prompt"] and samples["after"][0]["text"]


def test_samples_are_as_long_as_asked(tmp_path):
    result = train(tiny_run(tmp_path, "trainer.max_steps=1", "trainer.samples=1", "trainer.sample_tokens=5"))
    samples = json.loads((result.dir / "samples.json").read_text())
    [checkpoint] = (result.dir / "checkpoints").glob("step-*")
    tokenizer = Tokenizer.load(checkpoint)
    for [sample] in samples.values():
        assert 1 <= len(tokenizer.encode(sample["text"])) <= 5


def test_accumulation_changes_nothing_but_rounding(tmp_path):
    one = train(tiny_run(tmp_path / "one", "trainer.max_steps=2", "trainer.precision=fp32", "model.mtp.fraction=1.0"))
    two = train(
        tiny_run(
            tmp_path / "two", "trainer.max_steps=2", "trainer.precision=fp32", "model.mtp.fraction=1.0",
            "trainer.micro_batch_tokens=128", "trainer.accumulate=2",
        )
    )  # fmt: skip
    for name, weight in weights(one.dir).items():
        torch.testing.assert_close(weights(two.dir)[name], weight, atol=1e-5, rtol=1e-4)


def test_precision_follows_the_processor_unless_named(tmp_path, monkeypatch):
    seen = []
    original = LanguageModelModule.training_step

    def look(self, batch, batch_idx):
        seen.append(self.model.dtype)
        original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", look)
    monkeypatch.setattr(run_module, "matmul_rate", lambda *a: 1e9)
    for fast, precision in ((True, "auto"), (False, "auto"), (False, "bf16")):
        monkeypatch.setattr(prepare, "fast_bf16", lambda device, fast=fast: fast)
        last = train(tiny_run(tmp_path / f"{fast}{precision}", "trainer.max_steps=1", f"trainer.precision={precision}"))
    assert seen == [torch.bfloat16, torch.float32, torch.bfloat16]
    assert all(w.dtype == torch.float32 for w in weights(last.dir).values())


def test_second_signal_interrupts_at_once():
    stopping = Stopping()
    stopping._previous = {signal.SIGINT: signal.default_int_handler}
    before = signal.getsignal(signal.SIGINT)
    try:
        stopping._ask(signal.SIGINT, None)
        assert stopping.interrupted and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
