"""Further agents of the rollouts: judges, simulated users, second policies; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from arcforge_core.config.schema import check_choice, check_minimums
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.commands import THINKING
from arcforge_rl.configs.entries import entry_of

POLICY = "policy"


@dataclass
class AgentConfig:
    """An agent besides the policy, sampled as said here. One of `engine` and `url`."""

    engine: str | None = None
    """``policy``: the policy's engine, with the weights that it has at the time; or a component such as ``paged`` that
    takes requests one by one and runs `init` in each process that plays its rollouts."""
    init: str | None = None
    """Checkpoint of an `engine` of its own."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of that engine's config."""
    url: str | None = None
    """Server of OpenAI's chat completions, with or without a trailing ``/v1``."""
    model: str | None = None
    """Name of the model there; null omits it."""
    key_variable: str | None = None
    """Environment variable with the server's key; null sends none."""
    trained: bool = False
    """Whether its tokens are trained, too, apart from the solver's: by ``reward_NAME`` if the environment gives one,
    else by the episode's reward. It is the policy, ``engine=policy``, at the policy's temperature."""
    temperature: float = 1.0
    """0 is greedy."""
    max_new_tokens: int = 256
    """Of a reply."""
    thinking: str = "off"
    """``on`` or ``off``: how the chat template begins a reply."""
    seconds: float = 60.0
    """That a server's answer may take."""
    attempts: int = 3
    """At a request that a server refuses as busy, fails, or does not answer in time; then the rollout is a failure."""

    def check(self, where: str) -> None:
        """Checks the fields; `where` is where they were given."""
        named = [name for name in ("engine", "url") if getattr(self, name)]
        if len(named) != 1:
            raise ConfigError(where, named, "must name one of engine and url")
        if (self.init is None) == (self.engine not in (None, POLICY)):
            accepted = "must name the checkpoint of an engine of its own, and nothing with engine=policy or url"
            raise ConfigError(f"{where}.init", self.init, accepted)
        if self.options and self.init is None:
            raise ConfigError(f"{where}.options", self.options, "are of an engine of its own: name init, too")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"{where}.url", self.url, "must begin with http:// or https://")
        if self.url is None and (self.model or self.key_variable):
            raise ConfigError(
                where, self.model or self.key_variable, "model and key_variable are of a server: name url"
            )
        if self.trained and self.engine != POLICY:
            raise ConfigError(f"{where}.trained", True, "needs engine=policy: the trainer has no other weights")
        if self.trained and self.temperature != 1.0:
            raise ConfigError(f"{where}.temperature", self.temperature, "a trained agent has that of the policy")
        check_minimums(self, where, temperature=0.0, max_new_tokens=1, attempts=1)
        check_choice(f"{where}.thinking", self.thinking, THINKING)
        if not 0.0 < self.seconds < float("inf"):
            raise ConfigError(f"{where}.seconds", self.seconds, "must be finite and above 0")


def agent_of(fields: Any, name: str) -> AgentConfig:
    """Returns the agent of an entry of `agents`.

    Raises:
        ConfigError: its name or a field cannot be used.
    """
    where = f"agents.{name}"
    if not name.isidentifier() or name.startswith("_") or name in ("solver", "away"):
        raise ConfigError("agents", name, "must be a name other than solver, which is the policy, and away")
    made = entry_of(AgentConfig, fields, where, "an agent")
    made.check(where)
    return made
