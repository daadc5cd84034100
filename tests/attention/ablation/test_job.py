"""The job from bases to figures, on a model of a few steps: what is trained, used again, searched and refused."""

import json

import pytest

import arcforge_attention.ablation.job as job_module
from arcforge_attention.ablation.job import compared, run
from arcforge_attention.configs import AblationConfig
from arcforge_core.config.compose import compose_config
from arcforge_core.console.result import Result
from arcforge_core.errors import ConfigError
from arcforge_core.train import run as run_module
from support.runs import tiny_overrides

SIZES = ["model.num_hidden_layers=2", "model.first_k_dense_replace=2", "model.index_topk=16", "model.mtp.depths=0"]
ABLATION = [
    "ablation.base_steps=3", "ablation.further_steps=2", "ablation.window=8",
    "ablation.lengths=[280]", "ablation.tasks=[single]", "ablation.depths=[0.5]", "ablation.samples=2",
    "ablation.search_samples=1",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e11)
    return tmp_path_factory.getbasetemp() / "ablation"  # bases are shared by the tests, as by the jobs of a sweep


def config_of(folder, attention, *overrides):
    folder.mkdir(exist_ok=True)
    plain = [o for o in tiny_overrides(folder) if not o.startswith(("trainer.max_steps", "attention="))]
    fixed = ["~experiment", *plain, *SIZES, *ABLATION, "trainer.samples=0"]
    return compose_config("ablation", AblationConfig, [*fixed, f"attention={attention}", *overrides])


def names(folder):
    return sorted(path.name.split("-", 3)[3].rsplit("-", 1)[0] for path in (folder / "outputs").glob("20*/*"))


def test_windows_and_their_turns_are_the_comparisons_unless_it_leaves_them(folder):
    def found(attention, *overrides):
        config = config_of(folder, attention, *overrides)
        return compared(config.attention, config.ablation)

    assert (found("swa").pattern, found("swa").window) == ("FS", 8)
    assert found("swa", "ablation.interleave=SF").pattern == "SF"
    own = found("swa", "ablation.interleave=null", "ablation.window=null", "attention.pattern=S", "attention.window=5")
    assert (own.pattern, own.window) == ("S", 5)
    searched = found("swa_pattern", "attention.pattern=SF")
    assert (searched.pattern, searched.window) == ("SF", 8)
    assert found("gqa") == config_of(folder, "gqa").attention


@pytest.mark.slow(reason="three training runs and two evaluations")
def test_dsa_is_trained_in_two_stages_from_a_dense_base(folder):
    result = run(config_of(folder, "dsa"))
    assert {"base-mla-0", "warmup-dsa-0", "sparse-dsa-0"} <= set(names(folder))
    assert result.figures["status"] == "finished" and result.dir.name.split("-")[3] == "sparse"
    assert {
        "single@280",
        "retrieval@280",
        "converted single@280",
        "heldout_loss",
        "tokens_per_s",
    } <= result.figures.keys()
    model = json.loads((next(iter((result.dir / "checkpoints").glob("step-*"))) / "config.json").read_text())
    assert model["attention"]["indexer_training"] == "sparse"
    # 2 layers of latent 32 + rope 8 + index key 16, bf16
    assert result.figures["cache_bytes_per_token"] == 2 * 2 * (32 + 8 + 16)


@pytest.mark.slow(reason="training runs and a search")
def test_finished_runs_are_used_again_and_windows_are_searched(folder, monkeypatch):
    first = run(config_of(folder, "swa_pattern"))
    assert sorted(str(first.figures["pattern"])) == ["F", "S"]
    before = names(folder)

    def train(config):
        raise AssertionError(f"{config.name} is trained again")

    monkeypatch.setattr(job_module, "train", train)
    again = run(config_of(folder, "swa_pattern"))
    timing = ("tokens_per_s",)
    assert {k: v for k, v in again.figures.items() if k not in timing} == {
        k: v for k, v in first.figures.items() if k not in timing
    }
    assert names(folder) == before


def test_an_interrupted_run_ends_the_job_and_is_gone_on_with(folder, monkeypatch):
    seen = []

    def train(config):
        seen.append(config)
        return Result(folder, {"status": "interrupted"})

    monkeypatch.setattr(job_module, "train", train)
    result = run(config_of(folder, "gqa", "seed=7"))
    assert result.figures["status"] == "interrupted" and len(seen) == 1
    left = folder / "outputs" / "2026-01-01" / f"00-00-00-{seen[0].name}"
    (left / "checkpoints" / "step-00000001").mkdir(parents=True)
    run(config_of(folder, "gqa", "seed=7"))
    assert seen[1].resume == str(left) and seen[0].resume is None


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["ablation.lengths=[63]"], "ablation.lengths=.*at least 64"),
        (["ablation.window=40"], "ablation.lengths=.*at least 320"),
        (["ablation.window=null", "attention.window=50"], "ablation.lengths=.*at least 400"),
        (["ablation.lengths=[5000]"], "ablation.lengths=.*at most 4096"),
        (["resume=latest"], "resume='latest'"),
        (["trainer.minutes=3"], r"trainer.minutes=3.*base_steps"),
        (["trainer.max_tokens=3"], r"trainer.max_tokens=3.*base_steps"),
    ],
)
def test_what_proves_nothing_or_has_no_effect_is_refused_before_any_work(folder, monkeypatch, overrides, told):
    monkeypatch.setattr(job_module, "train", None)
    with pytest.raises(ConfigError, match=told):
        run(config_of(folder, "swa", *overrides))
