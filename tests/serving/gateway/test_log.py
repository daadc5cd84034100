"""Sessions on disk: the next gateway knows all that a killed one knew."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from arcforge_core.chat.glm5 import Glm5Template
from arcforge_core.configs import Glm5TemplateConfig
from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import TOKENIZER_SIZE
from arcforge_core.tokenizer.tokenizer import train_tokenizer
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway import log
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.gateway.imposed import Imposed
from arcforge_serving.gateway.sessions import Sessions
from serving.gateway.conftest import QUIET, script
from serving.gateway.test_http import ONE, TOOL, ask, chat, more, record
from support.servers import client_of, scripted_state
from support.sessions import TEMPLATE, TOKENIZER


@contextmanager
def gateway(folder: Path, **options):
    """Yields a client of a gateway that keeps its sessions in a folder."""
    state = scripted_state(TOKENIZER, script)
    with client_of(state, gateway_app(state, GatewayConfig(**{"sessions": 20, "log": str(folder), **options}))) as http:
        yield http


def restored(folder: Path, **options) -> Sessions:
    """Returns the sessions of a gateway that starts now, without an engine."""
    found = Sessions(TEMPLATE, GatewayConfig(20, log=str(folder), **options), "small")
    found.end()
    return found


def play(http, opened) -> dict:
    """Plays all kinds of turns; returns the body and the key of the last one."""
    body = {**ONE, "tools": [TOOL], "messages": [{"role": "user", "content": "one"}]}
    called = ask(http, opened, body).json()["choices"][0]["message"]
    call = called["tool_calls"][0]["id"]
    body["messages"] += [called, {"role": "tool", "content": "漢 😀", "tool_call_id": call}]
    first = ask(http, opened, body)
    assert first.status_code == 200
    for text in ("plain 3", "plain three"):  # siblings
        ask(http, opened, more(body, first, text))
    assert ask(http, opened, {**body, "n": 2}).status_code == 400  # a turn without tokens
    edited = more(body, first)
    edited["messages"][-2]["content"] = "edited"
    ask(http, opened, edited)
    ask(http, opened, {**ONE, "max_tokens": 2, "stream": True}, idempotency_key="k")
    return body


def test_a_restored_session_has_the_same_record(tmp_path):
    with gateway(tmp_path) as http:
        opened = http.post("/sessions", json={"metadata": {"rollout": 7}, "max_turns": 50}).json()
        play(http, opened)
        before = http.get(f"/sessions/{opened['id']}").json()
    assert {turn["drift"] for turn in before["turns"]} == {"", "new", "clean", "fork"}
    with gateway(tmp_path) as http:
        assert http.get(f"/sessions/{opened['id']}").json() == before
        assert http.get(f"/sessions/{opened['id']}", headers={"x-api-key": opened["secret"]}).json() == before


def test_a_restored_session_continues_and_answers_retries(tmp_path):
    with gateway(tmp_path) as http:
        opened = http.post("/sessions", json={}).json()
        first = ask(http, opened, idempotency_key="a")
        streamed = ask(http, opened, {**ONE, "stream": True})
    with gateway(tmp_path) as http:
        again = ask(http, opened, idempotency_key="a")
        assert again.content == first.content and again.headers["x-arcforge-replayed"] == "true"
        assert again.headers["content-type"] == first.headers["content-type"]
        assert ask(http, opened, {**ONE, "stream": True}, x_stainless_retry_count="1").content == streamed.content
        assert len(record(http, opened).turns) == 2
        following = chat(http, "/v1/chat/completions", more(ONE, first), authorization=f"Bearer {opened['secret']}")
        assert following.status_code == 200
        assert [turn.drift for turn in record(http, opened).turns] == ["new", "new", "clean"]
        assert chat(http, authorization=f"Bearer {opened['secret']}x").status_code == 404


def test_responses_are_continued_after_a_restart(tmp_path):
    body = {"model": "small", "max_output_tokens": 40, **QUIET}
    with gateway(tmp_path) as http:
        opened = http.post("/sessions", json={}).json()
        path = f"/sessions/{opened['id']}/v1/responses"
        first, gone = (http.post(path, json={**body, "input": text}).json() for text in ("plain one", "plain two"))
        second = http.post(path, json={**body, "input": "plain 3", "previous_response_id": first["id"]}).json()
        http.delete(f"{path}/{gone['id']}")
    lines = [json.loads(line) for line in next(tmp_path.glob("*.jsonl")).read_text().splitlines()]
    assert [len(line["stored"]["messages"]) for line in lines if "stored" in line] == [2, 2, 2]  # not all before them
    with gateway(tmp_path) as http:
        third = http.post(path, json={**body, "input": "plain one", "previous_response_id": second["id"]})
        assert third.status_code == 200 and http.get(f"{path}/{first['id']}").json() == first
        assert http.get(f"{path}/{gone['id']}").status_code == 404
        assert [turn.drift for turn in record(http, opened).turns] == ["new", "new", "clean", "clean"]


def test_limits_survive(tmp_path):
    with gateway(tmp_path) as http:
        opened = http.post("/sessions", json={"max_turns": 1, "final_turn": True}).json()
        reply = ask(http, opened)
    with gateway(tmp_path) as http:
        assert ask(http, opened, more(ONE, reply)).status_code == 200  # the final one
    with gateway(tmp_path) as http:
        assert ask(http, opened, more(ONE, reply, "plain 3")).status_code == 429
    (found,) = restored(tmp_path)._by_id.values()
    assert found.limits.max_turns == 1 and found.imposed == Imposed()


def test_imposed_options_survive(tmp_path):
    imposed = Imposed(0.0, max_new_tokens=3, seed="s", chat_template_kwargs={"enable_thinking": False})
    sessions = Sessions(TEMPLATE, GatewayConfig(1, log=str(tmp_path)), "small")
    sessions.open("", {}, imposed)
    sessions.end()
    (found,) = restored(tmp_path)._by_id.values()
    assert found.imposed == imposed


def test_time_passes_while_the_gateway_is_gone(tmp_path, monkeypatch):
    sessions = Sessions(TEMPLATE, GatewayConfig(1, log=str(tmp_path), max_seconds=100.0), "small")
    sessions.open("", {}).begin("chat").finish()
    sessions.end()
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 101)
    (found,) = restored(tmp_path)._by_id.values()
    with pytest.raises(Exception, match="max_seconds=100"):
        found.begin("chat")


def test_a_closed_session_leaves_nothing(tmp_path):
    with gateway(tmp_path) as http:
        opened = http.post("/sessions", json={}).json()
        ask(http, opened)
        assert [path.stat().st_mode & 0o777 for path in tmp_path.glob("*.jsonl")] == [0o600]
        assert opened["secret"] not in next(tmp_path.glob("*.jsonl")).read_text()
        http.delete(f"/sessions/{opened['id']}")
        assert not [*tmp_path.glob("*.jsonl")]
    with gateway(tmp_path) as http:
        assert ask(http, opened).status_code == 404


def test_every_end_of_a_file_is_a_session(tmp_path):
    """Killed at any byte: all whole lines are there, and later ones are written after them."""
    with gateway(tmp_path) as http:
        opened = http.post("/sessions", json={}).json()
        play(http, opened)
        whole = record(http, opened)
    (path,) = tmp_path.glob("*.jsonl")
    content = path.read_bytes()
    ends = [place for place, byte in enumerate(content) if byte == ord("\n")]
    seen = set()
    for end in sorted({place + step for place in ends for step in (-1, 0, 1)} | set(range(0, len(content), 97))):
        path.write_bytes(content[:end])
        lines = content[:end].count(b"\n")
        sessions = restored(tmp_path)
        assert len(sessions) == (lines > 0)
        if not lines:
            assert not path.exists()
            continue
        (session,) = sessions._by_id.values()
        turns = session.record().turns
        assert turns == whole.turns[: len(turns)]
        seen.add(len(turns))
        session.file.write({"more": 1})
        assert path.read_bytes() == content[: ends[lines - 1] + 1] + b'{"more":1}\n'
        assert len(restored(tmp_path)) == 1
    assert seen == set(range(len(whole.turns) + 1))


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def logged(tmp_path):
    sessions = Sessions(TEMPLATE, GatewayConfig(1, log=str(tmp_path)), "small")
    session = sessions.open("", {})
    session.begin("chat").finish()
    sessions.end()
    return tmp_path, session.file.path


def test_another_model_is_refused(logged):
    with pytest.raises(ConfigError, match=r"gateway.log=.*sessions of model large, but .* is of small; choose another"):
        Sessions(TEMPLATE, GatewayConfig(1, log=str(logged[0])), "large")
    other = Glm5Template(Glm5TemplateConfig(), train_tokenizer(["other words"] * 4, TOKENIZER_SIZE))
    with pytest.raises(ConfigError, match="sessions of tokenizer"):
        Sessions(other, GatewayConfig(1, log=str(logged[0])), "small")
    assert len(restored(logged[0])) == 1


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda lines: [lines[0], "{", lines[1]], "line 2 is no JSON"),
        (lambda lines: [lines[0], "[]", lines[1]], "line 2 is no object"),
        (lambda lines: [lines[0], lines[1].replace('"dialect"', '"d"')], "TypeError"),
        (lambda lines: [lines[0].replace('"owner"', '"o"'), lines[1]], "KeyError"),
        (lambda lines: [lines[0], '{"reply":["zz","",200,[],""]}'], "ValueError"),
    ],
)
def test_a_damaged_file_is_named(logged, damage, what):
    folder, path = logged
    path.write_text("\n".join(damage(path.read_text().splitlines())) + "\n")
    with pytest.raises(ConfigError, match=rf"gateway.log=.*{path.name} is damaged \({what}.*move it away"):
        restored(folder)


def test_a_folder_has_one_gateway(tmp_path):
    first = Sessions(TEMPLATE, GatewayConfig(1, log=str(tmp_path)), "small")
    with pytest.raises(ConfigError, match=f"must be this process's alone: .* in use by process {os.getpid()}"):
        restored(tmp_path)
    first.end()
    restored(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"gateway.log=.*must be a folder that can be written: "):
        restored(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"gateway\.log='': must name a folder"):
        GatewayConfig(1, log="")


# ---- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch):
    """Switches the disk to full: half of a line is written, the other half is not."""
    pwrite, left = os.pwrite, [None]

    def limited(descriptor, data, place):
        if left[0] is None:
            return pwrite(descriptor, data, place)
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] = 0
        return pwrite(descriptor, data[: len(data) // 2], place)

    monkeypatch.setattr(log.os, "pwrite", limited)

    def switch(on: bool) -> None:
        left[0] = 1 if on else None

    return switch


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_disk_fails_the_turn_and_nothing_else(tmp_path, full, stream):
    with gateway(tmp_path) as http:
        opened = http.post("/sessions", json={}).json()
        first = ask(http, opened)
        body = {**more(ONE, first), "stream": stream}
        full(True)
        refused = ask(http, opened, body)
        if stream:
            problem = json.loads(refused.text.split("data: ")[-2])["error"]
        else:
            assert refused.status_code == 503
            problem = refused.json()["error"]
        assert problem["code"] == "not_kept" and problem["message"].endswith("No space left on device")
        assert http.post("/sessions", json={}).status_code == 503
        failures = {
            line.split()[-1] for line in http.get("/metrics").text.splitlines() if line.startswith("arcforge:gateway_l")
        }
        full(False)
        assert failures == {"3.0"}  # the turn's node, its lost turn, and the session
        found = record(http, opened)
        assert [(turn.node, turn.finish_reason) for turn in found.turns] == [(0, "stop"), (None, "error")]
        assert ask(http, opened, body, x_stainless_retry_count="1").status_code == 200
        after = record(http, opened)
    (session,) = restored(tmp_path)._by_id.values()
    now = session.record()
    assert now.branches == after.branches and [turn.node for turn in now.turns] == [0, 1]


# ---- a process that is killed ----------------------------------------------------------------------------------------


PROGRAM = """
import sys
sys.path.insert(0, "tests")
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.server.gate.listening import listen
from arcforge_serving.server.serve import Server
from support.servers import scripted_state
from support.sessions import TOKENIZER

state = scripted_state(TOKENIZER, lambda text: ("3" * 400 if "slow" in text else "two three") + "<|user|>")
state.engine.seconds = 0.01
app = gateway_app(state, GatewayConfig(sessions=5, log=sys.argv[2]))
with listen("127.0.0.1", int(sys.argv[1])) as socket:
    print(socket.getsockname()[1], flush=True)
    Server(state, 5.0, log_level="error", app=app).run(sockets=[socket])
"""


@contextmanager
def started(folder: Path, port: int):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(port), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        port = int(process.stdout.readline())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            yield http, port, process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.mark.slow(reason="two servers, each a process that imports torch")
def test_a_session_survives_kill_9(tmp_path):
    with started(tmp_path, 0) as (http, port, process):
        opened = http.post("/sessions", json={}).json()
        first = ask(http, opened)
        second = ask(http, opened, more(ONE, first), idempotency_key="k")
        before = http.get(f"/sessions/{opened['id']}").json()
        slow = {**more(ONE, first, "slow"), "max_tokens": 500, "stream": True}
        with http.stream("POST", f"/sessions/{opened['id']}/v1/chat/completions", json=slow) as reply:
            lines = reply.iter_lines()  # dropped, it would close the connection: the turn would end before the kill
            next(lines)
            process.kill()  # in the middle of a turn
            process.wait()
    with started(tmp_path, port) as (http, *_):
        assert http.get(f"{opened['url']}").json() == before
        assert ask(http, opened, more(ONE, first), idempotency_key="k").content == second.content
        again = ask(http, opened, {**slow, "max_tokens": 3, "stream": False}, x_stainless_retry_count="1")
        assert again.status_code == 200
        whole = record(http, opened)
        assert [turn.drift for turn in whole.turns] == ["new", "clean", "clean"] and len(whole.branches) == 2
