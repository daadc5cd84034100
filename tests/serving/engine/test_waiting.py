"""Owners share the engine: random requests against the scheduler alone, without a model."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.engine import SamplingParams
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.scheduler import Scheduler
from arcforge_serving.engine.sequence import SequenceState

REQUESTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.integers(2, 12), st.integers(0, 4)), min_size=1, max_size=9
)
"""(owner, sequences, tokens, steps until the next one)."""


class Books:
    """A scheduler whose steps are computed by nobody."""

    def __init__(self, running, pages=2000, **options):
        config = PagedEngineConfig(page_size=2, max_running=running, max_batch_tokens=64, **options)
        self.scheduler, self.number, self.left = Scheduler(config, pages, 64, reuses=True), 0, 0

    def ask(self, owner, count, tokens, priority=0):
        for _ in range(count):
            self.number += 1
            prompt = [self.number % 997, self.number // 997, 5]  # no two begin alike: nobody waits for a shared page
            sequence = SequenceState(prompt, SamplingParams(max_new_tokens=tokens), 0, 1000, priority)
            sequence.owner, sequence.refusable = owner, True
            sequence.rank = self.scheduler.rank(owner, priority, sequence.most)
            self.scheduler.enqueue(sequence)
            self.left += 1

    def step(self):
        for segment in self.scheduler.schedule():
            sequence = segment.sequence
            if segment.samples:
                sequence.tokens.append(90)
                sequence.pending -= 1
            if len(sequence.tokens) == sequence.most:
                self.scheduler.remove(sequence)
                self.left -= 1
        assert not self.scheduler.faults()

    def counts(self):
        """Returns the running and the waiting sequences by owner."""
        return Counter(s.owner for s in self.scheduler.running), Counter(s.owner for s in self.scheduler.queued())


@settings(max_examples=60)
@given(st.integers(1, 7), REQUESTS)
def test_nobody_waits_while_another_has_more_than_its_share_and_no_place_is_left_empty(places, requests):
    books = Books(places)
    for owner, count, tokens, steps in requests:
        books.ask(owner, count, tokens)
        for _ in range(steps):
            books.step()
        for _ in range(places + 1):  # nothing comes or ends meanwhile: it settles
            books.scheduler.schedule()
            for sequence in books.scheduler.running:  # as if the step had not been
                sequence.cached, sequence.pending = min(sequence.cached, len(sequence.tokens) - 1), 0
        running, waiting = books.counts()
        assert running == books.scheduler.held and waiting == books.scheduler.queue.counts
        assert running.total() == min(places, running.total() + waiting.total())
        for owner in waiting:
            assert max(running.values()) <= running[owner] + 1, (running, waiting)


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(8, 40), REQUESTS, st.lists(st.integers(-2, 2), min_size=9, max_size=9))
def test_all_end_however_few_pages_there_are(places, pages, requests, priorities):
    books = Books(places, pages)
    for (owner, count, tokens, steps), priority in zip(requests, priorities, strict=False):
        books.ask(owner, count, tokens, priority)
        for _ in range(steps):
            books.step()
    for _ in range(3000):
        if not books.left:
            break
        books.step()
    assert not books.left


def test_a_newcomer_takes_places_of_the_owner_with_the_most():
    books = Books(8)
    books.ask("flood", 100, 50)
    books.step()
    books.ask("neighbour", 3, 20)
    for _ in range(4):
        books.step()
    assert books.counts()[0] == {"flood": 5, "neighbour": 3}
    books.ask("third", 9, 20)
    for _ in range(4):
        books.step()
    assert books.counts()[0] == {"flood": 3, "neighbour": 3, "third": 2}


def test_a_lower_priority_claims_no_share_of_a_higher_one():
    books = Books(4)
    books.ask("admin", 9, 30, priority=5)
    books.step()
    books.ask("user", 2, 30)
    books.step()
    assert books.counts()[0] == {"admin": 4}


def test_an_owner_may_be_bounded_though_places_are_empty():
    books = Books(8, max_running_per_owner=3)
    books.ask("a", 9, 30)
    books.step()
    books.ask("b", 1, 30)
    books.step()
    assert books.counts()[0] == {"a": 3, "b": 1}


def test_a_full_queue_refuses_the_last_of_its_largest_owner_and_nobody_who_has_run():
    books = Books(2, max_waiting=5)
    books.ask("a", 2, 30)
    books.step()
    books.ask("b", 2, 30)
    books.step()  # one of a's gave its place up
    books.ask("a", 4, 30)
    books.ask("b", 1, 30)
    (refused,) = books.scheduler.surplus()
    assert refused.owner == "a" and refused.reused is None
    assert refused.rank == max(s.rank for s in [*books.scheduler.queued(), refused] if s.owner == "a")
