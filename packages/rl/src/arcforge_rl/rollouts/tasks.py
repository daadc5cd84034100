"""Training tasks with all that judges them, and the further agents of a process.

The trainer's process and that of an orchestrator build both in the same way; models are loaded where they are asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from arcforge_core.contracts.environment import Environment
from arcforge_core.ops.dispatch import Ops
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.configs.others import AgentConfig
from arcforge_rl.rewards.hybrid import Hybrid, with_rewards
from arcforge_rl.rewards.learned import with_reward_model
from arcforge_rl.rollouts.others import Others, check_judge
from arcforge_rl.rollouts.sampler import build_environment


def plays_apart(config: RlConfig) -> bool:
    """Returns whether another process than the trainer's plays and judges the training tasks."""
    return getattr(config.collection, "orchestrator", "thread") == "process"


def has_models(config: RlConfig) -> bool:
    """Returns whether the process that plays the training tasks computes a model: an agent's own, or a reward model."""
    return config.reward_model.checkpoint is not None or any(agent.init for agent in config.agents.values())


def training_environment(config: RlConfig, ops: Ops | None) -> Environment:
    """Returns the environment of the training tasks, with the reward model and the reward file of the run.

    Args:
        config: of the run.
        ops: provides the kernels of a reward model; None in a process that gives no verdicts: no weights are read.

    Raises:
        ConfigError, CheckpointError, DataError: a part cannot be built.
    """
    environment = with_reward_model(build_environment(config.environment), config.reward_model, ops)
    return with_rewards(environment, config.rewards, config.collection.name)


def agents_of_trainer(config: RlConfig, heldout: Environment) -> Mapping[str, AgentConfig]:
    """Returns the agents that the trainer's process asks; where training tasks are played apart, those of held-out
    tasks.

    Args:
        config: of the run.
        heldout: has the held-out tasks.
    """
    if not plays_apart(config):
        return config.agents
    asked = getattr(heldout, "agents", ()) if config.evaluation.tasks else ()
    return {name: config.agents[name] for name in asked}


def check_judges(config: RlConfig, environment: Environment) -> None:
    """Refuses the policy as a judge.

    Raises:
        ConfigError: see `check_judge`.
    """
    for name in environment.asked if isinstance(environment, Hybrid) else ():
        check_judge(name, config.agents[name])


def connect_judges(environment: Environment, others: Others) -> None:
    """Gives a hybrid reward the agents that it asks."""
    if isinstance(environment, Hybrid):
        environment.connect(others.asked_alone, others.identity)
