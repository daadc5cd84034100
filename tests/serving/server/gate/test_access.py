"""Ids of requests and their lines in the log."""

import json
import logging
import logging.config
import re
import subprocess
import sys
import time

import httpx
import pytest

from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.auth import USER_KEYS
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.gate.logs import JsonLines, Lines, log_config
from support.servers import client_of, listening, small_state

ASK = {"prompt": "secret words", "max_tokens": 5, "ignore_eos": True}
KEY = {"Authorization": "Bearer alice-key"}


@pytest.fixture
def lines(caplog):
    """Call it for the JSON lines so far."""
    caplog.set_level(logging.INFO, "arcforge.requests")

    def read():
        found = [JsonLines().format(record) for record in caplog.records if record.name == "arcforge.requests"]
        assert not any("\n" in line for line in found)
        return [json.loads(line) for line in found]

    return read


def test_answers_have_an_id(client):
    for headers in ({}, {"x-request-id": "with spaces"}, {"x-request-id": "x" * 129}):
        assert re.fullmatch("[0-9a-f]{32}", client.get("/v1/models", headers=headers).headers["x-request-id"])
    for path in ("/v1/models", "/nowhere"):
        assert client.get(path, headers={"x-request-id": "trace-1:a.b"}).headers["x-request-id"] == "trace-1:a.b"
    assert client.post("/v1/messages", json={}, headers={"x-request-id": "a"}).headers["request-id"] == "a"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line(client, lines, stream):
    sent = client.post("/v1/completions", json={**ASK, "stream": stream}, headers={"x-request-id": "mine"})
    assert sent.status_code == 200
    (line,) = lines()
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00$", line.pop("time"))
    assert line.pop("seconds") >= line.pop("first_token_seconds") > 0
    assert line == {
        "level": "info", "logger": "arcforge.requests", "method": "POST", "path": "/v1/completions", "status": 200,
        "client": "testclient", "request_id": "mine", "stream": stream, "prompt_tokens": 13,
        "completion_tokens": 5, "cached_tokens": line["cached_tokens"], "finish_reasons": ["length"],
    }  # fmt: skip


def test_lines_of_the_dialects_and_of_errors(client, lines):
    ask = {"messages": [{"role": "user", "content": "secret words"}], "max_tokens": 2, "temperature": 0}
    client.post("/v1/messages", json={**ASK, "model": "small"})
    client.post("/v1/messages", json={**ask, "model": "small"})
    streamed = {"input": "secret words", "max_output_tokens": 2, "stream": True, "temperature": 0}
    client.post("/v1/responses", json=streamed)
    client.post("/v1/chat/completions", json={**ask, "model": "other"})
    client.get("/nowhere?key=secret")
    found = lines()
    assert [(line["status"], line.get("error")) for line in found] == [
        (400, "invalid_request_error"), (200, None), (200, None), (404, "model_not_found"),
        (404, "invalid_request_error"),
    ]  # fmt: skip
    assert [line.get("completion_tokens") for line in found] == [None, 2, 2, None, None]
    assert "secret" not in json.dumps(found)


def test_no_line_has_a_key(tokenizer, lines):
    state = small_state(tokenizer)
    state.guard = Guard.of(ServeConfig(PagedEngineConfig()), {USER_KEYS: "alice-key,bobby-key"})
    with client_of(state) as client:
        for headers in (KEY, {"x-api-key": "bobby-key"}, {"Authorization": "Bearer wrong-key"}):
            client.post("/v1/completions", json=ASK, headers=headers)
    alice, bob, nobody = lines()
    assert re.fullmatch("[0-9a-f]{16}", alice["key"])
    assert alice["key"] != bob["key"]
    assert (nobody["status"], "key" in nobody) == (401, False)
    assert not re.search("alice|bobby|wrong", json.dumps([alice, bob, nobody]))


def test_faults_and_clients_that_go_away_are_told(tokenizer, lines, monkeypatch):
    state = small_state(tokenizer)

    def broken(*args, **options):
        raise RuntimeError("secret words")

    with listening(state) as (_, address):
        for stream in (True, False):
            with pytest.raises(httpx.ReadTimeout):
                body = {**ASK, "max_tokens": 1000, "stream": stream}
                timeout = httpx.Timeout(60, read=60 if stream else 0.2)
                with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=timeout) as reply:
                    for _ in reply.iter_bytes():
                        raise httpx.ReadTimeout("seen enough")
            while state.engine.stats().running or len(lines()) < (1 if stream else 2):
                time.sleep(0.01)
        monkeypatch.setattr("arcforge_serving.server.openai.completions.prepare", broken)
        assert httpx.post(f"{address}/v1/completions", json=ASK).headers["x-request-id"]
    streamed, whole, fault = lines()
    assert (streamed["status"], streamed["error"]) == (200, "client_gone")
    assert streamed["completion_tokens"] > 0
    assert (whole["status"], whole["error"]) == (499, "client_gone")
    assert (fault["status"], fault["error"]) == (500, "server_error")


def test_requests_are_counted_by_route_and_status(client):
    client.get("/nowhere")
    client.post("/v1/completions", json={})
    page = client.get("/metrics").text
    assert re.search(r'arcforge:http_requests_total\{model_name="small",path="",status="404"\} \d', page)
    assert re.search(r'arcforge:http_requests_total\{model_name="small",path="/v1/completions",status="400"\} \d', page)


PROGRAM = """
import logging, logging.config, sys
from arcforge_serving.server.gate.logs import log_config
logging.config.dictConfig(log_config(sys.argv[1]))
shown = {"method": "GET", "path": "/", "status": 200, "seconds": 0.1, "request_id": "a"}
logging.getLogger("arcforge.requests").info("%(method)s %(path)s", shown, extra={"shown": shown})
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("uvicorn.error").exception("a fault")
"""


@pytest.mark.parametrize("form", ["problems", "text", "json"])
def test_the_forms_of_the_log(form):
    ran = subprocess.run([sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    found = ran.stderr.splitlines()
    if form == "json":
        request, fault = map(json.loads, found)
        assert (request["logger"], request["request_id"], request["status"]) == ("arcforge.requests", "a", 200)
        assert (fault["message"], fault["level"]) == ("a fault", "error")
        assert "ZeroDivisionError" in fault["exception"]
    else:
        assert any("ZeroDivisionError" in line for line in found)
        assert any("GET / status=200" in line and "request_id=a" in line for line in found) == (form == "text")


def test_text_shows_each_field_once():
    shown = {"path": "/", "status": 200}
    record = logging.makeLogRecord({"msg": "%(path)s", "args": (shown,), "levelname": "INFO", "shown": shown})
    record.args = shown
    assert Lines().format(record).endswith(" INFO / status=200")
    assert log_config("json")["formatters"]["lines"]["()"] is JsonLines
