"""Tools of conversations that are played: each conversation has its own files, and leaves them to no other."""

import asyncio

import pytest

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.episodes.conversation_tasks import Loaded
from arcforge_rl.configs.environments import SandboxConversationsConfig
from arcforge_rl.environments import boxed, sandbox_conversations
from arcforge_rl.environments.sandbox_conversations import SandboxConversations
from arcforge_rl.problems.tools import definition


def using(*names, files=None):
    return Conversation((Message("user", "?"),), tuple(Tool(definition(name)) for name in names), files=files)


@pytest.fixture(scope="module")
def environment():
    return SandboxConversations(SandboxConversationsConfig(split="all"), Loaded([], {}))


def results(environment, *played):
    """Returns the results of each conversation's calls; conversations run side by side, their calls in order."""

    async def one(conversation, calls):
        async with environment.tools(conversation) as use:
            return [await use(call) for call in calls]

    async def everything():
        return await asyncio.gather(*[one(*pair) for pair in played])

    return asyncio.run(everything())


def test_what_is_written_is_there_for_the_same_conversation_alone(environment):
    tools = ("list_files", "read_file", "write_file")
    a, b = (using(*tools, files={"x/notes.txt": name}) for name in "ab")
    write = ToolCall("write_file", {"path": "total.txt", "text": "5"})
    listing, reading = ToolCall("list_files", {}), ToolCall("read_file", {"path": "x/notes.txt"})
    found = results(environment, (a, [write, listing]), (b, [listing, reading]))
    assert found == [["wrote 1 characters", "total.txt\nx/notes.txt"], ["x/notes.txt", "b"]]
    assert results(environment, (a, [listing])) == [["x/notes.txt"]], "another episode of the record starts from it"


def test_calls_that_only_read_share_one_process(environment, monkeypatch):
    monkeypatch.setattr(boxed, "tool_command", lambda *args: pytest.fail("one by one"))
    expressions = ("6*7", "1/0", "2**9", "1+", "10-3", "(" * 500 + "1" + ")" * 500)
    calls = [(using("calculator"), [ToolCall("calculator", {"expression": text})]) for text in expressions]
    found = [result for (result,) in results(environment, *calls)]
    assert found[0] == "42" and found[4] == "7"
    assert all(found[n].startswith("Error: ") for n in (1, 2, 3, 5))


def test_a_shared_process_finds_each_conversations_own_files(environment):
    call, failing = (ToolCall("lookup", {"key": key}) for key in "ac")
    pairs = [(using("lookup", files={"table.json": f'{{"a": "{n}"}}'}), [call, failing]) for n in range(2)]
    (first, error), (second, _) = results(environment, *pairs)
    assert (first, second) == ("0", "1") and error.startswith("Error")


def test_where_that_fails_they_run_one_by_one(environment, monkeypatch):
    monkeypatch.setattr(sandbox_conversations, "many_results", lambda *args: None)
    call = ToolCall("calculator", {"expression": "6*7"})
    assert results(environment, *[(using("calculator"), [call])] * 2) == [["42"], ["42"]]


def test_records_whose_tools_cannot_be_run_are_refused(environment):
    with pytest.raises(BadRecord, match="the record has none; generate it again"):
        environment.check_tools(using("lookup"))
    weather = Tool({"type": "function", "function": {"name": "weather"}})
    with pytest.raises(BadRecord, match="tool 'weather' is unknown"):
        environment.check_tools(Conversation((Message("user", "?"),), (weather,)))
