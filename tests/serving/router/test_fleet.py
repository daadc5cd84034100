import asyncio

import pytest

from arcforge_serving.configs import RouterConfig
from arcforge_serving.router.fleet import Fleet, NoEngineError, State
from arcforge_serving.router.policies import RoundRobin, Wanted
from arcforge_serving.router.process import EngineError
from support.fake_fleet import ADMIN, DIE, reply, run_fakes, stream

ONE, DONE = b'data: {"a": 1}\n\n', b"data: [DONE]\n\n"
ASK = {"prompt": "one"}


def ok(*_):
    return reply({"ok": True})


def states(found):
    return [member.state for member in found.fleet.members]


def test_an_engine_that_ends_is_started_anew():
    async def work(found):
        found.lives[0].kill()
        await found.until(lambda: found.fleet.members[0].state is not State.READY)
        for _ in range(3):
            assert (await found.http.post("/v1/completions", json=ASK)).status_code == 200
        await found.until(lambda: len(found.fleet.ready) == 2)
        assert [life.number for life in found.lives] == [0, 1, 0]
        assert [member.restarts for member in found.fleet.members] == [1, 0]

    run_fakes(ok, work)


def test_an_engine_that_hangs_is_killed_and_started_anew():
    async def work(found):
        hung, other, config = found.lives[1], found.fleet.members[0].http, found.fleet.config
        kill, get = hung.kill, other.get

        def killed():
            config.hang_seconds = 60.0  # the next life may take its time to start
            kill()

        hung.kill, other.get = killed, lambda path, **_: get(path)  # a busy machine may delay an engine that answers
        config.hang_seconds = 0.3
        hung.hangs = True
        await found.until(lambda: found.lives[1].dead)
        await found.until(lambda: len(found.fleet.ready) == 2)
        assert len(found.lives) == 3 and not found.lives[0].dead

    run_fakes(ok, work)


def test_an_engine_that_cannot_be_started_again_is_tried_again(monkeypatch):
    monkeypatch.setattr("arcforge_serving.router.fleet.LONGEST_PAUSE", 0.02)

    async def work(found):
        launch = found.fleet._launch

        def failing(number):
            life = launch(number)
            life.starts = len(found.lives) > 4
            return life

        found.fleet._launch = failing
        found.lives[0].kill()
        await found.until(lambda: "was told not to" in found.fleet.members[0].problem)
        assert found.fleet.ready == [found.fleet.members[1]]
        await found.until(lambda: len(found.fleet.ready) == 2)
        assert found.fleet.members[0].restarts == 3
        assert found.fleet.members[0].problem == ""

    run_fakes(ok, work)


def test_nothing_is_left_when_one_does_not_start():
    lives = []

    class Life:
        upload_bytes = 0

        def __init__(self, number):
            self.number, self.killed = number, False
            self.socket = "/nowhere"
            lives.append(self)

        async def start(self):
            if self.number == 1:
                raise EngineError("no checkpoint")
            await asyncio.sleep(1000)

        def kill(self):
            self.killed = True

    async def work():
        await Fleet(RouterConfig(), 2, RoundRobin(), Life).start()

    with pytest.raises(EngineError, match="no checkpoint"):
        asyncio.run(work())
    assert [life.killed for life in lives] == [True, True]


def test_without_an_engine_there_is_a_clear_answer():
    async def work(found):
        for member in found.fleet.members:
            found.fleet.drain(member)
        with pytest.raises(NoEngineError):
            found.fleet.choose(Wanted(), set())
        got = await found.http.post("/v1/completions", json=ASK)
        assert got.status_code == 503 and got.json()["error"]["type"] == "overloaded_error"
        assert found.counts.refused == 1
        ready = await found.http.get("/ready")
        assert (ready.status_code, ready.json()["engines"]) == (503, {"0": "draining", "1": "draining"})
        assert (await found.http.get("/health")).status_code == 200

    run_fakes(ok, work)


def test_a_drained_engine_finishes_what_it_has_and_takes_nothing():
    going = []

    async def slow(number, *_):
        while not going:
            await asyncio.sleep(0.005)
        return stream(ONE, DONE)

    def answer(number, method, path, body):
        return slow(number) if path == "/v1/slow" else reply({"engine": number})

    async def work(found):
        running = asyncio.create_task(found.http.post("/v1/slow", json=ASK))
        await found.until(lambda: found.seen)
        got = await found.http.post("/v1/router/engines/0/drain", headers=ADMIN)
        assert (got.json()["state"], got.json()["in_flight"]) == ("draining", 1)
        for _ in range(3):
            assert (await found.http.post("/v1/completions", json=ASK)).json() == {"engine": 1}
        restarting = asyncio.create_task(found.http.post("/v1/router/engines/0/restart", headers=ADMIN))
        await asyncio.sleep(0.1)
        assert not found.lives[0].dead
        going.append(1)
        assert (await running).content == ONE + DONE
        assert (await restarting).status_code == 200
        await found.until(lambda: len(found.fleet.ready) == 2)
        assert found.lives[0].dead and len(found.lives) == 3
        await found.http.post("/v1/router/engines/1/drain", headers=ADMIN)
        await found.http.post("/v1/router/engines/1/undrain", headers=ADMIN)
        listed = (await found.http.get("/v1/router/engines", headers=ADMIN)).json()["engines"]
        assert [(each["state"], each["restarts"]) for each in listed] == [("ready", 1), ("ready", 0)]

    run_fakes(answer, work)


def test_an_engine_that_was_drained_stays_so_over_its_death():
    async def work(found):
        found.fleet.drain(found.fleet.members[0])
        found.lives[0].kill()
        await found.until(lambda: len(found.lives) == 3)
        await found.until(lambda: found.fleet.members[0].state is State.DRAINING)

    run_fakes(ok, work)


@pytest.mark.parametrize("path", ["/v1/router/engines/7/drain", "/v1/router/engines/0/explode"])
def test_what_is_not_there_is_named(path):
    async def work(found):
        got = await found.http.post(path, headers=ADMIN)
        assert got.status_code == 404 and "no " in got.json()["error"]["message"]
        assert (await found.http.post(path)).status_code == 403

    run_fakes(ok, work)


def test_streams_of_an_engine_that_is_dropped_end_with_an_error():
    def answer(number, method, path, body):
        yield from stream(ONE, DIE)[:2]
        while True:
            yield b"4\r\n: a\n\r\n"

    async def work(found):
        running = asyncio.create_task(found.http.post("/v1/completions", json=ASK))
        await found.until(lambda: len(found.sent) > 1)  # the start, and the first event
        found.fleet.drop(found.fleet.members[0])
        got = await running
        assert got.content.startswith(ONE) and b"engine 0 died" in got.content
        assert got.content.endswith(DONE)

    run_fakes(answer, work)


def test_a_question_to_an_engine_that_ends_is_over_before_its_client_is_closed():
    """A connection that opens meanwhile would never be closed."""
    closed = []

    async def asking():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            closed.append("connection")

    async def scene():
        ended = asyncio.create_task(asyncio.sleep(0))
        assert await Fleet._unless(ended, asking()) is None
        assert closed == ["connection"]

    asyncio.run(scene())
