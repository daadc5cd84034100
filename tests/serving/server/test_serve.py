import gc
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest
import torch

from arcforge_core import save_pretrained
from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError
from arcforge_core.garbage import SERVER
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_serving.configs import ServeConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.server.serve import Server, listen, load_state, serve, url
from support.servers import listening, small_state


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "small"
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), folder, small_tokenizer())
    return folder


@pytest.fixture
def server(checkpoint: Path) -> Iterator[subprocess.Popen[str]]:
    program = "import sys; from arcforge_core.cli.main import run_job; sys.exit(run_job('serve'))"
    command = [sys.executable, "-c", program, f"checkpoint={checkpoint}", "port=0", "hardware=torch_cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.slow(reason="starts a process that imports torch and fastapi")
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_real_server_answers_and_stops_in_order(
    server: subprocess.Popen[str], stop: signal.Signals, code: int
) -> None:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("small at http://127.0.0.1:")
    address = f"{line.split()[2]}/v1/completions"
    answer = httpx.post(address, json={"prompt": "one", "max_tokens": 3, "temperature": 0}, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3
    server.send_signal(stop)
    output, errors = server.communicate(timeout=30)
    assert server.returncode == code, errors
    assert output == ""
    assert "Traceback" not in errors


def test_garbage_is_collected_seldom_while_it_serves(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    monkeypatch.setattr(Server, "run", lambda *_, **__: seen.append(gc.get_threshold()))
    before = gc.get_threshold()
    serve(compose_config("serve", ServeConfig, [f"checkpoint={checkpoint}", "port=0", "hardware=torch_cpu"]))
    assert (seen, gc.get_threshold()) == ([SERVER], before)


def test_the_dtype_of_computation_is_the_users_choice(checkpoint: Path) -> None:
    config = compose_config(
        "serve", ServeConfig, [f"checkpoint={checkpoint}", "hardware=torch_cpu", "engine=paged", "dtype=bfloat16"]
    )
    assert cast(PagedEngine, load_state(config).engine).model.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="dtype='half': must be one of auto, stored, float32, bfloat16"):
        compose_config("serve", ServeConfig, [f"checkpoint={checkpoint}", "dtype=half"])


def test_a_taken_port_is_known_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "arcforge_serving.server.serve.load_with_tokenizer", lambda *args: pytest.fail("a model was loaded")
    )
    with listen("127.0.0.1", 0) as taken:
        config = compose_config("serve", ServeConfig, ["checkpoint=x", f"port={taken.getsockname()[1]}"])
        with pytest.raises(ConfigError, match=r"port=\d+: cannot listen on 127\.0\.0\.1"):
            serve(config)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::"])
def test_other_machines_need_a_key(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "arcforge_serving.server.serve.load_with_tokenizer", lambda *args: pytest.fail("a model was loaded")
    )
    with pytest.raises(ConfigError, match=rf"host='{host}': .* needs an API key: api_key_file, or ARCFORGE_SERVE_KEYS"):
        serve(compose_config("serve", ServeConfig, ["checkpoint=x", "port=0", f"host='{host}'"]))
    (tmp_path / "keys").write_text("a-key-of-mine\n")
    overrides = ["checkpoint=x", "port=0", f"host='{host}'", f"api_key_file={tmp_path / 'keys'}"]
    with pytest.raises(CheckpointError):  # it got as far as the checkpoint
        serve(compose_config("serve", ServeConfig, overrides))
    monkeypatch.setenv("ARCFORGE_SERVE_ADMIN_KEYS", "an-admins-key")  # that alone leaves generating open
    with pytest.raises(ConfigError, match="needs an API key"):
        serve(compose_config("serve", ServeConfig, ["checkpoint=x", "port=0", f"host='{host}'"]))
    monkeypatch.setenv("ARCFORGE_SERVE_KEYS", "a-users-key")
    with pytest.raises(CheckpointError):
        serve(compose_config("serve", ServeConfig, ["checkpoint=x", "port=0", f"host='{host}'"]))
    assert capsys.readouterr().err == ""


def test_this_machine_needs_none() -> None:
    listen("127.0.0.1", 0).close()


def test_addresses_of_both_families() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    if socket.has_ipv6:
        with listen("::1", 0) as listener:
            assert url(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_a_missing_folder_of_weights_is_named() -> None:
    with pytest.raises(ConfigError, match="weights_root='nowhere': must be a folder"):
        serve(compose_config("serve", ServeConfig, ["checkpoint=x", "port=0", "weights_root=nowhere"]))


def test_missing_checkpoint_is_named() -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        serve(compose_config("serve", ServeConfig, ["checkpoint=nowhere", "port=0"]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "checkpoint"),
        (["checkpoint=x", "port=70000"], "port=70000"),
        (["checkpoint=x", "shutdown_seconds=-1"], "shutdown_seconds=-1"),
        (["checkpoint=x", "max_body_mb=0"], "max_body_mb=0"),
        (["checkpoint=x", "max_connections=0"], "max_connections=0"),
        (["checkpoint=x", "keep_alive_seconds=0"], "keep_alive_seconds=0"),
        (["checkpoint=x", "header_seconds=0"], "header_seconds=0"),
        (["checkpoint=x", "body_seconds=nan"], "body_seconds=nan"),
        (["checkpoint=x", "read_seconds=-1"], "read_seconds=-1"),
        (["checkpoint=x", "engine=simple"], "engine='simple': must be paged, arcforge, vllm or sglang"),
        (["checkpoint=x", "engine=simpel"], "did you mean 'simple'"),
        (["checkpoint=x", "hots=::"], "did you mean 'host'"),
    ],
)
def test_bad_configurations_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ArcforgeError) as caught:
        compose_config("serve", ServeConfig, overrides)
    assert message in str(caught.value)


def read_to_the_end(state, shutdown_seconds, tokens):
    """Returns the events of a stream during which the server receives SIGTERM, and the other observations."""
    with listening(state, shutdown_seconds) as (server, address), httpx.Client(base_url=address, timeout=60) as client:
        events = []
        body = {"prompt": [1], "max_tokens": tokens, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            for line in filter(None, answer.iter_lines()):
                events.append(line.removeprefix("data: "))
                server.should_exit = True
        deadline = time.monotonic() + 30
        while state.engine.alive:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health")
    assert events.pop() == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    return choices[-1]["finish_reason"], state.engine.stats().generated_tokens


def test_streams_that_run_are_finished_at_the_end():
    model = small_model(vocab_size=TOKENIZER_SIZE)
    assert read_to_the_end(small_state(small_tokenizer(), model), 30.0, 100) == ("length", 100)


def test_streams_that_take_too_long_are_ended_as_aborted():
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=20_000)
    reason, count = read_to_the_end(small_state(small_tokenizer(), model), 0.3, 15_000)
    assert reason == "abort"
    assert count < 15_000
