"""Plays rollouts on an event loop as the scheduler says, and records what becomes of them in the ledger."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from arcforge_core.contracts.environment import Failure, Outcome
from arcforge_core.episodes.rewards import TOTAL
from arcforge_core.episodes.rollout import UNSCORED, FailedTask, Rollout, judge, take_task
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.orchestrator.group import GroupKey, Member, MemberState, RolloutGroup
from arcforge_rl.orchestrator.heartbeats import ENGINE, Watch
from arcforge_rl.orchestrator.ledger import Ledger, RecordedGroup, RecordedRollout
from arcforge_rl.orchestrator.record import can_be_scored, pack, pack_outcome, unpack, unpack_outcome
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.scheduler import REMOVED, SURPLUS, Again, Batch, Cancel, Dropped, Scheduler, Start
from arcforge_rl.orchestrator.services.desk import Service, Services
from arcforge_rl.rollouts.collect import TracedRollout, left_out, traced
from arcforge_rl.rollouts.player import Player
from arcforge_rl.rollouts.sampler import seed_of

EQUAL = ("all_right", "all_wrong", "all_equal", "nothing_sampled")
"""Reasons of dropped groups that lie in the tasks."""


@dataclass
class Taken:
    """A batch with what happened since the one before.

    Attributes:
        step: of the training.
        kept: rollouts to train on, group by group.
        dropped: groups that were left out, and rollouts left out of a group.
        counts: of the scheduler, since the batch before.
        staleness, put_staleness: of the rollouts when taken, and when their groups were complete.
        seconds: durations of the rollouts that ended.
        fresh: tokens to train on that were sampled since the run was begun or resumed.
    """

    step: int
    kept: list[list[TracedRollout]] = field(default_factory=list)
    dropped: list[list[TracedRollout]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    staleness: Sequence[int] = ()
    put_staleness: Sequence[int] = ()
    seconds: Sequence[float] = ()
    fresh: int = 0


class Collector:
    """See the module. All methods are called on one event loop.

    Args:
        rules: of the scheduler.
        services: have the tasks and score.
        player: plays.
        seed: of the run; rollouts have the names and seeds that the synchronous loop gives them.
        drop_equal: groups that are equal in all rewards of these names are left out.
        ledger: records every change.
        patience: the run ends with an error when this many groups in a row were left out as equal, or when more
            attempts failed in a row than they have; 0: never. Before the first success those of one step are enough.
    """

    def __init__(
        self,
        rules: Rules,
        services: Services,
        player: Player,
        seed: int,
        drop_equal: Sequence[str],
        ledger: Ledger,
        patience: int = 0,
    ) -> None:
        self.rules, self.services, self.player, self.seed = rules, services, player, seed
        self.drop_equal, self.ledger, self.patience = drop_equal, ledger, patience
        self.scheduler: Scheduler[TracedRollout] = Scheduler(rules, self._at_put, desk=services)
        self._tasks: dict[GroupKey, int] = {}
        self._playing: dict[tuple[GroupKey, int], asyncio.Task[None]] = {}
        self._played: dict[tuple[GroupKey, int], TracedRollout] = {}
        self._learnt: set[GroupKey] = set()
        self._dropped: dict[GroupKey, list[TracedRollout]] = {}
        self._seconds: list[float] = []
        self._sampled: set[tuple[GroupKey, int]] = set()
        self._counted: Counter[str] = Counter()
        self._left_out = self._failed = 0
        self._worked = False  # whether a rollout has succeeded
        self._first_failure: Failure | None = None
        self.watch: Watch | None = None
        self.paused = self._engine_gone = False
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    # ---- the trainer's side ------------------------------------------------------------------------------------------

    async def begin(self, step: int, version: int | None = None) -> None:
        """Begins or resumes after `step` updates, and starts the first rollouts.

        Args:
            step: updates so far.
            version: those after which the engine got its weights; None: `step`.

        Raises:
            ArcforgeError: see `Ledger.rewind`.
            ConfigError: a task service is not there.
        """
        self.ledger.rewind(step)
        await self.services.open()
        for name, service in self.services.by_name.items():
            self._recall(name, service)
        self.services.restore(self.ledger.owed())
        groups = []
        for recorded in self.ledger.open_groups():
            if recorded.service not in self.services.by_name:
                self._remove(recorded)
                continue
            self._tasks[recorded.key] = recorded.task
            self.services.of[recorded.key] = self.services.by_name[recorded.service]
            members = [await self._member(recorded, one) for one in recorded.rollouts]
            groups.append(RolloutGroup(recorded.key, members, recorded.refill))
        left_out = self.ledger.unreported()
        for recorded in left_out:
            if recorded.service in self.services.by_name:
                self._dropped[recorded.key] = self._rollouts(recorded)
        self.scheduler.pushed(step if version is None else version)
        holes, slots = self._refills(left_out, groups)
        self.scheduler.restore(self.ledger.batches(), step, self.ledger.indices(), groups, holes, slots)
        self._follow()

    def _refills(
        self, left_out: Sequence[RecordedGroup], groups: Sequence[RolloutGroup[TracedRollout]]
    ) -> tuple[int, list[int]]:
        """Returns how many groups the next batch lacks, and which `refill` those have that are still to be replaced."""
        judged = [group for group in left_out if group.dropped in EQUAL]
        used_up = [group for group in judged if self.rules.refills is not None and group.refill >= self.rules.refills]
        replaced = Counter(
            group.refill + (group in judged)
            for group in left_out
            if group not in used_up and group.dropped not in (SURPLUS, REMOVED)
        )
        there = Counter(refill for refill in [*(g.refill for g in left_out), *(g.refill for g in groups)] if refill)
        return len(used_up), sorted((replaced - there).elements())

    def _recall(self, name: str, service: Service) -> None:
        """Gives a service the progress that the ledger has, unless synchronous steps have gone beyond it."""
        settled = self.ledger.settled(name)
        for group in settled:
            service.learn(group.rate, group.taught)
        self._learnt |= {group.key for group in settled}
        position = self.ledger.next_task(name)
        if position is not None and position >= service.curriculum.position:
            service.curriculum.state = {"next": position, "rates": {group.task: group.rate for group in settled}}

    async def take(self, step: int) -> Taken:
        """Returns the batch of a step: as it was recorded, or as soon as there is one.

        Raises:
            ArcforgeError: nothing can be learnt, or the ledger cannot be written.
        """
        if step < self.scheduler.taken:
            return self._recorded(step)
        while True:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            batch = self.scheduler.take()
            if batch is not None:
                break
            self._follow()
            await self._changed.wait()
        taken = self._taken(batch)
        members = {key: [(kept.number, kept.copies) for kept in group] for key, group in batch.groups.items()}
        self.ledger.batch(batch.step, members, taken.counts, taken.put_staleness)
        self._follow()
        return taken

    def finished_step(self, version: int | None) -> None:
        """The update on the last batch is done; the engine has the weights after `version` updates, if it got some."""
        self.ledger.trained(self.scheduler.trained)
        self.scheduler.finished_step()
        if version is not None:
            self.scheduler.pushed(version)
        self._follow()

    async def pause(self) -> None:
        """Starts no further rollout; those that run continue."""
        self.paused = True

    async def resume(self) -> None:
        """Continues after `pause`."""
        self.paused = False
        self._wake()

    async def drain(self) -> None:
        """Pauses, and waits until nothing runs."""
        await self.pause()
        await asyncio.gather(*self._playing.values(), return_exceptions=True)

    def change(self, name: str, alive: bool) -> None:
        """The engine or a service is back, or has died: its rollouts are cancelled and start again when it is back."""
        if name == ENGINE:
            self._engine_gone = not alive
        of = (lambda key: True) if name == ENGINE else self.services.change(name, alive)
        if not alive:
            self.scheduler.reissue(of)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Ends the run with an error, in the trainer's thread."""
        self._error = self._error or error
        self._changed.set()

    def adapt(self, limit: int, cancel: int) -> None:
        """Lets this number of rollouts run, and starts the `cancel` youngest ones again later."""
        self.scheduler.limit = self.services.limit = limit
        self.scheduler.make_room(cancel)
        self._wake()

    async def stop(self, reason: str = "the run has ended") -> None:
        """Cancels everything that runs, for a reason that the ledger gets, and ends the services."""
        if self._timer is not None:
            self._timer.cancel()
        playing = list(self._playing.values())
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        self.ledger.halt(reason)
        self._error = self._error or ArcforgeError(reason)
        self._changed.set()
        await self.services.close()

    # ---- one rollout -------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Does what the scheduler says."""
        for outcome in self.scheduler.outcomes():
            if isinstance(outcome, Cancel):
                self._playing[outcome.key, outcome.number].cancel()
            elif isinstance(outcome, Again):
                self.ledger.again(outcome.key, outcome.number, outcome.failed)
                self._played.pop((outcome.key, outcome.number), None)
            else:
                self._drop(outcome)
        for start in () if self.paused or self._engine_gone else self.scheduler.starts():
            if start.key not in self._tasks:
                self._choose(start.key, self.services.of[start.key])
            self.ledger.start(start.key, start.number)
            playing = asyncio.get_running_loop().create_task(self._run(start, self.scheduler.version))
            self._playing[start.key, start.number] = playing
            playing.add_done_callback(partial(self._left, (start.key, start.number)))
        self._wake_later()

    def _choose(self, key: GroupKey, service: Service) -> None:
        """Chooses the task of a group, and records the group."""
        (self._tasks[key],) = service.curriculum.take(1)
        refill = self.scheduler.active[key].refill
        position, owed = service.curriculum.position, self.services.turns.owed
        self.ledger.admit(key, self.rules.group_size, self._tasks[key], position, service.name, owed, refill)

    def _wake_later(self) -> None:
        """Sets the timer for rollouts of services that start too fast."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (wait := self.services.wait) is not None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._wake)

    def _wake(self) -> None:
        try:
            self._follow()
        except Exception as error:  # raised by `take` in the trainer's thread
            self._error = error
        self._changed.set()

    async def _run(self, start: Start, version: int) -> None:
        place = start.key, start.number
        try:
            rollout = await self._play(start, version)
            served = await self._served(start.key, rollout)
            self._left(place, asyncio.current_task())
            if served:
                self._end(start, rollout, version)
            else:
                self.scheduler.unserved(start.key, start.number, start.attempt)
            self._follow()
        except Exception as error:  # raised by `take` in the trainer's thread
            self._error = error
        finally:
            self._changed.set()

    def _left(self, place: tuple[GroupKey, int], task: asyncio.Task[None] | None) -> None:
        """Forgets a rollout's task, also one that was cancelled before it began; another may have its place."""
        if self._playing.get(place) is task:
            del self._playing[place]

    async def _served(self, key: GroupKey, rollout: TracedRollout) -> bool:
        """Returns whether a rollout had the processes that it needed; one that failed may have lost them."""
        failure = rollout.outcome.failure
        if failure is None or self.watch is None or failure.kind not in ("engine", "worker"):
            return True
        return await self.watch.answers(ENGINE if failure.kind == "engine" else self.services.of[key].title)

    async def _play(self, start: Start, version: int) -> TracedRollout:
        key, place = start.key, start.number
        seed, number = seed_of(self.seed, key.step), self._number(key, place)
        begun, service = time.monotonic(), self.services.of[key]
        task = take_task(service.environment, self._tasks[key])
        try:
            async with asyncio.timeout(service.config.seconds):
                played = await self.player.play(service.environment, number, task, f"{seed}/{number}")
        except TimeoutError:
            failure = Failure("worker", f"{service.title} did not end a rollout within {service.config.seconds:g} s")
            lost = FailedTask(task.key, task.prompt, task.answer, failure)
            played = await self.player.play(service.environment, number, lost, f"{seed}/{number}")
        seconds = time.monotonic() - begun
        rollout = traced(played, seed, self.rules.group_size)
        failed = None if played.outcome.failure is None else pack_outcome(played.outcome)
        self.ledger.finish(key, place, pack(played), oldest_of(rollout, version), seconds, failed)
        if failed is None:
            judged = await self._judged(service, played)
            rollout = traced(judged, seed, self.rules.group_size)
            self.ledger.score(key, place, pack_outcome(judged.outcome))
        self._seconds.append(seconds)
        self._sampled.add((key, place))
        return rollout

    async def _judged(self, service: Service, played: Rollout) -> Rollout:
        try:
            async with asyncio.timeout(service.config.seconds):
                return await judge(service.environment, played)
        except TimeoutError:
            reason = f"{service.title} gave no verdict within {service.config.seconds:g} s"
            return replace(played, outcome=Outcome.failed(Failure("worker", reason)))

    def _end(self, start: Start, rollout: TracedRollout, version: int) -> None:
        """Reports the end of a rollout to the scheduler."""
        place, failure = (start.key, start.number, start.attempt), rollout.outcome.failure
        self._played[start.key, start.number] = rollout
        if failure is None:
            self._failed, self._worked = 0, True
            self.scheduler.ended(*place, rollout, oldest_of(rollout, version))
            return
        if (service := self.services.of.get(start.key)) is not None:
            service.counts.update(("failed", f"failed_{failure.kind}"))
        self._failed += 1
        if self._failed == 1:
            self._first_failure = failure
        self.scheduler.failed(*place, failure.kind)
        groups = self.patience if self._worked else self.rules.threshold
        if 0 < (1 + self.rules.retries) * groups * self.rules.group_size < self._failed:
            first = self._first_failure
            assert first is not None
            raise ArcforgeError(f"all {self._failed} rollouts failed; the first: {first.kind}: {first.reason}")

    def _at_put(self, key: GroupKey, results: Sequence[TracedRollout]) -> str | None:
        rate = sum(rollout.outcome.reward for rollout in results) / len(results)
        reason, service = left_out(results, self.drop_equal), self.services.of[key]
        taught = left_out(results, self.drop_equal or (TOTAL,)) is None
        service.curriculum.learn(self._tasks[key], rate)
        if key not in self._learnt:  # a group settles again when one of its rollouts was too old, or at a restart
            service.learn(rate, taught)
            self._learnt.add(key)
        self.ledger.settle(key, rate, taught)
        return reason

    def _drop(self, dropped: Dropped) -> None:
        self.ledger.drop(dropped.key, dropped.reasons, dropped.group)
        if dropped.group is None:
            return
        places = range(self.rules.group_size)
        rollouts = [self._played.pop((dropped.key, place), None) for place in places]
        self._dropped[dropped.key] = [rollout for rollout in rollouts if rollout is not None]
        self._sampled -= {(dropped.key, place) for place in places}
        self._tasks.pop(dropped.key, None)
        self.services.of.pop(dropped.key, None)
        self._left_out += dropped.group in EQUAL
        if 0 < self.patience <= self._left_out:
            raise ArcforgeError(
                f"{self._left_out} groups one after the other had nothing to learn from (monitor.idle_steps), the last "
                f"one: {dropped.group}. Check the task's difficulty, the rewards and rollout.drop_equal"
            )

    def _number(self, key: GroupKey, place: int) -> int:
        return key.number * self.rules.group_size + place

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _taken(self, batch: Batch[TracedRollout]) -> Taken:
        taken = Taken(batch.step, staleness=batch.staleness, put_staleness=batch.put_staleness)
        dropped = dict(self._dropped)
        for key, group in batch.groups.items():
            kept = [with_copies(one.result, one.copies) for one in group if one.result.trace.num_sampled]
            taken.kept.append(kept)
            taken.fresh += sum(one.result.trace.num_sampled for one in group if (key, one.number) in self._sampled)
            for one in group:
                self._played.pop((key, one.number))
            self._sampled -= {(key, place) for place in range(self.rules.group_size)}
            rest = [self._played.pop((key, place), None) for place in range(self.rules.group_size)]
            if lost := [rollout for rollout in rest if rollout is not None]:
                dropped[key] = lost
            del self._tasks[key], self.services.of[key]
        taken.dropped = [dropped[key] for key in sorted(dropped) if dropped[key]]
        counts = self.scheduler.counts + self.services.thrown_away()
        if self.watch is not None:
            counts += self.watch.heartbeats.deaths()
        taken.counts = counts - self._counted
        taken.seconds = self._seconds
        self._dropped, self._seconds, self._left_out = {}, [], 0
        self._counted = counts
        return taken

    def _recorded(self, step: int) -> Taken:
        """Returns a batch that was taken before the trainer was restarted."""
        groups, reported = self.ledger.of_batch(step)
        counts, put_staleness = self.ledger.counted(step)
        taken = Taken(step, counts=Counter(counts), put_staleness=put_staleness)
        taken.seconds = [one.seconds for group in groups for one in group.rollouts if one.seconds is not None]
        dropped = {group.key: self._rollouts(group) for group in reported if group.service in self.services.by_name}
        staleness = []
        for group in groups:
            rollouts = {one.place: self._rollout(group, one) for one in group.rollouts if one.outcome is not None}
            kept = [one for one in group.rollouts if one.copies is not None]
            staleness += [max(0, step - one.oldest) for one in kept]
            found = [with_copies(rollouts.pop(one.place), one.copies or 1) for one in kept]
            taken.kept.append([rollout for rollout in found if rollout.trace.num_sampled])
            if rollouts:
                dropped[group.key] = list(rollouts.values())
        taken.dropped = [dropped[key] for key in sorted(dropped) if dropped[key]]
        taken.staleness = staleness
        return taken

    # ---- what the ledger has -----------------------------------------------------------------------------------------

    async def _member(self, group: RecordedGroup, one: RecordedRollout) -> Member[TracedRollout]:
        """Returns a rollout of an open group: played ones are not played again."""
        member: Member[TracedRollout] = Member(one.place, failures=one.failures, oldest=one.oldest)
        if one.state == "dropped":
            member.state, member.kind = MemberState.FAILED, one.reason or ""
            return member
        if one.payload is None or (one.outcome is None and not can_be_scored(one.payload)):
            return member
        recorded = self._unpacked(group, one)
        if one.outcome is None:
            recorded = await self._judged(self.services.by_name[group.service], recorded)
            self.ledger.score(group.key, one.place, pack_outcome(recorded.outcome))
        rollout = traced(recorded, *self._names(group.key))
        if rollout.outcome.failure is None:
            member.state, member.result = MemberState.DONE, rollout
            self._played[group.key, one.place] = rollout
        return member

    def _remove(self, group: RecordedGroup) -> None:
        """Drops an open group whose service is no longer configured."""
        reasons = {one.place: REMOVED for one in group.rollouts if one.state != "dropped"}
        self.ledger.drop(group.key, reasons, REMOVED)

    def _rollouts(self, group: RecordedGroup) -> list[TracedRollout]:
        return [self._rollout(group, one) for one in group.rollouts if one.outcome is not None]

    def _rollout(self, group: RecordedGroup, one: RecordedRollout) -> TracedRollout:
        return traced(self._unpacked(group, one), *self._names(group.key))

    def _unpacked(self, group: RecordedGroup, one: RecordedRollout) -> Rollout:
        assert one.payload is not None
        outcome = UNSCORED if one.outcome is None else unpack_outcome(one.outcome)
        service = self.services.by_name.get(group.service)
        if service is None:
            accepted = f"has rollouts that were batched before the run was resumed: keep {group.service!r} configured"
            raise ConfigError("collection.services", sorted(self.services.by_name), accepted)
        task = take_task(service.environment, group.task)
        if isinstance(task, FailedTask):
            raise ArcforgeError(f"task {group.task} of a recorded rollout: {task.failure.kind}: {task.failure.reason}")
        return unpack(one.payload, task, outcome)

    def _names(self, key: GroupKey) -> tuple[str, int]:
        return seed_of(self.seed, key.step), self.rules.group_size


def oldest_of(rollout: TracedRollout, version: int) -> int:
    """Returns the oldest weight version of a rollout's tokens; without tokens the version at its start."""
    oldest = rollout.trace.oldest_version
    return version if oldest < 0 else oldest


def with_copies(rollout: TracedRollout, copies: int) -> TracedRollout:
    """Returns a rollout whose trace counts several times."""
    return rollout if copies == 1 else replace(rollout, trace=replace(rollout.trace, copies=copies))
