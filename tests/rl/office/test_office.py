"""Goals over three MCP servers: the gold calls earn 1; silence, parts of the work and other work earn 0."""

import asyncio
import json
import random

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Agents, EpisodeFailure, Reply
from arcforge_core.episodes.scripted import SILENCE, ScriptedAgent, play
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.office import KINDS, OfficeConfig
from arcforge_rl.office.environment import END, Office
from arcforge_rl.office.goals import GOALS, draw_goal, replay
from arcforge_rl.office.servers import office_servers
from arcforge_rl.office.services import SERVICES
from arcforge_rl.sandbox import mcp_program as inside
from support.marks import nightly_case

RECORDS = {
    "store": {"products": {"pens-1": {"kind": "pens", "price": 250, "stock": 3}}, "orders": {}},
    "bank": {
        "accounts": {"a": {"owner": "Ada", "balance": 900}, "b": {"owner": "Ben", "balance": 0}},
        "payments": [],
    },
    "calendar": {"people": {"Ada": [{"day": 1, "slot": 2, "title": "call"}]}},
}  # fmt: skip
REFUSED = [
    ("order", {"product": "pens-1", "count": 4}, "whole number from 1 to 3"),
    ("order", {"product": "pens", "count": 1}, "there is no product 'pens'"),
    ("pay", {"source": "a", "target": "b", "cents": 901, "purpose": ""}, "whole number from 1 to 900"),
    ("pay", {"source": "a", "target": "a", "cents": 1, "purpose": ""}, "the same account"),
    ("pay", {"source": "a", "target": "b", "cents": True, "purpose": ""}, "whole number"),
    ("enter", {"person": "Ada", "day": 1, "slot": 2, "title": "x"}, "slot 2 of day 1 is taken"),
    ("remove", {"person": "Ada", "day": 1, "slot": 3}, "no entry in slot 3"),
    ("list_products", {"kind": "ink"}, "known: pens"),
    ("cancel_order", {"order": "order-9"}, "there is no order"),
]


def environment(**options):
    return Office(OfficeConfig(**options))


def earned(office, task, *scripts):
    async def all_of_them():
        return await asyncio.gather(*[play(office, task, script) for script in scripts])

    outcomes = [outcome for _, outcome in asyncio.run(all_of_them())]
    assert [outcome.failure for outcome in outcomes] == [None] * len(scripts)
    return [outcome.reward for outcome in outcomes]


@pytest.mark.parametrize("kind", KINDS)
def test_goals_are_drawn_again_and_differ(kind):
    assert set(KINDS) == set(GOALS)
    goals = [draw_goal(random.Random(seed), kind) for seed in range(12)]
    assert goals[0] == draw_goal(random.Random(0), kind) and len({goal.text for goal in goals}) == 12
    for goal in goals:
        end = replay(goal.records, goal.gold, strict=True)
        assert end != goal.records and len(goal.cheats) >= 3
        assert all(replay(goal.records, cheat) != end for cheat in goal.cheats)


@pytest.mark.parametrize(("tool", "arguments", "reason"), REFUSED)
def test_calls_that_are_refused_change_nothing(tool, arguments, reason):
    assert replay(RECORDS, [(tool, arguments)]) == RECORDS
    with pytest.raises(ValueError, match=reason):
        replay(RECORDS, [(tool, arguments)], strict=True)


def test_messages_of_a_server():
    bank = SERVICES["bank"](json.loads(json.dumps(RECORDS["bank"])))
    tools = inside.tools_of(bank)
    assert sorted(tools) == ["list_accounts", "list_payments", "pay"]
    schema = tools["pay"]["inputSchema"]
    assert schema["properties"]["cents"] == {"type": "integer"} and len(schema["required"]) == 4
    paid = {"source": "a", "target": "b", "cents": 5, "purpose": "x"}
    for name, arguments, bad in (
        ("pay", paid, False), ("pay", {"source": "a"}, True), ("steal", {}, True), ("pay", {**paid, "source": 1}, True),
    ):  # fmt: skip
        result = inside.answer(bank, tools, "tools/call", {"name": name, "arguments": arguments})
        assert result["isError"] is bad
    records = json.loads(inside.answer(bank, tools, "resources/read", {"uri": inside.STATE})["contents"][0]["text"])
    assert records["payments"] == [paid] and records["accounts"]["b"]["balance"] == 5
    assert inside.answer(bank, tools, "server/discover", {}) is None


@pytest.mark.slow(reason="two plays of each kind, with three servers each")
@pytest.mark.parametrize("split", ["train", nightly_case("heldout")])
def test_oracle_and_silence(split):
    pytest.importorskip("mcp", reason="mcp is not installed")
    office = environment(split=split)
    for index in range(len(KINDS)):
        task = office.task(index)
        assert earned(office, task, office.oracle(task), SILENCE) == [1.0, 0.0]


@pytest.mark.nightly(reason="all cheats of several tasks, three times")
def test_every_cheat_three_times():
    office = environment()
    for index in range(2 * len(KINDS)):
        task = office.task(index)
        scripts = [office.oracle(task), SILENCE, *office.cheats(task)]
        for _ in range(3):
            assert earned(office, task, *scripts) == [1.0] + [0.0] * (len(scripts) - 1)


@pytest.mark.slow(reason="three servers in a sandbox")
def test_what_an_agent_sees():
    office = environment(kinds=["meeting"])
    task = office.task(0)
    calls = [("entries", {"person": "Ada", "day": 9}), ("pay", {"source": "a"}), ("list_accounts", {"owner": "Alder"})]
    script = [*(Reply(calls=(ToolCall(*call),)) for call in calls), Reply("No.")]
    episode = asyncio.run(office.run(task, Agents(ScriptedAgent(script))))
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results[0].startswith("Error: day=9: must be a whole number from 1 to 5")
    assert results[1].startswith("Error") and len(json.loads(results[2])) == 3
    assert episode.artefacts[END] == task.goal.records


@pytest.mark.slow(reason="three servers in a sandbox")
def test_a_server_that_ends_is_a_failure():
    async def asked():
        async with office_servers({"bank": {"no": "accounts"}}) as servers:
            assert {tool.name for tool in servers.tools} == {"list_accounts", "list_payments", "pay"}
            return await servers.use(ToolCall("list_accounts", {"owner": "Ada"}))  # a fault of ours: it dies

    with pytest.raises(EpisodeFailure, match="environment: an MCP server"):
        asyncio.run(asked())


@pytest.mark.parametrize("options", [{"kinds": ["theft"]}, {"kinds": []}, {"max_calls": 0}])
def test_options_that_are_refused(options):
    with pytest.raises(ConfigError):
        OfficeConfig(**options)
