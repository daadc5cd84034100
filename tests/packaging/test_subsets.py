"""Each set of packages that a user may install runs a real job, outside the checkout and with nothing else there."""

import csv
import json
import random
import re
from urllib.request import Request, urlopen

import pytest

from support.marks import nightly_case

SMALL = (
    "model=tiny",
    "data=files",
    "data.tokenizer.vocab_size=320",
    "trainer.max_steps=2",
    "trainer.sequence_length=32",
    "trainer.micro_batch_tokens=64",
    "trainer.samples=0",
    "trainer.threads=1",
)
CORE = {"attention": "reference", "optimizer": "torch_adamw", "schedule": "constant", "hardware": "torch_cpu"}
TRAINING = {
    ("core",): {},
    ("core", "attention"): {"attention": "dsa"},
    ("core", "optim"): {"optimizer": "muon_split", "schedule": "wsd"},
    ("core", "hw"): {"hardware": "auto"},
    ("core", "attention", "optim", "rl", "serving", "hw"): {
        "attention": "mla",
        "optimizer": "muon",
        "schedule": "cosine",
        "hardware": "auto",
    },
}
"""Installed packages -> the options of the smoke run that only they bring."""

slow_run = pytest.mark.slow(reason="a training run in a fresh process imports torch and lightning")


def how(*wheels):
    """The command that installs wheels of ours, as messages of installed wheels have it."""
    places = " ".join(f"./packages/{wheel.removeprefix('arcforge-')}" for wheel in wheels)
    return f"pip install {' '.join(wheels)}, or in a clone pip install {places}"


def distributions(names):
    return [f"arcforge-{name}" for name in names]


@pytest.fixture
def corpus(tmp_path):
    """A folder of 30 short texts."""
    words = ("def", "return", "if", "else", "for", "while", "import", "class", "self", "value", "index", "total")
    source = random.Random(0)
    (tmp_path / "corpus").mkdir()
    for number in range(30):
        text = " ".join(source.choice(words) for _ in range(120))
        (tmp_path / "corpus" / f"{number}.txt").write_text(text)
    return tmp_path / "corpus"


def train(environment, corpus, folder, **chosen):
    """Trains two steps in `folder` and returns the run's folder."""
    options = [f"{group}={name}" for group, name in {**CORE, **chosen}.items()]
    result = environment.run("arcforge-train", *options, *SMALL, f"data.paths=[{corpus}]", cwd=folder)
    assert result.returncode == 0, result.stderr
    return (folder / "outputs" / "latest").resolve()


@pytest.mark.nightly(reason="training runs in environments of their own; the smoke run of core alone is by default")
@pytest.mark.parametrize("names", TRAINING, ids="+".join)
def test_a_training_run(install, names, corpus, tmp_path):
    run = train(install(*distributions(names)), corpus, tmp_path, **TRAINING[names])
    with open(run / "metrics.csv") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert losses
    assert all(0 < loss < 20 for loss in losses)
    assert (run / "report.html").is_file()


@pytest.mark.nightly(reason="commands in an environment of their own")
@slow_run
def test_rollouts_and_a_request_with_what_core_trained(install, corpus, tmp_path):
    run = train(install("arcforge-core"), corpus, tmp_path)
    rollout = install("arcforge-core", "arcforge-rl").run(
        "arcforge-env", f"checkpoint={run}", "hardware=torch_cpu", "episodes=2", "max_new_tokens=4", cwd=tmp_path
    )
    assert rollout.returncode == 0, rollout.stderr
    (file,) = tmp_path.glob("outputs/*/*-env/rollouts.jsonl")
    assert [any(json.loads(line)["branches"][0]["sampled"]) for line in file.read_text().splitlines()] == [True, True]

    served = install("arcforge-core", "arcforge-serving")
    with served.start(
        "arcforge-serve", f"checkpoint={run}", "hardware=torch_cpu", "served_name=tiny", "port=0", cwd=tmp_path
    ) as server:
        address = next(found[0] for line in server.stdout if (found := re.findall(r"http://[\w.:]+", line)))
        body = json.dumps({"model": "tiny", "prompt": "def", "max_tokens": 4}).encode()
        request = Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as reply:
            answer = json.load(reply)
    assert answer["usage"]["completion_tokens"] >= 1


def test_only_the_installed_packages_are_seen(install):
    listing = json.loads(install("arcforge-core").run("arcforge-plugins", "--json").stdout)
    assert [p["distribution"].split()[0] for p in listing["plugins"]] == ["arcforge-core"]
    place = install("arcforge-core").run("python", "-c", "import arcforge_core; print(arcforge_core.__file__)")
    assert "/environments/arcforge-core/" in place.stdout


@pytest.mark.parametrize(
    ("option", "wheel"),
    [
        ("attention=dsa", "arcforge-attention"),
        ("optimizer=muon_split", "arcforge-optim"),
        ("schedule=wsd", "arcforge-optim"),
        ("hardware=cpu", "arcforge-hw"),
    ],
)
def test_an_option_whose_wheel_is_absent_names_it(install, option, wheel):
    chosen = {**CORE, **dict([option.split("=")])}
    options = [f"{group}={name}" for group, name in chosen.items()]
    result = install("arcforge-core").run("arcforge-train", *options)
    assert result.returncode == 2
    assert result.stderr == f"error: {option} needs the package '{wheel}': {how(wheel)}\n"


@pytest.mark.parametrize(("command", "wheel"), [("env", "arcforge-rl"), ("serve", "arcforge-serving")])
def test_a_command_whose_wheel_is_absent_names_it(install, command, wheel):
    result = install("arcforge-core").run("arcforge", command)
    assert result.returncode == 2
    assert result.stderr == f"error: arcforge-{command} needs the package '{wheel}': {how(wheel)}\n"


PLAIN = "attention=reference, optimizer=torch_adamw, schedule=constant"
SMOKE = {
    ("core",): PLAIN,
    ("core", "optim"): "attention=reference",
    ("core", "attention"): "optimizer=torch_adamw, schedule=constant",
    ("core", "rl"): PLAIN,
    ("core", "serving"): PLAIN,
    ("core", "hw"): PLAIN,
}
"""Installed packages -> the defaults that take the place of absent ones."""


@pytest.fixture
def smoke(install, tmp_path):
    """Runs the smoke recipe with a subset and no option but one thread; returns the environment and its output."""

    def run(names):
        environment = install(*distributions(names))
        result = environment.run("arcforge-train", "experiment=smoke", "trainer.threads=1", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "outputs" / "latest" / "report.html").is_file()
        return environment, result.stderr

    return run


@slow_run
@pytest.mark.parametrize("names", [names if len(names) == 1 else nightly_case(names) for names in SMOKE], ids="+".join)
def test_the_smoke_run_needs_no_option(smoke, names):
    _, said = smoke(names)
    absent = sorted({"arcforge-attention", "arcforge-optim"} - {f"arcforge-{name}" for name in names})
    verb = "are" if len(absent) == 2 else "is"
    assert f"{SMOKE[names]}, because {' and '.join(absent)} {verb} not installed\n" in said


@slow_run
@pytest.mark.nightly(reason="a training run, then reinforcement learning, in an environment of their own")
def test_reinforcement_learning_of_what_core_trained_needs_no_option(smoke, tmp_path):
    environment, _ = smoke(("core", "rl"))
    few = ["trainer.max_steps=1", "trainer.threads=1", "evaluation.tasks=2", "rollout.groups=2", "rollout.group_size=2"]
    result = environment.run("arcforge-rl", "init=smoke", *few, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "engine=simple" in result.stderr and "because arcforge-" in result.stderr
    assert environment.run("arcforge-env", "validate", "environment=math", "episodes=1", cwd=tmp_path).returncode == 0


@slow_run
@pytest.mark.nightly(reason="a training run, then a server, in an environment of their own")
def test_serving_what_core_trained_needs_no_option(smoke, tmp_path):
    environment, _ = smoke(("core", "serving"))
    with environment.start("arcforge-serve", "checkpoint=smoke", "port=0", cwd=tmp_path) as server:
        address = next(found[0] for line in server.stdout if (found := re.findall(r"http://[\w.:]+", line)))
        with urlopen(f"{address}/v1/models", timeout=60) as reply:
            assert json.load(reply)["data"]


def test_all_absent_wheels_are_in_one_message(install):
    result = install("arcforge-core").run("arcforge-train", "experiment=mini", "attention=dsa", "hardware=cpu")
    assert result.returncode == 2
    wheels = "arcforge-attention", "arcforge-hw", "arcforge-optim"
    assert result.stderr == (
        "error: attention=dsa and hardware=cpu and schedule=cosine need the packages "
        f"{' and '.join(map(repr, wheels))}: {how(*wheels)}\n"
    )


def test_every_recipe_composes_from_installed_wheels(install, tmp_path):
    everything = install(*distributions(("core", "attention", "optim", "rl", "serving", "hw")))
    code = (
        "import arcforge_core, pathlib\n"
        "from arcforge_core.config.compose import compose\n"
        "recipes = pathlib.Path(arcforge_core.__file__).parent / 'recipes'\n"
        "for group in ('experiment', 'sweep'):\n"
        "    for file in sorted((recipes / group).glob('*.yaml')):\n"
        "        print(group, file.stem, compose([f'{group}={file.stem}']).model.name)\n"
    )
    result = everything.run("python", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "experiment mini mini" in result.stdout
