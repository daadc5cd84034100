import pytest

from arcforge_core.configs import CONVERSATION_FILTERS, ConversationsDataConfig
from arcforge_core.contracts.chat import Message
from arcforge_core.data.conversations.conversation import OFF, OPTIONS, BadRecord, Check, Conversation
from arcforge_core.data.conversations.filters import (
    ExactDuplicates,
    build_filters,
    repeated_share,
    repetition,
    truncation,
    words_of,
    wrong_answer,
)
from arcforge_core.data.conversations.near import NearDuplicates

TEXT = " ".join(f"word{n} comes before word{n + 1}." for n in range(60))


def asked(answer: str, **fields: object) -> Conversation:
    return Conversation((Message("user", "q"), Message("assistant", answer)), **fields)  # type: ignore[arg-type]


def test_truncation_is_seen_by_word_by_the_end_and_by_code() -> None:
    assert truncation(asked("a")) is None
    assert truncation(asked("```python\nx\n```")) is None
    assert "finish_reason" in str(truncation(asked("a", cut_off=True)))
    assert "inside a block of code" in str(truncation(asked("```python\nx")))
    assert "ends with a message of user" in str(truncation(Conversation((Message("user", "q"),))))


def test_repetition_is_measured_over_phrases() -> None:
    assert repeated_share(TEXT) == 0.0
    assert repeated_share("again and again " * 2) == 0.0, "short texts may repeat themselves"
    assert repeated_share("again and again " * 100) > 0.9
    assert repeated_share("一二三四五六七八九十" * 20) > 0.8
    assert 0.4 < repeated_share(f"{TEXT} {TEXT}") < 0.6
    assert repetition(asked("no, " * 200), 0.5) is not None
    assert repetition(asked("no, " * 200), 1.0) is None


def test_repetition_looks_at_reasoning_and_not_at_what_is_masked() -> None:
    loop = "wait, " * 200
    thinking = Message("assistant", "a", reasoning=loop)
    assert "messages[1] repeats itself" in str(repetition(Conversation((Message("user", loop), thinking)), 0.5))
    masked = Message("assistant", loop, trained=False)
    assert repetition(Conversation((Message("user", loop), masked, Message("assistant", "a"))), 0.5) is None


def test_exact_duplicates_are_the_same_but_for_white_space() -> None:
    seen = ExactDuplicates()
    assert seen(asked("a b")) is None
    assert seen(asked("a  b\n")) == "an exact duplicate of an earlier one"
    assert seen(asked("a c")) is None
    assert seen(asked("a b", options=OPTIONS[OFF])) is None, "another mode is another lesson"


def test_near_duplicates_share_most_of_their_phrases() -> None:
    near = NearDuplicates(0.8, words_of)
    assert near(asked(TEXT)) is None
    assert "near duplicate" in str(near(asked(TEXT.replace("word7 ", "word7b "))))
    assert near(asked(" ".join(reversed(TEXT.split())))) is None
    assert NearDuplicates(1.0, words_of)(asked(TEXT)) is None
    half = " ".join(TEXT.split()[:120])
    assert near(asked(half)) is None, "half of it is no duplicate at 0.8"


def test_near_duplicates_estimate_the_jaccard_index() -> None:
    """128 hashes: the estimate is within 0.15 of the index (four standard deviations of 0.04)."""
    words = [f"w{n}" for n in range(400)]
    for shared in (100, 200, 300):
        other = [*words[:shared], *(f"v{n}" for n in range(400 - shared))]
        near = NearDuplicates(1.1, words_of)
        one, two = (near._signature(part) for part in (words, other))
        phrases = [{tuple(part[n : n + 5]) for n in range(396)} for part in (words, other)]
        index = len(phrases[0] & phrases[1]) / len(phrases[0] | phrases[1])
        assert abs(float((one == two).mean()) - index) < 0.15


def test_answers_are_asked_of_every_checker() -> None:
    messages = (Message("user", "q"), Message("assistant", "1"), Message("user", "q"), Message("assistant", "2"))
    right = [Check(1, "exact", {"answer": "1"}), Check(3, "number", {"answer": "2"})]
    assert wrong_answer(Conversation(messages, checks=tuple(right))) is None
    wrong = Conversation(messages, checks=(right[0], Check(3, "exact", {"answer": "1"})))
    assert wrong_answer(wrong) == "messages[3] is wrong: exact does not accept it"


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (Check(1, "exatc", {}), "exatc"),
        (Check(1, "exact", {"anser": "1"}), r"checker\.arguments\.anser='1': exact takes answer"),
        (Check(1, "exact", {"answer": 1}), r"checker\.answer=1: must be a text"),
    ],
)
def test_a_checker_that_cannot_be_asked_is_a_bad_record(check: Check, reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        wrong_answer(asked("1", checks=(check,)))


def test_filters_are_those_that_are_named_in_the_order_of_their_cost() -> None:
    assert list(build_filters(ConversationsDataConfig(filters=["answers", "format"]))) == ["format", "answers"]
    assert list(build_filters(ConversationsDataConfig(filters=list(CONVERSATION_FILTERS)))) == list(
        CONVERSATION_FILTERS
    )
    near = build_filters(ConversationsDataConfig(filters=["near_duplicates"], near_duplicates=0.3))["near_duplicates"]
    assert near(asked(TEXT)) is None
    assert near(asked(" ".join(TEXT.split()[:120]))) is not None
    strict = build_filters(ConversationsDataConfig(filters=["repetition"], max_repetition=0.0))["repetition"]
    assert strict(asked(f"{TEXT} {TEXT}")) is not None
