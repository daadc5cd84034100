"""Folders of new weights are below the root."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from arcforge_core import save_pretrained
from arcforge_serving.server.app import create_app
from arcforge_serving.server.shared.state import ServerState
from serving.server.admin.conftest import ADMIN, assert_as_before, control, trainer
from support.servers import LOCAL


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
