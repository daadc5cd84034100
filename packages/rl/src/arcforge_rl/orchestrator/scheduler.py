"""Decides which rollouts start, which are cancelled and which make a batch. No clock, no threads, no files.

Callers report events (`ended`, `failed`, `trained`, `pushed`), ask `starts` for rollouts to start and `take` for a
batch, and collect what follows from an event with `outcomes`. The real loop and the simulation run this same code.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from arcforge_rl.orchestrator.group import GroupKey, Kept, Member, MemberState, P, RolloutGroup
from arcforge_rl.orchestrator.rules import Rules

Filter = Callable[[GroupKey, Sequence[P]], str | None]
"""Returns why a group is not trained on, or None."""
SURPLUS, STALE, GROUP, REMOVED = "surplus", "stale", "group", "removed"
"""Reasons: aborted when over-sampling; beyond the bound on staleness; too few valid rollouts in the group; its task
service was removed from the configuration."""


class Desk(Protocol):
    """Says what a group is made of, and which groups may start rollouts now."""

    def admit(self, key: GroupKey) -> bool:
        """Chooses what a further group is made of, among what `may_start`; False if there is nothing."""

    def may_start(self, key: GroupKey) -> bool:
        """Whether one more rollout of the group may run."""

    def runs(self, key: GroupKey, change: int) -> None:
        """A rollout of the group starts (+1) or has ended (-1)."""


class OpenDesk:
    """Admits everything."""

    def admit(self, key: GroupKey) -> bool:
        """Yes."""
        return True

    def may_start(self, key: GroupKey) -> bool:
        """Yes."""
        return True

    def runs(self, key: GroupKey, change: int) -> None:
        """Counts nothing."""


@dataclass(frozen=True)
class Start:
    """A rollout to start: its group, its place in it, and the number of this attempt, from 1."""

    key: GroupKey
    number: int
    attempt: int


@dataclass(frozen=True)
class Cancel:
    """A running rollout whose result will be ignored."""

    key: GroupKey
    number: int
    attempt: int


@dataclass(frozen=True)
class Again:
    """A rollout that waits to be started again; its last result does not count. It `failed`, or made room."""

    key: GroupKey
    number: int
    failed: bool = True


@dataclass(frozen=True)
class Dropped:
    """Rollouts that will never be trained on.

    Attributes:
        key: their group.
        reasons: why, by their places in it.
        group: why the whole group is left out; None if its other rollouts continue.
    """

    key: GroupKey
    reasons: Mapping[int, str]
    group: str | None = None


@dataclass(frozen=True)
class Batch(Generic[P]):
    """The groups of a step, in the order of their keys.

    Attributes:
        step: of the training, from 0: the weights before the update have had as many.
        groups: the rollouts to train on by group.
        put_staleness: of all rollouts whose groups became ready since the batch before.
    """

    step: int
    groups: Mapping[GroupKey, Sequence[Kept[P]]]
    put_staleness: Sequence[int] = ()

    @property
    def staleness(self) -> list[int]:
        """Steps between each rollout's oldest token and this update."""
        return [max(0, self.step - kept.oldest) for group in self.groups.values() for kept in group]


class Scheduler(Generic[P]):
    """See the module.

    Args:
        rules: the bounds.
        at_put: judges a group whose rollouts have ended; a group with a reason is dropped and another one admitted.
        at_take: judges a group again before it joins a batch.
        desk: decides what groups are made of, and limits what runs besides `limit`.

    Attributes:
        limit: rollouts that run at a time; `Rules.concurrency` unless changed.
        taken: batches taken; the number of the next one.
        trained: of those, the ones whose update is done.
        version: the engine's weights, as a number of steps.
        counts: failures (``failed_<kind>``), restarts (``retried``), groups left out (``dropped_<reason>``), rollouts
            beyond the bound that were trained on nevertheless (``kept_stale``), rollouts put back to make room
            (``yielded``) or because their process is gone (``reissued``).
    """

    def __init__(
        self,
        rules: Rules,
        at_put: Filter[P] | None = None,
        at_take: Filter[P] | None = None,
        desk: Desk | None = None,
    ) -> None:
        self.rules, self.at_put, self.at_take, self.desk = rules, at_put, at_take, desk or OpenDesk()
        self.limit = rules.concurrency
        self.taken = self.trained = self.version = 0
        self.counts: Counter[str] = Counter()
        self._put_staleness: list[int] = []
        self.active: dict[GroupKey, RolloutGroup[P]] = {}
        self.ready: dict[GroupKey, RolloutGroup[P]] = {}
        self._waiting: deque[tuple[GroupKey, int]] = deque()
        self._running: dict[tuple[GroupKey, int], None] = {}  # in the order of their starts
        self._indices: Counter[int] = Counter()
        self._holes = 0  # groups that the next batch lacks, because their replacements taught nothing
        self._slots: deque[int] = deque()  # `refill` of the groups that replace dropped ones
        self._outcomes: list[Cancel | Again | Dropped] = []

    # ---- what to do --------------------------------------------------------------------------------------------------

    def starts(self) -> list[Start]:
        """Returns the rollouts to start now."""
        found: list[Start] = []
        if self._too_old(self.version):  # a rollout started now would be cancelled immediately
            return found
        if self.rules.whole_batches and not self.active:
            for _ in range(self.rules.threshold):
                self._admit()
        while len(self._running) < self.limit:
            place = self._next_waiting()
            if place is None:
                if self.rules.whole_batches or not self._admit():
                    break
                continue
            key, number = place
            member = self.active[key].members[number]
            member.state, member.oldest, member.attempt = MemberState.RUNNING, self.version, member.attempt + 1
            self._running[place] = None
            self.desk.runs(key, 1)
            found.append(Start(key, number, member.attempt))
        return found

    def make_room(self, count: int) -> None:
        """Cancels the rollouts that started last; they wait to be started again, which counts as no failure."""
        for key, number in list(reversed(self._running))[:count]:
            self._put_back(key, number, "yielded")

    def reissue(self, of: Callable[[GroupKey], bool]) -> None:
        """Cancels the running rollouts of some groups, whose process is gone; as `make_room`."""
        for key, number in [place for place in self._running if of(place[0])]:
            self._put_back(key, number, "reissued")

    def take(self) -> Batch[P] | None:
        """Returns a batch if enough groups are ready: those with the oldest tokens first."""
        self._leave_out_at_take()
        wanted = max(0, self.rules.threshold - self._holes)
        if len(self.ready) < wanted:
            return None
        urgent = sorted(self.ready.values(), key=lambda group: (group.oldest, group.key))[:wanted]
        groups = {group.key: group.repaired() for group in sorted(urgent, key=lambda group: group.key)}
        for key in groups:
            del self.ready[key]
        batch, self._put_staleness = Batch(self.taken, groups, self._put_staleness), []
        self.counts["kept_stale"] += sum(staleness > self.rules.max_staleness for staleness in batch.staleness)
        self.taken += 1
        self._holes = 0
        if self.rules.oversample > 1.0:
            for group in [*self.active.values(), *self.ready.values()]:
                self._drop(group, SURPLUS)
        self._sweep()
        return batch

    def outcomes(self) -> list[Cancel | Again | Dropped]:
        """Returns what followed from the events since the last call."""
        found, self._outcomes = self._outcomes, []
        return found

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not self._running

    @property
    def running(self) -> int:
        """Rollouts that run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Rollouts of admitted groups that wait for their start."""
        return len(self._waiting)

    # ---- what happened -----------------------------------------------------------------------------------------------

    def ended(self, key: GroupKey, number: int, attempt: int, result: P, oldest: int) -> bool:
        """A rollout ended with a valid result; returns False if it is not the attempt that runs.

        Args:
            key, number, attempt: as in its `Start`.
            result: given back in the batch.
            oldest: oldest weight version of its tokens.
        """
        member = self._runs(key, number, attempt)
        if member is None:
            return False
        self._halt(key, number)
        member.state, member.result, member.oldest = MemberState.DONE, result, oldest
        group = self.active[key]
        if self._too_old(oldest):
            self._expire(group, member)
        self._settle(group)
        return True

    def failed(self, key: GroupKey, number: int, attempt: int, kind: str, final: bool = False) -> bool:
        """A rollout failed; it is started again up to `Rules.retries` times, unless it is `final`."""
        member = self._runs(key, number, attempt)
        if member is None:
            return False
        self._halt(key, number)
        self.counts[f"failed_{kind}"] += 1
        self._lose(self.active[key], member, kind, again=not final)
        self._settle(self.active[key])
        return True

    def unserved(self, key: GroupKey, number: int, attempt: int) -> bool:
        """A rollout failed because a process is gone; it waits to be started again, which counts as no failure."""
        if self._runs(key, number, attempt) is None:
            return False
        self._put_back(key, number, "reissued", ended=True)
        return True

    def pushed(self, version: int) -> None:
        """The engine has the weights after `version` steps."""
        self.version = version

    def finished_step(self) -> None:
        """The update on the last batch is done."""
        self.trained += 1
        for step in [step for step in self._indices if step < self.trained]:
            del self._indices[step]

    # ---- restart -----------------------------------------------------------------------------------------------------

    def restore(
        self,
        taken: int,
        trained: int,
        indices: Mapping[int, int],
        groups: Iterable[RolloutGroup[P]],
        holes: int = 0,
        slots: Iterable[int] = (),
    ) -> None:
        """Continues where a recorded scheduler ended. Rollouts that ran then are waiting.

        Args:
            taken, trained: see the attributes.
            indices: number of groups admitted for each step that is not trained yet.
            groups: neither dropped nor in a batch.
            holes: groups that the next batch lacks because `Rules.refills` were used up.
            slots: `RolloutGroup.refill` of groups that are to replace dropped ones.
        """
        self._holes, self._slots = holes, deque(slots)
        self.taken, self.trained, self._indices = taken, trained, Counter(indices)
        for group in groups:
            self.active[group.key] = group
            self._waiting += [(group.key, m.number) for m in group.members if m.state is MemberState.WAITING]
        for group in list(self.active.values()):
            self._settle(group)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _admit(self) -> bool:
        """Admits a group if there is room; its key names the step that the groups before it leave it for."""
        admitted = self.taken * self.rules.threshold + len(self.active) + len(self.ready) + self._holes
        if admitted >= self.rules.admitted(self.trained):
            return False
        step = admitted // self.rules.threshold
        key = GroupKey(step, self._indices[step])
        if not self.desk.admit(key):
            return False
        self._indices[step] += 1
        replaces = key.number >= self.rules.threshold and self._slots  # the first ones of a step are its own
        refill = self._slots.popleft() if replaces else 0
        self.active[key] = RolloutGroup(key, [Member(number) for number in range(self.rules.group_size)], refill)
        self._waiting += [(key, number) for number in range(self.rules.group_size)]
        return True

    def _next_waiting(self) -> tuple[GroupKey, int] | None:
        """Takes the first rollout that waits and may start."""
        for place in self._waiting:
            if self.desk.may_start(place[0]):
                self._waiting.remove(place)
                return place
        return None

    def _put_back(self, key: GroupKey, number: int, count: str, ended: bool = False) -> None:
        member = self.active[key].members[number]
        if not ended:
            self._outcomes.append(Cancel(key, number, member.attempt))
        self._halt(key, number)
        self.counts[count] += 1
        member.state = MemberState.WAITING
        self._waiting.append((key, number))
        self._outcomes.append(Again(key, number, failed=False))

    def _halt(self, key: GroupKey, number: int) -> None:
        del self._running[key, number]
        self.desk.runs(key, -1)

    def _runs(self, key: GroupKey, number: int, attempt: int) -> Member[P] | None:
        group = self.active.get(key)
        if group is None or not 0 <= number < len(group.members):
            return None
        member = group.members[number]
        return member if member.state is MemberState.RUNNING and member.attempt == attempt else None

    def _too_old(self, version: int) -> bool:
        """Whether not even the next batch would train such tokens in time."""
        return self.rules.stale != "keep" and self.taken - version > self.rules.max_staleness

    def _lose(self, group: RolloutGroup[P], member: Member[P], kind: str, again: bool) -> None:
        """Starts a rollout again, or gives it up; it neither runs nor waits."""
        member.failures, member.result = member.failures + 1, None
        if again and member.failures <= self.rules.retries:
            self.counts["retried"] += 1
            member.state = MemberState.WAITING
            self._waiting.appendleft((group.key, member.number))
            self._outcomes.append(Again(group.key, member.number))
            return
        member.state, member.kind = MemberState.FAILED, kind
        self._outcomes.append(Dropped(group.key, {member.number: kind}))

    def _expire(self, group: RolloutGroup[P], member: Member[P]) -> None:
        """Treats a rollout whose tokens are too old."""
        if member.state is MemberState.RUNNING:
            self._halt(group.key, member.number)
            self._outcomes.append(Cancel(group.key, member.number, member.attempt))
        self.counts[STALE] += 1
        self._lose(group, member, STALE, again=self.rules.stale == "retry")

    def _settle(self, group: RolloutGroup[P]) -> None:
        """Drops a group that cannot be repaired, and judges one whose rollouts have all ended."""
        if not group.repairable:
            self._drop(group, group.most_common_failure)
        elif group.settled:
            kept = group.repaired()
            reason = self.at_put(group.key, [one.result for one in kept]) if self.at_put else None
            if reason is not None:
                self._drop(group, reason, judged=True)
                return
            del self.active[group.key]
            self.ready[group.key] = group
            self._put_staleness += [max(0, self.taken - one.oldest) for one in kept]

    def _drop(self, group: RolloutGroup[P], reason: str, judged: bool = False) -> None:
        """Leaves a group out; its place is free for another one, unless it was `judged` and its refills are used up."""
        if judged and self.rules.refills is not None and group.refill >= self.rules.refills:
            self._holes += 1
        elif reason != SURPLUS:
            self._slots.append(group.refill + judged)
        self.counts[f"dropped_{reason}"] += 1
        for member in group.members:
            if member.state is MemberState.RUNNING:
                self._halt(group.key, member.number)
                self._outcomes.append(Cancel(group.key, member.number, member.attempt))
        self._waiting = deque(place for place in self._waiting if place[0] != group.key)
        because = reason if group.repairable else GROUP
        reasons = {m.number: because for m in group.members if m.state is not MemberState.FAILED}
        self._outcomes.append(Dropped(group.key, reasons, reason))
        self.active.pop(group.key, None)
        self.ready.pop(group.key, None)

    def _leave_out_at_take(self) -> None:
        if self.at_take is None:
            return
        for group in list(self.ready.values()):
            reason = self.at_take(group.key, [kept.result for kept in group.repaired()])
            if reason is not None:
                self._drop(group, reason, judged=True)

    def _sweep(self) -> None:
        """Expires what the next batch could not train in time: running rollouts, finished ones, ready groups."""
        for group in [*self.active.values(), *self.ready.values()]:
            old = [
                member
                for member in group.members
                if member.state in (MemberState.RUNNING, MemberState.DONE) and self._too_old(member.oldest)
            ]
            if not old:
                continue
            if self.ready.pop(group.key, None) is not None:
                self.active[group.key] = group
            for member in old:
                self._expire(group, member)
            self._settle(group)
