"""Environments as tasksets and harnesses of the library ``verifiers``, version 0.4; imports it.

A task is a row with the environment's configuration and the task's number, from which both sides rebuild it. The
harness plays it: the environment's own program, in this process, whose solver asks the rollout's interception server,
so that turns, tools and tokens are in the trace, and limits and sampling are those of the run. The task scores the
episode. A failure of the infrastructure is an error of the trace and never a reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, ClassVar, Literal

import verifiers.v1 as vf
from pydantic import Field

from arcforge_core.contracts.environment import Environment, Episode, EpisodeFailure, Failure, Outcome, Task
from arcforge_core.episodes.rewards import failure_of
from arcforge_core.episodes.scripted import SILENCE, play
from arcforge_rl.endpoints import JsonServer
from arcforge_rl.export.playing import Exported, ServedSolver, company, environment_of

RECORDED = "arcforge"
"""Key of a trace's ``info`` with rewards, raw values and reasons by name, which replays read."""
DAY = 86_400.0
"""Seconds that a turn may take; the run's own limits are shorter."""
ATTEMPTS = 3
"""At a turn that the model's server fails; a whole rollout is repeated as the run says."""
ERRORS = {"sandbox": vf.SandboxError, "engine": vf.ProviderError}
"""Kinds of failures that the library has errors for; the others are errors of the task."""


@contextmanager
def failures_as_errors() -> Iterator[None]:
    """Turns a failure of the infrastructure into the library's error.

    Raises:
        vf.RolloutError: the block raised.
    """
    try:
        yield
    except vf.RolloutError:
        raise
    except Exception as error:
        failure = failure_of(error) or Failure("environment", f"{type(error).__name__}: {error}")
        raise ERRORS.get(failure.kind, vf.TaskError)(f"{failure.kind}: {failure.reason}") from error


class ArcforgeData(vf.TaskData):
    """A row."""

    environment: dict[str, Any]
    """Fields of the environment's config."""
    number: int
    """Of the task in it."""


class ArcforgeState(vf.State):
    """Passes the episode from the harness to the task; it is not saved."""

    episode: Any = None
    """The episode that was played; None until then."""


class ArcforgeTask(vf.Task[ArcforgeData, ArcforgeState, vf.TaskConfig]):
    """Scores what the harness played; ``reward`` is the environment's, its parts and metrics are metrics."""

    def rebuilt(self) -> tuple[Environment, Task]:
        """Returns the environment and its task."""
        environment = environment_of(self.data.environment)
        return environment, environment.task(self.data.number)

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Scores the episode; silence where no turn was asked for.

        Raises:
            vf.RolloutError: there is no verdict.
        """
        with failures_as_errors():
            environment, task = self.rebuilt()
            episode: Episode | None = trace.state.episode
            if episode is None and (trace.num_turns or trace.stop_condition):
                raise EpisodeFailure("cancelled", f"the episode did not end: {trace.stop_condition}")
            if episode is None:
                _, outcome = await play(environment, task, SILENCE)
            else:
                outcome = await environment.score(task, episode)
            trace.info[RECORDED] = recorded(outcome)

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Returns whether the oracle earns 1.

        Raises:
            vf.RolloutError: there is no verdict.
        """
        with failures_as_errors():
            environment, task = self.rebuilt()
            _, outcome = await play(environment, task, environment.oracle(task))
            return bool(recorded(outcome)["rewards"]["reward"] == 1.0)

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """Returns the reward that was recorded."""
        return float(self._rewards(trace)["reward"])

    @vf.metric
    async def figures(self, trace: vf.Trace) -> dict[str, float]:
        """Returns the parts of the reward and the metrics, by name."""
        return {name: value for name, value in self._rewards(trace).items() if name != "reward"}

    def _rewards(self, trace: vf.Trace) -> Mapping[str, float]:
        if RECORDED not in trace.info:
            raise vf.TaskError("the rollout was not scored")
        rewards: Mapping[str, float] = trace.info[RECORDED]["rewards"]
        return rewards


def recorded(outcome: Outcome) -> dict[str, Any]:
    """Returns an outcome as plain data.

    Raises:
        EpisodeFailure: it is none.
    """
    if outcome.failure is not None:
        raise EpisodeFailure(outcome.failure.kind, outcome.failure.reason)
    return {"rewards": dict(outcome.rewards), "raw": dict(outcome.raw), "reasons": dict(outcome.reasons)}


class ArcforgeTasksetConfig(vf.TasksetConfig):
    """Which tasks."""

    split: Literal["train", "heldout"] | None = None
    """No task is on both sides; None: as exported."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Fields of the environment's config that replace exported ones."""


class ArcforgeTaskset(vf.Taskset[ArcforgeTask, ArcforgeTasksetConfig]):
    """The tasks of an exported environment; without end if it draws them.

    Raises:
        ConfigError: an option is none of the environment's.
    """

    exported: ClassVar[Exported]

    def __init__(self, config: ArcforgeTasksetConfig) -> None:
        super().__init__(config)
        self.fields = self.exported.fields(config.split, config.options)
        self.environment = environment_of(self.fields)
        self.INFINITE = self.environment.num_tasks is None

    def load(self) -> Iterator[ArcforgeTask]:
        """Yields the tasks in order."""
        number_of = self.environment.num_tasks
        for number in count() if number_of is None else range(number_of):
            task = self.environment.task(number)
            data = ArcforgeData(id=task.key, name=task.key, prompt=task.prompt, environment=self.fields, number=number)
            yield ArcforgeTask(data, self.config.task)


class ArcforgeHarness(vf.Harness[vf.HarnessConfig]):
    """Plays the tasks of an exported environment, in this process; programs of a model run in the environment's own
    sandboxes."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    exported: ClassVar[Exported]

    async def launch(
        self, ctx: vf.ModelContext, trace: vf.Trace, runtime: vf.Runtime, endpoint: str, secret: str,
        mcp_urls: dict[str, str], data: vf.TaskData,
    ) -> vf.ProgramResult:  # fmt: skip
        """Plays the task; see `vf.Harness.launch`.

        Raises:
            vf.RolloutError: the episode could not be finished.
        """
        if not hasattr(data, "number"):
            raise ValueError(f"plays the tasks of the taskset {self.config.id!r} only")
        with failures_as_errors():
            environment = environment_of(data.environment)
            server = JsonServer(endpoint, secret, DAY, ATTEMPTS)
            solver = ServedSolver(
                server, ctx.model, trace.id, lambda: trace.stop_condition is not None, data.system_prompt or ""
            )
            agents = company(solver, self.exported.agents, trace.id)
            trace.state.episode = await environment.run(environment.task(data.number), agents)
        return vf.ProgramResult(0, "", "")


class ArcforgeEnvConfig(vf.SingleAgentEnvConfig):
    """The one seat, whose harness needs no machine of its own."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class ArcforgeEnv(vf.SingleAgentEnv, vf.Env[ArcforgeEnvConfig]):
    """A single agent; the harness runs here unless another runtime is asked for."""
