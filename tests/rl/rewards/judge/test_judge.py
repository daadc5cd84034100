"""The judge's machinery against scripted judges: values, biases, faults, cache and budget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Episode, EpisodeFailure, Failure, Reply, Task
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.judge import JudgeConfig
from arcforge_rl.rewards.judge.judge import GenerativeJudge
from support.judges import Answer, Scripted, first_wins, honest, never, numbers, quotations, write_rubric

TASK = Task("t", "say a number", "")


def episode(text: str) -> Episode:
    return Episode((Message("user", TASK.prompt),), Reply(text))


def judge_of(folder: Path, agents: Scripted, **options: Any) -> GenerativeJudge:
    made = GenerativeJudge(JudgeConfig(rubric=write_rubric(folder), uncalibrated=True, **options))
    made.connect(agents, str)
    return made


def values(judge: GenerativeJudge, texts: Sequence[str]) -> list[float | str]:
    found = asyncio.run(judge.measure_group(TASK, [episode(text) for text in texts]))
    return [one.reason if isinstance(one, Failure) else one for one in found]


def test_a_pointwise_value_is_the_rubrics_mean_over_samples_and_panel(tmp_path: Path) -> None:
    agents = Scripted()
    judge = judge_of(tmp_path, agents, judges=["one", "two"], samples=3)
    assert not judge.compares and judge.agents == ("one", "two")
    assert asyncio.run(judge.measure(TASK, episode("5"))) == (3 * 0.5 + 1.0) / 4
    assert len(agents.seeds) == len(set(agents.seeds)) == 6
    asyncio.run(judge.measure(TASK, episode("5")))
    figures = judge.take_figures()
    assert figures["requests"] == 6 and figures["cached"] == 6 and judge.take_figures()["requests"] == 0


def test_verdicts_of_a_panel_are_averaged(tmp_path: Path) -> None:
    def varied(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
        found = json.loads(honest(messages, schema, seed))
        return json.dumps(found | {"great": "great" if len(agents.seeds) % 2 else "small"})

    agents = Scripted(varied)
    judge = judge_of(tmp_path, agents, samples=4)
    assert asyncio.run(judge.measure(TASK, episode("5"))) == pytest.approx((3 * 0.5 + 1.0) / 4)


@pytest.mark.parametrize(("comparisons", "requests"), [("linear", 6), ("full", 12)])
def test_position_bias_is_found_and_removed(tmp_path: Path, comparisons: str, requests: int) -> None:
    judge = judge_of(tmp_path, Scripted(first_wins), mode="pairwise", comparisons=comparisons)
    assert values(judge, ["1", "2", "3", "4"]) == [0.5] * 4
    figures = judge.take_figures()
    assert figures["requests"] == requests and figures["flips"] == requests / 2

    def mostly_first(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
        """Tells only great differences, and prefers the first otherwise."""
        one, other = map(numbers, quotations(messages)[1:])
        return honest(messages, schema, seed) if abs(one - other) > 1 else first_wins(messages, schema, seed)

    judge = judge_of(tmp_path, Scripted(mostly_first), mode="pairwise", comparisons="full")
    assert values(judge, ["1", "2", "3", "4"]) == [pytest.approx(x / 6) for x in (1, 2, 4, 5)]


@pytest.fixture(scope="module")
def rubric(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rubric")


@given(texts=st.lists(st.sampled_from(["1", "5", "7", "12", "say 3", ""]), min_size=2, max_size=6), data=st.data())
def test_neither_the_order_of_a_group_nor_of_a_pair_changes_a_value(
    rubric: Path, texts: list[str], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(texts))))
    for comparisons in ("linear", "full"):
        found, again = (
            values(judge_of(rubric, Scripted(), mode="pairwise", comparisons=comparisons), group)
            for group in (texts, [texts[place] for place in order])
        )
        assert [found[place] for place in order] == again
        if comparisons == "full":
            wins = [
                sum((numbers(a) > numbers(b)) + 0.5 * (numbers(a) == numbers(b)) for b in texts) - 0.5 for a in texts
            ]
            assert found == [pytest.approx(win / (len(texts) - 1)) for win in wins]


def prose(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
    return "I find this reply great, ten of ten."


def twice(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
    return honest(messages, schema, seed) * 2


def double_field(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
    return honest(messages, schema, seed).replace('"plain": "yes"', '"plain": "yes", "great": "great"')


def changed(**fields: Any) -> Answer:
    return lambda messages, schema, seed: json.dumps(json.loads(honest(messages, schema, seed)) | fields)


FAULTS: dict[str, Answer] = {
    "prose": prose,
    "twice": twice,
    "a field twice": double_field,
    "wrong candidate": changed(candidate="00000000"),
    "11 of 10": changed(great="11/10"),
    "another language": changed(great="groß"),
    "a number": changed(great=3),
    "a further field": changed(score=1),
    "half": lambda messages, schema, seed: honest(messages, schema, seed)[:30],
    "empty": lambda messages, schema, seed: "",
    "a list": lambda messages, schema, seed: f"[{honest(messages, schema, seed)}]",
    "nested": lambda messages, schema, seed: "[" * 100_000,
    "never": never,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_verdict_is_asked_for_again_and_then_a_failure(tmp_path: Path, fault: str) -> None:
    agents = Scripted(FAULTS[fault])
    judge = judge_of(tmp_path, agents, attempts=3)
    why = "HTTP 500" if fault == "never" else r"agents\.judge: \S+"
    with pytest.raises(EpisodeFailure, match=rf"verifier: 1 of 1 verdicts are missing; the last reason: {why}"):
        asyncio.run(judge.measure(TASK, episode("12")))
    assert len(agents.seeds) == (1 if fault == "never" else 3), "an endpoint repeats its requests itself"
    assert judge.take_figures()["missing"] == 1
    agents.answer = honest
    assert asyncio.run(judge.measure(TASK, episode("12"))) == 1.0, "no fault is cached"


def test_a_fenced_answer_is_read_and_one_fault_of_two_is_made_good(tmp_path: Path) -> None:
    agents = Scripted(lambda m, s, seed: f"```json\n{honest(m, s, seed)}\n```" if seed.endswith("/1") else "well")
    judge = judge_of(tmp_path, agents)
    assert asyncio.run(judge.measure(TASK, episode("12"))) == 1.0
    assert judge.take_figures()["retries"] == 1


def test_abstention_is_no_verdict_and_not_asked_again(tmp_path: Path) -> None:
    agents = Scripted(changed(great="cannot tell"))
    judge = judge_of(tmp_path, agents)
    for _ in range(2):
        with pytest.raises(EpisodeFailure, match=r"the last reason: agents\.judge cannot tell"):
            asyncio.run(judge.measure(TASK, episode("12")))
    assert len(agents.seeds) == 1 and judge.take_figures()["abstained"] == 2


def test_in_a_group_only_what_lacks_its_verdicts_fails(tmp_path: Path) -> None:
    def partly(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
        return prose(messages, schema, seed) if "9" in quotations(messages)[1:] else honest(messages, schema, seed)

    judge = judge_of(tmp_path, Scripted(partly), mode="pairwise", comparisons="full")
    found = values(judge, ["1", "2", "9", "4"])
    assert found[:2] == [0.0, 0.5] and found[3] == 1.0
    assert str(found[2]).startswith("3 of 3 verdicts are missing; the last reason: agents.judge: ")


def test_verdicts_outlive_the_run_and_belong_to_their_judge(tmp_path: Path) -> None:
    cache = str(tmp_path / "verdicts" / "v.sqlite")
    agents = Scripted()
    for options in ({}, {}, {"most_characters": 200}):
        asyncio.run(judge_of(tmp_path, agents, cache=cache, **options).measure(TASK, episode("12")))
    assert len(agents.seeds) == 1
    other = judge_of(tmp_path, agents, cache=cache)
    other.connect(agents, lambda name: "a better model")
    asyncio.run(other.measure(TASK, episode("12")))
    assert len(agents.seeds) == 2
    (tmp_path / "not.sqlite").write_text("no database, but long enough to be taken for one" * 9)
    with pytest.raises(DataError, match=r"options\.cache="):
        judge_of(tmp_path, agents, cache=str(tmp_path / "not.sqlite"))


def test_what_exceeds_the_budget_of_a_step_fails_until_the_next(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, Scripted(), budget=2)

    async def measured() -> list[Any]:
        tasks = [judge.measure(TASK, episode(str(n))) for n in (10, 11, 12)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [isinstance(one, EpisodeFailure) for one in asyncio.run(measured())].count(True) == 1
    assert judge.take_figures()["requests"] == 2
    assert asyncio.run(measured()) == [1.0] * 3


def test_at_most_so_many_requests_run_at_a_time(tmp_path: Path) -> None:
    running = peak = 0

    class Slow(Scripted):
        def __call__(self, name: str, seed: str, schema: Any) -> Any:
            inner = super().__call__(name, seed, schema)

            class One:
                async def reply(self, messages: Any) -> Reply:
                    nonlocal running, peak
                    running += 1
                    peak = max(peak, running)
                    for _ in range(1000):  # until others are there
                        await asyncio.sleep(0)
                        if peak >= 3:
                            break
                    await asyncio.sleep(0.001)
                    running -= 1
                    found: Reply = await inner.reply(messages)
                    return found

            return One()

    judge = judge_of(tmp_path, Slow(), mode="pairwise", comparisons="full", concurrency=3)
    values(judge, [str(n) for n in range(6)])
    assert peak == 3


@pytest.mark.parametrize(
    ("rubric", "options", "refused"),
    [
        ("", {}, r"rubric\.criterion=\[\]: must have at least one"),
        ("[[criterion]]\nname = 'a'\nweight = 0", {}, r"criterion\.weight=\[0\]: must not sum to 0"),
        ("[[criterion]]\nname = 'a'\nwaight = 1", {}, "did you mean 'weight'"),
        ("[[criterion]]\nname = 'a'\n[[criterion]]\nname = 'a'", {}, "declared twice"),
        ("[[criterion]]\nname = 'a b'", {}, "must be an identifier"),
        ("[[criterion]]\nname = 'a'\nchoices = ['x']", {}, "at least two"),
        ("[[criterion]]\nname = 'a'\nvalues = [1]", {}, r"criterion\[a\]\.values"),
        ("[[criterion]]\nname = 'a'\n[[anchor]]\nprompt='p'\nreply='r'\nverdict={a='maybe'}", {}, r"anchor\.verdict"),
        ("criterion = 3", {}, "must be .*tables"),
        ("[", {}, "cannot be read"),
        ("[[criterion]]\nname = 'a'", {"uncalibrated": False}, r"options\.calibration=None"),
        ("[[criterion]]\nname = 'a'", {"mode": "groupwise"}, r"options\.mode"),
        ("[[criterion]]\nname = 'a'", {"comparisons": "full"}, "are of mode=pairwise"),
        ("[[criterion]]\nname = 'a'", {"judges": ["a", "a"]}, "none twice"),
    ],
)
def test_bad_rubrics_and_options_are_named(tmp_path: Path, rubric: str, options: Any, refused: str) -> None:
    with pytest.raises((ConfigError, DataError), match=refused):
        config = JudgeConfig(**{"rubric": write_rubric(tmp_path, rubric), "uncalibrated": True, **options})
        GenerativeJudge(config).connect(Scripted(), str)


def experts(folder: Path, *records: Any) -> str:
    (folder / "experts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder / "experts.jsonl")


def test_replies_are_compared_with_those_of_experts_where_there_are_some(tmp_path: Path) -> None:
    path = experts(tmp_path, {"prompt": " say a number ", "reply": "5"}, {"prompt": "say a number", "reply": "8"})
    agents = Scripted()
    judge = judge_of(tmp_path, agents, mode="pairwise", opponents=path)
    texts = ["9", "6", "1", "5", "6"]
    assert values(judge, texts) == [1.0, 0.5, 0.0, 0.25, 0.5]
    figures = judge.take_figures()
    assert figures["against_experts"] == 5 and figures["requests"] == 2 * (4 * 2 - 1)
    assert values(judge, texts[::-1]) == [0.5, 0.25, 0.0, 0.5, 1.0] and judge.take_figures()["requests"] == 0
    biased = judge_of(tmp_path, Scripted(first_wins), mode="pairwise", opponents=path)
    assert values(biased, ["9", "1"]) == [0.5, 0.5] and biased.take_figures()["flips"] == 4
    other = Task("u", "another prompt", "")
    found = asyncio.run(judge.measure_group(other, [episode(text) for text in ("1", "2", "3")]))
    figures = judge.take_figures()
    assert figures["against_experts"] == 0 and figures["requests"] == 4 and set(found) > {0.0}


def test_a_missing_verdict_against_an_expert_is_a_failure_of_its_reply_alone(tmp_path: Path) -> None:
    def moody(messages: Sequence[Message], schema: Mapping[str, Any], seed: str) -> str:
        return "ten of ten" if "7" in quotations(messages)[1:] else honest(messages, schema, seed)

    path = experts(tmp_path, {"prompt": "say a number", "reply": "5"})
    judge = judge_of(tmp_path, Scripted(moody), mode="pairwise", opponents=path)
    best, failed, worst = values(judge, ["9", "7", "1"])
    assert best == 1.0 and worst == 0.0 and "1 of 1 verdicts are missing" in str(failed)


def test_opponents_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"options\.opponents='x': are of mode=pairwise"):
        JudgeConfig(rubric="r", opponents="x")
    for record, refused in (
        ({"prompt": "p"}, "prompt and reply must be texts"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "must be a prompt and one reply"),
        ({"text": "a"}, "must have messages"),
    ):
        path = experts(tmp_path, {"prompt": "p", "reply": "r"}, record)
        with pytest.raises(DataError, match=rf"options\.opponents=.*:2: .*{refused}"):
            judge_of(tmp_path, Scripted(), mode="pairwise", opponents=path)
    with pytest.raises(DataError, match="has no reply"):
        judge_of(tmp_path, Scripted(), mode="pairwise", opponents=experts(tmp_path))
