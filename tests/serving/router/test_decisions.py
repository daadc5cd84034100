import json

import pytest

from arcforge_core.errors import ConfigError
from arcforge_serving.configs import RouterConfig
from arcforge_serving.router.decisions import Decision, DecisionLog
from support.fake_fleet import DIE, reply, run_fakes, stream


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_request_leaves_a_line(tmp_path):
    log = tmp_path / "decisions"

    async def work(found):
        for header in ("x-session-id", "x-smg-routing-key"):
            for turn in range(2):
                body = {"prompt": [1] * 10 * turn}
                got = await found.http.post("/v1/rl/generate", json=body, headers={header: f"rollout {header}"})
                assert got.status_code == 200

    run_fakes(lambda *_: reply({"id": "a"}), work, policy="session", log=str(log))
    first, second, third, fourth = lines(log)
    assert [each["session"] for each in (first, second)] == ["rollout x-session-id"] * 2
    assert [each["session"] for each in (third, fourth)] == ["rollout x-smg-routing-key"] * 2
    assert first["engine"] == second["engine"] and third["engine"] == fourth["engine"]
    assert second["bytes"] - first["bytes"] == 19
    assert first["loads"] == {"0": 0, "1": 0} and not any(each["moved"] for each in (first, second, third, fourth))
    assert (first["outcome"], first["sent"], first["events"]) == ("done", 11, 0)
    assert 0 < first["seconds"] < 30 and first["at"] < second["at"]


def test_streams_and_engines_that_die(tmp_path):
    log = tmp_path / "decisions"

    def answer(number, method, path, body):
        return stream(b"data: 1\n\n", b"data: [DONE]\n\n") if number else [DIE]

    async def work(found):
        assert (await found.http.post("/v1/completions", json={})).status_code == 200

    run_fakes(answer, work, log=str(log))
    found = lines(log)
    assert [(each["engine"], each["outcome"]) for each in found] == [("0", "failed"), ("1", "done")]
    assert (found[1]["events"], found[1]["sent"]) == (2, 23)


def test_a_session_that_leaves_a_full_engine_is_marked_and_counted(tmp_path):
    """The whole session moves: its next request goes where this one went."""
    log = tmp_path / "decisions"

    async def work(found):
        async def turn():
            got = await found.http.post("/v1/completions", json={"prompt": "a"}, headers={"x-session-id": "s"})
            return got.headers["x-arcforge-engine"]

        first = await turn()
        member = found.fleet.members[int(first)]
        member.in_flight += 1
        second = await turn()
        member.in_flight -= 1
        assert first != second == await turn()
        page = (await found.http.get("/metrics")).text
        assert "arcforge:router_session_moves_total 1.0" in page

    def answer(number, method, path, body):
        return [b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n\r\n"]

    run_fakes(answer, work, policy="session", load_factor=1.0, free_requests=1, log=str(log))
    posts = [each for each in lines(log) if each["session"] == "s"]
    assert [each["moved"] for each in posts] == [False, True, False]
    assert posts[1]["loads"][posts[0]["engine"]] == 1


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match=r"router\.log=.*must be a file"):
        DecisionLog(str(tmp_path / "none" / "such"))


def test_a_full_disk_ends_the_log_and_no_request(capsys):
    log = DecisionLog("/dev/full")
    for _ in range(2):
        log.write(Decision("s", 1, "0", {}, False))
    assert capsys.readouterr().err.count("router.log=/dev/full: No space left on device") == 1


@pytest.mark.parametrize("value", [0.5, float("nan"), 10**8])
def test_active_seconds_are_checked(value):
    with pytest.raises(ConfigError, match=r"router\.active_seconds"):
        RouterConfig(active_seconds=value)
