"""New weights by upload or from a folder replace the old ones whole, or leave them as they are."""

import asyncio
import pickle
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save
from starlette.exceptions import HTTPException

from arcforge_core import save_pretrained
from arcforge_core.generation.weights import checksum
from arcforge_core.testing.small_models import small_model
from arcforge_serving.engine.kvcache.radix import RadixTree
from arcforge_serving.server.admin import Control, in_thread, store
from arcforge_serving.server.gate.guard import Guard, Limits
from arcforge_serving.server.shared.state import ServerState
from serving.server.admin.conftest import (
    GOOD,
    assert_as_before,
    assert_of,
    complete,
    control,
    in_background,
    slow_down,
    state_of,
    trainer,
    upload,
)
from support.waiting import wait_until


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
    wait_until(lambda: server.engine.stats().generated_tokens > 3)
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
    begun, free, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        free.wait(60)
        done.set()

    async def leave() -> None:
        task = asyncio.create_task(in_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        assert not (await asyncio.wait([task], timeout=0.1))[0]
        free.set()
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
