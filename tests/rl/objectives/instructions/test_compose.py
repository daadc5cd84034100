"""Every kind of constraint holds for what it makes and fails elsewhere; they compose; kinds are held out."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.environment import Reply
from arcforge_core.errors import ConfigError
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs.objectives import CONSTRAINTS, InstructionsConfig
from arcforge_rl.objectives.instructions.compose import KINDS, draw_constraints, fits, holds, loosely, said, write
from arcforge_rl.objectives.instructions.environment import Instructions
from arcforge_rl.objectives.instructions.kind import Constraint
from arcforge_rl.objectives.topics import TOPICS

TRUE_OF = {  # kinds, and a text for which each is false
    "at_most_words": "word " * 200, "at_most_characters": "word " * 200, "short_sentences": "word " * 40,
    "exclude_words": " ".join(["very people many good best simple small nothing old often work time"] * 2),
    "without_letter": "jack quits six zebras", "no_commas": "a, b", "no_digits": "7 rivers", "lower_case": "Rivers",
    "upper_case": "Rivers", "first_sentence_word": "No. Yes.", "last_sentence_word": "No. Yes.",
    "exclamations": "Rivers.", "parentheses": "Rivers.",
}  # fmt: skip


def test_there_are_many_kinds_and_the_schema_knows_them():
    assert set(CONSTRAINTS) == set(KINDS) and len(KINDS) >= 25
    assert len({kind.major for kind in KINDS.values()}) == 7


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_kind_holds_for_its_own_text_alone(name):
    for seed in range(4):
        draw = random.Random(f"{name}/{seed}")
        topic = draw.choice(TOPICS)
        (constraint,) = draw_constraints(draw, topic, [name], 1)
        text = write([constraint], topic, draw)
        assert fits([constraint], topic, f"Describe {topic}. {said(constraint)}", text), (said(constraint), text)
        assert not holds(constraint, TRUE_OF.get(name, "Rivers. Or not?? More! (a) a")), said(constraint)
        assert not holds(constraint, "") or name in ("short_sentences", "exclude_words")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 5))
def test_composed_constraints_claim_nothing_in_common(seed, count):
    draw = random.Random(seed)
    constraints = draw_constraints(draw, "rivers", list(KINDS), count)
    claims = Counter(claim for one in constraints for claim in KINDS[one.kind].claims)
    assert 1 <= len(constraints) <= count and all(number == 1 for number in claims.values())
    assert write(constraints, "rivers", draw)


def test_strict_and_loose():
    ends = Constraint("ends_with", ("Thank you for reading.",))
    text = "Rivers are long.\nThank you for reading.\nHope that helps"
    assert not holds(ends, text) and loosely(ends, text)
    assert loosely(Constraint("json_object", ("title", "tone")), 'Here:\n{"title": "a", "tone": "b"}')
    assert not loosely(Constraint("no_commas", ()), "a, b")


def test_held_out_kinds_are_in_no_training_task():
    heldout = set(InstructionsConfig().heldout_kinds)
    training, other = Instructions(InstructionsConfig()), Instructions(InstructionsConfig(split="heldout"))
    tasks = [training.task(n) for n in range(60)]
    assert not {kind for task in tasks for kind in task.kinds} & heldout
    skills = Counter()
    for task in (other.task(n) for n in range(60)):
        skills[other.domain_of(task)] += 1
        assert (set(task.kinds) <= heldout) == (other.domain_of(task) == "instructions_unseen")
    assert min(skills["instructions"], skills["instructions_unseen"]) > 10
    assert not {task.topic for task in tasks} & {other.task(n).topic for n in range(60)}


def test_labels_metrics_and_reasons():
    environment = Instructions(InstructionsConfig(fewest=3, most=3))
    task = next(task for task in map(environment.task, range(100)) if "no_commas" in task.kinds and len(task.kinds) > 1)
    assert environment.labels_of(task) == [f"category:{task.category}", *(f"kind:{kind}" for kind in task.kinds)]
    found = score(environment, task, [Reply(task.answer.replace(" ", ", ", 1))])
    assert found.reward == 0.0 and "comma" in found.reasons["reward"]
    assert (
        found.rewards["satisfied"] == pytest.approx(1 - 1 / len(task.kinds), abs=0.4) and found.rewards["satisfied"] > 0
    )


@pytest.mark.parametrize(
    "options",
    [{"heldout_kinds": ["rhyme"]}, {"heldout_kinds": list(CONSTRAINTS)}, {"fewest": 3, "most": 2}, {"most": 9}],
)
def test_bad_config_is_named(options):
    with pytest.raises(ConfigError, match=r"environment\.(heldout_kinds|most)="):
        InstructionsConfig(**options)
