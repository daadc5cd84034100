"""The conformance suites of chat templates and parsers: subclass them and provide the fixtures.

class TestAcmeTemplate(ChatTemplateSuite):
    @pytest.fixture
    def template(self):
        return AcmeTemplate(AcmeTemplateConfig(), tokenizer)


class TestAcmeParser(ParserSuite):
    @pytest.fixture
    def make_parser(self):
        return lambda *args, **kwargs: AcmeParser(AcmeParserConfig(), *args, **kwargs)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.chat import (
    RECORDED,
    ROLES,
    TEMPLATE,
    ChatOptions,
    ChatParser,
    ChatTemplate,
    Fork,
    Message,
    Rendered,
    Tool,
    ToolCall,
)
from arcforge_core.errors import ConfigError
from arcforge_core.testing.chat_cases import HARD, joined, pieces_of, read_ids, read_text, texts
from arcforge_core.testing.small_models import small_tokenizer

TOOL = Tool(
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
)
PRESERVED = ChatOptions(clear_thinking=False)
CALL = ToolCall("weather", {"city": 'Zürich "5"\n', "days": 5}, "call12345")
TURNS = {
    "content": Message("assistant", " Über\n\n漢字 "),
    "reasoning": Message("assistant", "c", reasoning="r\n\ns"),
    "call": Message("assistant", tool_calls=(CALL,)),
    "two calls": Message("assistant", tool_calls=(CALL, replace(CALL, arguments={}, id="call54321"))),
    "reasoning and a call": Message("assistant", reasoning="r", tool_calls=(CALL,)),
}
QUESTION = [Message("system", "s"), Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MakeParser = Callable[..., ChatParser]


class ChatTemplateSuite:
    """Conformance of a `ChatTemplate`. Skips turns that a template cannot express (no calls, two calls)."""

    @pytest.fixture
    def template(self) -> ChatTemplate:
        """The template with a tokenizer; a subclass returns it."""
        raise NotImplementedError("provide the fixture `template` in your subclass")

    @pytest.fixture(params=TURNS)
    def turn(self, template: ChatTemplate, request: pytest.FixtureRequest) -> Message:
        """An assistant turn that the template can render."""
        message = TURNS[request.param]
        try:
            template.render([*QUESTION, message], [TOOL])
        except ConfigError as error:
            pytest.skip(f"the template rejects it: {error}")
        return message

    def prompt(self, template: ChatTemplate, turn: Message) -> Rendered:
        """Returns the prompt that the turn answers."""
        thinks = replace(PRESERVED, enable_thinking=bool(turn.reasoning) and template.keeps_reasoning)
        return template.render(QUESTION, [TOOL], thinks, generation_prompt=True)

    def test_prompt_and_completion_equal_the_rendering(self, template: ChatTemplate, turn: Message) -> None:
        """Training uses the tokens that would be sampled after the prompt, including the end of the turn."""
        prompt = self.prompt(template, turn)
        whole = template.render([*QUESTION, turn], [TOOL], PRESERVED, end_turn=True)
        assert whole.ids[: len(prompt)] == prompt.ids
        own = [trained and index == len(QUESTION) for trained, index in zip(whole.trained, whole.messages, strict=True)]
        assert not any(own[: len(prompt)]) and own[len(prompt)]
        last = max(n for n, mine in enumerate(own) if mine)
        assert all(own[len(prompt) : last + 1])
        assert whole.ids[last] in template.stop_ids

    def test_a_completion_parses_to_its_message(self, template: ChatTemplate, turn: Message) -> None:
        """As a whole and token by token, given the prompt that it answers."""
        prompt = self.prompt(template, turn)
        whole = template.render([*QUESTION, turn], [TOOL], PRESERVED, end_turn=True)
        completion = whole.ids[len(prompt) :]
        parsed = template.parse(completion, prompt.ids, [TOOL])
        assert parsed.message == template.normalize([*QUESTION, turn], [TOOL], PRESERVED)[-1]
        assert parsed.flaws == ()
        parser = template.parser(prompt.ids, [TOOL])
        reasoning, content, calls = joined(read_ids(parser, [[id_] for id_ in completion]))
        assert parser.parsed == parsed
        assert (reasoning, content) == (parsed.message.reasoning, parsed.message.content)
        assert tuple(ToolCall(*call) for call in calls) == parsed.message.tool_calls

    def test_normalize_is_idempotent(self, template: ChatTemplate, turn: Message) -> None:
        """Normalising is idempotent, and the normal form renders to the same tokens."""
        messages = [*QUESTION, turn]
        normal = template.normalize(messages, [TOOL])
        assert template.normalize(normal, [TOOL]) == normal

    def test_every_token_has_an_author(self, template: ChatTemplate, turn: Message) -> None:
        """Authors are roles or the template, indices are those of messages, and only the assistant is trained on."""
        rendered = template.render([*QUESTION, turn], [TOOL])
        assert set(rendered.authors) <= {*ROLES, TEMPLATE}
        assert set(rendered.messages) <= set(range(-1, len(QUESTION) + 1))
        for author, index, trained in zip(rendered.authors, rendered.messages, rendered.trained, strict=True):
            assert author == TEMPLATE or author == [*QUESTION, turn][index].role
            assert author == "assistant" or not trained

    def test_a_message_can_be_excluded_from_the_loss(self, template: ChatTemplate, turn: Message) -> None:
        """Its tokens stay in place, and none is trained on."""
        kept = template.render([*QUESTION, turn], [TOOL], PRESERVED)
        left_out = template.render([*QUESTION, replace(turn, trained=False)], [TOOL], PRESERVED)
        assert left_out.ids == kept.ids
        assert not any(
            t for t, index in zip(left_out.trained, left_out.messages, strict=True) if index == len(QUESTION)
        )

    def test_a_prompt_has_no_trained_tokens(self, template: ChatTemplate) -> None:
        """No prompt token is trained on, and a rendering with a prompt begins with the one without."""
        prompt = template.render(QUESTION, [TOOL], generation_prompt=True)
        assert not any(prompt.trained)
        assert prompt.ids[: len(template.render(QUESTION, [TOOL]))] == template.render(QUESTION, [TOOL]).ids

    @FEW
    @given(text=texts, role=st.sampled_from(["system", "user", "assistant"]))
    def test_text_cannot_write_special_tokens(self, template: ChatTemplate, text: str, role: str) -> None:
        """Message text adds no special tokens to the rendering, and every token of it has the message's author."""
        special = set(template.tokenizer.special.values())
        found = []
        reasoning = "" if role == "assistant" else None
        for content in (f"x{text}x", "x"):
            messages = [Message("user", "u"), Message(role, content, reasoning=reasoning), Message("user", "v")]
            rendered = template.render(messages)
            found.append([id_ for id_ in rendered.ids if id_ in special])
            said = [
                id_ for id_, author, index in zip(rendered.ids, rendered.authors, rendered.messages, strict=True)
                if index == 1 and author == role and id_ not in special
            ]  # fmt: skip
            assert content in template.tokenizer.decode(said)
        assert found[0] == found[1]

    def test_the_next_turn_extends_the_recorded_ids(self, template: ChatTemplate, turn: Message) -> None:
        """Exactly; and it equals the rendering of the whole if the recorded turn equals its rendering."""
        roles = ["tool"] * len(turn.tool_calls) or ["user"]
        new = [
            Message(role, f"new {n}", tool_call_id=turn.tool_calls[n].id if turn.tool_calls else None)
            for n, role in enumerate(roles)
        ]
        prompt = self.prompt(template, turn)
        whole = template.render([*QUESTION, turn], [TOOL], PRESERVED, end_turn=True)
        last = max(n for n, trained in enumerate(whole.trained) if trained)
        completion = whole.ids[len(prompt) : last + 1]
        bridged = template.bridge_to_next_turn(prompt.ids, completion, new, [TOOL], PRESERVED)
        expected = template.render([*QUESTION, turn, *new], [TOOL], PRESERVED, generation_prompt=True)
        if isinstance(bridged, Fork):
            assert expected.ids[: len(whole)] != whole.ids, bridged.reason
            return
        assert bridged.ids == expected.ids
        recorded = len(prompt) + len(completion)
        assert bridged.ids[:recorded] == (*prompt.ids, *completion)
        assert set(bridged.authors[:recorded]) == {RECORDED}
        assert RECORDED not in bridged.authors[recorded:]
        assert not any(bridged.trained)

    @pytest.mark.parametrize("cut", [False, True])
    def test_a_turn_is_continued_from_its_state_alone(self, template: ChatTemplate, turn: Message, cut: bool) -> None:
        """The state after each turn is that of the ids so far, which stay as they are."""
        prompt = self.prompt(template, turn)
        whole = template.render([*QUESTION, turn], [TOOL], PRESERVED, end_turn=True)
        ids, state = prompt.ids, template.open_turn(prompt.ids, [TOOL])
        for number in range(3):
            last = max(n for n, trained in enumerate(whole.trained) if trained)
            completion = whole.ids[len(prompt) : last + 1 - cut]
            new = [Message("user", f"new {number}")]
            found = template.next_turn(state.completed(completion), new, [TOOL], PRESERVED)
            again = template.bridge_to_next_turn(ids, completion, new, [TOOL], PRESERVED)
            if isinstance(found, Fork):
                assert found == again and found.reason
                return
            assert not isinstance(again, Fork) and again.ids == (*ids, *completion, *found.rendered.ids)
            assert not any(found.rendered.trained) and set(found.rendered.messages) <= {-1, 0}
            assert found.turn == template.open_turn(again.ids, [TOOL])
            ids, state = again.ids, found.turn

    def test_other_tools_fork(self, template: ChatTemplate) -> None:
        """Their block is at the beginning of the recorded ids."""
        for before, after in (([TOOL], []), ([], [TOOL])):
            prompt = template.render(QUESTION, before, generation_prompt=True)
            state = template.open_turn(prompt.ids, before).completed([template.stop_ids[0]])
            assert isinstance(template.next_turn(state, [Message("user", "x")], after, PRESERVED), Fork)

    def test_tokens_after_the_end_of_a_turn_fork(self, template: ChatTemplate) -> None:
        """The result gives a reason."""
        prompt = template.render(QUESTION, generation_prompt=True, options=ChatOptions(enable_thinking=False))
        completion = [*template.tokenizer.encode("b"), template.stop_ids[0], *template.tokenizer.encode("b")]
        bridged = template.bridge_to_next_turn(prompt.ids, completion, [Message("user", "x")])
        assert isinstance(bridged, Fork) and bridged.reason

    def test_stops_are_ids(self, template: ChatTemplate) -> None:
        """There is at least one, without duplicates."""
        assert 0 < len(template.stop_ids) == len(set(template.stop_ids))
        assert all(0 <= id_ < template.tokenizer.vocab_size for id_ in template.stop_ids)


class ParserSuite:
    """Conformance of a `ChatParser`: it parses every completion, to the same result for every split into pieces."""

    @pytest.fixture
    def make_parser(self) -> MakeParser:
        """Returns a function that makes a parser of (tools, tokenizer, thinking, ends); a subclass overrides it."""
        raise NotImplementedError("provide the fixture `make_parser` in your subclass")

    @settings(FEW, max_examples=100)
    @given(data=st.data())
    def test_any_text_in_any_pieces(self, make_parser: MakeParser, data: st.DataObject) -> None:
        """Joined deltas and the message do not depend on the pieces."""
        text = "".join(data.draw(st.lists(st.sampled_from([*HARD, '{"name": "f", "arguments": {}}']), max_size=10)))
        settings_of = self._draw_settings(data)
        cuts = data.draw(st.sets(st.integers(0, len(text)), max_size=6))
        whole, cut = make_parser(**settings_of), make_parser(**settings_of)
        assert joined(read_text(cut, pieces_of(text, cuts))) == joined(read_text(whole, [text]))
        assert cut.parsed == whole.parsed

    @settings(FEW, max_examples=100)
    @given(data=st.data())
    def test_any_ids_in_any_pieces(self, make_parser: MakeParser, data: st.DataObject) -> None:
        """The same holds for tokens that are not valid characters; the joined deltas equal the message."""
        tokenizer = small_tokenizer()
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
        settings_of = {**self._draw_settings(data), "tokenizer": tokenizer}
        whole, cut = make_parser(**settings_of), make_parser(**settings_of)
        reasoning, content, calls = joined(read_ids(cut, [[id_] for id_ in ids]))
        assert (reasoning, content, calls) == joined(read_ids(whole, [ids]))
        message = whole.parsed.message
        assert cut.parsed == whole.parsed
        assert (reasoning, content) == (message.reasoning, message.content)
        assert tuple(ToolCall(*call) for call in calls) == message.tool_calls

    @FEW
    @given(text=st.text("abc 漢é\n.", max_size=20))
    def test_text_without_tags_is_content(self, make_parser: MakeParser, text: str) -> None:
        """All of it except surrounding white space, without a flaw."""
        parser = make_parser(thinking=False)
        read_text(parser, [text])
        assert parser.parsed.message == Message("assistant", text.strip(), reasoning="")
        assert parser.parsed.flaws == ()

    def test_nothing_is_read_after_an_end(self, make_parser: MakeParser) -> None:
        """Text after the end is ignored, whether the end is given as text or as a token."""
        tokenizer = small_tokenizer()
        for parser, feed in (
            (make_parser(ends=("<|user|>",)), lambda p: p.feed_text("a<|user|>b")),
            (
                make_parser(ends=("<|user|>",), tokenizer=tokenizer),
                lambda p: p.feed(tokenizer.encode("a<|user|>b", allow_special=True)),
            ),
        ):
            feed(parser)
            parser.finish()
            assert parser.parsed.message.content == "a"

    def test_ids_need_a_tokenizer(self, make_parser: MakeParser) -> None:
        """The constructor raises the error."""
        with pytest.raises(ConfigError, match="tokenizer"):
            make_parser().feed([1])

    def _draw_settings(self, data: st.DataObject) -> dict[str, Any]:
        return {
            "tools": data.draw(st.sampled_from([[], [TOOL]])),
            "thinking": data.draw(st.sampled_from([None, True, False])),
            "ends": data.draw(st.sampled_from([(), ("<|user|>",)])),
        }
