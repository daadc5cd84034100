"""Whole runs of seconds: they learn, and reject impossible settings."""

import csv
import gc
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_core import load_pretrained
from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Episode, NoVerdict, Outcome, Task
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.files.rundir import point_latest
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_core.tokenizer.tokenizer import train_tokenizer
from arcforge_rl.trainer import module
from arcforge_rl.trainer import run as run_module
from arcforge_rl.trainer.build import correction_of
from arcforge_rl.trainer.callbacks import evaluated_steps
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.run import run
from support.garbage import unfrozen
from support.marks import nightly_case
from support.policies import save_policy
from support.rl_runs import metrics, weights

FAULTY = ("engine=faulty", "trainer.max_gap=100")
ALGORITHMS = ("grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo", "double_sided", "icepop")


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


def test_loggers_are_those_of_every_run(small_run: Compose) -> None:
    found = run(small_run("logger=csv", "trainer.max_steps=2"))
    with (found.dir / "csv/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["reward"] for row in rows if row["reward"]] == [row["reward"] for row in metrics(found.dir)]
    assert [row["step"] for row in rows if row["heldout_pass@1"]] == ["0", "2"]
    assert not (found.dir / "tensorboard").exists()


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


@pytest.mark.parametrize(
    ("options", "dtype", "trained_in"),
    [
        (("trainer.precision=fp32",), torch.float32, torch.float32),
        (("trainer.precision=bf16",), torch.bfloat16, torch.bfloat16),
        (("trainer.precision=fp32", "rollout.precision=bf16"), torch.bfloat16, torch.float32),
    ],
)
def test_the_engine_keeps_its_weights_as_it_computes(
    small_run: Compose,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    dtype: torch.dtype,
    trained_in: torch.dtype,
) -> None:
    kept, original = [], run_module.build_engine
    monkeypatch.setattr(run_module, "build_engine", lambda *parts: kept.append(parts[1]) or original(*parts))
    trained, step = [], PolicyModule.training_step
    monkeypatch.setattr(PolicyModule, "training_step", lambda *parts: trained.append(parts[0]) or step(*parts))
    found = run(small_run(*options, "trainer.max_steps=2"))
    assert {parameter.dtype for parameter in kept[0].parameters()} == {dtype} == {kept[0].dtype}
    assert trained[0].model.dtype == trained_in
    gaps = [float(row["logprob_gap"]) for row in metrics(found.dir)]
    assert (max(gaps) < 1e-5) == (dtype == trained_in == torch.float32)


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


def test_a_step_whose_every_rollout_failed_ends_a_run_in_which_nothing_worked_yet_and_no_other(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers, score, begun = itertools.count(), CopyEnvironment.score, 16

    async def absent(environment: CopyEnvironment, task: Task, episode: Episode) -> Outcome:
        if begun <= next(numbers) < begun + 32:
            raise NoVerdict("the judge is away")
        return await score(environment, task, episode)

    monkeypatch.setattr(CopyEnvironment, "score", absent)
    options = ("rollout.drop_equal=false", "evaluation.tasks=0")
    rows = metrics(run(small_run(*options, "trainer.max_steps=4", "monitor.idle_steps=3")).dir)
    assert [row["failed_verifier"] for row in rows] == ["", "16", "16", ""]
    assert [bool(row["reward"]) for row in rows] == [bool(row["policy_loss"]) for row in rows]
    assert [bool(row["reward"]) for row in rows] == [True, False, False, True]
    why = "all 16 rollouts failed; the first: verifier: the judge is away"
    assert f"step 2: nothing is learnt: {why}" in capsys.readouterr().err
    numbers, begun = itertools.count(), 0
    with pytest.raises(ArcforgeError, match=f"^{why}$"):
        run(small_run(*options, "trainer.max_steps=5", "monitor.idle_steps=3", "resume=latest"))
    with pytest.raises(ArcforgeError, match=f"^{why}$"):
        run(small_run(*options, "trainer.max_steps=4"))
    numbers, begun = itertools.count(), 16
    with pytest.raises(ArcforgeError, match=rf"^step 3: no token was trained in 2 steps .*; {why}$"):
        run(small_run(*options, "trainer.max_steps=4", "monitor.idle_steps=2"))


def test_an_evaluation_whose_every_task_failed_measures_nothing_and_ends_only_a_run_without_any(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers, score, absent = itertools.count(), CopyEnvironment.score, {24, 26, 28, 30}  # one of two tries at each task

    async def judged(environment: CopyEnvironment, task: Task, episode: Episode) -> Outcome:
        if next(numbers) in absent:
            raise NoVerdict("the judge is away")
        return await score(environment, task, episode)

    monkeypatch.setattr(CopyEnvironment, "score", judged)
    options = ("rollout.drop_equal=false", "trainer.eval_every=1", "monitor.action=rollback")
    found = run(small_run(*options, "trainer.max_steps=2"))
    why = "each of the 4 held-out tasks has a failed rollout; the first: verifier: the judge is away"
    assert f"step 1: nothing is measured: {why}" in capsys.readouterr().err
    for name in ("evaluations.csv", "heldout.csv"):
        rows = list(csv.DictReader((found.dir / name).read_text().splitlines()))
        assert {row["step"] for row in rows} == {"0", "2"}
    numbers = itertools.count()
    resumable = run(small_run(*options, "trainer.max_steps=1"))
    assert "pass@1_before" in resumable.figures and "pass@1_after" not in resumable.figures, "it would be of step 0"
    assert evaluated_steps(resumable.dir) == {0}
    run(small_run(*options, "trainer.max_steps=2", "resume=latest"))
    assert evaluated_steps(resumable.dir) == {0, 1, 2}, "the resumed run evaluates"
    numbers, absent = itertools.count(), set(range(0, 8, 2))
    with pytest.raises(ArcforgeError, match=f"^{why}$"):
        run(small_run(*options, "trainer.max_steps=1"))


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


def test_thinking_needs_a_chat_template(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(tokenizer: Any) -> None:
        raise ConfigError("chat_template", None, "there is none")

    monkeypatch.setattr("arcforge_core.episodes.agent.build_chat_template", none)
    with pytest.raises(ConfigError, match=r"rollout\.thinking='on': needs a chat template"):
        run(small_run("rollout.thinking=on"))
