import asyncio
import json
import pickle
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save
from starlette.exceptions import HTTPException

from arcforge_core import save_pretrained
from arcforge_core.generation.weights import checksum
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.engine_suite import continuation_logits
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.engine.kvcache.radix import RadixTree
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.server.admin import Control, in_thread, store
from arcforge_serving.server.app import create_app
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS
from arcforge_serving.server.gate.guard import Guard, Limits
from arcforge_serving.server.shared.state import ServerState
from support.servers import LOCAL

ADMIN, USER = {"Authorization": "Bearer admin-key"}, {"Authorization": "Bearer users-key"}
KEYS = {USER_KEYS: "users-key,other-key", ADMIN_KEYS: "admin-key"}
PROMPT = list(range(2, 22))
State = dict[str, torch.Tensor]
ROUTES = [
    ("GET", "status", None),
    ("POST", "pause", {"mode": "keep"}),
    ("POST", "resume", None),
    ("POST", "flush", None),
    ("POST", "abort", {"all": True}),
    ("POST", "generate", {"prompt": [1], "max_new_tokens": 1}),
    ("POST", "update_weights", {"path": "new"}),
    ("POST", "update_weights/tensors", None),
]


def trainer(seed: int) -> CausalLM:
    return small_model(seed, vocab_size=TOKENIZER_SIZE)


def state_of(model: CausalLM) -> State:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def server(tmp_path: Path) -> ServerState:
    engine = PagedEngine(PagedEngineConfig(page_size=4, max_running=4, cache_tokens=1024), trainer(0))
    state = ServerState(engine, small_tokenizer(), "small")
    state.guard, state.weights_root = Guard.of(ServeConfig(PagedEngineConfig()), KEYS), tmp_path / "root"
    state.weights_root.mkdir()
    save_pretrained(trainer(1), state.weights_root / "new")
    return state


@pytest.fixture
def client(server: ServerState) -> Iterator[TestClient]:
    with TestClient(create_app(server), LOCAL, headers=ADMIN) as client:
        yield client


def slow_down(server: ServerState, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.02) -> None:
    original = server.engine.model.embed

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return original(*args)

    monkeypatch.setattr(server.engine.model, "embed", slow)


def control(client: TestClient, route: str, status: int = 200, **body: Any) -> dict[str, Any]:
    response = client.post(f"/v1/rl/{route}", json=body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def upload(client: TestClient, content: bytes, status: int = 200, **query: Any) -> dict[str, Any]:
    response = client.post("/v1/rl/update_weights/tensors", content=content, params=query)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def complete(client: TestClient, prompt: list[int] = PROMPT, count: int = 8, **body: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 0, "return_token_ids": True, **body}
    response = client.post("/v1/completions", json={"ignore_eos": True, **body}, headers=USER)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def assert_of(model: CausalLM, choice: dict[str, Any], prompt: list[int] = PROMPT) -> None:
    """Tokens and log-probs are those of the trainer's forward pass."""
    logits_SV = continuation_logits(model, prompt, choice["token_ids"])
    assert choice["token_ids"] == logits_SV.argmax(-1).tolist()
    wanted_S = logits_SV.log_softmax(-1).gather(1, torch.tensor(choice["token_ids"])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(choice["logprobs"]["token_logprobs"]), wanted_S, atol=1e-5, rtol=0)


def in_background(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# ---- who may ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_every_route_wants_an_admin_key(
    client: TestClient, server: ServerState, method: str, path: str, body: dict[str, Any] | None
) -> None:
    def status(header: str) -> int:
        response = client.request(method, f"/v1/rl/{path}", json=body, headers={"Authorization": header})
        return response.status_code

    assert [status(h) for h in ("", "Bearer wrong-key", USER["Authorization"])] == [401, 401, 403]
    assert status(ADMIN["Authorization"]) == (400 if path.endswith("tensors") else 200)
    server.guard = Guard()
    response = client.request(method, f"/v1/rl/{path}", json=body)
    assert response.status_code == 403
    assert "admin_key_file" in response.json()["error"]["message"]


def test_these_are_all_routes(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {path for path in paths if path.startswith("/v1/rl")} == {f"/v1/rl/{path}" for _, path, _ in ROUTES}


def test_every_other_route_wants_a_key_too(client: TestClient) -> None:
    """Whoever adds a route and forgets to declare it gets one for users."""
    paths = client.get("/openapi.json").json()["paths"]
    client.headers["Authorization"] = ""
    for path, methods in paths.items():
        for method in methods:
            status = client.request(method, path.replace("{name}", "small"), json={}).status_code
            assert status == (200 if path in ("/health", "/ready", "/dashboard") else 401), path
    assert len(paths) > 12


# ---- standing still --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "reason"), [("abort", "abort"), ("wait", "length"), ("keep", "length")])
def test_pauses(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch, mode: str, reason: str
) -> None:
    slow_down(server, monkeypatch)
    running, results = in_background(lambda: complete(client, count=30))
    until(lambda: server.engine.stats().running == 1)
    assert control(client, "pause", mode=mode)["paused"] is True
    if mode != "keep":
        running.join(20)
    late, late_results = in_background(lambda: complete(client, count=2))
    time.sleep(0.1)
    stats = client.get("/v1/rl/status").json()
    assert (stats["paused"], stats["running"], stats["operation"]) == (True, mode == "keep", None)
    assert not late_results
    assert control(client, "resume")["paused"] is False
    late.join(20)
    running.join(20)
    assert results[0]["finish_reason"] == reason
    assert late_results[0]["finish_reason"] == "length"
    assert 'arcforge:paused{model_name="small"} 0.0' in client.get("/metrics").text


def test_what_a_pause_waits_for_can_be_aborted(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(server, monkeypatch, 0.1)
    running, results = in_background(lambda: complete(client, count=90))
    until(lambda: server.engine.stats().running == 1)
    pausing, paused = in_background(lambda: control(client, "pause", mode="wait"))
    until(lambda: client.get("/v1/rl/status").json()["operation"] == "pause wait")
    for route, body in (
        ("resume", {}),
        ("pause", {"mode": "keep"}),
        ("update_weights", {"path": "new"}),
        ("flush", {}),
    ):
        assert "pause wait is in progress" in control(client, route, 409, **body)["error"]["message"]
    control(client, "abort", all=True)
    for thread in (running, pausing):
        thread.join(5)
        assert not thread.is_alive()
    assert results[0]["finish_reason"] == "abort"
    assert paused[0]["paused"] is True


def test_one_request_is_aborted_by_its_id(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(server, monkeypatch)
    body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "n": 2}

    def ask(name: str) -> Any:
        return client.post("/v1/completions", json=body, headers={**USER, "X-Request-Id": name}).json()

    asked = {name: in_background(lambda name=name: ask(name)) for name in ("mine", "other")}
    until(lambda: {"mine", "other"} <= set(server.open))
    control(client, "abort", request_id="mine")
    asked["mine"][0].join(20)
    assert [c["finish_reason"] for c in asked["mine"][1][0]["choices"]] == ["abort"] * 2
    assert len(server.open) == 2
    (generated,) = set(server.open) - {"other"}
    control(client, "abort", request_id=generated)
    asked["other"][0].join(20)
    assert asked["other"][1][0]["id"] == generated
    assert [c["finish_reason"] for c in asked["other"][1][0]["choices"]] == ["abort"] * 2
    assert not server.open
    assert "no request 'mine'" in control(client, "abort", 404, request_id="mine")["error"]["message"]
    server.engine.check()


def test_requests_that_are_none(client: TestClient) -> None:
    for body in ({}, {"all": True, "request_id": "a"}, {"all": False}, {"request_id": 5}):
        control(client, "abort", 400, **body)
    control(client, "pause", 400, mode="now")
    control(client, "pause", 400, modus="keep")
    for body in ({}, {"path": ""}, {"path": "new", "version": 0}, {"path": "new", "checksum": "abc"}):
        control(client, "update_weights", 400, **body)
    upload(client, b"", 400, version="x")
    upload(client, b"", 400, checksum="0" * 63)


# ---- new weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["directory", "tensors"])
def test_weights_are_replaced(client: TestClient, server: ServerState, source: str) -> None:
    old, new = trainer(0), trainer(1)
    choice = complete(client)
    assert_of(old, choice)
    assert choice["weight_versions"] == [[0, 8]]
    wanted = checksum(state_of(new))
    if source == "directory":
        answer = control(client, "update_weights", path="new", version=7, checksum=wanted)
    else:
        answer = upload(client, save(state_of(new)), version=7, checksum=wanted)
    assert answer["weight_version"] == 7
    assert 0 < answer["seconds"] < 60
    choice = complete(client)
    assert_of(new, choice)
    assert choice["weight_versions"] == [[7, 8]]
    assert client.get("/v1/rl/status").json()["weight_version"] == 7
    page = client.get("/metrics").text
    assert f'duration_seconds_count{{model_name="small",operation="{source}",outcome="done"}} 1.0' in page
    assert 'arcforge:weight_version{model_name="small"} 7.0' in page
    server.engine.check(checksums=True)


def test_versions_are_told_by_token(client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a trainer can drop what its oldest token makes too stale."""
    slow_down(server, monkeypatch)
    running, results = in_background(lambda: complete(client, count=40))
    until(lambda: server.engine.stats().generated_tokens > 3)
    control(client, "pause", mode="keep")
    control(client, "update_weights", path="new", version=3)
    control(client, "resume")
    running.join(20)
    (first, some), (second, others) = results[0]["weight_versions"]
    assert (first, second, some + others) == (0, 3, 40)
    assert min(some, others) > 0


def mutated(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    state = state_of(trainer(1))
    return save({**state, name: change(state[name]).contiguous()})


HEAD = "lm_head.weight"
GOOD = save(state_of(trainer(1)))
BAD = {
    "empty": (b"", "damaged or incomplete"),
    "noise": (b"\x00" * 64, "damaged or incomplete"),
    "a pickle": (pickle.dumps(state_of(trainer(1))), "damaged or incomplete"),
    "truncated": (GOOD[:-1], "damaged or incomplete"),
    "a header alone": (GOOD[:8], "damaged or incomplete"),
    "too long": (GOOD + b"x", "damaged or incomplete"),
    "a missing name": (save({k: v for k, v in state_of(trainer(1)).items() if k != HEAD}), f"{HEAD} is missing"),
    "a further name": (save({**state_of(trainer(1)), "x": torch.ones(1)}), "x is not part of the model"),
    "another shape": (mutated(HEAD, lambda t: t.T), "the model's is"),
    "not finite": (mutated(HEAD, lambda t: t / 0), "is not finite"),
    "one that is not a number": (mutated(HEAD, lambda t: t.where(t != t.max(), torch.nan)), "is not finite"),
    "other numbers": (mutated(HEAD, lambda t: t.long()), "is torch.int64"),
}


def assert_as_before(client: TestClient, server: ServerState, version: int = 0) -> None:
    choice = complete(client)
    assert choice["weight_versions"] == [[version, 8]]
    assert_of(trainer(0), choice)
    assert client.get("/v1/rl/status").json()["operation"] is None
    assert not list(Path(tempfile.gettempdir()).glob("arcforge-weights-*"))
    server.engine.check()


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_upload_leaves_the_old_weights(
    client: TestClient, server: ServerState, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    content, reason = BAD[name]
    message = upload(client, content, 400)["error"]["message"]
    assert message.startswith("the weights are as before: ")
    assert reason in message
    assert_as_before(client, server)
    assert 'operation="tensors",outcome="refused"} 1.0' in client.get("/metrics").text


def test_a_wrong_checksum_or_version_leaves_the_old_weights(client: TestClient, server: ServerState) -> None:
    wrong = checksum(state_of(trainer(0)))
    assert "not " + wrong in upload(client, GOOD, 400, checksum=wrong)["error"]["message"]
    assert "not " + wrong in control(client, "update_weights", 400, path="new", checksum=wrong)["error"]["message"]
    assert_as_before(client, server)
    upload(client, save(state_of(trainer(0))), version=5)
    for stale in (4, 5):
        assert "above the current version, 5" in upload(client, GOOD, 409, version=stale)["error"]["message"]
        control(client, "update_weights", 409, path="new", version=stale)
    assert_as_before(client, server, 5)


def test_damaged_folders_leave_the_old_weights(client: TestClient, server: ServerState) -> None:
    assert server.weights_root is not None
    folder = server.weights_root / "new" / "model.safetensors"
    content = folder.read_bytes()
    save_pretrained(small_model(1), server.weights_root / "other")
    for damage in (content[:-1], b""):
        folder.write_bytes(damage)
        control(client, "update_weights", 400, path="new")
    assert "other sizes" in control(client, "update_weights", 400, path="other")["error"]["message"]
    control(client, "update_weights", 400, path="missing")
    control(client, "update_weights", 400, path=".")
    assert_as_before(client, server)


def test_an_upload_is_no_larger_than_the_model(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Control, "most_bytes", 5000)
    assert "5000 bytes" in upload(client, b"x" * 5001, 413)["error"]["message"]
    monkeypatch.undo()
    assert_as_before(client, server)
    server.guard = Guard(server.guard.keys, Limits(body_bytes=1000))  # which is for requests
    assert upload(client, GOOD)["weight_version"] == 1


def test_parts_of_an_upload_count_together(tmp_path: Path) -> None:
    """The test client joins them before they are sent."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 2000

    with pytest.raises(HTTPException) as caught:
        asyncio.run(store(parts(), tmp_path / "file", 5999))
    assert caught.value.status_code == 413
    asyncio.run(store(parts(), tmp_path / "file", 6000))
    assert (tmp_path / "file").read_bytes() == b"x" * 6000


def test_what_runs_in_a_thread_is_waited_for_by_whoever_goes_away() -> None:
    """Else the next operation would begin beside the rest of this one."""
    done = threading.Event()

    def work() -> None:
        time.sleep(0.2)
        done.set()

    async def leave() -> None:
        task = asyncio.create_task(in_thread(work))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done.is_set()

    asyncio.run(leave())


def test_a_full_disk_is_said(client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda self, mode: FullFile())
    assert "No space left" in upload(client, GOOD, 507)["error"]["message"]
    monkeypatch.undo()
    assert_as_before(client, server)


class FullFile:
    """A file on a full disk."""

    def __enter__(self) -> "FullFile":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def write(self, part: bytes) -> None:
        raise OSError(28, "No space left on device")


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(server: ServerState, tmp_path: Path) -> Path:
    """A checkpoint beside the root, and ways to it."""
    assert server.weights_root is not None
    root, outside = server.weights_root, tmp_path / "outside"
    save_pretrained(trainer(1), outside)
    save_pretrained(trainer(1), tmp_path / "root-2")
    (root / "link").symlink_to(outside)
    (root / "half").mkdir()
    for file in (root / "new").iterdir():
        (root / "half" / file.name).symlink_to(outside / file.name)
    (root / "run" / "checkpoints").mkdir(parents=True)
    (root / "run" / "checkpoints" / "step-1").symlink_to(outside)
    return outside


@pytest.mark.parametrize(
    "path",
    ["..", "../outside", "new/../../outside", "link", "link/.", "half", "run", "/etc", "../root-2", "{outside}",
     "../nowhere", "/nowhere/at/all", "new/../../../../../../../../../etc"],
)  # fmt: skip
def test_paths_stay_below_the_root(client: TestClient, server: ServerState, outside: Path, path: str) -> None:
    message = control(client, "update_weights", 403, path=path.format(outside=outside))["error"]["message"]
    assert "weights_root" in message
    assert str(outside) not in message
    assert_as_before(client, server)


@pytest.mark.parametrize("path", ["new\0", "a" * 5000, "circle", "new/config.json"])
def test_paths_that_are_none(client: TestClient, server: ServerState, path: str) -> None:
    assert server.weights_root is not None
    (server.weights_root / "circle").symlink_to("circle")
    control(client, "update_weights", 400, path=path)
    assert_as_before(client, server)


def test_paths_below_the_root(client: TestClient, server: ServerState) -> None:
    assert server.weights_root is not None
    root = server.weights_root
    (root / "latest").symlink_to("new")
    (root / "run" / "checkpoints").mkdir(parents=True)
    save_pretrained(trainer(1), root / "run" / "checkpoints" / "step-1")
    paths = ["new", "latest", "run", f"{root}/new", "run/../new"]
    versions = [control(client, "update_weights", path=path)["weight_version"] for path in paths]
    assert versions == [1, 2, 3, 4, 5]


def test_without_a_root_no_folder_is_read(client: TestClient, server: ServerState) -> None:
    server.weights_root = None
    with TestClient(create_app(server), LOCAL, headers=ADMIN) as other:
        assert "weights_root is not set" in control(other, "update_weights", 403, path="new")["error"]["message"]


# ---- prefixes of old weights -----------------------------------------------------------------------------------------


def second_answer(client: TestClient) -> dict[str, Any]:
    """Returns what new weights answer to a prompt that the old ones have computed."""
    complete(client)
    upload(client, GOOD)
    return complete(client)


def test_no_entry_of_old_weights_is_found(client: TestClient) -> None:
    assert_of(trainer(1), second_answer(client))


def test_without_the_salt_old_entries_would_be_found(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the test above can fail: the version in the tree's root is what it depends on."""
    monkeypatch.setattr(RadixTree, "turn", lambda self: None)
    stale = second_answer(client)
    with pytest.raises(AssertionError):
        assert_of(trainer(1), stale)


# ---- whose turn it is ------------------------------------------------------------------------------------------------


def test_holders_of_a_key_share_one_turn(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[str] = []
    submit = server.engine.submit

    def watched(*args: Any, owner: str = "", **options: Any) -> Any:
        owners.append(owner)
        return submit(*args, owner=owner, **options)

    monkeypatch.setattr(server.engine, "submit", watched)
    other = {"Authorization": "Bearer other-key"}
    for headers, user in ((USER, "a"), (USER, "b"), (other, "a")):
        client.post("/v1/completions", json={"prompt": [1], "user": user}, headers=headers)
    assert owners[0] == owners[1] != owners[2]
    server.guard = Guard()
    for user in ("a", "b"):
        client.post("/v1/completions", content=json.dumps({"prompt": [1], "user": user}), headers={
            "Authorization": "", "content-type": "application/json",
        })  # fmt: skip
    assert owners[3:] == ["testclient"] * 2  # without keys an address shares one: a "user" can be made up
