"""An environment from a plain class, for getting started.

The class has ``reset(**row)``, which returns the question; ``reward(reply)``, which scores the last reply; and
``oracle()`` and ``cheats()``, which return texts to check it with. Its other public methods are the solver's tools:
the docstring is the description, the annotations are the parameter types. Each rollout has its own object.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_type_hints

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Script, Task
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.base import EnvironmentBase
from arcforge_core.episodes.rewards import reward
from arcforge_core.episodes.tools import converse
from arcforge_core.errors import ConfigError

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
RESERVED = ("reset", "reward", "oracle", "cheats")


class PlainEnvironment(EnvironmentBase):
    """Plays `plain` on `rows`; a subclass sets both. The config needs no additional fields.

    The object is sent to the verifier's process, so its attributes must be picklable.

    Raises:
        ConfigError: a side of the split has no rows, or a tool has no docstring or a parameter without a type.
    """

    plain: ClassVar[type[Any]]
    rows: ClassVar[Sequence[Mapping[str, Any]]]
    max_calls: ClassVar[int] = 8

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        texts = [json.dumps(row, sort_keys=True) for row in self.rows]
        self._texts = [text for text in texts if is_heldout_task(text) == (config.split == "heldout")]
        if not self._texts:
            raise ConfigError("environment.split", config.split, f"none of {len(texts)} rows is on this side")
        self.num_tasks = len(self._texts)
        self.tools = tuple(tool_of(self.plain, name) for name in tool_names(self.plain))

    def task(self, index: int) -> Task:
        row = self._texts[index % len(self._texts)]
        return Task(f"{self.plain.__name__}/{row}", self.plain().reset(**json.loads(row)), row)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver call the object's methods as tools."""
        played = self._reset(task)

        async def use(call: ToolCall) -> str:
            try:
                return str(getattr(played, call.name)(**call.arguments))
            except Exception as error:  # the solver reads the error
                return f"Error: {type(error).__name__}: {error}"

        question = Message("user", task.prompt)
        episode = await converse(agents, [question], self.tools, use, max_calls=self.max_calls)
        return Episode(episode.messages, episode.reply, episode.finish_reason, {"plain": played})

    @reward()
    def rewarded(self, task: Task, episode: Episode) -> object:
        return episode.artefacts["plain"].reward(episode.reply.text)

    def oracle(self, task: Task) -> Script:
        """Returns the object's."""
        return [Reply(self._reset(task).oracle())]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the object's."""
        return [[Reply(text)] for text in self._reset(task).cheats()]

    def _reset(self, task: Task) -> Any:
        played = self.plain()
        played.reset(**json.loads(task.answer))
        return played


def tool_names(plain: type[Any]) -> list[str]:
    """Returns the names of a class's tools, in source order."""
    names = [
        name
        for parent in reversed(plain.__mro__[:-1])
        for name in vars(parent)
        if inspect.isfunction(vars(parent)[name])
    ]
    return [name for name in dict.fromkeys(names) if not name.startswith("_") and name not in RESERVED]


def tool_of(plain: type[Any], name: str) -> Tool:
    """Returns the definition of a method as a tool.

    Raises:
        ConfigError: it has no docstring, or a parameter without one of the `TYPES`.
    """
    method, hints = getattr(plain, name), get_type_hints(getattr(plain, name))
    if not inspect.getdoc(method):
        raise ConfigError("tool", f"{plain.__name__}.{name}", "needs a docstring, or a name that starts with _")
    parameters = list(inspect.signature(method).parameters.values())[1:]
    for parameter in parameters:
        if hints.get(parameter.name) not in TYPES:
            accepted = f"needs one of the types {', '.join(kind.__name__ for kind in TYPES)}"
            raise ConfigError("tool", f"{plain.__name__}.{name}({parameter.name})", accepted)
    schema = {
        "type": "object",
        "properties": {p.name: {"type": TYPES[hints[p.name]]} for p in parameters},
        "required": [p.name for p in parameters if p.default is p.empty],
    }
    return Tool(
        {"type": "function", "function": {"name": name, "description": inspect.getdoc(method), "parameters": schema}}
    )
