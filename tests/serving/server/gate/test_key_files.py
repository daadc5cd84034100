import os
from pathlib import Path

import pytest

from arcforge_core.errors import ConfigError
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.auth import USER_KEYS, Level
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.gate.key_files import WatchedKeys
from support.servers import client_of, small_state


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def watched(users: Path, admins: Path | None = None, clock: Clock | None = None) -> WatchedKeys:
    config = ServeConfig(PagedEngineConfig(), api_key_file=str(users), admin_key_file=admins and str(admins))
    return WatchedKeys(config, {}, clock or Clock())


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    users, admins = tmp_path / "users", tmp_path / "admins"
    users.write_text("alice-key\n")
    admins.write_text("admin-key\n")
    keys = watched(users, admins)
    alice = keys.owner("Bearer alice-key", Level.USER)
    users.write_text("alice-key\nbobby-key\n")
    assert keys.owner("Bearer bobby-key", Level.USER) != alice
    replacement = tmp_path / "new"
    replacement.write_text("carol-key\n")
    os.replace(replacement, users)
    assert len(keys.users) == 1
    with pytest.raises(Exception, match="not known"):
        keys.owner("Bearer alice-key", Level.USER)
    admins.write_text("other-admin\n")
    assert keys.is_admin(keys.owner("Bearer other-admin", Level.ADMIN))
    assert not keys.is_admin(keys.owner("Bearer carol-key", Level.USER))
    assert not keys.is_admin("")


@pytest.mark.parametrize("content", ["", "short\n", "# none\n", None, "admin-key\n"])
def test_a_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    users, admins = tmp_path / "users", tmp_path / "admins"
    users.write_text("alice-key\n")
    admins.write_text("admin-key\n")
    keys = watched(users, admins)
    users.unlink() if content is None else users.write_text(content)
    assert keys.owner("Bearer alice-key", Level.USER)
    assert keys.owner("Bearer alice-key", Level.USER)
    (record,) = caplog.records
    assert "the keys stay as they were" in record.getMessage()
    assert "alice" not in caplog.text
    users.write_text("bobby-key\n")
    assert keys.owner("Bearer bobby-key", Level.USER)


def test_files_are_looked_at_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, looks = tmp_path / "users", []
    users.write_text("alice-key\n")
    clock = Clock()
    keys = watched(users, clock=clock)
    monkeypatch.setattr(keys, "_look", lambda: looks.append(0))
    monkeypatch.setattr(Clock, "__call__", lambda self: self.now)
    for _ in range(100):
        keys.owner("Bearer alice-key", Level.USER)
    assert not looks
    clock.now += 1.0
    keys.owner("Bearer alice-key", Level.USER)
    assert len(looks) == 1


def test_what_cannot_be_used_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        watched(tmp_path / "none")
    assert WatchedKeys(ServeConfig(PagedEngineConfig()), {USER_KEYS: "alice-key"}).owner("Bearer alice-key", Level.USER)


def test_a_server_takes_new_keys_without_a_restart(tokenizer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    users = tmp_path / "users"
    users.write_text("alice-key\n")
    state = small_state(tokenizer)
    keys = watched(users)
    state.guard = Guard(keys)
    with client_of(state) as client:
        bob = {"Authorization": "Bearer bobby-key"}
        assert client.get("/v1/models", headers=bob).status_code == 401
        users.write_text("bobby-key\n")
        assert client.get("/v1/models", headers=bob).status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": "alice-key"}).status_code == 401
