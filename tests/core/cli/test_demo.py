import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from arcforge_core.cli import demo
from arcforge_core.config.compose import compose_config
from arcforge_core.files.find import DEMO_FOLDER, find_checkpoint
from arcforge_core.pipeline.state import PipelineState
from arcforge_core.plugins.loader import registry

ROOT = Path(__file__).parents[3]


@pytest.fixture
def typed(monkeypatch):
    """Runs ``arcforge demo`` with arguments; returns its exit code and the command line that it came to."""
    lines = []

    def take(name, after=None):
        lines.append([name, *sys.argv[1:]])
        if after:
            after(SimpleNamespace(dir=DEMO_FOLDER))
        return 0

    def run(*arguments):
        lines.clear()
        monkeypatch.setattr(sys, "argv", ["arcforge-demo", *arguments])
        code = demo.main()
        return code, [*lines[0]] if lines else []

    monkeypatch.setattr(demo, "run_command", take)
    return run


@pytest.fixture
def opened(monkeypatch):
    """Addresses that a browser was sent to."""
    seen = []
    monkeypatch.setattr(demo.webbrowser, "open", seen.append)
    return seen


def test_the_chat_is_a_server_of_the_packed_model(typed, opened, monkeypatch):
    monkeypatch.setattr(demo, "free_port", lambda: 8017)
    code, line = typed("--no-browser", "log=json")
    assert code == 0
    assert line[0] == "serve" and line[-2:] == ["port=8017", "log=json"]
    config = compose_config("serve", registry().job("serve").load_schema(), line[1:-1])
    assert (config.checkpoint, config.served_name, config.port) == (str(DEMO_FOLDER), "demo", 8017)
    recipe = compose_config("rl", registry().job("rl").load_schema(), config.lesson)
    assert (recipe.init, recipe.name, recipe.trainer.minutes) == (str(DEMO_FOLDER), "demo", 4)
    assert typed("--no-browser", "port=8100")[1][-1] == "port=8100"
    assert opened == []


def test_teaching_runs_the_recipe_and_opens_its_report(typed, opened, monkeypatch):
    monkeypatch.setattr(demo, "has_browser", lambda: True)
    assert typed("RL", "trainer.minutes=1") == (0, ["rl", "recipe=demo", f"init='{DEMO_FOLDER}'", "trainer.minutes=1"])
    assert opened == [(DEMO_FOLDER / "report.html").as_uri()]
    typed("rl", "--no-browser")
    assert len(opened) == 1


def test_help_says_what_the_model_knows(typed, capsys):
    assert typed("--help") == (0, [])
    assert "arcforge demo rl" in capsys.readouterr().out


def test_a_port_in_use_is_passed_over():
    with contextlib.ExitStack() as stack:
        first = demo.free_port()
        taken = stack.enter_context(socket.socket())
        taken.bind((demo.HOST, first))
        taken.listen()
        assert first < demo.free_port() < demo.PORT + demo.PORTS


def test_no_free_port_is_one_clear_line(monkeypatch, capsys, typed):
    monkeypatch.setattr(demo, "PORTS", 0)
    assert typed()[0] == 2
    assert "error: port=8000" in capsys.readouterr().err


def test_the_page_opens_when_the_server_listens_and_not_before(opened):
    with socket.socket() as server:
        server.bind((demo.HOST, 0))
        port = server.getsockname()[1]
        demo.open_page(port, seconds=0.3)
        assert opened == []
        waiting = threading.Thread(target=demo.open_page, args=(port, 60.0))
        waiting.start()
        server.listen()
        waiting.join(timeout=60.0)
    assert opened == [f"http://127.0.0.1:{port}/"]


@pytest.mark.parametrize(
    ("platform", "variables", "shown"),
    [("linux", {}, False), ("linux", {"DISPLAY": ":0"}, True), ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
     ("linux", {"BROWSER": "firefox"}, True), ("darwin", {}, True), ("win32", {}, True)],
)  # fmt: skip
def test_a_browser_is_opened_under_a_desktop_only(monkeypatch, platform, variables, shown):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert demo.has_browser() is shown


def test_a_folder_named_demo_precedes_the_packed_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("demo") == DEMO_FOLDER
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.json").write_text("{}")
    assert str(find_checkpoint("demo")) == "demo"


def test_the_card_has_a_score_for_each_source_of_the_recipe():
    recipe = yaml.safe_load((ROOT / "conf" / "pipeline" / "demo.yaml").read_text(encoding="utf-8"))
    sources = next(line for line in recipe["stages"]["ways"]["overrides"] if line.startswith("sources="))
    card = json.loads((DEMO_FOLDER / "scores.json").read_text(encoding="utf-8"))
    assert set(sources.removeprefix("sources=[").rstrip("]").split(",")) == set(card) - {"all"}
    assert sum(file.stat().st_size for file in DEMO_FOLDER.iterdir()) < 5_000_000


@pytest.mark.slow(reason="a pipeline of training runs")
@pytest.mark.timeout(6 * 3600)
@pytest.mark.nightly(reason="makes the demo's model from nothing: about an hour on two cores")
def test_the_recipe_makes_a_model_with_the_scores_of_its_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = [sys.executable, "-m", "arcforge_core", "pipeline", "pipeline=demo"]
    subprocess.run(run, check=True, stdin=subprocess.DEVNULL)
    folder = (tmp_path / "outputs" / "pipelines" / "latest").resolve()
    stages = {stage.name: Path(stage.place(folder)) for stage in PipelineState.read(folder).stages}
    scores = stages["scores"] / "generation.json"
    model = find_checkpoint(stages["model"])
    check = [sys.executable, str(ROOT / "scripts" / "demo_model"), str(model), str(scores), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
