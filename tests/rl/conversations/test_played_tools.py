"""Tools of conversations that are played: each has its own files, and leaves them to nobody."""

import pytest

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.data.conversations.conversation import BadRecord, Conversation
from arcforge_rl.configs import SandboxToolboxConfig
from arcforge_rl.conversations import played_tools
from arcforge_rl.conversations.played_tools import SandboxToolbox
from arcforge_rl.conversations.tools import definition


def using(*names, files=None):
    return Conversation((Message("user", "?"),), tuple(Tool(definition(name)) for name in names), files=files)


@pytest.fixture(scope="module")
def toolbox():
    with SandboxToolbox(SandboxToolboxConfig()) as toolbox:
        yield toolbox


def test_what_is_written_is_there_for_the_same_conversation_alone(toolbox):
    tools = ("list_files", "read_file", "write_file")
    for key in "ab":
        toolbox.open(key, using(*tools, files={"x/notes.txt": key}))
    write = ToolCall("write_file", {"path": "total.txt", "text": "5"})
    assert toolbox.run([("a", write)]) == ["wrote 1 characters"]
    listing, reading = ToolCall("list_files", {}), ToolCall("read_file", {"path": "x/notes.txt"})
    found = toolbox.run([("a", listing), ("b", listing), ("b", reading)])
    assert found == ["total.txt\nx/notes.txt", "x/notes.txt", "b"]
    for key in "ab":
        toolbox.close(key)


def test_calls_that_only_read_share_one_process(toolbox, monkeypatch):
    monkeypatch.setattr(played_tools, "use", lambda *args: pytest.fail("one by one"))
    expressions = ("6*7", "1/0", "2**9", "1+", "10-3", "(" * 500 + "1" + ")" * 500)
    for n, _ in enumerate(expressions):
        toolbox.open(f"{n}", using("calculator"))
    results = toolbox.run([(f"{n}", ToolCall("calculator", {"expression": e})) for n, e in enumerate(expressions)])
    assert results[0] == "42" and results[4] == "7"
    assert all(results[n].startswith("Error: ") for n in (1, 2, 3, 5))
    for n, _ in enumerate(expressions):
        toolbox.close(f"{n}")


def test_where_that_fails_they_run_one_by_one(toolbox, monkeypatch):
    monkeypatch.setattr(played_tools, "use_many", lambda *args: None)
    for key in "ab":
        toolbox.open(key, using("calculator"))
    call = ToolCall("calculator", {"expression": "6*7"})
    assert toolbox.run([("a", call), ("b", call)]) == ["42", "42"]
    for key in "ab":
        toolbox.close(key)


def test_records_whose_tools_cannot_be_run_are_refused(toolbox):
    with pytest.raises(BadRecord, match="the record has none; make it anew"):
        toolbox.open("a", using("lookup"))
    weather = Tool({"type": "function", "function": {"name": "weather"}})
    with pytest.raises(BadRecord, match="no tool 'weather' can be run here"):
        toolbox.open("a", Conversation((Message("user", "?"),), (weather,)))
