import asyncio

import pytest

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_serving.engine.errors import ClosedError, QueueFullError
from arcforge_serving.server.shared.generation import Generation, Job
from support.servers import small_state
from support.waiting import wait_until


class Notes:
    """Metrics that keep every event."""

    def __init__(self):
        self.seen = []

    def received(self, tokens, seconds, first):
        assert 0 <= seconds < 60
        self.seen.append(("received", tokens, first))

    def finished(self, reason, seconds, output):
        assert 0 <= seconds < 60
        self.seen.append(("finished", reason, output and len(output.token_ids)))


@pytest.fixture
def state(tokenizer):
    state = small_state(tokenizer, max_waiting=4)
    state.metrics = Notes()
    yield state
    state.engine.close()


def job(tokens, **fields):
    return Job([1, 2], SamplingParams(max_new_tokens=tokens, **fields))


def collected(generation):
    async def collect():
        return [news async for news in generation.updates()]

    return asyncio.run(collect())


def test_each_sequence_ends_once_and_is_counted(state):
    state.engine.start()
    news = collected(Generation(state, [job(3), job(5)]))
    outputs = {each.index: each.output for each in news if each.output}
    assert [len(outputs[index].token_ids) for index in (0, 1)] == [3, 5]
    for index in (0, 1):
        ids = [t.id for each in news if each.index == index for piece in each.pieces for t in piece.tokens]
        assert ids == outputs[index].token_ids
    seen = state.metrics.seen
    assert sum(count for kind, count, _ in seen if kind == "received") == 8
    assert sum(first for kind, _, first in seen if kind == "received") == 2
    assert sorted(each for each in seen if each[0] == "finished") == [
        ("finished", "length", 3),
        ("finished", "length", 5),
    ]


def test_all_sequences_are_taken_or_none(state):
    with pytest.raises(ConfigError, match="token ids"):
        Generation(state, [job(2), Job([10**6], SamplingParams())])
    with pytest.raises(QueueFullError):
        Generation(state, [job(2)] * 3), Generation(state, [job(2)] * 2)
    while state.engine.step():
        pass
    stats = state.engine.stats()
    assert (stats.running, stats.waiting, stats.generated_tokens) == (0, 0, 6)
    assert not state.metrics.seen


def test_a_sequence_that_fails_ends_the_others(state):
    def fault(token_ids):
        raise RuntimeError("broken")

    state.engine.start()
    with pytest.raises(RuntimeError, match="broken"):
        collected(Generation(state, [job(900), job(900, should_stop=fault)]))
    reasons = sorted(each[1] for each in state.metrics.seen if each[0] == "finished")
    assert reasons == ["abort", "error"]
    wait_until_idle(state.engine)
    assert state.engine.stats().generated_tokens < 900


def test_whoever_stops_reading_ends_the_generation(state):
    async def read_one():
        generation = Generation(state, [job(900), job(900)])
        async for _ in generation.updates():
            break
        generation.cancel()

    state.engine.start()
    asyncio.run(read_one())
    wait_until_idle(state.engine)
    assert state.engine.stats().generated_tokens < 900
    assert [each[1] for each in state.metrics.seen if each[0] == "finished"] == ["abort"] * 2


def test_nothing_is_taken_while_the_server_shuts_down(state):
    state.closing = True
    with pytest.raises(ClosedError):
        Generation(state, [job(1)])
    assert state.engine.stats().waiting == 0


def test_a_slow_reader_gets_all_that_has_come_at_once(state):
    async def read_slowly():
        generation = Generation(state, [job(50)])
        sizes = []
        async for news in generation.updates():
            sizes.append(sum(len(piece.tokens) for piece in news.pieces))
            while not generation._streams[0].done:
                await asyncio.sleep(0.01)
        return sizes

    state.engine.start()
    sizes = asyncio.run(read_slowly())
    assert sum(sizes) == 50
    assert len(sizes) <= 4


def wait_until_idle(engine):
    wait_until(lambda: not (engine.stats().running or engine.stats().waiting))
    engine.check()
