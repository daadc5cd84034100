"""The deployment recipes of docs/serving_reference.md, taken from the page: a systemd unit, a container file, nginx."""

import json
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.configs import ServeConfig
from arcforge_serving.server.gate.logs import JsonLines
from arcforge_serving.server.serve import SECONDS_TO_SEND
from support.servers import Says, listening, scripted_state

PAGE = Path(__file__).parents[2] / "docs" / "serving_reference.md"
UNIT, CONTAINER, PROXY = re.findall(
    r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8").partition("## Deployment")[2], re.M | re.S
)
IMAGE = (PAGE.parents[1] / "Dockerfile").read_text(encoding="utf-8")


def needs(program):
    """Skips a test where a program is missing; servers' programs are not on everybody's path."""
    places = [str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin", "/sbin"]
    found = shutil.which(program, path=os.pathsep.join(places))
    return pytest.mark.skipif(found is None, reason=f"there is no {program}"), found


has_systemd, SYSTEMD = needs("systemd-analyze")
has_hadolint, HADOLINT = needs("hadolint")
has_nginx, NGINX = needs("nginx")
SAID = "one two three four five six"


def service():
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(UNIT)
    return unit["Service"]


def test_the_unit_starts_the_server_with_options_that_exist_and_time_to_end():
    command, *options = shlex.split(service()["ExecStart"])
    assert command.endswith("/.venv/bin/arcforge-serve")
    config = compose_config("serve", ServeConfig, options)
    assert int(service()["TimeoutStopSec"]) > config.shutdown_seconds + SECONDS_TO_SEND
    assert int(service()["LimitNOFILE"]) > config.max_connections


@has_systemd
def test_systemd_takes_the_unit(tmp_path):
    file = tmp_path / "arcforge.service"
    file.write_text(UNIT.replace(shlex.split(service()["ExecStart"])[0], sys.executable))
    found = subprocess.run([SYSTEMD, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False)
    ours = [line for line in (found.stdout + found.stderr).splitlines() if "arcforge" in line]
    assert not ours, found.stderr  # unknown settings are warnings, and no failure


def test_the_container_starts_the_server_with_options_that_exist():
    entry, command = (json.loads(re.search(rf"^{name} (.*)$", CONTAINER, re.M)[1]) for name in ("ENTRYPOINT", "CMD"))
    assert entry[0] == "arcforge-serve"
    config = compose_config("serve", ServeConfig, [*entry[1:], *command])
    assert f"EXPOSE {config.port}\n" in CONTAINER and f"127.0.0.1:{config.port}/" in CONTAINER
    for folder in re.findall(r"\./(packages/\w+)", CONTAINER):
        assert (PAGE.parents[1] / folder / "pyproject.toml").is_file()


@has_hadolint
@pytest.mark.parametrize("text", [CONTAINER, IMAGE], ids=["server", "image"])
def test_hadolint_takes_the_container_files(text, tmp_path):
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    ignored = ["--ignore", "DL3008"]  # versions of Debian's packages are Debian's to choose
    found = subprocess.run(
        [HADOLINT, "--failure-threshold", "warning", *ignored, str(file)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout


@contextmanager
def nginx(folder, upstream):
    """Yields the address of nginx with the recipe, in front of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert "http://127.0.0.1:8000" in PROXY
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"daemon off;\npid {folder}/pid;\nerror_log {folder}/errors;\nevents {{}}\n"
    text += "user root;\n" if os.getuid() == 0 else ""  # else the worker may not write here
    text += f"http {{\naccess_log off;\n{temporary}server {{\nlisten {address};\n"
    text += PROXY.replace("http://127.0.0.1:8000", upstream) + "}\n}\n"
    (folder / "nginx.conf").write_text(text)
    command = [NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "errors")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", int(address.split(":")[1])), 1).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
            assert process.poll() is None, process.stderr.read()
            yield f"http://{address}"
        finally:
            process.terminate()


@has_nginx
def test_nginx_hands_on_events_as_they_come_ids_and_addresses(tmp_path, monkeypatch, caplog):
    """The model stops in the middle until the client has read what came before: buffered, it would never come."""
    caplog.set_level(logging.INFO, "arcforge.requests")
    go_on, allowed = threading.Event(), Says.allowed

    def held(says):
        assert len(says._left) > 5 or go_on.wait(60)
        return allowed(says)

    monkeypatch.setattr(Says, "allowed", held)
    state = scripted_state(small_tokenizer(), lambda prompt: SAID)
    # another address than the proxy's, and a lie about it
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    headers = {"x-forwarded-for": "6.6.6.6", "x-request-id": "mine"}
    with (
        listening(state) as (_, upstream),
        nginx(tmp_path, upstream) as address,
        httpx.Client(base_url=address, transport=transport, headers=headers, timeout=30) as client,
    ):
        try:
            body = {"prompt": "Hi", "max_tokens": 50, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as response:
                lines = (line for line in response.iter_lines() if line)
                text = ""
                while len(text) < 12:  # nginx forwards the part that comes with the headers, whatever its settings
                    text += json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"]
                assert SAID.startswith(text) and not go_on.is_set()
                go_on.set()
                assert list(lines)[-1] == "data: [DONE]"
        finally:
            go_on.set()
        given = response.headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", given)
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.02)
        (line,) = [json.loads(JsonLines().format(record)) for record in caplog.records]
        assert (line["client"], line["request_id"], line["status"]) == ("127.0.0.2", given, 200)
        assert client.get("/v1/rl/status").status_code == 404
        assert client.post("/v1/completions", content=b"x" * (8 * 2**20 + 1)).status_code == 413
        assert len(caplog.records) == 1  # the last two have not come through
