"""What every toolbox must hold: subclass it with the fixture `case`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.toolbox import Toolbox
from arcforge_core.data.conversations.conversation import Conversation


@dataclass(frozen=True)
class ToolboxCase:
    """Two conversations in which one call gives different results, and a call that fails in both.

    Attributes:
        make: a fresh toolbox.
        conversations: both.
        call: one that both know.
        results: of that call.
        failing: one that fits the tools' schemas and fails.
    """

    make: Callable[[], Toolbox]
    conversations: tuple[Conversation, Conversation]
    call: ToolCall
    results: tuple[str, str]
    failing: ToolCall


class ToolboxSuite:
    """Conformance of a `Toolbox`. A subclass gives the fixture ``case``, a `ToolboxCase`."""

    @pytest.fixture
    def case(self) -> ToolboxCase:
        """The toolbox and what it is asked; a subclass returns it."""
        raise NotImplementedError("give the fixture `case` in your subclass")

    def test_calls_of_many_conversations_get_their_own_results_in_order(self, case: ToolboxCase) -> None:
        """Together, alone, and again."""
        with case.make() as toolbox:
            for key, conversation in zip("ab", case.conversations, strict=True):
                toolbox.open(key, conversation)
            mixed = [("b", case.call), ("a", case.failing), ("a", case.call), ("b", case.failing), ("b", case.call)]
            first, second = case.results
            found = toolbox.run(mixed)
            assert found[0::2] == [second, first, second]
            assert all(text.startswith("Error") for text in found[1::2])
            assert toolbox.run([("a", case.call)]) == [first]
            assert toolbox.run([]) == []

    def test_a_key_can_be_used_again(self, case: ToolboxCase) -> None:
        """A conversation that was closed leaves nothing behind."""
        with case.make() as toolbox:
            for conversation, result in zip(case.conversations, case.results, strict=True):
                toolbox.open("a", conversation)
                assert toolbox.run([("a", case.call)]) == [result]
                toolbox.close("a")

    def test_a_conversation_that_makes_no_call_can_be_closed(self, case: ToolboxCase) -> None:
        """Opening and closing is cheap and needs no call in between."""
        with case.make() as toolbox:
            toolbox.open("a", case.conversations[0])
            toolbox.close("a")
