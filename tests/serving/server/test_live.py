"""The whole server on a socket: clients that go away, read nothing, or send half of something."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import save

from arcforge_core import save_pretrained
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS
from arcforge_serving.server.gate.connections import connection_options
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.gate.listening import listen, listen_unix, url
from arcforge_serving.server.serve import Server
from arcforge_serving.server.shared.state import ServerState
from support.waiting import wait_until

ADMIN, USER = {"Authorization": "Bearer admin-key"}, {"Authorization": "Bearer users-key"}
PROMPT = list(range(2, 22))
LONGEST = 2000
PATIENCE = 60.0
"""Seconds until something that should come counts as never: a busy machine may be slow, and no test waits for it."""


def weights(seed: int) -> bytes:
    return save(dict(small_model(seed, vocab_size=TOKENIZER_SIZE, max_position_embeddings=LONGEST).state_dict()))


class Live:
    """A server in a thread."""

    def __init__(self, root: Path) -> None:
        model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=LONGEST)
        engine = PagedEngine(PagedEngineConfig(page_size=4, max_running=4, cache_tokens=8000), model)
        self.config = ServeConfig(PagedEngineConfig(), read_seconds=1.0)
        self.state = ServerState(engine, small_tokenizer(), "small", weights_root=root)
        self.state.guard = Guard.of(self.config, {USER_KEYS: "users-key", ADMIN_KEYS: "admin-key"})
        self.server = Server(self.state, 2.0, "critical", **connection_options(self.config))
        self.listener = listen("127.0.0.1", 0)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self.address, self.url = self.listener.getsockname(), url(self.listener)
        self.path = str(root / "socket")
        self.unix = listen_unix(self.path)
        further = self.unix.__enter__()
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener, *further]})
        self.thread.start()
        self.http = httpx.Client(base_url=self.url, headers=ADMIN, timeout=PATIENCE)
        self.delay = 0.0
        embed = model.embed

        def slow(*args: Any) -> Any:
            time.sleep(self.delay)
            return embed(*args)

        model.embed = slow  # type: ignore[method-assign]

    def close(self) -> None:
        self.delay = 0.0
        self.http.close()
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        self.listener.close()
        self.unix.__exit__(None, None, None)
        assert not self.thread.is_alive()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/v1/rl/status").json()
        return found

    def body(self, **changes: Any) -> dict[str, Any]:
        return {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True, **changes}

    def connect(self, body: dict[str, Any], receive: int | None = None) -> socket.socket:
        """Sends a request and reads nothing."""
        client, content = socket.socket(), json.dumps(body).encode()
        if receive is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        client.connect(self.address)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer users-key\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        client.sendall(head.encode() + content)
        return client

    def assert_clean(self) -> None:
        """Every page comes back."""
        wait_until(lambda: self.status()["running"] == 0)
        assert self.status()["waiting"] == 0
        self.state.engine.check()
        self.http.post("/v1/rl/flush")
        status = self.status()
        assert status["free_pages"] == status["pages"]
        wait_until(lambda: not self.state.open)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("root")
    save_pretrained(small_model(1, vocab_size=TOKENIZER_SIZE, max_position_embeddings=LONGEST), root / "new")
    live = Live(root)
    yield live
    live.close()


@pytest.fixture
def live(server: Live) -> Iterator[Live]:
    server.delay = 0.0
    yield server
    server.delay = 0.0
    server.assert_clean()


def test_a_unix_socket_serves_the_same(live: Live) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(uds=live.path), base_url="http://127.0.0.1:8000") as client:
        user = {"Authorization": "Bearer users-key"}
        body = live.body(temperature=0)
        here, there = (http.post("/v1/completions", json=body, headers=user) for http in (client, live.http))
        assert here.json()["choices"] == there.json()["choices"]
        with client.stream("POST", "/v1/completions", json=live.body(stream=True), headers=user) as stream:
            assert [line for line in stream.iter_lines() if line][-1] == "data: [DONE]"
        assert client.post("/v1/completions", json=live.body()).status_code == 401
        assert client.get("/v1/models", headers={**user, "Host": "rebound.example"}).status_code == 421


# ---- clients that go away --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 6])
def test_clients_that_go_away_free_their_pages(live: Live, stream: bool, n: int) -> None:
    """Running and waiting ones: four run at a time."""
    live.delay = 0.01
    before = live.status()["generated_tokens"]
    client = live.connect(live.body(max_tokens=1500, stream=stream, n=n))
    wait_until(lambda: live.status()["generated_tokens"] > before + 10)
    client.close()
    live.assert_clean()
    assert live.status()["generated_tokens"] < before + 4 * 1000


def test_a_client_that_does_not_read_its_stream_holds_nobody_up(live: Live) -> None:
    before = live.status()["generated_tokens"]
    client = live.connect(live.body(max_tokens=1900, stream=True, logprobs=20), receive=4096)
    wait_until(lambda: live.status()["generated_tokens"] > before + 50)
    for _ in range(3):
        assert live.http.post("/v1/completions", json=live.body()).status_code == 200
    # it is either generated to its end, or cut off when the client has not read for read_seconds
    wait_until(lambda: live.status()["running"] == 0)
    wait_until(lambda: not live.state.open)
    client.settimeout(5)
    received = 0
    try:
        while part := client.recv(65536):
            received += len(part)
    except ConnectionResetError:
        pass
    assert received < 2**20
    client.close()


def test_a_slow_reader_gets_all_of_its_tokens(live: Live) -> None:
    wanted = live.http.post("/v1/completions", json=live.body(max_tokens=120, temperature=0)).json()
    found = []
    with live.http.stream("POST", "/v1/completions", json=live.body(max_tokens=120, temperature=0, stream=True)) as r:
        for number, line in enumerate(r.iter_lines()):
            if number % 20 == 0:
                time.sleep(0.02)
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                found += choice["token_ids"]
    assert found == wanted["choices"][0]["token_ids"]


# ---- updates that come in parts --------------------------------------------------------------------------------------


def test_two_updates_at_once(live: Live) -> None:
    """The second is refused, however far the first has come; requests are served meanwhile."""
    content, go, results = weights(1), threading.Event(), []
    version = live.status()["weight_version"]
    path = "/v1/rl/update_weights/tensors"

    def parts() -> Iterator[bytes]:
        yield content[:1000]
        go.wait(PATIENCE)
        yield content[1000:]

    first = threading.Thread(target=lambda: results.append(live.http.post(path, content=parts())))
    first.start()
    wait_until(lambda: live.status()["operation"] == "an update")
    for _ in range(2):
        refused = [live.http.post(path, content=content), live.http.post(path[:-8], json={"path": "new"})]
        assert [response.status_code for response in refused] == [409, 409]
        assert "an update is in progress" in refused[0].json()["error"]["message"]
    (choice,) = live.http.post("/v1/completions", json=live.body()).json()["choices"]
    assert choice["weight_versions"] == [[version, 8]]
    go.set()
    first.join(PATIENCE)
    assert results[0].json()["weight_version"] == version + 1
    assert live.http.post(path, content=weights(0)).json()["weight_version"] == version + 2


def test_an_upload_that_breaks_off_leaves_nothing(live: Live) -> None:
    version = live.status()["weight_version"]
    client = socket.create_connection(live.address)
    head = "POST /v1/rl/update_weights/tensors HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin-key\r\n"
    client.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + weights(1)[:5000])
    wait_until(lambda: live.status()["operation"] == "an update")
    client.close()
    wait_until(lambda: live.status()["operation"] is None)
    assert live.status()["weight_version"] == version
    assert live.http.post("/v1/rl/update_weights", json={"path": "new"}).json()["weight_version"] == version + 1
    assert live.http.post("/v1/rl/update_weights/tensors", content=weights(0)).status_code == 200


def test_a_trainer_that_goes_away_leaves_nothing_half_done(live: Live) -> None:
    """The update has begun: it is done, and the next one can come."""
    live.delay = 0.05
    version = live.status()["weight_version"]
    running = live.connect(live.body(max_tokens=200))
    wait_until(lambda: live.status()["running"] == 1)
    pausing = httpx.Client(base_url=live.url, headers=ADMIN, timeout=httpx.Timeout(PATIENCE, read=0.3))
    with pytest.raises(httpx.ReadTimeout):
        pausing.post("/v1/rl/pause", json={"mode": "wait"})
    pausing.close()
    wait_until(lambda: live.status()["operation"] == "pause wait")
    live.delay = 0.0
    wait_until(lambda: live.status()["operation"] is None)
    assert live.status()["paused"] is True
    assert live.http.post("/v1/rl/resume").json()["weight_version"] == version
    running.close()


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_a_paused_server_can_be_stopped(tmp_path: Path, mode: str) -> None:
    live = Live(tmp_path)
    live.delay = 0.05
    results: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: results.append(httpx.post(f"{live.url}/v1/completions", json=live.body(max_tokens=1000),
                                                 headers=USER, timeout=PATIENCE))
    )  # fmt: skip
    asking.start()
    wait_until(lambda: live.status()["running"] == 1)
    pausing = threading.Thread(target=lambda: live.http.post("/v1/rl/pause", json={"mode": mode}))
    pausing.start()
    wait_until(lambda: live.status()["operation" if mode == "wait" else "paused"] in (True, "pause wait"))
    live.server.should_exit = True
    for thread in (asking, pausing, live.thread):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert results[0].json()["choices"][0]["finish_reason"] == "abort"
    live.close()
