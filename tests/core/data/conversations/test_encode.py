import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.chat.jinja import JinjaTemplate
from arcforge_core.chat.load import build_chat_template
from arcforge_core.configs import JinjaTemplateConfig
from arcforge_core.contracts.chat import ChatTemplate, Message, Tool, ToolCall
from arcforge_core.contracts.conversation import INTERLEAVED, OFF, OPTIONS, PRESERVED, BadRecord, Conversation
from arcforge_core.data.conversations.encode import LengthLimits, make_example, turns
from arcforge_core.testing.chat_cases import with_tokens
from arcforge_core.testing.small_models import small_tokenizer

LIMITS = LengthLimits(10_000, 1, False)
TOOLS = (Tool({"name": "f"}),)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return build_chat_template(small_tokenizer())


def answer(n: int, reasoning: str | None = "because") -> Message:
    return Message("assistant", f"answer {n}", reasoning=reasoning)


def dialogue(mode: str, count: int = 3, reasoning: str | None = "because") -> Conversation:
    pairs = ((Message("user", f"question {n}"), answer(n, reasoning)) for n in range(count))
    return Conversation(tuple(itertools.chain(*pairs)), options=OPTIONS[mode])


def learnt(conversation: Conversation, template: ChatTemplate, limits: LengthLimits = LIMITS) -> list[str]:
    """Returns the text of the targets of each example, runs of them apart by a bar."""
    texts = []
    for part in turns(conversation):
        example = make_example(part, template, limits)
        assert example.trained is not None and len(example.trained) == len(example.ids)
        runs = itertools.groupby(zip(example.ids, example.trained, strict=True), key=lambda pair: pair[1])
        texts.append("|".join(template.tokenizer.decode([i for i, _ in run]) for trained, run in runs if trained))
    return texts


def test_thinking_off_trains_on_answers_and_the_ends_of_turns(template: ChatTemplate) -> None:
    conversation = dialogue(OFF, 2, None)
    assert learnt(conversation, template) == ["answer 0<|user|>|answer 1<|user|>"]
    [example] = [make_example(part, template, LIMITS) for part in turns(conversation)]
    text = template.tokenizer.decode(list(example.ids))
    turns_said = (f"<|user|>question {n}<|assistant|></think>answer {n}" for n in range(2))
    assert text == f"[gMASK]<sop>{''.join(turns_said)}<|user|>"


def test_preserved_thinking_trains_on_all_turns_at_once(template: ChatTemplate) -> None:
    said = [f"because</think>answer {n}<|user|>" for n in range(3)]
    assert learnt(dialogue(PRESERVED), template) == ["|".join(said)]


def test_interleaved_thinking_gives_an_example_for_each_turn_that_was_sampled(template: ChatTemplate) -> None:
    said = [f"because</think>answer {n}<|user|>" for n in range(3)]
    conversation = dialogue(INTERLEAVED)
    assert learnt(conversation, template) == said
    ids = [make_example(part, template, LIMITS).ids for part in turns(conversation)]
    for n, part in enumerate(ids):  # each begins with the prompt that the model would have seen
        prompt = template.render(conversation.messages[: 2 * n + 1], (), conversation.options, generation_prompt=True)
        assert part[: len(prompt)] == prompt.ids


def test_interleaved_thinking_without_earlier_reasoning_is_one_example(template: ChatTemplate) -> None:
    messages = (*dialogue(OFF, 2, None).messages, Message("user", "q"), answer(2))
    conversation = Conversation(messages, options=OPTIONS[INTERLEAVED])
    assert learnt(conversation, template) == ["answer 0<|user|>|answer 1<|user|>|because</think>answer 2<|user|>"]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2)), min_size=1, max_size=5),
    st.sampled_from([OFF, INTERLEAVED, PRESERVED]),
)
def test_every_message_is_learnt_exactly_once_or_never(
    template: ChatTemplate, drawn: list[tuple[bool, bool, int]], mode: str
) -> None:
    """Whatever is marked, thinks and calls: a trained message's tokens are targets in exactly one example."""
    messages: list[Message] = []
    for n, (trained, thinks, calls) in enumerate(drawn):
        reasoning = f"thought{n}" if thinks and mode != OFF else None
        messages.append(Message("user", f"question{n}"))
        for k in range(calls):
            call = (ToolCall("f", {"x": f"argument{n}.{k}"}),)
            messages += [
                Message("assistant", "", reasoning=reasoning, tool_calls=call, trained=trained),
                Message("tool", "r"),
            ]
        messages.append(Message("assistant", f"says{n}.", reasoning=reasoning, trained=trained))
    conversation = Conversation(tuple(messages), TOOLS, OPTIONS[mode])
    texts = learnt(conversation, template, LengthLimits(10_000, 0, False)) if any(t for t, _, _ in drawn) else []
    for n, (trained, _, calls) in enumerate(drawn):
        wanted = [f"says{n}.<|user|>", *(f"argument{n}.{k}" for k in range(calls))]
        for text in wanted:
            assert sum(found.count(text) for found in texts) == int(trained), (text, texts)


def test_masked_messages_stay_in_the_conversation(template: ChatTemplate) -> None:
    conversation = dialogue(PRESERVED, 2)
    first = replace(conversation.messages[1], trained=False)
    conversation = replace(conversation, messages=(conversation.messages[0], first, *conversation.messages[2:]))
    [example] = [make_example(part, template, LIMITS) for part in turns(conversation)]
    assert "answer 0" in template.tokenizer.decode(list(example.ids))
    assert learnt(conversation, template) == ["because</think>answer 1<|user|>"]


def test_what_is_too_long_is_left_out_or_cut_behind_a_turn(template: ChatTemplate) -> None:
    conversation = dialogue(PRESERVED)
    lengths = [len(make_example(dialogue(PRESERVED, n), template, LIMITS).ids) for n in (1, 2, 3)]
    with pytest.raises(BadRecord, match=f"{lengths[2]} tokens are more than data.max_tokens={lengths[2] - 1}"):
        make_example(conversation, template, LengthLimits(lengths[2] - 1, 1, False))
    for limit, kept in ((lengths[2], 3), (lengths[2] - 1, 2), (lengths[1], 2), (lengths[1] - 1, 1), (lengths[0], 1)):
        cut = make_example(conversation, template, LengthLimits(limit, 1, True))
        assert cut.ids == make_example(dialogue(PRESERVED, kept), template, LIMITS).ids
    with pytest.raises(BadRecord, match="are more than"):
        make_example(conversation, template, LengthLimits(lengths[0] - 1, 1, True))


def test_what_has_too_little_to_learn_is_left_out(template: ChatTemplate) -> None:
    example = make_example(dialogue(OFF, 1, None), template, LIMITS)
    count = sum(example.trained or ())
    assert make_example(dialogue(OFF, 1, None), template, LengthLimits(10_000, count, False)).ids == example.ids
    with pytest.raises(
        BadRecord, match=f"{count} tokens to train on are fewer than data.min_trained_tokens={count + 1}"
    ):
        make_example(dialogue(OFF, 1, None), template, LengthLimits(10_000, count + 1, False))


def test_parts_of_a_message_are_masked_by_their_characters(template: ChatTemplate) -> None:
    """Pages: the second of three is kept out of the loss, and so are neither its neighbours nor the end of the turn."""
    parts = (("  page one\n", True), ("page two\n", False), ("page three", True))
    messages = (Message("user", "q"), Message("assistant", "".join(text for text, _ in parts)))
    conversation = Conversation(messages, options=OPTIONS[OFF], parts={1: parts})
    [text] = learnt(conversation, template)
    before, after = text.split("|", 1)
    assert before.strip() == "page one" and after == "page three<|user|>"


def test_bytes_are_those_of_the_text_that_is_learnt(template: ChatTemplate) -> None:
    messages = (Message("user", "q"), Message("assistant", "é漢", reasoning="ab"))
    example = make_example(Conversation(messages, options=OPTIONS[PRESERVED]), template, LIMITS)
    assert example.num_bytes == len("abé漢".encode())


def test_a_template_without_reasoning_refuses_it(tmp_path: Path) -> None:
    file = tmp_path / "plain.jinja"
    file.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = with_tokens(small_tokenizer(), ("<|im_start|>", "<|im_end|>"), None)
    template = JinjaTemplate(JinjaTemplateConfig(template=str(file)), tokenizer)
    assert not template.keeps_reasoning
    with pytest.raises(BadRecord, match="the chat template does not render"):
        make_example(dialogue(PRESERVED, 1), template, LIMITS)
    assert learnt(dialogue(OFF, 1, None), template)[0].startswith("answer 0<|im_end|>")
