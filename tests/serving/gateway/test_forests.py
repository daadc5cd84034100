"""Random clients: whatever they do, branches are legal, and every sampled token is owned once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from arcforge_core.contracts.chat import Message, Tool
from arcforge_serving.gateway.tree import Attachment, SessionTree
from support.sessions import CALL, PRESERVED, QUIET, TEMPLATE, THINKS, TOOL, Client, said, tool

TEXTS = st.sampled_from(
    [
        "two<|user|>", "three<|observation|>", "two<|endoftext|>", "one", "", " two \n<|user|>", "3" * 12,
        "r</think>two<|user|>", "r</think>" + CALL + "<|observation|>", CALL + "<|observation|>", CALL[:25], "r",
        "two<|assistant|>two<|user|>", "<think>r<|user|>",
    ]
)  # fmt: skip
WORDS = st.sampled_from(["one", "two", "3"])
OPTIONS = st.sampled_from([QUIET, THINKS, PRESERVED])
NEWS = st.lists(st.builds(Message, st.sampled_from(["user", "tool", "system"]), WORDS), min_size=1, max_size=3)
TOOLS = st.sampled_from([(), (TOOL,)])
Pending = tuple[Attachment, list[Message], tuple[Tool, ...]]


class Forest(RuleBasedStateMachine):
    """One session and the conversations that its client may continue."""

    @initialize(match=st.sampled_from(["strict", "loose"]), threshold=st.sampled_from([0, 3, 1024]))
    def begin(self, match, threshold) -> None:
        self.client = Client(SessionTree(TEMPLATE, match, threshold))
        self.known: list[list[Message]] = [[]]
        self.pending: list[Pending] = []

    def _ask(self, messages: list[Message], tools: tuple[Tool, ...], options) -> None:
        self.pending.append((self.client.attach(messages, tools, options), messages, tools))

    @rule(data=st.data(), news=NEWS, tools=TOOLS, options=OPTIONS)
    def continues(self, data, news, tools, options) -> None:
        self._ask([*data.draw(st.sampled_from(self.known)), *news], tools, options)

    @rule(data=st.data(), news=NEWS, options=OPTIONS, word=WORDS)
    def changes_a_reply(self, data, news, options, word) -> None:
        messages = [*data.draw(st.sampled_from(self.known))]
        replies = [place for place, message in enumerate(messages) if message.role == "assistant"]
        if replies:
            place = data.draw(st.sampled_from(replies))
            messages[place] = data.draw(
                st.sampled_from(
                    [said(word), replace(messages[place], reasoning=None), replace(messages[place], reasoning=word)]
                )
            )
        self._ask([*messages, *news], (), options)

    @rule(data=st.data(), options=OPTIONS, tools=TOOLS)
    def omits_results(self, data, options, tools) -> None:
        messages = [replace(m, content="-") if m.role == "tool" else m for m in data.draw(st.sampled_from(self.known))]
        self._ask([*messages, tool("x")], tools, options)

    @rule(data=st.data(), options=OPTIONS, tools=TOOLS, recent=st.integers(0, 2))
    def keeps_recent_results(self, data, options, tools, recent) -> None:
        messages = [*data.draw(st.sampled_from(self.known)), tool("x"), tool("3")]
        places = [place for place, message in enumerate(messages) if message.role == "tool"]
        for place in places[: len(places) - recent]:
            messages[place] = tool("-")
        self._ask(messages, tools, options)

    @rule(data=st.data(), options=OPTIONS, reasoning=st.sampled_from([None, "r", "other"]), word=WORDS, after=NEWS)
    def makes_up_a_reply(self, data, options, reasoning, word, after) -> None:
        made_up = Message("assistant", word, reasoning=reasoning)
        self._ask([*data.draw(st.sampled_from(self.known)), tool("x"), made_up, *after], (), options)

    @rule(data=st.data(), options=OPTIONS)
    def shortens(self, data, options) -> None:
        messages = data.draw(st.sampled_from(self.known))
        begin = data.draw(st.integers(0, len(messages)))
        self._ask([*messages[begin:], tool("x")], (), options)

    @rule(data=st.data())
    def asks_again_while_it_waits(self, data) -> None:
        if self.pending:
            _, messages, tools = data.draw(st.sampled_from(self.pending))
            self._ask(messages, tools, QUIET)

    @rule(data=st.data(), text=TEXTS, version=st.integers(0, 3))
    def the_engine_answers(self, data, text, version) -> None:
        if self.pending:
            at, messages, tools = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
            if text:
                self.known.append([*messages, self.client.record(at, text, tools, version).reply])

    @rule(data=st.data())
    def the_engine_fails(self, data) -> None:
        if self.pending:
            self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "client"):
            self.client.check()


TestForest = Forest.TestCase
TestForest.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestForest.pytestmark = [pytest.mark.slow(reason="forty sessions of up to 25 steps, all branches checked after each")]


@pytest.mark.parametrize("match", ["strict", "loose"])
def test_a_made_up_reply_whose_reasoning_is_dropped_later_is_the_one_that_was_read_before(match: str) -> None:
    client = Client(SessionTree(TEMPLATE, match, 0))
    made_up = [tool("x"), Message("assistant", "one", reasoning="r"), tool("one")]
    first = client.attach(made_up)
    client.record(first, "two<|user|>", (), 0)
    dropped = client.attach([made_up[0], said("one"), made_up[2]])
    assert (dropped.drift, first.drift) == ("new", "new")
    assert (dropped.prompt == first.prompt) == (match == "loose")
