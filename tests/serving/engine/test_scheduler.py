from arcforge_core.contracts.engine import SamplingParams
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.scheduler import Scheduler
from arcforge_serving.engine.sequence import SequenceState


def scheduler(pages=8, **options):
    return Scheduler(PagedEngineConfig(**{"page_size": 2, "max_running": 4, **options}), pages, 64, reuses=True)


def add(scheduler, prompt, tokens=8, priority=0, owner=""):
    sequence = SequenceState(prompt, SamplingParams(max_new_tokens=tokens), 0, 100, priority)
    sequence.rank = scheduler.rank(owner, priority, sequence.most)
    scheduler.enqueue(sequence)
    return sequence


def decode(scheduler, segments):
    """Hands out what a step would have sampled."""
    for segment in segments:
        if segment.samples:
            segment.sequence.tokens.append(90)
            segment.sequence.pending -= 1


def test_the_later_sequence_gives_way_and_never_the_earlier_one():
    books = scheduler(pages=5)
    first, second = add(books, [1, 2, 3]), add(books, [4, 5, 6])
    preempted = []
    for _ in range(6):
        decode(books, books.schedule())
        preempted += [name for name, each in (("first", first), ("second", second)) if each.slot is None]
        assert not books.faults()
    assert set(preempted) == {"second"}
    assert len(first.tokens) == 3 + 6


def test_a_decoded_sequence_takes_no_page_from_a_prompt_before_it():
    books = scheduler(pages=13, max_batch_tokens=4)
    later = add(books, [1, 2, 3], tokens=20)
    for _ in range(3):
        decode(books, books.schedule())
    first = add(books, [*range(10, 26)], tokens=1, priority=1)
    slots, waited = [], 0
    for _ in range(8):
        segments = books.schedule()
        slots.append(first.slot)
        waited += later.slot is not None and all(segment.sequence is not later for segment in segments)
        decode(books, segments)
        assert not books.faults()
    assert None not in slots
    assert len(first.tokens) == 17
    assert waited


def test_steps_keep_to_their_tokens():
    books = scheduler(pages=32, max_batch_tokens=5)
    add(books, [*range(7)])
    add(books, [*range(50, 57)])
    lengths = []
    for _ in range(4):
        segments = books.schedule()
        lengths.append([segment.length for segment in segments])
        decode(books, segments)
    assert lengths == [[5], [2, 3], [1, 4], [1, 1]]


def test_the_books_find_a_page_without_an_owner_and_a_user_too_many():
    books = scheduler()
    add(books, [1, 2, 3])
    books.schedule()
    assert not books.faults()
    (page,) = books.pages.take(1)
    assert books.faults() == [f"page {page} belongs to nobody"]
    books.pages.give([page])
    books.running[0].nodes[0].users += 1
    assert books.faults() == ["nodes count 2 users, sequences hold 1 of them"]
