"""``environment=function_calls``: 1 iff every call has the right form, name and arguments, else 0."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import converse
from arcforge_rl.objectives.base import Objective, ObjectiveTask, of
from arcforge_rl.objectives.safety_twins import code

NONE = "No function fits."
CITIES = ("Lisbon", "Oslo", "Quito", "Hanoi", "Cairo", "Perth", "Turin", "Bergen", "Kyoto", "Dakar", "Lyon", "Graz")
PEOPLE = ("Mara", "Tom", "Lena", "Igor", "Nia", "Paul", "Sofia", "Omar")
Made = tuple[str, dict[str, Any]]
"""A request in words, and the arguments."""


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _weather(draw: random.Random) -> Made:
    city, days = draw.choice(CITIES), draw.randint(1, 7)
    return f"the weather in {city} for {days} days", {"city": city, "days": days}


def _convert(draw: random.Random) -> Made:
    amount = draw.randint(10, 900)
    source, target = draw.sample(("EUR", "USD", "JPY", "CHF", "SEK"), 2)
    return f"{amount} {source} in {target}", {"amount": amount, "source": source, "target": target}


def _remind(draw: random.Random) -> Made:
    hour, minute, about = (
        draw.randint(6, 21),
        draw.choice((0, 15, 30, 45)),
        draw.choice(("call home", "water the plants")),
    )
    time = f"{hour:02d}:{minute:02d}"
    return f"a reminder at {time} with the text {about!r}", {"time": time, "text": about}


def _book(draw: random.Random) -> Made:
    city, seats, window = draw.choice(CITIES), draw.randint(1, 5), draw.random() < 0.5
    place = "at the window" if window else "not at the window"
    return f"a train to {city} with {seats} seats {place}", {"city": city, "seats": seats, "window": window}


def _share(draw: random.Random) -> Made:
    people = sorted(draw.sample(PEOPLE, 2))
    name = f"report{draw.randint(1, 99)}.pdf"
    return f"the file {name} shared with {' and '.join(people)}", {"file": name, "people": people}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
FUNCTIONS: Mapping[str, tuple[str, dict[str, Any], Callable[[random.Random], Made]]] = {
    "get_weather": ("Weather forecast", _object(("city", "days"), city=TEXT, days=NUMBER), _weather),
    "convert_money": (
        "Converts an amount",
        _object(("amount", "source", "target"), amount=NUMBER, source=TEXT, target=TEXT), _convert),
    "set_reminder": ("Sets a reminder; time as HH:MM", _object(("time", "text"), time=TEXT, text=TEXT), _remind),
    "book_train": (
        "Books seats",
        _object(("city", "seats", "window"), city=TEXT, seats=NUMBER, window={"type": "boolean"}), _book),
    "share_file": (
        "Shares a file with people, in alphabetical order",
        _object(("file", "people"), file=TEXT, people={"type": "array", "items": TEXT}), _share),
}  # fmt: skip
"""Description, parameters, and what may be asked for."""


@dataclass(frozen=True)
class CallTask(ObjectiveTask):
    """A request.

    Attributes:
        offered: names of the functions.
        calls: name and arguments of each right call, in order.
        receipts: result of each.
    """

    offered: tuple[str, ...]
    calls: tuple[tuple[str, dict[str, Any]], ...]
    receipts: tuple[str, ...]


class FunctionCalls(Objective):
    """Functions that give receipts; the last reply is the receipts alone, so that calls are made and results read.

    Where no function fits, the reply is `NONE`. Tasks with the same arguments are on one side of the split.
    """

    domain = "function_calls"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a request for one call, for two, or for none."""
        kind = draw.choice(self.config.kinds)
        names = draw.sample(list(FUNCTIONS), draw.randint(3, len(FUNCTIONS)))
        wanted = {"single": 1, "parallel": 2, "none": 1}[kind]
        made = [(name, *FUNCTIONS[name][2](draw)) for name in names[:wanted]]
        asked = ", and ".join(text for _, text, _ in made)
        calls = tuple((name, arguments) for name, _, arguments in made)
        offered = tuple(sorted(names[wanted:] if kind == "none" else names))
        if kind == "none":
            calls = ()
        receipts = tuple(code(draw) for _ in calls)
        together = " Make both calls in one turn, in this order." if len(calls) > 1 else ""
        prompt = (
            f"I would like {asked}. Call the function for it.{together} Then answer with the receipts alone, separated "
            f"by a comma. Without a function that fits, answer {NONE!r}"
        )
        answer = ", ".join(receipts) or NONE
        key = f"{kind}/{asked}"
        task = CallTask(f"{key}/{answer}", prompt, answer, self.domain, kind, (kind,), offered, calls, receipts)
        return key, task

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Gives receipts for right calls, and an error for others."""
        known = of(task, CallTask)
        tools = [
            Tool({"name": name, "description": FUNCTIONS[name][0], "parameters": FUNCTIONS[name][1]})
            for name in known.offered
        ]

        async def use(call: ToolCall) -> str:
            for (name, arguments), receipt in zip(known.calls, known.receipts, strict=True):
                if call.name == name and same(dict(call.arguments), arguments):
                    return f"receipt {receipt}"
            return "Error: these are not the arguments that were asked for"

        return await converse(agents, [Message("user", task.prompt)], tools, use, max_calls=4)

    @reward(timeout=None)
    def exact(self, task: Task, episode: Episode) -> Score:
        """Judges calls and last reply; needs no timeout."""
        known = of(task, CallTask)
        if flaw := flaw_of(known, episode):
            return Score(0.0, flaw)
        said = episode.reply.text.strip()
        return Score(float(said == known.answer), f"the last reply is {said[:60]!r}")

    @metric(timeout=None)
    def exact_calls(self, task: Task, episode: Episode) -> Score:
        """Returns whether the calls alone are right."""
        flaw = flaw_of(of(task, CallTask), episode)
        return Score(float(not flaw), flaw or "the calls are right")

    def oracle(self, task: Task) -> Script:
        """Returns the calls in one turn, and the receipts."""
        known = of(task, CallTask)
        calls = tuple(ToolCall(name, arguments) for name, arguments in known.calls)
        return [*([Reply(calls=calls)] if calls else []), Reply(known.answer)]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns receipts without calls, calls as text, wrong arguments, calls twice, and text next to calls."""
        known = of(task, CallTask)
        if not known.calls:
            return [[Reply("")], [Reply(NONE, finish_reason="length")], [Reply(f"{NONE} Or does it?")]]
        right, last = self.oracle(task)
        name, arguments = known.calls[0]
        first = next(iter(arguments))
        wrong = ToolCall(name, {**arguments, first: str(arguments[first]) + "1"})
        texts = ToolCall(name, {key: str(value) for key, value in arguments.items()})
        less = ToolCall(name, {key: value for key, value in arguments.items() if key != first})
        cheats: list[Script] = [
            [last],
            [right],
            [Reply(str(known.calls)), last],
            [Reply(calls=(wrong,)), last],
            [Reply(calls=(less,)), last],
            [Reply(calls=(*right.calls, *right.calls)), last],
            [Reply(calls=(wrong,)), right, last],
            [Reply("Here are my calls", calls=right.calls), last],
            [right, Reply(f"{known.answer} as asked")],
            [right, Reply(last.text, finish_reason="length")],
        ]
        if texts.arguments != arguments:
            cheats.append([Reply(calls=(texts,)), last])
        return cheats


def flaw_of(task: CallTask, episode: Episode) -> str:
    """Returns why the calls of an episode are not exactly those of the task, or an empty text."""
    if episode.finish_reason != "stop":
        return f"the conversation ended with {episode.finish_reason}"
    turns = [message for message in episode.messages if message.role == "assistant" and message.tool_calls]
    if len(turns) != bool(task.calls):
        return f"{len(turns)} turns have calls"
    if not turns:
        return ""
    if turns[0].content.strip():
        return "there is text next to the calls"
    made = turns[0].tool_calls
    if len(made) != len(task.calls):
        return f"{len(made)} calls, not {len(task.calls)}"
    for call, (name, arguments) in zip(made, task.calls, strict=True):
        if call.name != name:
            return f"called {call.name[:60]}, not {name}"
        if not same(dict(call.arguments), arguments):
            return f"wrong arguments of {name}: {str(dict(call.arguments))[:120]}"
    return ""


def same(found: Any, wanted: Any) -> bool:
    """Returns whether two JSON values are equal, types included: 1 is neither true nor 1.0."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)
