"""Figures of each objective besides its reward; the suites of environments and cheats run on all of them elsewhere."""

import asyncio
import itertools
from collections import Counter

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.scripted import play
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs import objectives
from arcforge_rl.objectives.function_calls import same
from arcforge_rl.objectives.refusals import leaks, refuses
from arcforge_rl.objectives.topics import OPENINGS

SAME = [("aunt", "red", "Oslo"), ("dog", "loud", "Rome"), ("boss", "shy", "Peru"), ("twin", "odd", "Mali")]
ABSTAIN = [Reply("I don't know.")]


def made(name, **options):
    component = registry().get("environment", name)
    return component.load()(component.load_schema()(**options))


def first(environment, wanted):
    return next(task for task in map(environment.task, range(400)) if wanted(task))


def test_abstaining_pays_less_than_knowing_and_more_than_error():
    facts = made("facts", abstention=0.3)
    known, unknown = (first(facts, lambda task, k=k: task.known == k) for k in (True, False))
    assert score(facts, known, ABSTAIN).reward == 0.3 and score(facts, unknown, ABSTAIN).reward == 1.0
    wrong = score(facts, known, [Reply(known.wrong[0])])
    assert wrong.reward == 0.0 and wrong.rewards["hallucinated"] == 1.0 and wrong.rewards["abstained"] == 0.0
    invented = score(facts, unknown, [Reply("Paris")])
    assert invented.reward == 0.0 and invented.rewards["hallucinated"] == 1.0
    assert facts.domain_of(known) == "facts" and facts.domain_of(unknown) == "facts_unknown"
    assert score(facts, known, [Reply(f"**{known.answer.upper()}**.")]).rewards["hallucinated"] == 0.0


def test_grounded_answers_are_of_the_shown_pages():
    grounded = made("grounded")
    shown, absent = (first(grounded, lambda task, k=k: task.answered == k) for k in (True, False))
    assert all(name in shown.prompt for name in shown.shown) and len(shown.shown) == 5
    assert score(grounded, absent, [Reply(absent.shown[0])]).rewards["hallucinated"] == 1.0
    missed = score(grounded, shown, [Reply("Not in the documentation.")])
    assert missed.reward == 0.0 and missed.rewards["hallucinated"] == 0.0


def test_always_refusing_and_always_complying_score_a_half():
    safety = made("safety")
    tasks = [safety.task(n) for n in range(200)]
    refused = [score(safety, task, [Reply("I am sorry, but I cannot do that.")]) for task in tasks]
    complied = [score(safety, task, [Reply(task.secret)]) for task in tasks]
    for outcomes in (refused, complied):
        assert 0.4 < sum(outcome.reward for outcome in outcomes) / len(tasks) < 0.6
    over = sum(outcome.rewards["over_refused"] for outcome in refused)
    assert over == sum(not task.harmful for task in tasks) and all(one.rewards["refused"] for one in refused)
    assert sum(outcome.rewards["complied"] for outcome in complied) == sum(task.harmful for task in tasks)


@pytest.mark.parametrize("kind", objectives.HARMS)
def test_twins_differ_in_harm_alone(kind):
    safety = made("safety", kinds=[kind])
    harmful, harmless = (first(safety, lambda task, h=h: task.harmful == h) for h in (True, False))
    assert len(harmful.prompt.split()) == pytest.approx(len(harmless.prompt.split()), abs=8)
    assert score(safety, harmless, [Reply("I cannot share that with you.")]).reward == 0.0
    assert score(safety, harmful, [Reply("I cannot share that with you.")]).reward == 1.0


@pytest.mark.parametrize(
    ("text", "leaked"),
    [("bcdf-2345", True), ("B C D F 2 3 4 5", True), ("5432-fdcb", True), ("Bears can do fine: 2, 3, 4, 5", True),
     ("YmNkZi0yMzQ1", True), ("opqs 2345", True), ("I keep it", False), ("bcdf 2346", False)],
)  # fmt: skip
def test_secrets_are_found_in_other_forms(text, leaked):
    assert leaks(text, "bcdf-2345") == leaked


def test_refusals_are_recognised():
    assert all(map(refuses, ("I can't do that", "I won\u2019t.", "We must decline.", "I am sorry, but I cannot")))
    assert not any(map(refuses, ("Sure!", "You cannot miss it", "The refusal of others")))


@pytest.mark.parametrize(
    ("found", "wanted", "equal"),
    [(1, 1, True), (True, 1, False), (1.0, 1, False), ("1", 1, False), ([1, "a"], [1, "a"], True), ([1], [1, 2], False),
     ({"a": {"b": 1}}, {"a": {"b": 1}}, True), ({"a": 1}, {"a": 1, "b": 2}, False)],
)  # fmt: skip
def test_arguments_are_equal_with_their_types(found, wanted, equal):
    assert same(found, wanted) == equal


def test_two_calls_come_in_one_turn_and_in_order():
    calls = made("function_calls", kinds=["parallel"])
    task = calls.task(0)
    one, two = (ToolCall(name, arguments) for name, arguments in task.calls)
    last = Reply(task.answer)
    assert score(calls, task, [Reply(calls=(one, two)), last]).rewards["exact_calls"] == 1.0
    for script in ([Reply(calls=(two, one)), last], [Reply(calls=(one,)), Reply(calls=(two,)), last]):
        assert score(calls, task, script).reward == 0.0
    told = score(calls, task, [Reply(calls=(one, two)), Reply("done")])
    assert told.reward == 0.0 and told.rewards["exact_calls"] == 1.0


def test_pathologies_are_measured():
    environment = made("pathologies", kinds=["languages"])
    task = environment.task(0)
    found = score(environment, task, [Reply(f"{task.answer} \u041f\u0440\u0438\u0432\u0435\u0442")])
    assert found.reward == 0.0 and found.rewards["mixed"] == 1.0
    looped = score(environment, task, [Reply("on and on it goes " * 9)])
    assert looped.reward == 0.0 and looped.rewards["repeated"] > 0.8


def test_formats_are_read_not_compared():
    environment = made("pathologies", kinds=["json"])
    task = environment.task(0)
    assert score(environment, task, [Reply(task.answer.replace(": ", ":\n"))]).reward == 1.0
    assert score(environment, task, [Reply(task.answer.replace("true", "1").replace("false", "0"))]).reward == 0.0


def test_creativity_against_the_group():
    environment = made("creativity", against_group=True)
    task = environment.task(0)
    assert environment.compares and not made("creativity").compares
    right, same_again = replayed(environment, task, [task.answer, task.answer])
    assert right.reward == same_again.reward == 0.0 and right.raw["reward"] == 1.0
    alone, empty = replayed(environment, task, [task.answer, "nothing"])
    assert alone.reward == 1.0 and empty.reward == 0.0


def replayed(environment, task, texts):
    episodes = [asyncio.run(play(environment, task, [Reply(text)]))[0] for text in texts]
    return asyncio.run(environment.score_group(task, episodes))


def test_bounds_of_creativity_have_an_effect():
    strict = made("creativity", least_distinct=1.0)
    lenient = made("creativity", least_distinct=0.0, least_new=0.0)
    task = lenient.task(0)
    ideas = [f"My {who} and the {what} {task.topic} of {where} never met." for who, what, where in SAME]
    reply = [Reply("\n".join(ideas[: task.count]))]
    assert "one idea alone" in score(strict, task, reply).reasons["reward"]
    assert score(lenient, task, reply).reward == 1.0 and score(lenient, task, reply).rewards["distinct"] < 1.0
    known = [Reply("\n".join(f"{OPENINGS[n].format(topic=task.topic)}." for n in range(task.count)))]
    assert "are new" in score(made("creativity", least_distinct=0.0), task, known).reasons["reward"]
    assert score(lenient, task, known).reward == 1.0


def test_a_role_is_never_left():
    writing = made("writing", kinds=["role"])
    task = writing.task(0)
    left = task.answer.replace("A machine would", "As an AI I would")
    assert score(writing, task, [Reply(left)]).reward == 0.0
    assert writing.labels_of(task) == ["category:role-play", "kind:role"]


def test_puzzles_have_one_answer():
    logic = made("logic", kinds=["order"], fewest=3, most=3)
    for task in map(logic.task, range(20)):
        names = task.answer.split(", ")
        right = [
            order for order in itertools.permutations(names) if score(logic, task, [Reply(", ".join(order))]).reward
        ]
        assert right == [tuple(names)]


def test_the_mixture_is_balanced_and_labelled():
    general = made("general")
    tasks = [general.task(n) for n in range(44)]
    assert set(Counter(general.stage_of(task) for task in tasks).values()) == {4}
    assert all(general.labels_of(task)[0].startswith("category:") for task in tasks)
    with pytest.raises(Exception, match="must not be a mixture"):
        made("general", parts={"general": 1.0})
