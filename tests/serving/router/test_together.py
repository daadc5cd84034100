"""The real router over real engines' processes: what only both together do."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from arcforge_core import save_pretrained
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS

PROGRAM = "import sys; from arcforge_core.cli.main import run_job; sys.exit(run_job('serve'))"
LIMIT = 100


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.mark.slow(reason="starts engines as processes, which import torch and fastapi")
def test_replies_rates_updates_and_the_log_of_several_engines(tmp_path: Path) -> None:
    torch_model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=4096)
    save_pretrained(torch_model, tmp_path / "small", small_tokenizer())
    admins = tmp_path / "admins"
    admins.write_text("first-admin\n")
    options = [f"checkpoint={tmp_path / 'small'}", "port=0", "hardware=torch_cpu", "dp=2", "shutdown_seconds=0.5",
               f"tokens_per_minute={LIMIT}", "router.policy=round_robin", "log=json", f"admin_key_file={admins}",
               f"weights_root={tmp_path}"]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="arc-", ignore_cleanup_errors=True) as sockets:  # a path short enough
        environment = {**os.environ, "TMPDIR": sockets, USER_KEYS: "alice-key,bobby-key"}
        environment.pop(ADMIN_KEYS, None)
        command = [sys.executable, "-c", PROGRAM, *options]
        with (
            (tmp_path / "log").open("w") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
        ):
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith("2 engines at http://127.0.0.1:"), (tmp_path / "log").read_text()
                address = line.split()[3].removesuffix("/v1/completions;")
                with httpx.Client(base_url=address, timeout=120, headers=bearer("first-admin")) as http:
                    replies_stay_where_they_are(http)
                    tokens_are_owed_to_all(http)
                    an_update_outlives_its_key(http, admins)
                process.terminate()
                process.wait(60)
            finally:
                process.kill()
    text = (tmp_path / "log").read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    asked = [line for line in lines if line.get("path") == "/v1/completions"]
    assert {line["client"] for line in asked} == {"127.0.0.1"}
    assert [line["error"] for line in asked if line["status"] == 429] == ["rate_limit_exceeded"]
    assert len({line["request_id"] for line in asked}) == len(asked)
    assert not any(key in text for key in ("alice-key", "bobby-key", "first-admin", "second-admin"))


def engine(response):
    assert response.status_code == 200, response.text
    return response.headers["x-arcforge-engine"]


def replies_stay_where_they_are(http):
    body = {"input": "Hi", "max_output_tokens": 4}
    with http.stream("POST", "/v1/responses", json={**body, "stream": True}) as streamed:
        events = [json.loads(line[6:]) for line in streamed.iter_lines() if line.startswith("data: ")]
    home, id_ = engine(streamed), events[0]["response"]["id"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    for stream in (False, True, False):
        follow = {**body, "previous_response_id": id_, "stream": stream}
        assert engine(http.post("/v1/responses", json=follow)) == home
    assert engine(http.get(f"/v1/responses/{id_}")) == home
    assert http.post("/v1/responses", json=follow, headers=bearer("bobby-key")).status_code == 404
    restart = http.post(f"/v1/router/engines/{home}/restart", headers=bearer("first-admin"))
    assert restart.status_code == 200
    until_ready(http)
    lost = http.post("/v1/responses", json=follow)
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "previous_response_not_found")
    assert http.get(f"/v1/responses/{id_}").status_code == 404


def tokens_are_owed_to_all(http):
    """What one engine has given, to the other too."""
    body = {"prompt": [1, 2, 3], "max_tokens": 4 * LIMIT, "ignore_eos": True, "stream": True}
    assert engine(http.post("/v1/completions", json=body, headers=bearer("bobby-key")))
    deadline = time.monotonic() + 60
    body["max_tokens"] = 1
    while (refused := http.post("/v1/completions", json=body, headers=bearer("bobby-key"))).status_code == 200:
        assert time.monotonic() < deadline  # an engine's word may come after its answer
    assert refused.status_code == 429 and f"tokens_per_minute={LIMIT}" in refused.text
    assert int(refused.headers["retry-after"]) > 60
    assert engine(http.post("/v1/completions", json=body, headers=bearer("alice-key")))


def an_update_outlives_its_key(http, admins):
    update = {"path": "small", "version": 7}
    answer = http.post("/v1/rl/update_weights", json=update, headers=bearer("first-admin"))
    assert answer.status_code == 200, answer.text
    admins.write_text("second-admin\n")
    deadline = time.monotonic() + 30
    while http.get("/v1/rl/status", headers=bearer("first-admin")).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert http.post("/v1/router/engines/1/restart", headers=bearer("second-admin")).status_code == 200
    until_ready(http)
    status = http.get("/v1/rl/status", headers=bearer("second-admin")).json()
    assert [each["weight_version"] for each in status["engines"]] == [7, 7]


def until_ready(http):
    """Waits until an engine that was told to end has ended, and both are ready."""
    deadline, restarted = time.monotonic() + 120, False
    while True:
        states = set(http.get("/ready").json()["engines"].values())
        restarted = restarted or states != {"ready"}
        if restarted and states == {"ready"}:
            return
        assert time.monotonic() < deadline, states
        time.sleep(0.01)
