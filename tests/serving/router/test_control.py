import asyncio
import json
from dataclasses import replace

import pytest

from arcforge_serving.router.control import Call, summed
from arcforge_serving.router.fleet import State
from arcforge_serving.server.gate.auth import Keys
from support.clocks import MovedClock
from support.fake_fleet import ADMIN, DIE, reply, run_fakes

UPDATE, UPLOAD = "/v1/rl/update_weights", "/v1/rl/update_weights/tensors"
OK = reply({"weight_version": 7, "seconds": 1.0})


def paths(found, since=0):
    return sorted((number, path) for number, _, path, *_ in found.seen[since:])


@pytest.mark.parametrize("name", ["pause", "resume", "flush", "abort", "something/new"])
def test_every_engine_gets_it(name):
    async def work(found):
        got = await found.http.post(f"/v1/rl/{name}?a=1", json={"mode": "keep"}, headers=ADMIN)
        assert (got.status_code, got.json()) == (200, {"paused": True})
        assert paths(found) == [(0, f"/v1/rl/{name}?a=1"), (1, f"/v1/rl/{name}?a=1")]
        assert {body for *_, body in found.seen} == {b'{"mode":"keep"}'}

    run_fakes(lambda *_: reply({"paused": True}), work)


def test_only_admins_may():
    async def work(found):
        for path in ("/v1/rl/status", "/v1/router/engines"):
            assert (await found.http.get(path)).status_code == 403
        for path in ("/v1/rl/pause", UPLOAD):
            assert (await found.http.post(path, content=b"x" * 10)).status_code == 403
        assert (await found.http.get("/v1/rl/pause", headers=ADMIN)).status_code == 404
        assert not found.seen

    run_fakes(lambda *_: OK, work)


def test_a_refusal_of_all_is_passed_on_and_forgotten():
    async def work(found):
        got = await found.http.post(UPDATE, json={"path": "x"}, headers=ADMIN)
        assert (got.status_code, got.json()) == (400, {"error": "the weights are as before"})
        got = await found.http.post(UPLOAD, content=b"123", headers=ADMIN)
        assert got.status_code == 400
        found.lives[0].kill()
        await found.until(lambda: len(found.lives) == 3 and len(found.fleet.ready) == 2)
        assert paths(found) == [(0, UPDATE), (0, UPLOAD), (1, UPDATE), (1, UPLOAD)]

    run_fakes(lambda *_: reply({"error": "the weights are as before"}, 400), work)


@pytest.mark.parametrize("upload", [False, True])
def test_an_engine_that_is_started_anew_gets_the_weights_of_the_others(upload):
    """The last ones, with their version, before it takes requests; and stands still if the others do."""
    versions = iter([3, 3, 7, 7])

    def answer(number, method, path, body):
        if path.startswith(UPDATE):
            return reply({"weight_version": next(versions, 7)})
        return reply({})

    async def work(found):
        for content in (b"old", b"new"):
            if upload:
                got = await found.http.post(UPLOAD + "?checksum=a", content=content, headers=ADMIN)
            else:
                got = await found.http.post(UPDATE, json={"path": content.decode()}, headers=ADMIN)
            assert got.status_code == 200
        await found.http.post("/v1/rl/pause", json={"mode": "wait"}, headers=ADMIN)
        assert (await found.http.get("/ready")).json()["status"] == "paused"
        since = len(found.seen)
        found.lives[1].kill()
        await found.until(lambda: len(found.lives) == 3 and len(found.fleet.ready) == 2)
        (weights, pause) = found.seen[since:]
        if upload:
            assert weights[2] == UPLOAD + "?checksum=a&version=7" and weights[4] == b"new"
        else:
            assert weights[2] == UPDATE and json.loads(weights[4]) == {"path": "new", "version": 7}
        assert weights[3]["authorization"] == f"Bearer {found.lives[2].key}"
        assert pause[2] == "/v1/rl/pause" and json.loads(pause[4]) == {"mode": "keep"}
        await found.http.post("/v1/rl/resume", headers=ADMIN)
        since = len(found.seen)
        found.lives[2].kill()
        await found.until(lambda: len(found.lives) == 4 and len(found.fleet.ready) == 2)
        assert len(found.seen) == since + 1  # weights, no pause
        assert len(list(found.app.state.router.control._folder.glob("upload-*"))) == upload

    run_fakes(answer, work)


@pytest.mark.parametrize("header", [ADMIN, {"authorization": "", "x-api-key": "admin-key"}])
def test_the_admins_key_is_not_kept_and_not_needed_again(header):
    """It may be taken out before an engine is restarted."""

    async def work(found):
        assert (await found.http.post(UPDATE, json={"path": "x"}, headers=header)).status_code == 200
        assert (await found.http.post("/v1/rl/pause", json={"mode": "wait"}, headers=header)).status_code == 200
        state = found.app.state.router
        kept = repr(vars(state.control))
        assert UPDATE in kept and "admin-key" not in kept
        state.guard = replace(state.guard, keys=Keys())
        found.lives[0].kill()
        await found.until(lambda: len(found.lives) == 3 and len(found.fleet.ready) == 2)
        for number, _, _, headers, _ in found.seen:
            assert "admin-key" not in str(headers)
            assert headers["authorization"] in {f"Bearer {life.key}" for life in found.lives if life.number == number}

    run_fakes(lambda *_: OK, work)


def test_an_engine_that_refuses_what_another_took_does_not_serve_old_weights():
    refusing = [True]

    def answer(number, method, path, body):
        if path == UPDATE and number == 1 and refusing:
            refusing.clear()
            return reply({"error": "no"}, 400)
        return OK

    async def work(found):
        got = await found.http.post(UPDATE, json={"path": "x"}, headers=ADMIN)
        assert got.json()["weight_version"] == 7
        assert got.json()["refused"] == {"1": '400 {"error": "no"}'}
        assert [member.state for member in found.fleet.members] == [State.READY, State.DEAD]
        await found.until(lambda: len(found.fleet.ready) == 2)
        assert [path for number, _, path, *_ in found.seen if number == 1] == [UPDATE, UPDATE]

    run_fakes(answer, work)


def test_an_engine_that_dies_in_an_update_gets_it_in_its_next_life():
    first = [True]

    def answer(number, method, path, body):
        return [DIE] if number == 0 and first and not first.clear() else OK

    async def work(found):
        got = await found.http.post(UPDATE, json={"path": "x", "version": 7}, headers=ADMIN)
        assert got.status_code == 200
        await found.until(lambda: len(found.fleet.ready) == 2)
        assert paths(found) == [(0, UPDATE), (0, UPDATE), (1, UPDATE)]

    run_fakes(answer, work)


@pytest.mark.parametrize("hanging", [{0}, {0, 1}])
def test_an_engine_that_hangs_in_an_update_is_killed_and_gets_it_in_its_next_life(hanging, monkeypatch):
    """One engine answers for both; where none does, a later life has the weights of before."""
    left, answered, send = set(hanging), [], Call.send

    async def answer(number, method, path, body):
        if path == UPDATE and number in left:
            left.discard(number)
            await asyncio.Event().wait()
        return OK

    async def noted(call, member, seconds):
        got = await send(call, member, seconds)
        answered.append(member.number)
        return got

    async def work(found):
        clock = MovedClock()
        asking = asyncio.create_task(found.http.post(UPDATE, json={"path": "x", "version": 7}, headers=ADMIN))
        await found.until(lambda: not left and {*answered, *hanging} == {0, 1})
        clock.move(61)
        got = await asking
        if hanging == {0}:
            assert got.status_code == 200
            assert got.json()["refused"] == {"0": "it died, or took longer than router.update_seconds=60"}
        else:
            assert got.status_code == 503
        assert [member.number for member in found.fleet.members if member.state is State.DEAD] == sorted(hanging)
        await found.until(lambda: len(found.fleet.ready) == 2)
        again = [number for number, path in paths(found, since=2)]
        assert again == ([0] if hanging == {0} else []) and len(found.lives) == 2 + len(hanging)

    monkeypatch.setattr(Call, "send", noted)
    run_fakes(answer, work, update_seconds=60)


def test_an_engine_that_cannot_get_the_weights_takes_no_requests():
    async def work(found):
        assert (await found.http.post(UPDATE, json={"path": "x"}, headers=ADMIN)).status_code == 200
        found.lives[0].kill()
        await found.until(lambda: "404" in found.fleet.members[0].problem)
        assert [member.number for member in found.fleet.ready] == [1]

    said = iter([OK, OK])
    run_fakes(lambda *_: next(said, reply({"error": "gone"}, 404)), work)


def test_one_thing_at_a_time():
    going = asyncio.Event()

    async def slow():
        await going.wait()
        return OK

    async def work(found):
        first = asyncio.create_task(found.http.post(UPDATE, json={"path": "x"}, headers=ADMIN))
        await found.until(lambda: len(found.seen) == 2)
        got = await found.http.post("/v1/rl/flush", headers=ADMIN)
        assert got.status_code == 409 and "update_weights is in progress" in got.text
        for path in ("/v1/rl/abort", "/v1/rl/abort"):
            assert (await found.http.post(path, json={"all": True}, headers=ADMIN)).status_code == 200
        found.lives[0].kill()  # its next life has to wait for the end of the update
        await found.until(lambda: len(found.lives) == 3)
        await asyncio.sleep(0.1)
        assert found.fleet.members[0].state is State.STARTING
        going.set()
        assert (await first).status_code == 200
        await found.until(lambda: len(found.fleet.ready) == 2)
        assert found.seen[-1][0] == 0 and found.seen[-1][2] == UPDATE

    run_fakes(lambda number, method, path, body: slow() if path == UPDATE else OK, work)


def test_uploads_are_limited_and_leave_nothing():
    async def work(found):
        got = await found.http.post(UPLOAD, content=b"x" * 1001, headers=ADMIN)
        assert got.status_code == 413 and "1000 bytes" in got.text
        assert not found.seen
        assert not list(found.app.state.router.control._folder.glob("upload-*"))

    run_fakes(lambda *_: OK, work)


def test_an_abort_of_one_request_finds_the_engine_that_has_it():
    async def work(found):
        got = await found.http.post("/v1/rl/abort", json={"request_id": "a"}, headers=ADMIN)
        assert (got.status_code, got.json()) == (200, {"engine": 1})

    run_fakes(lambda number, *_: reply({"engine": 1}, 200) if number else reply({"error": "no such"}, 404), work)


def test_engines_that_disagree_are_said_to():
    async def work(found):
        got = await found.http.post("/v1/rl/flush", headers=ADMIN)
        assert got.status_code == 502
        assert "engine 0: 400" in got.text and "engine 1: 409" in got.text

    run_fakes(lambda number, *_: reply({"error": "x"}, 409 if number else 400), work)


STATUS = {
    "operation": None, "running": 1, "pages": 10, "page_size": 16, "prefix_reuse": "on", "drafts": 2,
    "accepted_by_position": [1, 0], "accepted_length": 1.5, "weight_version": 3, "paused": True,
}  # fmt: skip


def test_a_status_is_the_sum():
    other = {**STATUS, "running": 2, "drafts": 0, "accepted_by_position": [0, 0], "weight_version": 4, "paused": False}
    assert summed([STATUS, other]) == {
        "running": 3, "pages": 20, "page_size": 16, "prefix_reuse": "on", "drafts": 2,
        "accepted_by_position": [1, 0], "accepted_length": 1.5, "weight_version": 3, "paused": False,
    }  # fmt: skip

    async def work(found):
        got = (await found.http.get("/v1/rl/status", headers=ADMIN)).json()
        assert (got["operation"], got["running"], got["weight_version"]) == (None, 3, 3)
        assert [(each["engine"], each["state"], each["running"]) for each in got["engines"]] == [
            (0, "ready", 1), (1, "ready", 2),
        ]  # fmt: skip

    run_fakes(lambda number, *_: reply(other if number else STATUS), work)


def test_without_an_engine_nothing_can_be_done():
    async def work(found):
        found.fleet._launch = lambda number: pytest.fail("it is too early")
        for member in found.fleet.members:
            member.state = State.DEAD
        got = await found.http.post("/v1/rl/flush", headers=ADMIN)
        assert got.status_code == 503

    run_fakes(lambda *_: OK, work)
