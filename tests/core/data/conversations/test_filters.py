import pytest

from arcforge_core.configs import CONVERSATION_FILTERS, ConversationsDataConfig
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.conversation import OFF, OPTIONS, BadRecord, Check, Conversation
from arcforge_core.data.conversations.filters import (
    NEAR_DUPLICATES,
    ExactDuplicates,
    build_filters,
    repeated_share,
    repetition,
    truncation,
    wrong_answer,
)

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
    named = build_filters(ConversationsDataConfig(filters=list(CONVERSATION_FILTERS)))
    assert list(named) == [name for name in CONVERSATION_FILTERS if name != NEAR_DUPLICATES], "it compares what passes"
    strict = build_filters(ConversationsDataConfig(filters=["repetition"], max_repetition=0.0))["repetition"]
    assert strict(asked(f"{TEXT} {TEXT}")) is not None
