"""The Unix socket that a server listens on besides its port."""

import os
import socket

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ConfigError
from arcforge_serving.configs import ServeConfig
from arcforge_serving.server import serve as module
from arcforge_serving.server.gate.listening import listen_unix
from arcforge_serving.server.serve import serve


def test_its_file_is_its_users_and_goes_with_it(tmp_path):
    path = str(tmp_path / "socket")
    with listen_unix(path) as [listener]:
        assert os.stat(path).st_mode & 0o777 == 0o600
        listener.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    assert not os.path.exists(path)


def test_no_path_is_no_socket():
    with listen_unix(None) as listeners:
        assert listeners == []


def test_what_a_killed_server_left_is_replaced(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
    with listen_unix(path) as [listener]:
        assert listener.getsockname() == path


def test_another_servers_is_not(tmp_path):
    path = str(tmp_path / "socket")
    with listen_unix(path) as [listener]:
        listener.listen()
        with pytest.raises(ConfigError, match="another program listens there"), listen_unix(path):
            pass
        assert os.path.exists(path)


@pytest.mark.parametrize(
    ("name", "reason"), [("file", "is not a socket"), ("no/folder", "No such file"), ("x" * 200, "too long")]
)
def test_impossible_paths_are_one_line(tmp_path, name, reason):
    (tmp_path / "file").touch()
    path = tmp_path / name
    with pytest.raises(ConfigError, match=rf"unix_socket=.*{reason}") as error, listen_unix(str(path)):
        pass
    assert "\n" not in str(error.value)


def test_the_option_is_heeded_before_the_model_is_loaded(tmp_path, monkeypatch):
    """Both addresses are given to the server."""
    path, seen = tmp_path / "socket", []
    options = ["checkpoint=x", "port=0", f"unix_socket={path}"]
    monkeypatch.setattr(module, "load_state", lambda config: seen.append(path.is_socket()) or pytest.fail("loaded"))
    with pytest.raises(pytest.fail.Exception):
        serve(compose_config("serve", ServeConfig, options))
    assert seen == [True] and not path.exists()
    (tmp_path / "socket").touch()
    with pytest.raises(ConfigError, match="is not a socket"):
        serve(compose_config("serve", ServeConfig, options))
