import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.chat.glm5 import Glm5Template
from arcforge_core.chat.glm5_format import NEEDED
from arcforge_core.chat.parser import split_reasoning
from arcforge_core.configs import Glm5TemplateConfig
from arcforge_core.contracts.chat import ChatOptions, Fork, Message, NextTurn, Rendered, Tool, ToolCall
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.testing.chat_cases import TYPED, UNTYPED, assistants, conversations, loose_calls, typed_calls
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.tokenizer.tokenizer import Tokenizer

TOKENIZER = small_tokenizer()
TEMPLATE = Glm5Template(Glm5TemplateConfig(), TOKENIZER)
TOOLS = [TYPED, UNTYPED]
options = st.builds(ChatOptions, enable_thinking=st.booleans(), clear_thinking=st.booleans())
tool_lists = st.sampled_from([[], [TYPED], TOOLS])
PRESERVED = ChatOptions(clear_thinking=False)
ID = TOKENIZER.special


# ---- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="a thousand conversations")
@settings(max_examples=250)
@given(conversations(loose_calls), tool_lists, options)
def test_a_rendering_reads_back_as_the_normal_form(messages, tools, chosen):
    """The normal form, which is its own, and an extension of the rendering of fewer messages where nothing clears."""
    rendered = TEMPLATE.render(messages, tools, chosen)
    normal = TEMPLATE.normalize(messages, tools, chosen)
    assert TEMPLATE.read(rendered.ids) == (normal, tools)
    assert TEMPLATE.normalize(normal, tools, chosen) == normal
    if not chosen.clear_thinking:
        shorter = TEMPLATE.render(messages[: len(messages) // 2], tools, chosen)
        assert rendered.ids[: len(shorter)] == shorter.ids
        assert rendered.trained[: len(shorter)] == shorter.trained


@pytest.mark.slow(reason="a thousand conversations")
@settings(max_examples=250)
@given(st.lists(assistants(typed_calls), min_size=1, max_size=2))
def test_typed_arguments_come_back_exactly(messages):
    read = TEMPLATE.read(TEMPLATE.render(messages, [TYPED]).ids)[0]
    calls = [call for message in messages for call in message.tool_calls]
    again = [call for message in read for call in message.tool_calls]
    assert again == calls
    assert [list(map(type, call.arguments.values())) for call in again] == [
        list(map(type, call.arguments.values())) for call in calls
    ]


def test_results_are_a_prefix_of_more_results():
    results = [Message("tool", "1"), Message("tool", "2")]
    assert TEMPLATE.render(results).ids[:5] == TEMPLATE.render(results[:1]).ids[:5]


def test_interleaved_thinking_does_not():
    turn = [Message("user", "a"), Message("assistant", "b", reasoning="r")]
    shorter, longer = TEMPLATE.render(turn), TEMPLATE.render([*turn, Message("user", "c")])
    assert longer.ids[: len(shorter)] != shorter.ids


@given(conversations(loose_calls), tool_lists, options)
def test_who_wrote_what(messages, tools, chosen):
    rendered = TEMPLATE.render(messages, tools, chosen)
    for id_, author, index, trained in zip(
        rendered.ids, rendered.authors, rendered.messages, rendered.trained, strict=True
    ):
        assert author == "template" or author == messages[index].role
        assert not trained or author == "assistant"
        if author in ("user", "system", "tool"):
            assert id_ not in ID.values()


# ---- options ---------------------------------------------------------------------------------------------------------


def test_nothing_in_a_prompt_is_trained_on():
    messages = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert not any(TEMPLATE.render(messages, generation_prompt=True).trained)
    assert any(TEMPLATE.render(messages).trained)


def test_the_end_of_a_turn_needs_a_turn():
    for messages, prompt in (([], False), ([Message("user", "a")], False), ([Message("assistant", "a")], True)):
        with pytest.raises(ConfigError, match="end_turn"):
            TEMPLATE.render(messages, generation_prompt=prompt, end_turn=True)


def test_an_unknown_variable_is_refused():
    unknown = ChatOptions(extra={"reasoning_effort": "high"})
    with pytest.raises(ConfigError, match=r"reasoning_effort.*enable_thinking and clear_thinking only"):
        TEMPLATE.render([], options=unknown)
    with pytest.raises(ConfigError, match="reasoning_effort"):
        TEMPLATE.bridge_to_next_turn([], [], [Message("user", "a")], options=unknown)


def test_a_call_needs_a_name():
    with pytest.raises(ConfigError, match="name"):
        TEMPLATE.render([Message("assistant", tool_calls=(ToolCall(" ", {}),))])


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(ConfigError, match="surrogates"):
        TEMPLATE.render([Message("user", "a\ud800")])


def test_missing_tokens_are_named():
    lacking = TOKENIZER.definition.replace("<arg_key>", "<other>").replace("[gMASK]", "[other]")
    with pytest.raises(ConfigError, match=r"no special tokens \[gMASK\] <arg_key>$"):
        Glm5Template(Glm5TemplateConfig(), Tokenizer(lacking))


def test_stops_are_the_three_of_glm():
    assert TEMPLATE.stop_ids == (ID["<|endoftext|>"], ID["<|user|>"], ID["<|observation|>"])
    assert set(NEEDED) <= set(ID)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (["<sop>", "[gMASK]"], "must begin with"),
        (["[gMASK]", "<sop>", "<think>"], "precedes the first role token"),
        (["[gMASK]", "<sop>", "<|assistant|>"], "must begin with <think> or </think>"),
        (["[gMASK]", "<sop>", "<|observation|>", "<think>"], "must be enclosed in"),
        (["[gMASK]", "<sop>", "<|observation|>", "<tool_response>"], "must be enclosed in"),
    ],
)
def test_what_is_no_rendering_is_refused(tokens, reason):
    with pytest.raises(DataError, match=reason):
        TEMPLATE.read([ID[token] for token in tokens])


def test_a_system_message_that_looks_like_the_block_of_tools_is_a_message():
    text = TOKENIZER.decode(TEMPLATE.render([], [UNTYPED]).ids[3:]).replace('"untyped"', "1")
    messages = [Message("system", text)]
    assert TEMPLATE.read(TEMPLATE.render(messages).ids) == (messages, [])


# ---- prompts and completions -----------------------------------------------------------------------------------------


@given(conversations(loose_calls), tool_lists, st.booleans())
def test_a_completion_is_parsed_by_its_prompt(messages, tools, clear):
    """Prompt and completion of every turn are the rendering, and the completion parses to the turn."""
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        upto = messages[: index + 1]
        [*_, normal] = TEMPLATE.normalize(upto, tools)
        chosen = ChatOptions(enable_thinking=has_reasoning(message), clear_thinking=clear)
        whole = TEMPLATE.render(upto, tools, chosen, end_turn=True)
        prompt = TEMPLATE.render(messages[:index], tools, chosen, generation_prompt=True)
        assert whole.ids[: len(prompt)] == prompt.ids
        assert all(whole.trained[len(prompt) :])
        parsed = TEMPLATE.parse(whole.ids[len(prompt) :], prompt.ids, tools)
        assert parsed.message == normal
        known = {tool.name for tool in tools}
        assert bool(parsed.flaws) == any(call.name.strip() not in known for call in message.tool_calls if tools)


def has_reasoning(message):
    """Whether the template shows reasoning; white space shows, and is nothing when it is read."""
    return bool(split_reasoning(message)[0])


# ---- the next turn ---------------------------------------------------------------------------------------------------


def recorded(tools=(), **message):
    prompt = TEMPLATE.render([Message("user", "a")], tools, generation_prompt=True).ids
    whole = TEMPLATE.render([Message("user", "a"), Message("assistant", **message)], tools, end_turn=True).ids
    assert whole[: len(prompt)] == prompt
    return prompt, whole[len(prompt) :]


@settings(max_examples=150)
@given(conversations(loose_calls), st.lists(st.sampled_from(["tool", "user"]), min_size=1, max_size=3), tool_lists)
def test_a_bridge_is_the_rendering_where_nothing_is_cleared(messages, roles, tools):
    said = Message("assistant", "b", reasoning="r", tool_calls=(ToolCall("f", {}),) if roles[0] == "tool" else ())
    new = [Message(role, f"new {role}") for role in roles]
    prompt = TEMPLATE.render(messages, tools, PRESERVED, generation_prompt=True).ids
    whole = TEMPLATE.render([*messages, said], tools, PRESERVED, end_turn=True).ids
    completion = whole[len(prompt) :]
    bridged = TEMPLATE.bridge_to_next_turn(prompt, completion, new, tools, PRESERVED)
    assert isinstance(bridged, Rendered), bridged
    assert bridged.ids[: len(whole)] == whole
    assert bridged.ids == TEMPLATE.render([*messages, said, *new], tools, PRESERVED, generation_prompt=True).ids
    assert set(bridged.authors[: len(whole)]) == {"recorded"} and "recorded" not in bridged.authors[len(whole) :]
    assert not any(bridged.trained)
    cut = TEMPLATE.bridge_to_next_turn(prompt, completion[:-1], new, tools, PRESERVED)
    assert isinstance(cut, Rendered)
    assert cut.ids == (*whole[:-1], ID["<|endoftext|>"], whole[-1], *bridged.ids[len(whole) :])
    assert not any(cut.trained)


def test_a_bridge_keeps_what_was_sampled_though_it_would_be_rendered_otherwise():
    prompt = TEMPLATE.render([Message("user", "a")], generation_prompt=True).ids
    sampled = TOKENIZER.encode("\n r \n</think>\n\n b <|user|>", allow_special=True)
    bridged = TEMPLATE.bridge_to_next_turn(prompt, sampled, [Message("user", "c")], options=PRESERVED)
    assert isinstance(bridged, Rendered)
    assert TOKENIZER.decode(bridged.ids[len(prompt) :]) == "\n r \n</think>\n\n b <|user|>c<|assistant|><think>"


@pytest.mark.parametrize(
    ("sampled", "new", "reason"),
    [
        ("r</think>b<|user|>c", "user", r"tokens follow the end of the turn, <\|user\|>"),
        ("r</think>b<|user|><|user|>", "user", "tokens follow"),
        ("r<|user|>", "user", r"ended with <\|user\|> inside its reasoning"),
        ("r<|endoftext|>", "tool", r"ended with <\|endoftext\|> inside its reasoning"),
    ],
)
def test_what_cannot_be_extended_forks(sampled, new, reason):
    prompt = TEMPLATE.render([Message("user", "a")], generation_prompt=True).ids
    ids = TOKENIZER.encode(sampled, allow_special=True)
    bridged = TEMPLATE.bridge_to_next_turn(prompt, ids, [Message(new, "x")], options=PRESERVED)
    assert isinstance(bridged, Fork) and re.search(reason, bridged.reason), bridged


@pytest.mark.parametrize(
    ("sampled", "new", "following"),
    [
        ("r</think>b<|user|>", "user", "x"),
        ("r</think>b<|observation|>", "user", "<|user|>x"),
        ("r</think>b<|endoftext|>", "user", "<|user|>x"),
        ("r</think>b<|user|>", "tool", "<|observation|><tool_response>x</tool_response>"),
        ("r</think>b<|endoftext|>", "assistant", "<|assistant|></think>x"),
        ("r</think>b<|user|>", "system", "<|system|>x"),
        ("r</think>b", "user", "<|endoftext|><|user|>x"),
        ("", "user", "</think><|endoftext|><|user|>x"),
        ("r", "tool", "</think><|endoftext|><|observation|><tool_response>x</tool_response>"),
        ("r</think><tool_call>f<arg_key>k", "user", "<|endoftext|><|user|>x"),
        ("r<tool_call>f", "user", "<|endoftext|><|user|>x"),
    ],
)
def test_a_turn_that_ended_otherwise_is_closed_by_tokens_that_were_not_sampled(sampled, new, following):
    prompt = TEMPLATE.render([Message("user", "a")], generation_prompt=True).ids
    ids = TOKENIZER.encode(sampled, allow_special=True)
    found = TEMPLATE.next_turn(TEMPLATE.open_turn(prompt).completed(ids), [Message(new, "x")], options=PRESERVED)
    assert isinstance(found, NextTurn)
    assert TOKENIZER.decode(found.rendered.ids) == following + "<|assistant|><think>"
    assert not any(found.rendered.trained)


def test_a_user_who_clears_reasoning_forks_and_a_tool_does_not():
    prompt, completion = recorded(content="b", reasoning="r")
    cleared = TEMPLATE.bridge_to_next_turn(prompt, completion, [Message("user", "c")])
    assert isinstance(cleared, Fork) and "clear_thinking=false" in cleared.reason
    prompt, completion = recorded(content="", reasoning="r", tool_calls=(ToolCall("f", {}),))
    assert isinstance(TEMPLATE.bridge_to_next_turn(prompt, completion, [Message("tool", "1")]), Rendered)
    both = [Message("tool", "1"), Message("user", "c")]
    assert isinstance(TEMPLATE.bridge_to_next_turn(prompt, completion, both), Fork)


def test_a_turn_without_reasoning_goes_on_after_a_user():
    quiet = ChatOptions(enable_thinking=False)
    prompt = TEMPLATE.render([Message("user", "a")], options=quiet, generation_prompt=True).ids
    sampled = TOKENIZER.encode("b<|user|>", allow_special=True)
    assert isinstance(TEMPLATE.bridge_to_next_turn(prompt, sampled, [Message("user", "c")], options=quiet), Rendered)


@pytest.mark.parametrize(("before", "after"), [([TYPED], []), ([], [TYPED]), ([TYPED], [UNTYPED]), ([TYPED], TOOLS)])
def test_other_tools_fork(before, after):
    prompt, completion = recorded(before, content="b", reasoning="r")
    bridged = TEMPLATE.bridge_to_next_turn(prompt, completion, [Message("user", "c")], after, PRESERVED)
    assert bridged == Fork("the recorded prompt has other tools")


def test_a_bridge_leads_somewhere():
    with pytest.raises(ConfigError, match="new_messages"):
        TEMPLATE.bridge_to_next_turn([], [], [])


# ---- messages --------------------------------------------------------------------------------------------------------


def test_messages_are_checked():
    with pytest.raises(ConfigError, match=r"message\.role='robot': must be one of system, user, assistant, tool"):
        Message("robot")
    with pytest.raises(ConfigError, match="must be assistant"):
        Message("user", reasoning="r")
    with pytest.raises(ConfigError, match="must be assistant"):
        Message("tool", tool_calls=(ToolCall("f", {}),))
    with pytest.raises(ConfigError, match="must have a name"):
        Tool({"function": {"description": "x"}})


def test_a_mask_has_an_entry_for_every_token():
    rendered = TEMPLATE.render([Message("user", "a")])
    with pytest.raises(ValueError, match="must have one length"):
        replace(rendered, trained=())
