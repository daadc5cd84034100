"""Where scalars go besides ``metrics.csv``; the libraries of extras are fakes that write down what they are asked."""

import csv
import sys
import types

import pytest
from lightning.pytorch.loggers import CSVLogger

from arcforge_core.cli.main import check_inputs
from arcforge_core.config import ready
from arcforge_core.config.compose import compose
from arcforge_core.configs import WandbLoggerConfig
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.train import run as run_module
from arcforge_core.train.run import train
from support.runs import tiny_run


@pytest.fixture(autouse=True)
def quick_report(monkeypatch):
    """Drawing the page takes seconds."""
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")


def fake_modules(monkeypatch, library, **modules):
    """Makes modules importable, and Lightning and the run believe that the library is installed."""
    for name, content in modules.items():
        module = types.ModuleType(name.replace("__", "."))
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    monkeypatch.setattr(f"lightning.pytorch.loggers.{library}._{library.upper()}_AVAILABLE", True)
    monkeypatch.setattr(ready, "find_spec", lambda name: name == library or None)


def scalars_of(run_dir):
    """The figures of each step that a run wrote to ``metrics.csv``."""
    with (run_dir / "metrics.csv").open() as file:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file)}


def test_tensorboard_is_the_default_and_several_may_be_chosen(tmp_path):
    assert list(compose(()).logger) == ["tensorboard"]
    result = train(tiny_run(tmp_path, "logger=[csv,tensorboard]", "trainer.max_steps=2"))
    assert list((result.dir / "tensorboard").glob("events.*"))
    with (result.dir / "csv/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {int(row["step"]): float(row["loss"]) for row in rows if row["loss"]} == scalars_of(result.dir)
    assert [row["step"] for row in rows if row["heldout_bits_per_byte"]] == ["2"], "the last evaluation is written too"


def test_without_loggers_the_run_s_own_record_stays(tmp_path):
    result = train(tiny_run(tmp_path, "logger=[]", "trainer.max_steps=1"))
    assert list(scalars_of(result.dir)) == [1]
    assert not (result.dir / "tensorboard").exists() and not (result.dir / "csv").exists()


def test_a_resumed_run_keeps_the_rows_of_before(tmp_path):
    for options in (["trainer.max_steps=2"], ["trainer.max_steps=4", "resume=latest"]):
        result = train(tiny_run(tmp_path, "logger=csv", *options))
    steps = []
    for version in (0, 1):
        with (result.dir / f"csv/version_{version}/metrics.csv").open() as file:
            steps.append([int(row["step"]) for row in csv.DictReader(file) if row["loss"]])
    assert steps == [[1, 2], [4]]


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_an_extra_that_is_not_installed_is_named_before_any_work(tmp_path, monkeypatch, library):
    monkeypatch.setattr(ready, "find_spec", lambda name: None)
    config, named = (
        tiny_run(tmp_path, f"logger={library}"),
        rf"logger='{library}': needs .*: pip install 'arcforge-core\[{library}\]'$",
    )
    for begin in (train, check_inputs):  # the command's line looks before it imports torch
        with pytest.raises(ConfigError, match=named):
            begin(config)
    assert not (tmp_path / "outputs").exists()


def test_missing_credentials_are_told_before_any_work(tmp_path, monkeypatch):
    def login():
        raise ValueError("No API key\nconfigured.")

    fake_modules(monkeypatch, "wandb", wandb={"run": None, "login": login})
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(
        ConfigError, match=r"logger='wandb': .*no key \(No API key configured\.\): set WANDB_API_KEY"
    ) as found:
        train(tiny_run(tmp_path, "logger=wandb"))
    assert "\n" not in str(found.value) and not (tmp_path / "outputs").exists()
    WandbLoggerConfig(offline=True).check_ready()
    monkeypatch.setenv("WANDB_MODE", "offline")
    WandbLoggerConfig().check_ready()


def test_an_unknown_logger_is_refused():
    with pytest.raises(ArcforgeError, match=r"logger='tensorbord': accepted: csv, mlflow, tensorboard, wandb"):
        compose(["logger=[csv,tensorbord]"])


def test_scalars_reach_weights_and_biases(tmp_path, monkeypatch):
    begun, logged, finished = [], {}, []

    class Run:
        def log(self, row):
            logged.setdefault(row.pop("trainer/global_step"), {}).update(row)

        def define_metric(self, *args, **options):
            """Takes the axis."""

    def init(**options):
        begun.append(options)
        return Run()

    wandb = {"run": None, "init": init, "finish": lambda: finished.append(True), "login": lambda: True}
    names = {"wandb__sdk": {}, "wandb__sdk__lib": {"RunDisabled": type("RunDisabled", (), {})}}
    fake_modules(monkeypatch, "wandb", wandb=wandb, wandb__wandb_run={"Run": Run}, **names)
    options = ("logger=wandb", "logger.wandb.project=small", "trainer.max_steps=2")
    result = train(tiny_run(tmp_path, *options))
    (options_of_run,) = begun
    name = f"{result.dir.parent.name}-{result.dir.name}"
    assert (options_of_run["project"], options_of_run["id"], options_of_run["name"]) == ("small", name, name)
    assert {step: row["loss"] for step, row in logged.items()} == scalars_of(result.dir)
    assert "heldout_bits_per_byte" in logged[2] and finished == []
    sys.modules["wandb"].run = Run()  # as the job before leaves it
    train(tiny_run(tmp_path, *options, "trainer.max_steps=1"))
    assert finished == [True]


def test_scalars_reach_mlflow(tmp_path, monkeypatch):
    logged, uris, terminated = {}, [], []

    class Client:
        def __init__(self, uri):
            uris.append(uri)

        def get_experiment_by_name(self, name):
            return types.SimpleNamespace(lifecycle_stage="active", experiment_id=name)

        def create_run(self, experiment_id, tags):
            assert experiment_id == "arcforge"
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=tags["name"]))

        def log_batch(self, run_id, metrics=(), params=()):
            for metric in metrics:
                logged.setdefault(metric["step"], {})[metric["key"]] = metric["value"]

        def get_run(self, run_id):
            return run_id

        def set_terminated(self, run_id, status):
            terminated.append((run_id, status))

    fake_modules(
        monkeypatch,
        "mlflow",
        mlflow={"set_tracking_uri": uris.append},
        mlflow__tracking={"MlflowClient": Client, "context": types.SimpleNamespace()},
        mlflow__entities={"Metric": dict, "Param": dict},
        mlflow__utils={},
        mlflow__utils__mlflow_tags={"MLFLOW_RUN_NAME": "name"},
    )
    result = train(tiny_run(tmp_path, "logger=mlflow", "trainer.max_steps=2"))
    assert {step: row["loss"] for step, row in logged.items()} == scalars_of(result.dir)
    assert "heldout_bits_per_byte" in logged[2]
    assert terminated == [(f"{result.dir.parent.name}-{result.dir.name}", "FINISHED")]
    assert set(uris) == {f"sqlite:///{result.dir.resolve()}/mlflow.db"}


def test_a_logger_that_fails_is_named_and_left_out_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    calls, log = [], CSVLogger.log_metrics

    def fails_later(self, metrics, step=None):
        calls.append(step)
        if step is not None and step >= 2:
            raise ConnectionError("no route\nto host")
        log(self, metrics, step)

    monkeypatch.setattr(CSVLogger, "log_metrics", fails_later)
    result = train(tiny_run(tmp_path, "logger=[csv,tensorboard]", "trainer.max_steps=4"))
    assert result.figures["status"] == "finished" and calls.count(2) == 1 and max(calls) == 2
    assert "CSVLogger fails and is left out from here on: ConnectionError: no route to host" in capsys.readouterr().err
    assert [int(row.split(",")[0]) for row in (result.dir / "metrics.csv").read_text().splitlines()[1:]][-1] == 4
