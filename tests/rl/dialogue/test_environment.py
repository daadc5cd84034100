"""Conversations of ``environment=tau2`` on the small benchmark; the suite in tests/conformance tries every script."""

import asyncio
import json

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Agents, EpisodeFailure, Reply
from arcforge_core.episodes.scripted import ScriptedAgent, play
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.cli import OTHERS
from arcforge_rl.configs.environments import Tau2Config
from arcforge_rl.dialogue.audit import audited
from arcforge_rl.dialogue.benchmark import benchmark_folder, licence_of
from arcforge_rl.dialogue.command import main
from arcforge_rl.dialogue.environment import Tau2
from arcforge_rl.layers.store import LayerError
from support.tau2_small import small_benchmark

HERE = str(small_benchmark())


def built(**options):
    return Tau2(Tau2Config(path=HERE, **options))


def found(environment, key):
    return next(task for task in map(environment.task, range(environment.num_tasks)) if task.key.endswith(key))


def test_audit_excludes_what_needs_no_work():
    reasons = {
        one.case.key: one.excluded
        for name in ("retail", "airline", "telecom")
        for one in audited(benchmark_folder(HERE), name, False)
        if one.excluded
    }
    assert reasons == {
        "silent": "silence earns 1: nothing is to be done or said",
        "echo": "repeating the customer's words earns 1",
        "[service_issue]lock_sim_card_pin[PERSONA:None]": "an immediate transfer earns 1",
    }
    both = [built(split=split) for split in ("train", "heldout")]
    keys = [{one.case.domain + one.case.key for one in environment.tasks} for environment in both]
    assert not keys[0] & keys[1] and sum(map(len, keys)) == 8 + 8 + 6


def test_the_command_prints_the_audit(capsys):
    assert OTHERS["tau2"] == "arcforge_rl.dialogue.command:main"
    assert main(["audit", "--path", HERE]) == 0
    shown = capsys.readouterr().out
    assert "no licence file" in shown and "retail silent: silence earns 1" in shown
    assert main(["--path", HERE, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["task"] for row in rows if row["domain"] == "retail"] == ["silent", "echo"]


def test_licence_and_version_are_shown(tmp_path):
    (tmp_path / "inspect_evals-0.26.0.dist-info/licenses").mkdir(parents=True)
    notice = "Top\n\n---\n\ntau2-bench\nCopyright (c) 2025 Sierra Research\nLicense: MIT\nSource: x\n\n---\n\nother\n"
    (tmp_path / "inspect_evals-0.26.0.dist-info/licenses/NOTICE").write_text(notice)
    said = licence_of(tmp_path / "inspect_evals/tau2")
    assert said == "inspect_evals 0.26.0: tau2-bench; Copyright (c) 2025 Sierra Research; License: MIT; Source: x"


@pytest.mark.parametrize("unit", ["customer", "published", "airline"])
def test_sides_are_whole_units(unit):
    sides = {split: built(heldout=unit, split=split) for split in ("train", "heldout")}
    domains = {split: {one.case.domain for one in made.tasks} for split, made in sides.items()}
    if unit == "airline":
        assert domains == {"train": {"retail", "telecom"}, "heldout": {"airline"}}
    assert len({one.case.domain + one.case.key for made in sides.values() for one in made.tasks}) == 22


def test_refusals_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"environment\.domains.*bank.*retail, airline, telecom"):
        Tau2Config(domains=["bank"])
    with pytest.raises(DataError, match="must be a folder with inspect_evals/tau2/data/domains"):
        Tau2(Tau2Config(path=str(tmp_path)))
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    with pytest.raises(LayerError, match="arcforge-env layers fetch tau2"):
        Tau2(Tau2Config())
    with pytest.raises(ConfigError, match="none of 8 tasks is on this side"):
        Tau2(Tau2Config(path=HERE, domains=["airline"], heldout="airline"))


def test_rules_answer_and_leave():
    environment = built()
    task = found(environment, "data_mode_off[PERSONA:None]")
    script = [Reply("Who are you?"), Reply("Please use toggle_data and reseat_sim_card."), Reply("Please toggle data."),
              Reply("May I close this?"), Reply("Good bye.")]  # fmt: skip
    episode, outcome = asyncio.run(play(environment, task, script))
    heard = [message.content for message in episode.messages if message.role == "user"]
    assert heard[1:] == [
        "I am Ada Hall.",
        "I can only do one thing at a time. Which one first?",
        "Mobile data is ON.\nStatus bar: signal: excellent, 5G, data on, battery 80%",
        "Yes, please do that.",
    ]
    assert outcome.reward == 1.0 and outcome.rewards["user_turns"] == 5


def test_limits_end_a_conversation():
    environment = built(max_turns=2, max_calls=1)
    task = found(environment, "retail/1")
    _, outcome = asyncio.run(play(environment, task, [Reply("What?")] * 5))
    assert outcome.reward == 0.0 and "turns" in outcome.reasons["reward"]
    _, outcome = asyncio.run(play(environment, task, environment.oracle(task)))
    assert outcome.reward == 0.0 and "calls" in outcome.reasons["reward"]


def test_bad_arguments_are_answered():
    environment = built()
    task = found(environment, "retail/1")
    bad = [("modify_pending_order_items", {"order_id": 3, "item_ids": [], "new_item_ids": [], "payment_method_id": ""}),
           ("calculate", {"expression": "9**9**9"}), ("calculate", {"expression": "2*(3+4.5)"}),
           ("calculate", {"expression": "1/0"}),
           ("transfer_to_human_agents", {}), ("get_order_details", {"order_id": "#W0000001", "x": 1})]  # fmt: skip
    script = [Reply(calls=(ToolCall(name, given),)) for name, given in bad]
    episode, _ = asyncio.run(play(environment, task, [*script, Reply("bye")]))
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results[0] == "Error: modify_pending_order_items: order_id must be of type string, not '3'"
    assert results[1].startswith("Error: only up to 500 characters") and results[2] == "15.0"
    assert "cannot be computed: ZeroDivisionError" in results[3]
    assert all(result.startswith("Error") for result in results[4:])


def conversation(environment, task, solver, user):
    agents = Agents(ScriptedAgent(solver), user=ScriptedAgent(user))
    return asyncio.run(environment.run(task, agents))


def test_an_agent_plays_the_customer():
    environment = built(user="agent")
    assert environment.agents == ("user",)
    task = found(environment, "data_mode_off[PERSONA:None]")
    user = [Reply("Hi, I am Ada Hall and my data is off."), Reply(calls=(ToolCall("toggle_data", {}),)),
            Reply("It works now."), Reply("###STOP###")]  # fmt: skip
    episode = conversation(environment, task, [Reply("Please toggle data."), Reply("Fine. Anything else?")], user)
    assert [message.role for message in episode.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert asyncio.run(environment.score(task, episode)).reward == 1.0


BREACHES = {
    "said nothing": [Reply("")],
    "ended with length": [Reply("Hello, I", finish_reason="length")],
    "left before the agent": [Reply("###STOP###")],
    "made up '#W1234567'": [Reply("It is about #W1234567.")],
    "made up 'eve_poe_1234'": [Reply("I am eve_poe_1234.")],
    "none of its tools": [Reply(calls=(ToolCall("cancel_pending_order", {}),))],
    "recites its instructions": [
        Reply("Hi. In a hurry but you always stay polite with whoever talks to you today, ok?")
    ],
    "speaks of the agent's tool": [Reply("Call modify_pending_order_items now.")],
    "speaks as the agent": [Reply("Agent: how can I help?")],
    "claims a transfer": [Reply("Hi."), Reply("###TRANSFER###"), Reply("###TRANSFER###")],
    "in several ways": [Reply("Hi."), *[Reply("###STOP### ###TRANSFER###")] * 2],
    "repeats the agent": [
        Reply("Hi."),
        *[Reply("I can change the order if you tell me which one it is about, please.")] * 2,
    ],
}


@pytest.mark.parametrize("reason", BREACHES)
def test_a_user_that_breaks_its_instructions_fails_the_rollout(reason):
    environment = built(user="agent", domains=["retail"])
    task = found(environment, "retail/1")
    user = BREACHES[reason] if len(BREACHES[reason]) > 1 else BREACHES[reason] * 2
    solver = [Reply("I can change the order if you tell me which one it is about, please.")] * 3
    with pytest.raises(EpisodeFailure, match=reason) as caught:
        conversation(environment, task, solver, user)
    assert caught.value.failure.kind == "user"


def test_a_user_is_asked_once_more():
    environment = built(user="agent", domains=["retail"])
    task = found(environment, "retail/1")
    user = [Reply(""), Reply("Hello, it is about my order #W0000001."), Reply("###STOP###")]
    episode = conversation(environment, task, [Reply("I see.")], user)
    assert episode.messages[1].content == "Hello, it is about my order #W0000001."
    assert asyncio.run(environment.score(task, episode)).reward == 0.0
