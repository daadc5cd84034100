"""Runs the toolbox suite over every toolbox that the registry lists."""

import pytest

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.data.conversations.conversation import Conversation
from arcforge_core.registry import registry
from arcforge_core.testing.toolbox_suite import ToolboxCase, ToolboxSuite
from arcforge_rl.conversations.tools import definition

CALL, FAILING = ToolCall("lookup", {"key": "a"}), ToolCall("lookup", {"key": "c"})


def conversation(result):
    messages = (Message("user", "a?"), Message("assistant", tool_calls=(CALL,)), Message("tool", result))
    files = {"table.json": f'{{"a": "{result}"}}'}
    return Conversation((*messages, Message("assistant", result)), (Tool(definition("lookup")),), files=files)


@pytest.mark.parametrize("name", registry().names("toolbox"))
class TestToolbox(ToolboxSuite):
    @pytest.fixture
    def case(self, name):
        component = registry().get("toolbox", name)
        target, schema = component.load(), component.load_schema()
        conversations = (conversation("one"), conversation("two"))
        return ToolboxCase(lambda: target(schema()), conversations, CALL, ("one", "two"), FAILING)
