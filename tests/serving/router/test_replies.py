"""Replies of `/v1/responses` are kept by the engine that made them: what is about one goes there."""

import json

import pytest

from arcforge_serving.router.affinity import wanted_of
from arcforge_serving.server.responses.reply import new_id
from support.fake_fleet import DIE, reply, run_fakes, stream

ASK = {"input": "Hi", "previous_response_id": "resp_1-1_abc"}


def engines(found):
    return [(number, method, path) for number, method, path, *_ in found.seen]


def ok(*_):
    return reply({"ok": True})


@pytest.mark.parametrize("options", [{}, {"policy": "session"}, {"policy": "prefix"}, {"policy": "least_load"}])
def test_a_request_goes_where_its_reply_is(options):
    async def work(found):
        for number in (2, 0, 1, 2, 2):
            life = found.fleet.members[number].life
            body = {**ASK, "previous_response_id": f"resp_{life}_abc", "stream": True}
            got = await found.http.post("/v1/responses", json=body, headers={"x-session-id": "s"})
            assert (got.status_code, got.headers["x-arcforge-engine"]) == (200, str(number))
            for method in ("GET", "DELETE"):
                got = await found.http.request(method, f"/v1/responses/resp_{life}_abc")
                assert got.headers["x-arcforge-engine"] == str(number)

    run_fakes(ok, work, count=3, **options)


def test_others_go_anywhere():
    async def work(found):
        for path, body in (
            ("/v1/responses", {"input": "Hi"}),
            ("/v1/responses", {"input": "Hi", "previous_response_id": None}),
            ("/v1/responses", {"input": "Hi", "previous_response_id": 5}),  # it says what is wrong with that
            ("/v1/chat/completions", ASK),
        ):
            assert (await found.http.post(path, json=body)).status_code == 200
        assert [number for number, *_ in engines(found)] == [0, 1, 0, 1]

    run_fakes(ok, work)


@pytest.mark.parametrize("id_", ["resp_abc", "resp_0-9_abc", "resp_7-0_abc", "", "x" * 500, "resp__abc"])
def test_a_reply_that_no_engine_has_made_is_not_found(id_):
    async def work(found):
        got = await found.http.post("/v1/responses", json={**ASK, "previous_response_id": id_})
        assert got.status_code == 404
        error = got.json()["error"]
        assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
        assert "restart" in error["message"]
        if id_:
            assert (await found.http.get(f"/v1/responses/{id_}")).status_code == 404
        assert not found.seen

    run_fakes(ok, work)


def test_a_reply_goes_with_the_life_that_made_it():
    async def work(found):
        body = {**ASK, "previous_response_id": f"resp_{found.fleet.members[0].life}_abc"}
        assert (await found.http.post("/v1/responses", json=body)).status_code == 200
        found.lives[0].kill()
        await found.until(lambda: len(found.lives) == 3 and len(found.fleet.ready) == 2)
        got = await found.http.post("/v1/responses", json=body)
        assert got.status_code == 404 and got.json()["error"]["code"] == "previous_response_not_found"
        assert len(found.seen) == 1

    run_fakes(ok, work)


def test_an_engine_that_is_drained_keeps_its_replies_for_later():
    async def work(found):
        member = found.fleet.members[1]
        body = {**ASK, "previous_response_id": f"resp_{member.life}_abc"}
        found.fleet.drain(member)
        got = await found.http.post("/v1/responses", json=body)
        assert got.status_code == 503 and "the engine that keeps this reply" in got.text
        found.fleet.undrain(member)
        assert (await found.http.post("/v1/responses", json=body)).headers["x-arcforge-engine"] == "1"

    run_fakes(ok, work)


def test_it_is_not_tried_on_an_engine_that_does_not_have_it():
    async def dies(found):
        body = {**ASK, "previous_response_id": f"resp_{found.fleet.members[0].life}_abc"}
        assert (await found.http.post("/v1/responses", json=body)).status_code == 502
        assert [number for number, *_ in found.seen] == [0]

    async def busy(found):
        body = {**ASK, "previous_response_id": f"resp_{found.fleet.members[0].life}_abc"}
        got = await found.http.post("/v1/responses", json=body)
        assert (got.status_code, got.json()) == (503, {"busy": True})
        assert [number for number, *_ in found.seen] == [0]

    run_fakes(lambda *_: stream(DIE), dies)
    run_fakes(lambda *_: reply({"busy": True}, 503), busy)


@pytest.mark.parametrize("life", ["3-17", ""])
def test_ids_say_which_engine_made_them(life):
    body = json.dumps({"previous_response_id": new_id(life)}).encode()
    assert wanted_of({}, body, blocks=False, path="/v1/responses").life == life
    assert wanted_of({"x-session-id": "s"}, body, blocks=False, path="/v1/responses").life == life
