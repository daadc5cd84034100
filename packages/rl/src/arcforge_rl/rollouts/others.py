"""Agents of a rollout besides the solver: the policy again, on an engine of their own, or on a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.engine import Matcher
from arcforge_core.contracts.environment import Agent, EpisodeFailure, Reply
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup, build_dialogue
from arcforge_core.episodes.asking import Asking, Streams
from arcforge_core.errors import ConfigError
from arcforge_core.files.find import find_checkpoint
from arcforge_core.generation.engine import build_engine
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.configs.entries import entry_of
from arcforge_rl.configs.others import POLICY, AgentConfig
from arcforge_rl.endpoints import Endpoint

MakeAgent = Callable[[PolicyAgent], Agent]
"""Makes an agent of a rollout from the solver in it, which has the way to the policy's engine, number and seed."""


@dataclass(frozen=True)
class Aside:
    """An agent on an engine: a failure of that engine is one of the rollout, and not an empty reply.

    Attributes:
        name: of the agent.
        agent: samples.
        asking: of the policy.
        waits: whether the policy's engine waits for it, because it is the same.
        trained: whether its tokens are trained.
    """

    name: str
    agent: PolicyAgent
    asking: Asking
    waits: bool
    trained: bool = False

    @property
    def recorded(self) -> list[Branch]:
        """Its branches that are trained."""
        kept = self.agent.recorded if self.trained else []
        return [branch.named(f"{self.name}.{branch.branch_id}", self.name) for branch in kept]

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Samples the next turn.

        Raises:
            EpisodeFailure: the engine failed.
        """
        if self.waits:
            reply = await self.agent.reply(messages, tools, options)
        else:
            with self.asking.away():
                reply = await self.agent.reply(messages, tools, options)
        if self.agent.failure is not None:
            raise EpisodeFailure(self.agent.failure.kind, f"agents.{self.name}: {self.agent.failure.reason}")
        return reply


class Others:
    """The makers of the agents of a run, and their engines.

    Args:
        configs: agents by name.
        tokenizer, positions: of the policy; None and 0 where no agent is on its engine.
        hardware: runs engines of their own; None where no agent has one.
        deterministic: whether the replies of such engines are independent of the batch.

    Raises:
        ConfigError: an agent cannot be built.
        CheckpointError: a checkpoint cannot be read.
    """

    def __init__(
        self,
        configs: Mapping[str, AgentConfig],
        tokenizer: Tokenizer | None,
        positions: int,
        hardware: Hardware | None,
        deterministic: bool = False,
    ) -> None:
        self._configs, self._hardware, self._deterministic = configs, hardware, deterministic
        self._engines: list[Any] = []
        self._own: dict[str, tuple[Any, Tokenizer, int]] = {}
        self._matchers: dict[tuple[str, str], Callable[[], Matcher]] = {}
        self.makers: dict[str, MakeAgent] = {
            name: self._maker(name, config, tokenizer, positions) for name, config in configs.items()
        }

    def asked_alone(self, name: str, seed: str, schema: Mapping[str, Any] | None = None) -> Agent:
        """Returns an agent that is asked outside of a rollout, as by a judge; it has no memory of other replies.

        Args:
            name: of the agent; it has an engine of its own or a server.
            seed: of its replies.
            schema: JSON schema that they follow; None for free text.

        Raises:
            ConfigError: its engine cannot follow a schema.
        """
        config = self._configs[name]
        if config.url is not None:
            return Endpoint(name, config, None, seed, schema)
        engine, tokenizer, positions = self._own[name]
        matcher = None
        if schema is not None:
            if not hasattr(engine, "json_matcher"):
                raise ConfigError(f"agents.{name}.engine", config.engine, "must follow JSON schemas, as paged does")
            key = name, json.dumps(schema)
            if key not in self._matchers:
                self._matchers[key] = engine.json_matcher(tokenizer, schema)
            matcher = self._matchers[key]
        dialogue = build_dialogue(tokenizer, config.thinking, f"agents.{name}.thinking")
        setup = SamplingSetup(dialogue, config.max_new_tokens, config.temperature, positions, matcher=matcher)
        streams = Streams(engine)
        return Aside(name, PolicyAgent(streams, 0, setup, f"{seed}/{name}"), streams, waits=False)

    def identity(self, name: str) -> str:
        """Returns what the replies of an agent depend on besides the conversation: its model and its sampling."""
        config = self._configs[name]
        fields = ("engine", "init", "url", "model", "temperature", "max_new_tokens", "thinking")
        known = {field: getattr(config, field) for field in fields}
        if config.init is not None:  # ``outputs/latest`` names one model today and another one tomorrow
            known["init"] = str(find_checkpoint(config.init, f"agents.{name}.init").resolve())
        return json.dumps(known)

    def close(self) -> None:
        """Ends the engines."""
        for engine in self._engines:
            engine.close()

    def _maker(self, name: str, config: AgentConfig, tokenizer: Tokenizer | None, positions: int) -> MakeAgent:
        if config.url is not None:
            Endpoint(name, config, None, "")  # the key is there
            return lambda solver: Endpoint(name, config, solver.lockstep, f"{solver.seed}/{name}")
        own: Streams | None = None
        if config.engine != POLICY:
            engine, tokenizer, positions = self._own[name] = self._engine(name, config)
            own = Streams(engine)
        assert tokenizer is not None
        dialogue = build_dialogue(tokenizer, config.thinking, f"agents.{name}.thinking")
        setup = SamplingSetup(dialogue, config.max_new_tokens, config.temperature, positions)

        def make(solver: PolicyAgent) -> Agent:
            sampled = setup
            if config.trained:  # as the tokens of the solver
                sampled = replace(solver.setup, dialogue=dialogue, max_new_tokens=config.max_new_tokens, others={})
            agent = PolicyAgent(own or solver.lockstep, solver.number, sampled, f"{solver.seed}/{name}")
            return Aside(name, agent, solver.lockstep, waits=own is None, trained=config.trained)

        return make

    def _engine(self, name: str, config: AgentConfig) -> tuple[Any, Tokenizer, int]:
        assert self._hardware is not None
        schema = registry().get("engine", str(config.engine)).load_schema()
        options = entry_of(schema, config.options, f"agents.{name}.options", f"engine={config.engine}")
        model, tokenizer = load_with_tokenizer(str(config.init), self._hardware, self._deterministic)
        engine: Any = build_engine(options, model.requires_grad_(False))
        if not hasattr(engine, "submit"):
            raise ConfigError(f"agents.{name}.engine", config.engine, "must take requests one by one, as paged does")
        engine.start()
        self._engines.append(engine)
        return engine, tokenizer, model.config.max_position_embeddings


def check_judge(name: str, config: AgentConfig) -> None:
    """Refuses the policy as the agent that its rewards ask.

    Raises:
        ConfigError: it samples on the policy's engine.
    """
    if config.engine == POLICY:
        accepted = "must not judge itself: the scale of its verdicts would change with every step; name init or url"
        raise ConfigError(f"agents.{name}.engine", POLICY, accepted)
