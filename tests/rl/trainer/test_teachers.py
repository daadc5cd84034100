"""Teachers in this process and on a server: which one scores a trace, the same numbers from both, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rl.trainer.conftest import Compose
from tests.rl.trainer.test_engine_server import KEY
from tests.rl.trainer.test_engine_server import served as served_policy

from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.environment import Episode, Task
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl.algorithms.opd import Opd
from arcforge_rl.configs.algorithms import OpdConfig
from arcforge_rl.configs.environments import MixtureConfig
from arcforge_rl.configs.teachers import teacher_of
from arcforge_rl.environments.mixture import Mixture
from arcforge_rl.trainer import teachers as module
from arcforge_rl.trainer import tokens as tokens_module
from arcforge_rl.trainer.build import preset
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.run import run
from arcforge_rl.trainer.streams import add_logprobs
from arcforge_rl.trainer.teachers import (
    LocalTeacher,
    ServedTeacher,
    Teachers,
    check_prompts,
    check_served_tokenizer,
    teacher_figures,
)
from support.policies import save_policy

TOKENIZER = small_tokenizer()
PROBE = [3, 1, 4, 1, 5]


def model_of(seed: int) -> CausalLM:
    return small_model(seed, vocab_size=TOKENIZER_SIZE).requires_grad_(False)


def traces_of(seed: int, count: int = 4, stage: str = "") -> list[Trace]:
    """Traces of two branches each, with tokens of an environment among the sampled ones."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(count):
        branches = []
        for place in range(2):
            length = int(draw.integers(3, 12))
            sampled = draw.random(length) < 0.6
            sampled[0], sampled[-1] = False, True
            ids = draw.integers(0, TOKENIZER_SIZE, length)
            branches.append(Branch(f"{number}.{place}", ids, sampled, np.full(length, -1.0), np.zeros(length)))
        found.append(Trace("t", f"g{number}", f"r{seed}/{number}", branches, {"reward": 0.0}, "maths", stage=stage))
    return found


def streams(traces: Sequence[Trace], name: str = "teacher") -> np.ndarray:
    return np.concatenate([b.streams[name][b.index_T].numpy() for trace in traces for b in trace.branches])


class Server:
    """An engine that counts prompts, fails as often as said, and may restart with another model, also when it has
    answered a part of a request."""

    def __init__(self, model: CausalLM, failures: int = 0) -> None:
        self.engine, self.failures, self.asked, self.weight_version = self._of(model), failures, 0, 0
        self.restarts: dict[int, CausalLM] = {}  # by the number of prompts before

    @staticmethod
    def _of(model: CausalLM) -> SimpleEngine:
        return SimpleEngine(SimpleEngineConfig(), model)

    def restart(self, model: CausalLM) -> None:
        self.engine = self._of(model)

    def generate(self, prompts: Any, params: SamplingParams) -> list[GenerationOutput]:
        if self.failures:
            self.failures -= 1
            raise ArcforgeError("hung up")
        found: list[GenerationOutput] = []
        for prompt in prompts:
            if (model := self.restarts.get(self.asked)) is not None:
                self.restart(model)
            self.asked += 1
            found += self.engine.generate([prompt], params)
        return found

    def update_weights(
        self, state: Any, *, version: int | None = None, checksum: str | None = None, reset: bool = False
    ) -> None:
        raise AssertionError("a teacher is never changed")


def served(server: Server, attempts: int = 3, sleep: Callable[[float], None] = lambda seconds: None) -> ServedTeacher:
    return ServedTeacher("maths", server, PROBE, attempts, 1e-3, sleep)


def test_a_served_teacher_gives_the_log_probs_of_one_in_this_process() -> None:
    model = model_of(1)
    here, there = traces_of(0), traces_of(0)
    LocalTeacher(model).add(here, 64, 1.0)
    served(Server(model)).add(there, 64, 1.0)
    np.testing.assert_allclose(streams(there), streams(here), atol=1e-5)
    assert len(streams(here)) == sum(trace.num_sampled for trace in here)
    for trace in there:
        for branch in trace.branches:
            assert not branch.streams["teacher"][torch.from_numpy(~branch.sampled)].any()


def test_the_likeliest_tokens_of_a_teacher_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks and as a whole: ids and log-probs equal those of the whole distributions, position by position."""
    model, traces, chunked = model_of(1), traces_of(0), traces_of(0)
    LocalTeacher(model, 3).add(traces, 64, 0.7)
    monkeypatch.setattr(tokens_module, "CHUNK", 2 * TOKENIZER_SIZE)
    LocalTeacher(model, 3).add(chunked, 64, 0.7)
    for trace, same in zip(traces, chunked, strict=True):
        for branch, other in zip(trace.branches, same.branches, strict=True):
            whole = (model(torch.tensor(branch.ids)[None]).logits[0].float() / 0.7).log_softmax(-1)
            wanted = whole[branch.index_T - 1].topk(3)
            ids, logprobs = (branch.streams[name] for name in ("teacher_ids", "teacher_others"))
            assert ids.dtype == torch.int64 and logprobs.dtype == torch.float32 and ids.shape == (len(branch.ids), 3)
            assert torch.equal(ids[branch.index_T], wanted.indices)
            torch.testing.assert_close(logprobs[branch.index_T], wanted.values, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(other.streams["teacher_others"], logprobs, atol=1e-5, rtol=1e-5)


def test_the_likeliest_tokens_are_those_of_a_checkpoint(small_run: Compose, tmp_path: Path) -> None:
    served = "{engine: vllm, options: {url: 'http://127.0.0.1:1'}}"
    for teacher, top_k, refused in (
        (served, 4, r"teachers\.default\.engine='vllm': must be a checkpoint"),
        (save_policy(tmp_path / "policy"), 10**5, r"algorithm\.top_k=100000: must be at most the vocabulary's"),
    ):
        with pytest.raises(ConfigError, match=refused):
            run(small_run("algorithm=opd", f"+teachers.default={teacher}", f"algorithm.top_k={top_k}"))


def test_a_teacher_that_is_the_student_has_nothing_to_teach() -> None:
    model, traces = model_of(2), traces_of(5)
    for teacher in (LocalTeacher(model), served(Server(model))):
        teacher.add(traces, 64, 1.0)
        add_logprobs(traces, "student", model, 64, 1.0)
        served_noise = 1e-5 if isinstance(teacher, ServedTeacher) else 0.0
        assert np.abs(streams(traces) - streams(traces, "student")).max() <= 1e-6 + served_noise


def test_the_same_content_is_asked_for_once() -> None:
    server = Server(model_of(1))
    teacher = served(server)
    teacher.add(traces_of(0), 64, 1.0)
    before, asked = traces_of(0), server.asked
    teacher.add(before, 64, 1.0)
    assert server.asked == asked + 1, "the probe alone"
    teacher.add(both := [*traces_of(0), *traces_of(1)], 64, 1.0)
    assert server.asked == asked + 2 + sum(len(trace.branches) for trace in traces_of(1))
    np.testing.assert_array_equal(streams(both)[: len(streams(before))], streams(before))


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_TOKENS", 30)
    teacher = served(Server(model_of(1)))
    for seed in range(3):
        teacher.add(traces_of(seed), 64, 1.0)
    assert 0 < sum(map(len, teacher._cache.values())) == teacher._cached <= 30


def test_a_server_that_restarts_is_asked_again_and_not_for_ever() -> None:
    waits: list[float] = []
    server = Server(model_of(1), failures=2)
    served(server, 3, waits.append).add(traces := traces_of(0), 64, 1.0)
    assert waits == [1.0, 2.0] and len(streams(traces))
    server.failures = 3
    with pytest.raises(ArcforgeError, match=r"teachers\.maths: hung up"):
        served(server, 3, waits.append).add(traces_of(0), 64, 1.0)


def test_other_weights_during_a_run_end_it() -> None:
    server = Server(model_of(1))
    teacher = served(server)
    teacher.add(traces_of(0), 64, 1.0)
    server.restart(model_of(2))
    with pytest.raises(ArcforgeError, match=r"teachers\.maths: its weights changed .* moved by [\d.]+ nats"):
        teacher.add(traces := traces_of(1), 64, 1.0)
    assert not any("teacher" in branch.streams for trace in traces for branch in trace.branches)


@given(place=st.integers(0, 8))
@settings(max_examples=9, deadline=None)
def test_other_weights_within_a_request_end_the_run_wherever_they_begin(place: int) -> None:
    """A client repeats a request that a server has not begun, and the next process answers it."""
    server = Server(model_of(1))
    teacher = served(server)
    teacher.add([], 64, 1.0)
    server.restarts = {server.asked + place: model_of(2)}  # before one of eight prompts, or the fixed text
    with pytest.raises(ArcforgeError, match=r"teachers\.maths: its weights changed"):
        teacher.add(traces := traces_of(0), 64, 1.0)
    assert not any("teacher" in branch.streams for trace in traces for branch in trace.branches)


def test_what_a_server_refuses_names_the_teacher() -> None:
    class Refusing(Server):
        def generate(self, prompts: Any, params: SamplingParams) -> list[GenerationOutput]:
            raise ConfigError("request", "/v1/rl/generate", "is refused: the id 4000 is none of this model")

    with pytest.raises(ArcforgeError, match=r"^teachers\.maths: request=.*the id 4000 is none of this model$"):
        served(Refusing(model_of(1))).add(traces_of(0), 64, 1.0)


def test_another_version_during_a_run_ends_it() -> None:
    server = Server(model_of(1))
    teacher = served(server)
    teacher.add(traces_of(0), 64, 1.0)
    server.engine.update_weights(model_of(1).state_dict(), version=7)
    with pytest.raises(ArcforgeError, match="version 0, then 7"):
        teacher.add(traces_of(1), 64, 1.0)


class Named:
    """Writes its number into the stream."""

    def __init__(self, number: float) -> None:
        self.number = number

    def add(self, traces: Sequence[Trace], max_tokens: int, temperature: float) -> None:
        for trace in traces:
            for branch in trace.branches:
                branch.streams["teacher"] = torch.full((len(branch.ids),), self.number)


def test_a_teacher_is_chosen_by_stage_then_by_domain() -> None:
    teachers = Teachers({"reasoning": Named(1), "general": Named(2), "maths": Named(3)})
    traces = [traces_of(n, 1, stage)[0] for n, stage in enumerate(("general", "reasoning", "", "unknown"))]
    teachers.add(traces, 64, 1.0)
    assert [float(trace.branches[0].streams["teacher"][0]) for trace in traces] == [2, 1, 3, 3]
    with pytest.raises(ConfigError, match=r"none for 'sft': add \+teachers\.sft or \+teachers\.default"):
        Teachers({"general": Named(2)}).add(traces_of(0, 1, "sft"), 64, 1.0)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, r"teachers\.a=\[\]: must be a checkpoint, or name one of init and engine"),
        ({"init": "x", "engine": "vllm"}, "name one of init and engine"),
        ({"init": "x", "options": {"url": "y"}}, r"teachers\.a\.options"),
        ({"engine": "vllm", "atempts": 3}, "did you mean 'attempts'"),
        ({"engine": "vllm", "attempts": 0}, r"teachers\.a\.attempts=0"),
        ({"engine": "vllm", "max_change": -1}, r"teachers\.a\.max_change=-1"),
    ],
)
def test_bad_teachers_are_named(fields: dict[str, Any], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        teacher_of(fields, "a")


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (("+teachers.default={engine: vllm}", "rollout.temperature=0.5"), r"rollout\.temperature=0\.5: must be 1\.0"),
        (("+teachers.default={engine: simple}",), r"teachers\.default\.engine='simple': must be one of a server"),
        (
            ("+teachers.default={engine: arcforge, options: {url: 'http://127.0.0.1:1', retries: 0}}",),
            r"teachers\.default\.options\.url='http://127\.0\.0\.1:1': cannot be reached",
        ),
        (("curriculum.pool=4", "curriculum.low=0.5"), r"curriculum\.low=0\.5: needs pass rates"),
    ],
)
def test_teachers_that_cannot_score_are_refused(
    small_run: Compose, policy: Path, options: tuple[str, ...], refused: str
) -> None:
    default = () if "teachers" in options[0] else (f"+teachers.default={policy}",)
    with pytest.raises(ConfigError, match=refused):
        run(small_run("algorithm=opd", *default, *options))


class Answers:
    """An answer of httpx.post."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, url: str, **given: Any) -> Any:
        assert url == "http://teacher/tokenize" and given["json"]["add_special_tokens"] is False
        return self

    def raise_for_status(self) -> None:
        pass

    def json(self) -> Any:
        return self.answer


def test_a_server_with_another_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Options:
        url = "http://teacher/"

    right = TOKENIZER.encode(module.PROBE)
    for answer, refused in (
        ({"tokens": right[:-1]}, "has another tokenizer than the policy"),
        ({"detail": "not found"}, "does not say how it encodes texts"),
        ({"tokens": right}, None),
    ):
        monkeypatch.setattr(module.httpx, "post", Answers(answer))
        if refused is None:
            check_served_tokenizer("teachers.a", Options, TOKENIZER)
            continue
        with pytest.raises(ConfigError, match=refused):
            check_served_tokenizer("teachers.a", Options, TOKENIZER)


@pytest.mark.slow(reason="a server process and two runs")
def test_a_run_with_a_served_teacher_has_the_loss_of_one_in_this_process(
    small_run: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", KEY)
    folder = save_policy(tmp_path / "teacher", seed=1)
    options = (
        "algorithm=opd",
        "rollout.group_size=1",
        "trainer.max_steps=2",
        "evaluation.tasks=0",
        "optimizer.lr=0.02",
    )
    inside = run(small_run(*options, f"+teachers.default={folder}"))
    with served_policy(folder) as address:
        teacher = f"+teachers.default={{engine: arcforge, options: {{url: '{address}'}}}}"
        outside = run(small_run(*options, teacher))
    losses = [float(read_row(found.dir)["policy_loss"]) for found in (inside, outside)]
    assert losses[0] != 0.0 and losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_no_verifier_runs_where_no_reward_counts(
    small_run: Compose, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    score = CopyEnvironment.score

    async def watched(environment: CopyEnvironment, task: Task, episode: Episode) -> Any:
        judged.append(task.key)
        return await score(environment, task, episode)

    monkeypatch.setattr(CopyEnvironment, "score", watched)
    options = ("algorithm=opd", f"+teachers.default={policy}", "trainer.max_steps=1", "evaluation.tasks=0")
    found = run(small_run(*options))
    assert not judged
    row = read_row(found.dir)
    assert "reward" not in row and float(row["tokens"]) > 0
    run(small_run(*options, "algorithm.reward_weight=0.5"))
    assert len(judged) == 16


def read_row(folder: Path) -> dict[str, str]:
    head, *_, last = (folder / "metrics.csv").read_text().splitlines()
    return dict(zip(head.split(","), last.split(","), strict=True))


@pytest.mark.parametrize(
    ("algorithm", "needed"), [("double_sided", False), ("grpo", True), ("icepop", True), ("rloo", True)]
)
def test_the_policy_before_the_step_is_computed_where_it_is_read(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, algorithm: str, needed: bool
) -> None:
    calls: list[int] = []
    old = PolicyModule._old

    def watched(self: Any, micro: Any) -> Any:
        calls.append(1)
        return old(self, micro)

    monkeypatch.setattr(PolicyModule, "_old", watched)
    options = (f"algorithm={algorithm}", "trainer.updates=2", "trainer.max_steps=2", "evaluation.tasks=0")
    row = read_row(run(small_run(*options, "optimizer.lr=0.01")).dir)
    assert bool(calls) is needed
    assert float(row["logprob_gap"]) < 1e-4, "of tokens that the present weights sampled"


def test_opd_counts_rewards_by_their_weight() -> None:
    assert not Opd(OpdConfig(), preset("icepop")).counts_rewards
    assert Opd(OpdConfig(reward_weight=0.1), preset("icepop")).counts_rewards


def test_two_checkpoints_teach_two_stages_of_one_domain(small_run: Compose, tmp_path: Path, policy: Path) -> None:
    other = save_policy(tmp_path / "teacher", seed=1)
    parts = (
        "environment=mixture",
        *(f"~environment.parts.{name}" for name in ("math", "science", "code", "tool_math")),
        *(f"+environment.parts.{name}=1" for name in ("reasoning", "general")),
        *(f"+environment.environments.{name}=copy" for name in ("reasoning", "general")),
    )
    options = ("algorithm=opd", f"+teachers.reasoning={policy}", f"+teachers.general={other}", "rollout.group_size=1")
    found = run(small_run(*parts, *options, "trainer.max_steps=1", "evaluation.tasks=0"))
    assert float(read_row(found.dir)["tokens"]) > 0


def test_figures_of_each_teacher_and_the_advantages_that_were_used() -> None:
    traces = [*traces_of(0, 2, "sft"), *traces_of(1, 1, "general")]
    Opd(OpdConfig(balance="teachers", reward_weight=0.5), preset("icepop")).score(traces)
    for trace in traces:
        for branch in trace.branches:
            ones = torch.ones(len(branch.ids))
            branch.streams |= {"current": -1.0 * ones, "teacher": -0.25 * ones, "factor": ones, "advantages": ones}
    found = teacher_figures(traces, 0.5)
    assert found["teacher_sft_tokens"] == sum(trace.num_sampled for trace in traces[:2])
    assert found["teacher_sft_gap"] == found["teacher_general_gap"] == -0.75
    assert found["teacher_sft_weight"] == pytest.approx(0.5) == found["teacher_general_weight"]
    assert found["teacher_general_loss"] == pytest.approx(-0.5 * 1.25)
    assert all(float(b.streams["advantages"][0]) == 1.25 for trace in traces for b in trace.branches)


def test_prompts_without_a_teacher_are_refused_before_work_starts() -> None:
    copies = {"sft": "copy", "general": "copy"}
    mixture = Mixture(MixtureConfig(parts={"sft": 9.0, "general": 1.0}, environments=copies))
    check_prompts({"sft": None, "general": None}, mixture)
    check_prompts({"copy": None}, mixture)
    check_prompts({"sft": None, "default": None}, mixture)
    with pytest.raises(ConfigError, match=r"none for prompts of general: add \+teachers\.general or"):
        check_prompts({"sft": None}, mixture)
