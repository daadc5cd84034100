"""A world of tau2: database and phone of one conversation, the calls on them, and the verdict of their state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from arcforge_core.contracts.chat import Tool
from arcforge_rl.dialogue.airline import Airline
from arcforge_rl.dialogue.benchmark import ASSISTANT, USER, Act, Case, Domain
from arcforge_rl.dialogue.offered import flaw
from arcforge_rl.dialogue.phone import Phone
from arcforge_rl.dialogue.records import Record, Records, ToolRefusal
from arcforge_rl.dialogue.retail import Retail
from arcforge_rl.dialogue.screen import Screen
from arcforge_rl.dialogue.telecom import Telecom
from arcforge_rl.problems.toolbox import calculator

TRANSFER, CALCULATE = "transfer_to_human_agents", "calculate"
LONGEST_FORMULA = 500
LONGEST_SAID = 2_000
"""Characters of a message in which a text counts as told."""
MOST_GUESSES = 12
"""Numbers that an agent may say without having them from a tool or the customer; more are a list of guesses."""
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
SETS = {"retail": Retail, "airline": Airline}


@dataclass(frozen=True)
class EndState:
    """Whether a conversation has done what it should.

    Attributes:
        state: whether the end state is right.
        told: whether the customer was told everything.
        reason: the first thing that is missing.
    """

    state: bool
    told: bool
    reason: str

    @property
    def right(self) -> bool:
        """Whether both hold."""
        return self.state and self.told


class World:
    """One conversation's state.

    Args:
        domain: with the database, which is not changed.
        case: of the conversation; its setup is done.

    Attributes:
        done: calls that succeeded, in order.
        heard: texts that the agent had from tools.
    """

    def __init__(self, domain: Domain, case: Case) -> None:
        self.domain, self.case = domain, case
        self.records = Records(domain.tables)
        self.done: list[Act] = []
        self.heard: list[str] = []
        self._offered: dict[tuple[str, str], Tool] = {(ASSISTANT, tool.name): tool for tool in domain.tools}
        self._offered |= {(USER, tool.name): tool for tool in domain.user_tools}
        self._sets: dict[str, Any] = {}
        self.phone: Phone | None = None
        if domain.name == "telecom":
            company = Telecom(self.records)
            self.phone = Phone(dict(domain.phone), company)
            self._sets = {ASSISTANT: company, USER: Screen(self.phone)}
            self._sync()
            for act in case.setup:
                getattr(self.phone if act.who == USER else company, act.name)(**act.arguments)
                self._sync()
        else:
            self._sets = {ASSISTANT: SETS[domain.name](self.records)}

    def use(self, who: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Calls a tool; the result of one that does nothing begins with ``Error``."""
        tool = self._offered.get((who, name))
        wrong = f"there is no tool {name[:80]!r}" if tool is None else flaw(tool, arguments)
        if wrong:
            return f"Error: {wrong}"
        try:
            result = self._called(who, name, dict(arguments))
        except ToolRefusal as error:
            return f"Error: {error}"
        self._sync()
        self.done.append(Act(who, name, dict(arguments)))
        if who == ASSISTANT:
            self.heard.append(result)
        return result

    def replay(self, acts: Sequence[Act]) -> list[str]:
        """Makes calls; returns the errors of those that failed."""
        results = [(act, self.use(act.who, act.name, act.arguments)) for act in acts]
        return [f"{act.name}: {result}" for act, result in results if result.startswith("Error")]

    def changes(self) -> dict[str, dict[str, Record]]:
        """Returns the records that differ from the database."""
        return self.records.changes()

    def verdict(self, wanted: Mapping[str, Any], said: Sequence[str], heard: Sequence[str] = ()) -> EndState:
        """Judges the state and what the agent said.

        Args:
            wanted: the changes that the gold calls make; only telecom asserts something else.
            said: the agent's messages.
            heard: the customer's.
        """
        failed = self._failed() if self.domain.name == "telecom" else self._differs(wanted)
        missing = untold(self.case.told, said, [*self.heard, *heard])
        reasons = [*([failed] if failed else []), *([missing] if missing else [])]
        return EndState(not failed, not missing, "; ".join(reasons) or "the state is right and everything was told")

    def _called(self, who: str, name: str, arguments: dict[str, Any]) -> str:
        if name == TRANSFER:
            return "Transfer successful"
        if name == CALCULATE:
            return _calculated(arguments["expression"])
        return str(getattr(self._sets[who], name)(**arguments))

    def _sync(self) -> None:
        if self.phone is not None:
            self.phone.sync()

    def _differs(self, wanted: Mapping[str, Any]) -> str:
        found = self.changes()
        for table in {*found, *wanted}:
            ours, theirs = found.get(table, {}), wanted.get(table, {})
            for key in sorted({*ours, *theirs}):
                if ours.get(key) != theirs.get(key):
                    what = "must not change" if key not in theirs else "is not as it should be"
                    return f"{table[:-1]} {key} {what}"
        return ""

    def _failed(self) -> str:
        assert self.phone is not None
        for assertion in self.case.assertions:
            act = assertion.act
            place = self.phone if act.who == USER else self._sets[ASSISTANT]
            if getattr(place, act.name)(**act.arguments) != assertion.value:
                return f"{act.name}({', '.join(map(str, act.arguments.values()))}) does not hold"
        for act in self.case.gold if self.case.acts else ():
            if not any(_same(act, one) for one in self.done):
                return f"{act.name} was not called"
        return ""


def _same(wanted: Act, made: Act) -> bool:
    names = wanted.arguments if wanted.compared is None else wanted.compared
    who = (made.who, made.name) == (wanted.who, wanted.name)
    return who and all(made.arguments.get(name) == wanted.arguments.get(name) for name in names)


def _calculated(expression: str) -> str:
    if len(expression) > LONGEST_FORMULA or not re.fullmatch(r"[0-9+\-*/(). ]+", expression) or "**" in expression:
        raise ToolRefusal(f"only up to {LONGEST_FORMULA} characters of numbers, + - * / and brackets are understood")
    try:
        return str(round(float(calculator(expression.strip())), 2))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ToolRefusal(f"{expression[:80]!r} cannot be computed: {type(error).__name__}") from error


def untold(wanted: Sequence[str], said: Sequence[str], sources: Sequence[str]) -> str:
    """Returns why a customer does not know all that was to be told, or an empty text.

    A number must be said as a number, with any digits after the point that do not change it, other texts as whole
    words; in a message that can be read, and not among guesses.
    """
    if not wanted:
        return ""
    shorter = [text.replace(",", "") for text in said if len(text) <= LONGEST_SAID]
    spoken = {number for text in shorter for number in _numbers(text)}
    words = [" ".join(text.casefold().split()) for text in shorter]
    for one in wanted:
        plain = one.replace(",", "").strip()
        if NUMBER.fullmatch(plain):
            known = Decimal(plain) in spoken
        else:
            phrase = re.compile(rf"(?<!\w){re.escape(' '.join(plain.casefold().split()))}(?!\w)")
            known = any(phrase.search(text) for text in words)
        if not known:
            return f"the customer was not told {one!r}"
    given = {number for text in sources for number in _numbers(text.replace(",", ""))}
    everything = {number for text in said for number in _numbers(text.replace(",", ""))}
    if len(everything - given) > MOST_GUESSES:
        return f"{len(everything - given)} numbers were said that neither a tool nor the customer gave"
    return ""


def _numbers(text: str) -> set[Decimal]:
    return {Decimal(found) for found in NUMBER.findall(text)}
