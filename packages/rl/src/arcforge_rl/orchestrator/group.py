"""A group of rollouts of one task: the state of its members, and its repair when some of them failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P")
"""The result of a finished rollout."""


class GroupKey(NamedTuple):
    """Names a group: the step that it was admitted for, and its number among the groups admitted for that step."""

    step: int
    number: int


class MemberState(Enum):
    """Where a rollout is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Member(Generic[P]):
    """One rollout of a group.

    Attributes:
        number: its place in the group.
        state: where it is.
        attempt: number of its starts; events of earlier attempts are ignored.
        failures: attempts that failed or became too old.
        oldest: the oldest weight version of its tokens; while it runs, that of its start.
        kind: why it failed.
        result: of a finished one.
    """

    number: int
    state: MemberState = MemberState.WAITING
    attempt: int = 0
    failures: int = 0
    oldest: int = 0
    kind: str = ""
    result: P | None = None


@dataclass(frozen=True)
class Kept(Generic[P]):
    """A rollout to train on.

    Attributes:
        number: its place in the group.
        result: of the rollout.
        oldest: oldest weight version of its tokens.
        copies: how often it counts, after the repair of its group.
    """

    number: int
    result: P
    oldest: int
    copies: int


@dataclass
class RolloutGroup(Generic[P]):
    """All rollouts of one task.

    Attributes:
        key: names it.
        members: by number.
        refill: groups that it and others replaced, one for the other, because they taught nothing.
    """

    key: GroupKey
    members: list[Member[P]] = field(default_factory=list)
    refill: int = 0

    def count(self, *states: MemberState) -> int:
        """Returns the number of members in these states."""
        return sum(member.state in states for member in self.members)

    @property
    def settled(self) -> bool:
        """Whether no member is running or waiting."""
        return not self.count(MemberState.WAITING, MemberState.RUNNING)

    @property
    def repairable(self) -> bool:
        """Whether more than half of the members are valid or can still become so."""
        return 2 * self.count(MemberState.FAILED) < len(self.members)

    @property
    def oldest(self) -> int:
        """The oldest version of the finished members."""
        return min(member.oldest for member in self.members if member.state is MemberState.DONE)

    @property
    def most_common_failure(self) -> str:
        """The kind of most failures."""
        return Counter(m.kind for m in self.members if m.state is MemberState.FAILED).most_common(1)[0][0]

    def repaired(self) -> list[Kept[P]]:
        """Returns the valid members, repeated in turn until they count as the whole group (GLM-5, 4.1)."""
        valid = [member for member in self.members if member.state is MemberState.DONE]
        copies = repeat(len(valid), len(self.members))
        return [
            Kept(member.number, member.result, member.oldest, count)  # type: ignore[arg-type]  # a done one has a result
            for member, count in zip(valid, copies, strict=True)
        ]


def repeat(valid: int, size: int) -> Sequence[int]:
    """Returns how often each of the valid members counts so that they are `size` together; the first ones more often.

    Raises:
        ValueError: at most half of the group is valid; such a group is dropped.
    """
    if 2 * valid <= size:
        raise ValueError(f"{valid} of {size} rollouts are valid: no more than half")
    return [size // valid + (number < size % valid) for number in range(valid)]
