"""An imitation of the library ``verifiers`` 0.4, as far as our tasksets and harnesses use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

One, Two, Three = TypeVar("One"), TypeVar("Two"), TypeVar("Three")


class RolloutError(Exception):
    """Recorded on a trace."""


class TaskError(RolloutError): ...


class SandboxError(RolloutError): ...


class ProviderError(RolloutError): ...


class TaskData(BaseModel):
    model_config = ConfigDict(frozen=True)
    idx: int | None = None
    id: str | None = None
    name: str | None = None
    prompt: str | None = None
    system_prompt: str | None = None


class State(BaseModel):
    artifacts: dict[str, bytes] = {}


class TaskConfig(BaseModel): ...


class TasksetConfig(BaseModel):
    id: str = ""
    task: TaskConfig = TaskConfig()


class HarnessConfig(BaseModel):
    id: str = "bash"


class Task(Generic[One, Two, Three]):
    def __init__(self, data: Any, config: Any = None) -> None:
        self.data, self.config = data, config


class Taskset(Generic[One, Two]):
    INFINITE = False

    def __init__(self, config: Any) -> None:
        self.config = config


class Harness(Generic[One]):
    def __init__(self, config: Any) -> None:
        self.config = config


@dataclass
class Trace:
    id: str = "trace"
    state: Any = None
    num_turns: int = 0
    stop_condition: str | None = None
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class ModelContext:
    model: str


@dataclass
class ProgramResult:
    exit_code: int
    stdout: str
    stderr: str


class Runtime: ...


class SubprocessConfig(BaseModel): ...


class AgentConfig(BaseModel):
    runtime: Any = None


class EnvConfig(BaseModel): ...


class SingleAgentEnvConfig(EnvConfig):
    agent: AgentConfig = AgentConfig()


class Env(Generic[One]): ...


class SingleAgentEnv(Env[SingleAgentEnvConfig]): ...


def reward(function: Any) -> Any:
    function.reward = True
    return function


def metric(function: Any) -> Any:
    function.metric = True
    return function
