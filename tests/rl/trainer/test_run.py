"""Whole runs of seconds: they learn, resume exactly, and reject impossible settings."""

import csv
import gc
import itertools
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_core import load_pretrained
from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Episode, Outcome, Task
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError
from arcforge_core.files.rundir import point_latest
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_core.tokenizer.tokenizer import train_tokenizer
from arcforge_rl.rollouts.sampler import Sampler
from arcforge_rl.trainer import module, weight_sync
from arcforge_rl.trainer import run as run_module
from arcforge_rl.trainer.build import correction_of
from arcforge_rl.trainer.module import PolicyModule, weight_of
from arcforge_rl.trainer.run import run
from support.garbage import unfrozen
from support.marks import nightly_case
from support.policies import save_policy
from support.unstable_selection import UnstableSelection

FAULTY = ("engine=faulty", "trainer.max_gap=100")
ALGORITHMS = ("grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo", "double_sided", "icepop")


def metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def evaluations(folder: Path) -> list[dict[str, str]]:
    with (folder / "evaluations.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (last,) = sorted((folder / "checkpoints").glob("step-*"))[-1:]
    return load_pretrained(last).state_dict()


def test_rewards_rise(small_run: Compose) -> None:
    found = run(small_run("trainer.max_steps=25", "rollout.groups=8", "rollout.group_size=8", "evaluation.tasks=32"))
    rows = metrics(found.dir)
    rewards = [float(row["reward"]) for row in rows]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:3]) / 3 + 0.2
    assert found.figures["pass@1_after"] > found.figures["pass@1_before"] + 0.2
    assert all(float(row["logprob_gap_max"]) < 1e-5 for row in rows if row["logprob_gap_max"])
    lines = [json.loads(line) for line in (found.dir / "rollouts.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == set(range(1, 26))
    assert len({line["rollout"] for line in lines}) == len(lines), "names are seeds: each step and filling draws again"
    assert all(line["rewards"]["reward"] in (0.0, 1.0) and line["reasons"]["exact"] for line in lines)
    shown = [token for line in lines if "tokens" in line for branch in line["tokens"] for token in branch]
    assert any("advantage" in token and "factor" in token for token in shown)
    assert (found.dir / "config.yaml").exists() and json.loads((found.dir / "summary.json").read_text())


def test_a_policy_is_trained_on_conversation_records(small_run: Compose, tmp_path: Path) -> None:
    def record(n: int) -> dict[str, Any]:
        checker = {"name": "number", "arguments": {"answer": f"{n % 10}"}}
        messages = [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n % 10}"}]
        return {"source": "ends", "thinking": "off", "task": f"ends/{n}", "messages": messages, "checker": checker}

    (tmp_path / "ends.json").write_text(json.dumps([record(n) for n in range(100)]))
    options = ["environment=conversations", f"environment.files=[{tmp_path / 'ends.json'}]"]
    found = run(small_run(*options, "trainer.max_steps=2", "rollout.drop_equal=false"))
    lines = [json.loads(line) for line in (found.dir / "rollouts.jsonl").read_text().splitlines()]
    assert found.figures["steps"] == 2 and {line["domain"] for line in lines} == {"ends"}
    assert all(set(line["rewards"]) == {"reward", "answer_1"} for line in lines)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_takes_steps(small_run: Compose, algorithm: str) -> None:
    options = ["algorithm.kl=0.1"] if algorithm == "grpo" else []
    found = run(small_run(f"algorithm={algorithm}", *options))
    assert found.figures["steps"] == 3
    rows = metrics(found.dir)
    assert all(float(row["grad_norm"]) > 0 for row in rows if row["grad_norm"])
    assert ("value_loss" in rows[0]) == (algorithm == "ppo")
    assert ("kl_loss" in rows[0]) == (algorithm == "grpo")


@pytest.mark.parametrize(
    "options",
    [
        (),
        nightly_case(("algorithm=ppo",)),
        nightly_case(("algorithm=ppo", "critic.model=separate")),
        ("trainer.updates=2", "curriculum.pool=6", "curriculum.high=0.9"),
        nightly_case(
            (*FAULTY, "engine.noise=0.05", "engine.logprob_noise=0.05", "algorithm=grpo", "algorithm.kl=0.01")
        ),
        nightly_case((*FAULTY, "engine.topk_bits=3", "trainer.eval_every=3")),
    ],
    ids=["icepop", "ppo", "ppo with a model as its critic", "updates and pool", "noise", "unstable selection"],
)
@pytest.mark.usefixtures("faulty")
def test_an_interrupted_run_ends_in_the_same_rewards_and_weights(
    small_run: Compose, tmp_path: Path, options: tuple[str, ...], sparse_policy: Path
) -> None:
    if "engine.topk_bits=3" in options:
        options = (*options, f"init={sparse_policy}")
    whole = run(small_run(*options, "trainer.max_steps=4", f"output_dir={tmp_path / 'whole'}"))
    cut = (*options, "trainer.checkpoint_every=1", f"output_dir={tmp_path / 'cut'}")
    run(small_run(*cut, "trainer.max_steps=2"))
    rest = run(small_run(*cut, "trainer.max_steps=4", "resume=latest"))
    unlike = ("seconds", "progress", "trainer_idle", "engine_idle")
    rows = [
        [{k: v for k, v in row.items() if not k.startswith(unlike)} for row in metrics(f.dir)] for f in (whole, rest)
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    first, second = weights(whole.dir), weights(rest.dir)
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = [(f.dir / "rollouts.jsonl").read_text().splitlines() for f in (whole, rest)]
    assert lines[0] == lines[1]


def test_an_interrupted_run_says_so_to_its_sweep(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PolicyModule.training_step

    def asks_to_stop(module: PolicyModule, batch: int, batch_idx: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        step(module, batch, batch_idx)

    monkeypatch.setattr(PolicyModule, "training_step", asks_to_stop)
    stopped = run(small_run())
    assert (stopped.figures["status"], stopped.figures["steps"]) == ("interrupted", 1)


def test_ctrl_c_cuts_an_evaluation_off_and_the_resumed_run_makes_up_for_it(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("trainer.eval_every=1", "trainer.checkpoint_every=2")
    whole = run(small_run(*options, "name=whole"))
    evaluate, played = Sampler.evaluate, []

    def asked_to_stop(sampler: Sampler) -> Any:
        played.append("began")
        if len(played) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # the handler runs before this line or in it
            played.append("continued")
        return evaluate(sampler)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "evaluate", asked_to_stop)
        cut = run(small_run(*options, "name=cut"))
    assert played == ["began", "began"] and capfd.readouterr().err.count("stopping\n") == 1
    assert (cut.figures["status"], cut.figures["steps"]) == ("interrupted", 1)
    assert {row["step"] for row in evaluations(cut.dir)} == {"0"}
    rest = run(small_run(*options, "name=cut", "resume=latest"))
    assert evaluations(rest.dir) == evaluations(whole.dir)
    assert {row["step"] for row in evaluations(rest.dir)} == {"0", "1", "2", "3"}
    first, second = weights(whole.dir), weights(rest.dir)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_loggers_are_those_of_every_run(small_run: Compose) -> None:
    found = run(small_run("logger=csv", "trainer.max_steps=2"))
    with (found.dir / "csv/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["reward"] for row in rows if row["reward"]] == [row["reward"] for row in metrics(found.dir)]
    assert [row["step"] for row in rows if row["heldout_pass@1"]] == ["0", "2"]
    assert not (found.dir / "tensorboard").exists()


def test_a_run_that_was_cut_off_between_checkpoints_takes_its_steps_again(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(small_run("name=whole"))
    step = PolicyModule.training_step

    def dies(module: PolicyModule, batch: int, batch_idx: int) -> None:
        step(module, batch, batch_idx)
        if module.progress.step == 3:
            raise KeyboardInterrupt

    options = ("trainer.checkpoint_every=1", "name=cut")
    with monkeypatch.context() as patch:
        patch.setattr(PolicyModule, "training_step", dies)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(small_run(*options))
    rest = run(small_run(*options, "resume=latest"))
    rewards = [[row["reward"] for row in metrics(f.dir)] for f in (whole, rest)]
    assert rewards[0] == rewards[1] and len(rewards[0]) == 3


def test_equal_groups_are_replaced_and_counted(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(small_run("rollout.group_size=2", "rollout.refills=0", "rollout.groups=8", "trainer.max_steps=1"))
    (row,) = metrics(found.dir)
    dropped = int(row["all_right"]) + int(row["all_wrong"])
    assert dropped > 0 and int(row["groups"]) == 8 - dropped and row["refills"] == "0"
    found = run(small_run("rollout.group_size=2", "rollout.refills=9", "rollout.groups=8", "trainer.max_steps=1"))
    (row,) = metrics(found.dir)
    assert int(row["groups"]) == 8 and int(row["refills"]) > 0
    found = run(small_run("rollout.group_size=2", "rollout.drop_equal=false", "trainer.max_steps=1"))
    (row,) = metrics(found.dir)
    assert int(row["groups"]) == 4 and row["all_right"] == row["all_wrong"] == "0"


def test_a_step_that_teaches_nothing_changes_nothing(
    small_run: Compose,
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.undo()  # the copy task is out of reach: every reward is 0
    latest = tmp_path / "outputs/latest"
    before_it = tmp_path / "outputs/2026-01-01/12-00-00-train"
    before_it.mkdir(parents=True)
    point_latest(tmp_path / "outputs", before_it)
    found = run(small_run("trainer.max_steps=2", "rollout.refills=1"))
    assert latest.resolve() == before_it != found.dir
    printed = capsys.readouterr().out
    assert "nothing was trained in 2 steps: the weights are the initial ones" in printed
    assert str(os.path.relpath(before_it)) in printed
    assert [row["groups"] for row in metrics(found.dir)] == ["0", "0"]
    before, after = load_pretrained(policy).state_dict(), weights(found.dir)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_engine_keeps_its_weights_as_it_computes(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, precision: str, dtype: torch.dtype
) -> None:
    kept, original = [], run_module.build_engine
    monkeypatch.setattr(run_module, "build_engine", lambda *parts: kept.append(parts[1]) or original(*parts))
    run(small_run(f"trainer.precision={precision}", "trainer.max_steps=2"))
    assert {parameter.dtype for parameter in kept[0].parameters()} == {dtype}


def test_collections_pass_over_what_was_there_before_the_steps(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, original = [], PolicyModule.training_step

    def step(self: PolicyModule, *args: Any) -> None:
        frozen.append(gc.get_freeze_count())
        original(self, *args)

    monkeypatch.setattr(PolicyModule, "training_step", step)
    with unfrozen():
        run(small_run("trainer.max_steps=2"))
        assert len(frozen) == 2 and min(frozen) > 10_000
        assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("faulty")
def test_the_gap_to_the_engine_ends_a_run(small_run: Compose) -> None:
    with pytest.raises(ArcforgeError, match=r"step 1: trainer and engine disagree by .* trainer\.max_gap is 1e-12"):
        run(small_run("trainer.max_gap=1e-12"))
    noisy = run(small_run(*FAULTY, "engine.noise=0.1", "trainer.max_steps=2"))
    assert all(float(row["logprob_gap"]) > 1e-3 for row in metrics(noisy.dir))
    with pytest.raises(ArcforgeError, match=r"trainer\.max_gap is 0\.0001"):
        run(small_run("engine=faulty", "engine.noise=0.1"))
    misread = run(small_run(*FAULTY, "engine.logprob_noise=0.1"))
    assert all(float(row["logprob_gap"]) == pytest.approx(0.08, abs=0.02) for row in metrics(misread.dir))


@pytest.mark.nightly(reason="four runs")
@pytest.mark.usefixtures("faulty")
def test_an_unstable_selection_widens_the_gap(small_run: Compose, sparse_policy: Path) -> None:
    def gaps(*options: str) -> list[float]:
        found = run(small_run(f"init={sparse_policy}", "rollout.drop_equal=false", *options))
        return [float(row["logprob_gap"]) for row in metrics(found.dir)]

    assert max(gaps()) < 1e-6
    assert max(gaps(*FAULTY, "engine.topk_bits=24")) < 1e-6  # no two scores are that near
    assert min(gaps(*FAULTY, "engine.topk_bits=3")) > 1e-3
    with pytest.raises(ArcforgeError, match=r"trainer\.max_gap is 0\.0001"):
        gaps("engine=faulty", "engine.topk_bits=3")


@pytest.mark.usefixtures("faulty")
def test_an_unstable_selection_depends_on_the_requests_alone(
    small_run: Compose, sparse_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_run(f"init={sparse_policy}", *FAULTY, "engine.topk_bits=3")
    module, _ = run_module.build(config, run_module.build_algorithm(config), build_hardware(config.hardware))
    sampler = module.sampler
    seeds: list[str] = []
    reseed = UnstableSelection.reseed

    def noted(selection: UnstableSelection, seed: str) -> None:
        seeds.append(seed)
        reseed(selection, seed)

    monkeypatch.setattr(UnstableSelection, "reseed", noted)

    def seeds_of_step(step: int) -> list[str]:
        seeds.clear()
        sampler.take(step)
        return [*seeds]

    def logprobs() -> list[list[float]]:
        return [b.logprobs.tolist() for group in sampler.evaluate() for of in group for b in of.trace.branches]

    first = logprobs()
    once, other, again = (seeds_of_step(step) for step in (1, 2, 1))
    assert once[0] == again[0] and not {*once} & {*other}
    assert logprobs() == first, "an evaluation does not depend on the steps before it"


@pytest.mark.usefixtures("faulty")
def test_an_unstable_selection_needs_an_indexer_in_this_process(
    small_run: Compose, sparse_policy: Path, policy: Path
) -> None:
    pytest.importorskip("arcforge_serving")
    bits = ("engine=faulty", "engine.topk_bits=8")
    with pytest.raises(ConfigError, match=r"engine\.topk_bits=8: must be null: attention=reference"):
        run(small_run(*bits))
    with pytest.raises(ConfigError, match=r"engine\.topk_bits=8: must be null with engine\.of=vllm"):
        run(small_run(*bits, f"init={sparse_policy}", "engine.of=vllm"))


def test_weights_reach_the_engine(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    versions: list[set[int]] = []
    collect = run_module.Sampler.take

    def watched(sampler: Any, step: int) -> Any:
        found = collect(sampler, step)
        traces = [rollout.trace for rollout in found.everything]
        versions.append({v for trace in traces for b in trace.branches for v in b.versions.tolist() if v >= 0})
        return found

    monkeypatch.setattr(run_module.Sampler, "take", watched)
    run(small_run())
    assert versions == [{0}, {1}, {2}]


def test_presets_of_algorithms_bring_their_correction(small_run: Compose) -> None:
    assert correction_of(small_run("algorithm=icepop")).high == 2.0
    assert correction_of(small_run("algorithm=double_sided")).pair == "current_rollout"
    assert correction_of(small_run("algorithm=grpo")).action == "none"
    assert correction_of(small_run("algorithm=icepop", "correction=tis")).action == "truncate"
    assert correction_of(small_run("algorithm=icepop", "correction=icepop", "correction.high=5.0")).high == 5.0


def test_the_indexer_is_frozen_unless_it_is_not(small_run: Compose, sparse_policy: Path) -> None:
    for freeze in (True, False):
        config = small_run(f"init={sparse_policy}", f"trainer.freeze_indexer={str(freeze).lower()}")
        module, _ = run_module.build(config, run_module.build_algorithm(config), build_hardware(config.hardware))
        indexer = [p.requires_grad for n, p in module.model.named_parameters() if ".indexer." in n]
        assert indexer and all(flag is not freeze for flag in indexer)


@pytest.mark.parametrize(("top_k", "loss"), [(0, "policy_loss"), (8, "distillation_loss")])
def test_teachers_pull_the_policy_towards_them(small_run: Compose, tmp_path: Path, top_k: int, loss: str) -> None:
    teacher = save_policy(tmp_path / "teacher", seed=1)
    options = ("algorithm=opd", "rollout.drop_equal=false", "rollout.groups=8", "optimizer.lr=0.01")
    options += ("trainer.precision=fp32", "trainer.max_steps=20", f"algorithm.top_k={top_k}")
    found = run(small_run(*options, f"+teachers.default={teacher}"))
    divergences = [float(row[loss]) for row in metrics(found.dir)]  # an estimate of it with the sampled token alone
    assert sum(divergences[-3:]) < 0.85 * sum(divergences[:3])  # 0.58 to 0.70 with three seeds


@pytest.mark.parametrize(
    "options",
    [
        ("algorithm=grpo", "algorithm.kl=0.1"),
        ("algorithm=opd",),
        ("algorithm=opd", "algorithm.top_k=4"),
        nightly_case(("trainer.updates=2",)),
    ],
)
@pytest.mark.parametrize("temperature", [nightly_case(0.5), 1.7])
def test_a_policy_is_trained_on_the_distribution_that_was_sampled(
    small_run: Compose, policy: Path, monkeypatch: pytest.MonkeyPatch, temperature: float, options: tuple[str, ...]
) -> None:
    """Recorded and trained log-probs, those of the teacher and the reference are of softmax(logits / temperature)."""
    gaps, read = [], module.read

    def watched(model: Any, micro: Any, *more: Any) -> Any:
        found = read(model, micro, *more)
        with torch.no_grad():
            logits_SV = model(micro.tokens_T, micro.batch).logits[micro.row_S].double()
        wanted_S = (logits_SV / temperature).log_softmax(-1).gather(1, micro.target_S[:, None])[:, 0]
        gaps.append(max(float((x.detach() - wanted_S).abs().max()) for x in (found.logprobs_S, micro.rollout_S)))
        return found

    monkeypatch.setattr(module, "read", watched)
    teacher = [f"+teachers.default={policy}"] if "algorithm=opd" in options else []
    config = small_run(*options, *teacher, f"rollout.temperature={temperature}", "trainer.max_steps=1")
    (row,) = metrics(run(config).dir)
    assert gaps and max(gaps) < 1e-5 and float(row["logprob_gap_max"]) < 1e-5
    assert abs(float(row.get("kl_loss") or 0)) < 1e-7
    taught = [row[name] for name in ("policy_loss", "distillation_loss") if name in row]
    assert all(abs(float(loss)) < 1e-5 for loss in taught) or not teacher, "a teacher that equals the policy"

    def untempered(model: Any, micro: Any, _: float, *others: Any) -> Any:
        return read(model, micro, 1.0, *others)

    monkeypatch.setattr(module, "read", untempered)
    with pytest.raises(ArcforgeError, match="trainer and engine disagree"):
        run(config)


def test_in_deterministic_mode_the_first_ratio_is_one_in_all_bits(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, sparse_policy: Path
) -> None:
    rows = []
    for temperature in (1.0, 0.6):
        options = (
            f"init={sparse_policy}",
            "hardware=auto",
            "trainer.deterministic=true",
            f"rollout.temperature={temperature}",
        )
        rows += metrics(run(small_run(*options, "trainer.max_steps=2")).dir)
    assert len(rows) == 4 and all(float(row["logprob_gap_max"]) == 0.0 for row in rows if row["logprob_gap_max"])
    assert all(float(row["ratio_1"]) == float(row["ratio_99"]) == 1.0 for row in rows if row["ratio_1"])


def test_distillation_trains_on_groups_of_one_rollout(small_run: Compose, tmp_path: Path) -> None:
    """As in the paper; groups of one are all equal, and all of them used to be left out."""
    teacher = save_policy(tmp_path / "teacher", seed=1)
    found = run(small_run("algorithm=opd", "rollout.group_size=1", f"+teachers.default={teacher}"))
    rows = metrics(found.dir)
    assert all(float(row["groups"]) == 4 and float(row["all_wrong"]) == 0 for row in rows)
    assert all(float(row["grad_norm"]) > 0 for row in rows)
    assert float(rows[-1]["tokens"]) == sum(float(row["sampled_tokens"]) for row in rows) > 0


def test_the_depth_of_distillation_grows_with_the_steps(
    small_run: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[int] = []
    monkeypatch.setattr("arcforge_rl.algorithms.opd.keep_replies", lambda trace, depth: depths.append(depth))
    teacher = f"+teachers.default={save_policy(tmp_path / 'teacher', seed=1)}"
    options = ("algorithm=opd", "rollout.group_size=1", teacher, "algorithm.depth=2", "algorithm.depth_steps=2")
    run(small_run(*options, "trainer.checkpoint_every=1"))
    assert depths == [2] * 8 + [3] * 4, "four prompts in each of three steps"
    run(small_run(*options, "resume=latest", "trainer.max_steps=5"))
    assert depths[12:] == [3] * 4 + [4] * 4, "a resumed run continues where it was"


def test_algorithms_that_compare_nothing_train_on_groups_of_one_rollout(small_run: Compose) -> None:
    rows = metrics(run(small_run("algorithm=reinforce_pp", "rollout.group_size=1")).dir)
    assert all(float(row["groups"]) == 4 for row in rows)


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "rloo", "icepop", "double_sided"])
def test_algorithms_that_compare_rollouts_refuse_groups_of_one(small_run: Compose, algorithm: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"rollout\.group_size=1: must be at least 2: algorithm={algorithm} compares"
    ):
        run(small_run(f"algorithm={algorithm}", "rollout.group_size=1"))


def test_an_environment_talks_to_a_second_model_that_is_not_trained(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = []

    async def play(environment: CopyEnvironment, task: Task, agents: Any) -> Episode:
        user = await agents.user.reply([Message("user", task.prompt)])
        said.append(user.text)
        question = Message("user", task.prompt + user.text)
        reply = await agents.solver.reply([question])
        return Episode((question, reply.message), reply, reply.finish_reason)

    monkeypatch.setattr(CopyEnvironment, "agents", ("user",), raising=False)
    monkeypatch.setattr(CopyEnvironment, "run", play)
    user = save_policy(tmp_path / "user", seed=1)
    own = f"engine: paged, init: {user}, options: {{cache_tokens: 512}}"
    agent = f"+agents.user={{{own}, temperature: 0, max_new_tokens: 3}}"
    found = run(small_run(agent, "trainer.max_steps=1", "evaluation.tasks=0"))
    rows = [json.loads(line) for line in (found.dir / "rollouts.jsonl").read_text().splitlines()]
    assert len(said) == len(rows) > 0 and any(said)
    with pytest.raises(ConfigError, match=r"agents=\[\]: environment=copy needs user"):
        run(small_run())


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (("rollout.group_size=1", "algorithm=reinforce_pp"), r"rollout\.group_size=1: must be at least 2 with"),
        (("collection=async",), r"environment='copy': needs collection=sync"),
    ],
)
def test_rewards_that_compare_a_group_need_one_that_is_judged_together(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], refused: str
) -> None:
    monkeypatch.setattr(CopyEnvironment, "compares", True, raising=False)
    with pytest.raises(ConfigError, match=refused):
        run(small_run(*options))


def test_a_run_that_trains_nothing_ends_with_an_error(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    async def score(environment: Any, task: Task, episode: Episode) -> Outcome:
        return Outcome({"reward": 0.0}, {"reward": "wrong"})

    monkeypatch.setattr(CopyEnvironment, "score", score)
    config = small_run("monitor.idle_steps=2", "trainer.max_steps=5", "evaluation.tasks=0")
    with pytest.raises(ArcforgeError, match=r"step 2: no token was trained in 2 steps .*12 all_wrong, 2 refills"):
        run(config)
    assert not (Path(config.output_dir) / "latest").exists()
    (folder,) = Path(config.output_dir).glob("*/*-rl")
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"


def test_the_limit_of_the_gap_concerns_tokens_of_the_present_weights(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are handed over every third step: those in between are sampled by older ones, which is no fault."""

    def late(model: Any, engine: Any, version: int, reset: bool = False) -> None:
        if version % 3 == 0:
            weight_sync.hand_over(model, engine, version, reset)

    monkeypatch.setattr(module, "hand_over", late)
    rows = metrics(run(small_run("trainer.max_steps=6", "optimizer.lr=0.1", "algorithm=double_sided")).dir)
    stale = [float(row["stale"] or 0) if row["entropy"] else None for row in rows]
    assert {0.0, 1.0} <= set(stale)
    drifts = [float(row["logprob_drift"]) for row in rows if row["logprob_drift"]]
    assert max(drifts) > 1e-3, "more than any limit in fp32"
    assert all(float(row["logprob_gap"]) < 1e-5 for row in rows if row["logprob_gap"])


def test_a_broken_sandbox_now_and_then_is_counted_and_shown(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers, score = itertools.count(), CopyEnvironment.score

    async def broken(environment: CopyEnvironment, task: Task, episode: Episode) -> Outcome:
        if next(numbers) % 3 == 0:
            raise SandboxFault("no space left")
        return await score(environment, task, episode)

    monkeypatch.setattr(CopyEnvironment, "score", broken)
    found = run(small_run())
    lines = [json.loads(line) for line in (found.dir / "rollouts.jsonl").read_text().splitlines()]
    failed = [line for line in lines if line["failure"]]
    assert len(failed) > 4 and all(line["failure"]["kind"] == "sandbox" for line in failed)
    assert not any(line["learnt"] or line["rewards"] for line in failed) and any(line["learnt"] for line in lines)
    rows = metrics(found.dir)
    assert sum(float(row["failed_sandbox"] or 0) for row in rows) == len(failed)
    assert re.search(r"failed: \d+ sandbox", capsys.readouterr().out)
    run(small_run("resume=latest", "trainer.max_steps=4"))


@pytest.mark.nightly(reason="three runs")
def test_updates_share_a_step_and_each_has_the_weight_of_one(small_run: Compose, tmp_path: Path) -> None:
    options = ("algorithm=opd", f"+teachers.default={save_policy(tmp_path / 'teacher', seed=1)}", "optimizer.lr=0")
    losses = []
    for updates in (1, 2, 4):
        found = run(
            small_run(*options, "rollout.drop_equal=false", "trainer.max_steps=1", f"trainer.updates={updates}")
        )
        losses.append(float(metrics(found.dir)[0]["policy_loss"]))
    assert losses[0] != 0 and losses == pytest.approx([losses[0]] * 3, rel=1e-4)


@pytest.mark.parametrize(
    "options", [("rollout.groups=3", "trainer.updates=2"), ("rollout.refills=0", "trainer.updates=4")]
)
def test_each_update_has_the_weight_of_one_however_groups_fall(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    weights: list[float] = []
    update = PolicyModule._update

    def watched(module: PolicyModule, traces: Any, scale: float) -> dict[str, float]:
        weights.append(scale * weight_of(traces))
        return update(module, traces, scale)

    monkeypatch.setattr(PolicyModule, "_update", watched)
    run(small_run(*options, "rollout.group_size=2"))  # of pairs many are equal, and left out
    assert weights and weights == pytest.approx([1.0] * len(weights), rel=1e-5)


def test_teachers_that_do_not_fit_are_refused(small_run: Compose, tmp_path: Path, policy: Path) -> None:
    with pytest.raises(ConfigError, match=r"teachers={}: algorithm=opd needs one"):
        run(small_run("algorithm=opd"))
    with pytest.raises(ConfigError, match=r"algorithm=icepop asks no teacher"):
        run(small_run(f"+teachers.default={policy}"))
    with pytest.raises(ConfigError, match=r"none for prompts of copy: add \+teachers\.copy"):
        run(small_run("algorithm=opd", f"+teachers.maths={policy}", "rollout.drop_equal=false"))
    other = tmp_path / "other"
    model = small_model(vocab_size=TOKENIZER_SIZE)
    save_pretrained(model, other, train_tokenizer(["four five six"] * 4, TOKENIZER_SIZE))
    with pytest.raises(ConfigError, match="another tokenizer"):
        run(small_run("algorithm=opd", f"+teachers.default={other}"))
    (other / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        run(small_run("algorithm=opd", f"+teachers.default={other}"))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("trainer.updates=5", r"trainer\.updates=5: must be at most rollout\.groups=4"),
        ("trainer.updates=0", r"trainer\.updates=0"),
        ("rollout.temperature=0", r"rollout\.temperature=0"),
        ("rollout.thinking=maybe", r"rollout\.thinking='maybe': must be one of off, on"),
        ("curriculum.low=0.5", r"curriculum\.pool=None"),
        ("evaluation.temperature=0", r"evaluation\.samples=2: greedy"),
        ("trainer.max_gap=0", r"trainer\.max_gap=0"),
        ("init=null", r"init=None"),
        ("critic.lr=-1", r"critic\.lr=-1"),
        ("critic.model=shred", r"critic\.model='shred': must be one of shared, separate; did you mean 'shared'"),
        ("critic.init=nowhere", r"critic\.init='nowhere': must be null with critic\.model=shared"),
        ("rollout.group_size=0", r"rollout\.group_size=0"),
        ("monitor.idle_steps=-1", r"monitor\.idle_steps=-1"),
        ("algorithm.old=sampler", r"algorithm\.old='sampler': must be one of trainer, engine"),
        ("rollout.engine_topk=unstable", r"rollout\.engine_topk: write engine=faulty engine\.topk_bits=BITS"),
        ("trainer.shown=-1", r"trainer\.shown=-1"),
    ],
)
def test_options_that_cannot_be_are_refused(small_run: Compose, option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_run(option)


@pytest.mark.usefixtures("faulty")
def test_a_resumed_run_must_be_the_same(small_run: Compose) -> None:
    run(small_run("trainer.max_steps=1"))
    with pytest.raises(CheckpointError, match=r"rollout\.group_size was 4, now 8"):
        run(small_run("resume=latest", "rollout.group_size=8"))
    faulty = run(small_run("resume=latest", *FAULTY, "engine.logprob_noise=0.1", "trainer.max_steps=2"))
    gaps = [float(row["logprob_gap"]) for row in metrics(faulty.dir)]
    assert gaps[0] < 1e-5 and gaps[-1] > 1e-2
    file = faulty.dir / "config.yaml"  # of the version before
    file.write_text(file.read_text().replace("rollout:\n", "rollout:\n  engine_noise: 0.0\n"))
    assert run(small_run("resume=latest", "trainer.max_steps=3")).figures["steps"] == 3


@pytest.mark.nightly(reason="three runs")
def test_a_resumed_run_knows_what_it_began_with(small_run: Compose, tmp_path: Path, policy: Path) -> None:
    latest, options = tmp_path / "outputs" / "latest", ("algorithm.kl=0.1", "evaluation.tasks=0")
    first = run(small_run(*options, "trainer.max_steps=1"))
    second = run(small_run(*options, "trainer.max_steps=1", f"init={latest}"))
    (begun,) = (first.dir / "checkpoints").glob("step-*")
    for given in (f"init={latest}", "init=null"):  # the link leads to the run itself by now
        resumed = run(small_run(*options, "trainer.max_steps=2", given, "resume=latest"))
        assert resumed.dir.resolve() == second.dir.resolve()
        assert f"init: {begun.resolve()}" in (resumed.dir / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=r"init=.*this run began with .*leave init out"):
        run(small_run(*options, "trainer.max_steps=2", "resume=latest"))


def test_thinking_needs_a_chat_template(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(tokenizer: Any) -> None:
        raise ConfigError("chat_template", None, "there is none")

    monkeypatch.setattr("arcforge_core.episodes.agent.build_chat_template", none)
    with pytest.raises(ConfigError, match=r"rollout\.thinking='on': needs a chat template"):
        run(small_run("rollout.thinking=on"))
