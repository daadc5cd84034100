"""Further agents: on the policy's engine or their own, or on a server; sampled as configured, and never trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.configs import TorchCpuConfig
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.environment import Agents, Episode, Outcome, Task
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup, TextDialogue
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.episodes.rollout import Rollout, roll_out
from arcforge_core.errors import ConfigError
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs.others import AgentConfig, agent_of
from arcforge_rl.rollouts import others as module
from arcforge_rl.rollouts.others import Others
from arcforge_rl.trainer.run import check_agents
from support.listening import JsonHandler, listening
from support.policies import save_policy
from support.scripted_engine import ScriptedEngine

TOKENIZER = small_tokenizer()
END = TOKENIZER.decode([TOKENIZER.eos_id])


class Conversation:
    """The solver and a simulated user speak in turn."""

    domain, num_tasks, agents = "talk", None, ("user",)

    def domain_of(self, task: Task) -> str:
        return self.domain

    async def run(self, task: Task, agents: Agents) -> Episode:
        messages = [Message("user", task.prompt)]
        for _ in range(2):
            reply = await agents.solver.reply(messages)
            asked = await agents.user.reply([Message("user", f"they said: {reply.text}")])
            messages += [reply.message, Message("user", asked.text)]
        return Episode(tuple(messages), reply)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        return Outcome({"reward": 1.0}, {"reward": "spoke"})


@contextmanager
def server(answers: list[tuple[int, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server of chat completions that gives these answers, one after the other; then it repeats the last one."""
    asked: list[dict[str, Any]] = []

    def post(request: JsonHandler) -> None:
        asked.append({**request.body(), "path": request.path, "key": request.headers.get("authorization")})
        request.answer(*answers[min(len(asked), len(answers)) - 1])

    with listening(post) as url:
        yield url, asked


def saying(text: str, reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}]}


def played(config: AgentConfig, count: int = 2) -> tuple[list[Rollout], ScriptedEngine, list[SamplingParams]]:
    """Returns conversations of a scripted policy with a user."""
    params: list[SamplingParams] = []

    def script(text: str, given: SamplingParams) -> str:
        params.append(given)
        return f"yes{END}" if "they said" in text else f"no{END}"

    engine = ScriptedEngine(TOKENIZER, script)
    makers = Others({"user": config}, TOKENIZER, 500, None).makers
    setup = SamplingSetup(TextDialogue(TOKENIZER), 5, 1.0, 500, others=makers)
    lockstep = Lockstep(engine)
    agents = [PolicyAgent(lockstep, number, setup, f"seed/{number}") for number in range(count)]
    tasks = [Task(f"t{number}", f"{number}", "") for number in range(count)]
    ended = roll_out(Conversation(), tasks, agents, lockstep)
    return sorted(ended, key=lambda rollout: rollout.number), engine, params


def sampled(rollout: Rollout) -> str:
    return "".join(TOKENIZER.decode(branch.ids[branch.sampled].tolist()) for branch in rollout.branches)


def test_an_agent_on_the_policys_engine_has_its_own_temperature_and_is_not_trained() -> None:
    rollouts, engine, params = played(agent_of({"engine": "policy", "temperature": 0.0, "max_new_tokens": 9}, "user"))
    assert all([m.content for m in rollout.episode.messages[1:]] == ["no", "yes"] * 2 for rollout in rollouts)
    assert all(sampled(rollout) == f"no{END}" * 2 for rollout in rollouts)
    assert {(given.temperature, given.max_new_tokens) for given in params} == {(1.0, 5), (0.0, 9)}
    assert [len(texts) for texts in engine.rounds] == [2] * 4, "all programs are answered together"
    assert len({given.seed for given in params}) == len(params)


def test_an_agent_on_a_server_is_asked_again_while_the_server_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.01)
    monkeypatch.setenv("USER_KEY", "secret")
    with server([(429, {}), (500, b"oops"), (200, b"{half"), (200, saying("and then?"))]) as (url, asked):
        fields = {"url": f"{url}/v1", "model": "m", "key_variable": "USER_KEY", "temperature": 0.3, "attempts": 4}
        (rollout,), engine, _ = played(agent_of(fields, "user"), 1)
    assert [message.content for message in rollout.episode.messages[1:]] == ["no", "and then?"] * 2
    assert sampled(rollout) == f"no{END}" * 2 and len(engine.rounds) == 2
    assert len(asked) == 5 and {body["path"] for body in asked} == {"/v1/chat/completions"}
    first = {name: asked[3][name] for name in ("key", "model", "temperature", "max_tokens")}
    assert first == {"key": "Bearer secret", "model": "m", "temperature": 0.3, "max_tokens": 256}
    assert asked[3]["messages"] == [{"role": "user", "content": "they said: no"}]
    assert asked[0]["seed"] == asked[3]["seed"] != asked[4]["seed"]


@pytest.mark.parametrize(
    ("answer", "reason", "requests"),
    [
        ((503, b"busy"), "HTTP 503: busy", 2),
        ((400, b"too long"), "HTTP 400: too long", 1),
        ((200, b"prose"), "JSONDecodeError", 2),
        ((200, {"choices": []}), "no chat completion", 1),
        ((200, saying("", "content_filter")), "a turn ended with content_filter", 1),
    ],
)
def test_a_server_that_does_not_answer_is_a_failure_of_the_rollout(
    answer: tuple[int, Any], reason: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.01)
    with server([answer]) as (url, asked):
        (rollout,), _, _ = played(agent_of({"url": url, "attempts": 2}, "user"), 1)
    failure = rollout.outcome.failure
    assert failure is not None and failure.kind == "engine"
    assert failure.reason.startswith("agents.user: ") and reason in failure.reason
    assert len(asked) == requests


@pytest.mark.parametrize(
    ("name", "fields", "refused"),
    [
        ("user", {}, r"agents\.user=\[\]: must name one of engine and url"),
        ("user", {"engine": "policy", "url": "http://x"}, "must name one of"),
        ("user", {"engine": "paged"}, r"agents\.user\.init=None: must name the checkpoint"),
        ("user", {"engine": "policy", "init": "x"}, r"agents\.user\.init='x'"),
        ("user", {"engine": "policy", "model": "x"}, "are of a server"),
        ("user", {"url": "x"}, "must begin with http"),
        ("user", {"url": "http://x", "temprature": 1}, "an agent has .*did you mean 'temperature'"),
        ("user", {"url": "http://x", "temperature": -1}, r"agents\.user\.temperature=-1"),
        ("user", {"url": "http://x", "seconds": 0}, r"agents\.user\.seconds=0"),
        ("user", "http://x", r"agents\.user='http://x': must have some of the fields"),
        ("solver", {"engine": "policy"}, "other than solver"),
        ("a b", {"engine": "policy"}, "must be a name"),
    ],
)
def test_bad_agents_are_named(name: str, fields: Any, refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        agent_of(fields, name)


def test_a_key_that_is_not_set_is_named() -> None:
    config = AgentConfig(url="http://x", key_variable="NOT_SET_ANYWHERE")
    with pytest.raises(ConfigError, match=r"agents\.user\.key_variable='NOT_SET_ANYWHERE'"):
        Others({"user": config}, TOKENIZER, 500, None)


@pytest.mark.parametrize(
    ("agents", "refused"),
    [
        ({}, r"agents=\[\]: environment=talk needs user: \+agents\.user\.url=URL"),
        ({"user": 1, "judge": 1}, "agents='judge': environment=talk asks user"),
    ],
)
def test_missing_and_unused_agents_are_refused(agents: dict[str, Any], refused: str) -> None:
    class Config:
        class environment:
            name = "talk"

        class evaluation:
            environment = None

    Config.agents = agents  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=refused):
        check_agents(Config, Conversation(), Conversation())  # type: ignore[arg-type]


def test_an_engine_is_not_shown_pictures() -> None:
    class Seen(Conversation):
        seeing = ("user",)

    class Config:
        class environment:
            name = "talk"

        class evaluation:
            environment = None

    agent = agent_of({"engine": "policy"}, "user")
    Config.agents = {"user": agent}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"agents\.user\.engine='policy': environment=talk shows pictures to user"):
        check_agents(Config, Seen(), Conversation())  # type: ignore[arg-type]
    agent.engine, agent.url = None, "http://127.0.0.1:1"
    check_agents(Config, Seen(), Conversation())  # type: ignore[arg-type]


def test_an_agent_that_is_asked_alone_follows_a_schema() -> None:
    schema = {"type": "object", "properties": {"score": {"type": "integer"}}}
    config = agent_of({"url": "http://127.0.0.1:1"}, "judge")
    with server([(200, saying('{"score": 3}'))]) as (url, asked):
        config.url = url
        others = Others({"judge": config}, TOKENIZER, 500, None)
        judge = others.asked_alone("judge", "seed", schema)
        assert asyncio.run(judge.reply([Message("user", "rate")])).text == '{"score": 3}'
    assert asked[0]["response_format"]["json_schema"] == {"name": "reply", "schema": schema, "strict": True}


def test_the_identity_of_an_agent_is_that_of_its_folder_not_of_a_name(tmp_path: Path) -> None:
    folders = [save_policy(tmp_path / name) for name in ("first", "second")]
    link, found = tmp_path / "latest", []
    for folder in folders:
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        others = Others({}, TOKENIZER, 500, None)
        for init in (link, folder):
            others._configs = {"judge": agent_of({"engine": "paged", "init": str(init)}, "judge")}
            found.append(others.identity("judge"))
    assert found[0] == found[1] != found[2] == found[3]


def test_an_engine_of_its_own_follows_a_schema_or_is_refused(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"score": {"enum": [1, 2]}}, "required": ["score"]}
    schema["additionalProperties"] = False
    init = str(save_policy(tmp_path / "judge"))
    config = agent_of({"engine": "paged", "init": init, "max_new_tokens": 60}, "judge")
    others = Others({"judge": config}, None, 0, build_hardware(TorchCpuConfig()))
    try:
        replies = [
            asyncio.run(others.asked_alone("judge", f"seed/{number}", schema).reply([Message("user", "rate")]))
            for number in range(3)
        ]
    finally:
        others.close()
    ended = [json.loads(reply.text) for reply in replies if reply.finish_reason == "stop"]
    assert ended and all(value in ({"score": 1}, {"score": 2}) for value in ended)
    others._own["judge"] = ScriptedEngine(TOKENIZER, lambda text, params: "yes"), TOKENIZER, 500
    with pytest.raises(ConfigError, match=r"agents\.judge\.engine='paged': must follow JSON schemas"):
        others.asked_alone("judge", "seed", schema)


def test_the_policy_is_no_judge() -> None:
    with pytest.raises(ConfigError, match=r"agents\.judge\.engine='policy': must not judge itself"):
        module.check_judge("judge", agent_of({"engine": "policy"}, "judge"))
