"""Evaluates a model by generation: loads conversations, rolls them out and counts the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from arcforge_core.chat.load import build_chat_template
from arcforge_core.config.kinds import EngineConfig, EnvironmentConfig
from arcforge_core.config.schema import PlayBaseConfig, PlayConfig
from arcforge_core.console.progress import say, track
from arcforge_core.contracts.chat import ChatTemplate
from arcforge_core.contracts.engine import Engine
from arcforge_core.contracts.environment import Environment, Task
from arcforge_core.data.conversations.rejections import INVALID, Rejection, summary
from arcforge_core.episodes.agent import Dialogue, PolicyAgent, SamplingSetup, build_dialogue
from arcforge_core.episodes.conversation_tasks import ConversationTask, Loaded, load_tasks
from arcforge_core.episodes.conversations import ConversationEnvironment
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.episodes.rollout import Rollout, roll_out
from arcforge_core.errors import ArcforgeError, ConfigError, DataError
from arcforge_core.eval.conversations.figures import by_source, conversation_row
from arcforge_core.generation.generate import evaluating
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.wheels import how_to_install
from arcforge_core.tokenizer.tokenizer import Tokenizer

ENGINES, ENVIRONMENTS = ("paged", "simple"), ("sandbox_conversations", "conversations")
"""The default is the first that is installed."""
FAILED = "failed"
"""Rule of rejections whose rollout failed because of the infrastructure."""
FIGURES_FILE, ROLLOUTS_FILE = "generation.json", "rollouts.jsonl"


@dataclass(frozen=True)
class Report:
    """The result of an evaluation.

    Attributes:
        rollouts: in the order of the files.
        read: number of records by source.
        rejections: records that could not be played or whose rollout failed.
    """

    rollouts: list[Rollout]
    read: Mapping[str, int]
    rejections: Sequence[Rejection] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        return by_source(self.rollouts)

    def write(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Writes the figures with their settings, and all rollouts."""
        found = {
            "settings": dict(settings),
            "figures": self.figures,
            "read": dict(self.read),
            "rejected": [asdict(rejection) for rejection in self.rejections],
        }
        (folder / FIGURES_FILE).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        with (folder / ROLLOUTS_FILE).open("w", encoding="utf-8") as file:
            for rollout in self.rollouts:
                file.write(json.dumps(conversation_row(rollout), ensure_ascii=True) + "\n")


def evaluate(model: CausalLM, tokenizer: Tokenizer, config: PlayConfig, *, quiet: bool = False) -> Report:
    """Plays each configured conversation once.

    Args:
        model: its mode is restored.
        tokenizer: tokenizer of the model.
        config: the conversations and the options of playing them.
        quiet: shows no progress.

    Raises:
        ConfigError: the tokenizer has no chat template, or a component is missing or cannot work here.
        DataError: no conversation can be played.
    """
    positions = model.config.max_position_embeddings
    environment, read = open_conversations(config, build_chat_template(tokenizer), positions, config.environment)
    ended = sample_tasks(model, tokenizer, config, environment, environment.tasks, engine=config.engine)
    rollouts = sorted(
        ended if quiet else track(ended, "playing conversations", len(environment.tasks)),
        key=lambda rollout: rollout.number,
    )
    kept = [rollout for rollout in rollouts if rollout.outcome.failure is None]
    return Report(kept, read, [*environment.rejections, *failures(rollouts)])


def failures(rollouts: Sequence[Rollout]) -> list[Rejection]:
    """Returns the failures of rollouts, one per record.

    Raises:
        ArcforgeError: all of them failed.
    """
    found = {one.task.key: (one, one.outcome.failure) for one in rollouts if one.outcome.failure is not None}
    if found and all(rollout.outcome.failure is not None for rollout in rollouts):
        first = rollouts[0].outcome.failure
        assert first is not None
        raise ArcforgeError(f"all rollouts failed; the first: {first.kind}: {first.reason}")
    rejections = []
    for one, failure in found.values():
        task = one.task
        file, line = (task.file, task.line) if isinstance(task, ConversationTask) else (task.key, 0)
        rejections.append(Rejection(file, line, one.domain, FAILED, f"{failure.kind}: {failure.reason}"))
    return rejections


def check_evaluation(config: PlayConfig) -> None:
    """Checks before a model is loaded that the conversations can be played.

    Raises:
        ConfigError, DataError: see `evaluate`.
    """
    registry().get("engine", config.engine or _first("engine", ENGINES))
    loaded = load_tasks(config.files, f"{config.prefix}files", config.limit, config.seed)
    build_environment(config, loaded, config.environment)


def open_conversations(
    config: PlayBaseConfig,
    template: ChatTemplate,
    positions: int,
    chosen: str | EnvironmentConfig | None = None,
) -> tuple[ConversationEnvironment, dict[str, int]]:
    """Returns an environment with the playable tasks, and the number of records by source; prints the rejections.

    Raises:
        ConfigError, DataError: see `evaluate`.
    """
    loaded = load_tasks(config.files, f"{config.prefix}files", config.limit, config.seed)
    environment = build_environment(config, loaded, chosen)
    kept = []
    for task in environment.tasks:
        flaw = _prompt_flaw(task, template, positions)
        if flaw:
            environment.rejections.append(Rejection(task.file, task.line, task.source, INVALID, flaw))
        else:
            kept.append(task)
    environment.tasks, rejections = kept, environment.rejections
    if rejections:
        say(f"conversations: {summary(rejections, sum(loaded.read.values()) + len(loaded.rejections))}")
    if not kept:
        first = rejections[0]
        raise DataError(f"{config.prefix}files: no conversation is playable: {first.file}:{first.line}: {first.reason}")
    return environment, loaded.read


def _prompt_flaw(task: ConversationTask, template: ChatTemplate, positions: int) -> str:
    conversation, given = task.conversation, task.questions[0].given
    try:
        prompt = template.render(given, conversation.tools, conversation.options, generation_prompt=True)
    except ConfigError as error:
        return str(error)
    full = f"its prompt has {len(prompt)} tokens, and the model {positions} positions"
    return full if len(prompt) >= positions else ""


def sample_tasks(
    model: CausalLM,
    tokenizer: Tokenizer,
    config: PlayBaseConfig,
    environment: Environment,
    tasks: Sequence[Task],
    samples: int = 1,
    *,
    thinking: bool = False,
    engine: str | EngineConfig | None = None,
) -> Iterator[Rollout]:
    """Yields `samples` rollouts of each task as they end; rollout `number` belongs to task ``number // samples``.

    The seeds of a rollout depend on its task and sample number only, not on the rest of the batch.
    """
    dialogue: Dialogue = build_dialogue(tokenizer, "on" if thinking else "off", f"{config.prefix}thinking")
    positions = model.config.max_position_embeddings
    setup = SamplingSetup(dialogue, config.max_new_tokens, config.temperature, positions)
    tries = [(task, sample) for task in tasks for sample in range(samples)]
    with evaluating(model):
        lockstep = Lockstep(default_engine(engine, model), waits_for_tools=True)
        agents = (
            PolicyAgent(lockstep, number, setup, f"{config.seed}/{_name(task)}/{sample}")
            for number, (task, sample) in enumerate(tries)
        )
        width = config.batch_size
        yield from roll_out(environment, (task for task, _ in tries), agents, lockstep, width=width, group_size=samples)


def _name(task: Task) -> str:
    return f"{task.source}/{task.line}" if isinstance(task, ConversationTask) else task.key


def default_engine(chosen: str | EngineConfig | None, model: CausalLM) -> Engine:
    """Builds an engine: the chosen one, by name with its default options; the default one for None."""
    name = chosen.name if isinstance(chosen, EngineConfig) else chosen or _first("engine", ENGINES)
    component = registry().get("engine", name)
    config = chosen if isinstance(chosen, EngineConfig) else component.load_schema()()
    engine: Engine = component.load()(config, model)
    return engine


def build_environment(
    config: PlayBaseConfig, loaded: Loaded, chosen: str | EnvironmentConfig | None = None
) -> ConversationEnvironment:
    """Builds the chosen environment over loaded records; by default the plain one if no record has tools.

    Raises:
        ConfigError: the environment does not play records, or cannot work here.
    """
    name = chosen.name if isinstance(chosen, EnvironmentConfig) else chosen
    if name is None:
        calls = any(task.conversation.tools for task in loaded.tasks)
        name = _first("environment", ENVIRONMENTS) if calls else ENVIRONMENTS[-1]
        if calls and name == ENVIRONMENTS[-1]:
            needed = how_to_install("arcforge-rl")
            say(f"tool calls get the recorded results; environment={ENVIRONMENTS[0]} needs {needed}")
    if not plays_records(name):
        accepted = f"must play conversation records, like {' and '.join(ENVIRONMENTS)}"
        raise ConfigError(f"{config.prefix}environment", name, accepted)
    component = registry().get("environment", name)
    own = {name: getattr(config, name) for name in ("files", "limit", "max_calls", "seed")}
    schema = component.load_schema()()
    if isinstance(chosen, EnvironmentConfig):
        _refuse_unread(chosen, schema, own)
        schema = chosen
    environment: ConversationEnvironment = component.load()(replace(schema, **own, split="all"), loaded)
    return environment


def _refuse_unread(chosen: EnvironmentConfig, unset: EnvironmentConfig, own: Mapping[str, Any]) -> None:
    """Refuses fields of the environment that are the command's own, and its split: all records are played."""
    for name in (entry.name for entry in fields(chosen) if entry.name in (*own, "split")):
        if (value := getattr(chosen, name)) != getattr(unset, name):
            instead = "all records are played" if name == "split" else f"is the command's own field: write {name}=VALUE"
            raise ConfigError(f"environment.{name}", value, instead)


def plays_records(chosen: str | EnvironmentConfig | None) -> bool:
    """Returns whether an environment plays conversation records; None, the default, does."""
    name = chosen.name if isinstance(chosen, EnvironmentConfig) else chosen
    target = ConversationEnvironment if name is None else registry().get("environment", name).load()
    return isinstance(target, type) and issubclass(target, ConversationEnvironment)


def _first(kind: str, names: Sequence[str]) -> str:
    """Returns the first registered name, or the last one."""
    known = registry().names(kind)
    return next((name for name in names if name in known), names[-1])
