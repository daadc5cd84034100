import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest
import torch

from arcforge_attention.configs import MlaConfig
from arcforge_core import save_pretrained
from arcforge_core.configs import AutoHardwareConfig
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_config, small_model, small_tokenizer
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.router.process import EngineProcess
from arcforge_serving.router.serve import serve_fleet
from support.chaos import drive, load_late
from support.serving_load import make_cases


@pytest.mark.slow(reason="starts engines as processes, which import torch, and kills them")
@pytest.mark.parametrize("prefill", [0, pytest.param(1, marks=pytest.mark.nightly(reason="as without"))])
def test_whoever_dies_every_answer_is_right_or_an_error(tmp_path: Path, prefill: int) -> None:
    """Who computes prompts for others is killed first."""
    torch.manual_seed(0)
    ops = Ops(select_hardware("torch_cpu"), deterministic=True)
    model = build_model(small_config(vocab_size=TOKENIZER_SIZE), MlaConfig(), ops).eval()
    save_pretrained(model, tmp_path / "model")
    made = make_cases(model, [model.state_dict()], 24, 64)
    cases = [case for case in made if case.params.matcher is None and not case.params.prompt_logprobs]
    engine = PagedEngineConfig(page_size=4, cache_tokens=640, max_running=8, max_batch_tokens=64)
    config = ServeConfig(engine, checkpoint=str(tmp_path / "model"), dp=2, prefill=prefill, shutdown_seconds=5.0)
    report = asyncio.run(drive(config, cases, seconds=8.0, every=1.5, clients=8))
    assert len(report["kills"]) >= 2 + prefill, report
    assert all(kill["answered_s"] < 60.0 for kill in report["kills"]), report
    assert len(report["prompt_tokens"]) == 2 + prefill and all(report["prompt_tokens"].values()), report
    assert report["done"]["whole"] > 20 and report["done"]["tokens checked"] > 100, report


async def first_answer(process: EngineProcess) -> int:
    """Returns the status of the first request, sent as soon as the engine says that it is ready."""
    await process.start()
    try:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=process.socket), timeout=30) as http:
            return (await http.get("http://engine/ready")).status_code
    finally:
        process.kill()


@pytest.mark.slow(reason="starts a process that imports torch")
def test_an_engine_that_is_ready_refuses_no_connection(tmp_path: Path) -> None:
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), tmp_path / "small", small_tokenizer())
    config = ServeConfig(PagedEngineConfig(), checkpoint=str(tmp_path / "small"))
    with tempfile.TemporaryDirectory(prefix="arc-") as folder:  # of a path that is short enough for sockets
        process = EngineProcess(config, Path(folder) / "0", lambda *_: None, load=load_late)
        assert asyncio.run(first_answer(process)) in (200, 401)


PROGRAM = "import sys; from arcforge_core.cli.main import run_job; sys.exit(run_job('serve'))"


@pytest.mark.slow(reason="starts processes that import torch and fastapi")
@pytest.mark.parametrize(
    ("stop", "code"),
    [
        pytest.param(signal.SIGINT, 0, marks=pytest.mark.nightly(reason="as SIGTERM, and starts three processes")),
        (signal.SIGTERM, -signal.SIGTERM),
    ],
)
def test_the_real_router_answers_and_stops_in_order(tmp_path: Path, stop: signal.Signals, code: int) -> None:
    """A stream that runs is ended properly, and nothing is left: no process, no socket."""
    save_pretrained(
        small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=4096), tmp_path / "small", small_tokenizer()
    )
    options = [f"checkpoint={tmp_path / 'small'}", "port=0", "hardware=torch_cpu", "dp=2", "shutdown_seconds=0.5"]
    sockets = Path(tempfile.mkdtemp(prefix="arc-"))  # of a path that is short enough for sockets
    environment = {**os.environ, "TMPDIR": str(sockets)}
    command = [sys.executable, "-c", PROGRAM, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("2 engines at http://127.0.0.1:")
            address = line.split()[3].removesuffix(";")
            body = {"prompt": "one", "max_tokens": 4000, "temperature": 0, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", address, json=body, timeout=60) as response:
                lines = response.iter_lines()
                next(lines)
                process.send_signal(stop)
                *_, last, done = [each for each in lines if each]
            assert done == "data: [DONE]"
            assert json.loads(last[6:])["choices"][0]["finish_reason"] == "abort"
            _, errors = process.communicate(timeout=60)
            assert process.returncode == code, errors
            assert "Traceback" not in errors
        finally:
            process.kill()
    sockets.rmdir()  # nothing was left there


@pytest.mark.slow(reason="starts a process that imports torch")
def test_what_an_engine_does_not_like_is_said_once_and_clearly(tmp_path: Path) -> None:
    options = [f"checkpoint={tmp_path / 'none'}", "port=0", "hardware=torch_cpu", "dp=2"]
    command = [sys.executable, "-c", PROGRAM, *options]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2, found.stderr
    assert found.stderr.count("error:") == 1 and "none" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_folder_whose_sockets_would_have_too_long_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcforge_serving.router.serve.get_temp_dir", lambda: "/tmp/" + 84 * "x")
    with pytest.raises(ConfigError, match=r"TMPDIR=.*use at most 74 characters"):
        serve_fleet(ServeConfig(PagedEngineConfig(), AutoHardwareConfig(), checkpoint="x", port=0, dp=2))
