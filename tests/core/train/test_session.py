"""Runs of whatever kind: callbacks of plugins, failures, and the silence of further processes."""

import errno
import json
import os
import signal
import textwrap
from pathlib import Path

import lightning as L
import pytest

from arcforge_core.config import compose as compose_module
from arcforge_core.data.tokens.pipeline import Corpus
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.files import rundir
from arcforge_core.files.lock import locked
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import Component
from arcforge_core.train import run as run_module
from arcforge_core.train import session as session_module
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.run import train
from support.runs import tiny_run

PLUGIN = """
from dataclasses import dataclass
import lightning as L
from arcforge_core.config.schema import CallbackConfig

@dataclass
class WatchConfig(CallbackConfig):
    name: str = "watch"
    word: str = "step"

class Watch(L.Callback):
    def __init__(self, config, run_dir):
        self.config, self.run_dir = config, run_dir

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        saved = [path.name for path in self.run_dir.glob("checkpoints/step-*")]
        with (self.run_dir / "watched.txt").open("a") as file:
            print(self.config.word, module.progress.step, len(saved), file=file)
"""


@pytest.fixture(autouse=True)
def quick_report(monkeypatch):
    """Drawing the page takes seconds."""
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """A callback that a plugin registers."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "acme_watch.py").write_text(textwrap.dedent(PLUGIN))
    monkeypatch.syspath_prepend(folder)
    watch = Component("callback", "watch", "acme_watch:Watch", "acme_watch:WatchConfig", "Watches", "acme", "acme 1.0")
    monkeypatch.setitem(registry().claims, ("callback", "watch"), [watch])
    compose_module.store_components.cache_clear()
    yield
    compose_module.store_components.cache_clear()


@pytest.mark.usefixtures("watch")
def test_a_callback_of_a_plugin_is_called_after_the_run_s_own(tmp_path):
    result = train(tiny_run(tmp_path, "callback=watch", "callback.watch.word=took", "trainer.max_steps=3"))
    assert (result.dir / "watched.txt").read_text().splitlines() == ["took 1 0", "took 2 1", "took 3 1"]


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize("chosen", ["callback=watcher", "callback=[watch,watcher]"])
def test_a_callback_that_nobody_registers_is_refused(tmp_path, chosen):
    with pytest.raises(ConfigError, match=r"callback='watcher': accepted: watch; did you mean 'watch'"):
        tiny_run(tmp_path, chosen)


@pytest.mark.usefixtures("watch")
def test_a_component_that_cannot_be_imported_fails_before_any_work(tmp_path, monkeypatch):
    config = tiny_run(tmp_path, "callback=watch")
    monkeypatch.delattr("acme_watch.Watch")
    with pytest.raises(ArcforgeError, match=r"callback 'watch' of acme 1\.0: cannot import 'acme_watch:Watch'"):
        train(config)
    assert not (tmp_path / "outputs").exists()


def test_a_run_that_fails_says_so_in_its_summary(tmp_path, monkeypatch):
    def fails(self, batch, batch_idx):
        raise ArcforgeError("the engine is gone")

    monkeypatch.setattr(LanguageModelModule, "training_step", fails)
    with pytest.raises(ArcforgeError, match="the engine is gone"):
        train(tiny_run(tmp_path))
    [summary] = (tmp_path / "outputs").glob("*/*/summary.json")
    assert json.loads(summary.read_text())["status"] == "failed"


def test_a_full_disk_names_the_run_where_the_failed_write_names_no_file(tmp_path, monkeypatch):
    def fails(self, batch, batch_idx):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LanguageModelModule, "training_step", fails)
    with pytest.raises(OSError, match="No space left") as raised:
        train(tiny_run(tmp_path))
    [run] = (tmp_path / "outputs").glob("*-*-*/*")
    assert Path(raised.value.filename).resolve() == run


def test_a_summary_that_cannot_be_written_does_not_hide_the_failure(tmp_path, monkeypatch, capsys):
    def fails(self, batch, batch_idx):
        raise ArcforgeError("the engine is gone")

    def full(self, status):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LanguageModelModule, "training_step", fails)
    monkeypatch.setattr(run_module.Summary, "write", full)
    with pytest.raises(ArcforgeError, match="the engine is gone"):
        train(tiny_run(tmp_path))
    assert "no summary of the failed run: [Errno 28] No space left on device" in capsys.readouterr().out


def test_an_interrupted_second_process_writes_nothing(tmp_path, monkeypatch):
    step, batches = LanguageModelModule.training_step, Corpus.train_batches

    def interrupt(self, batch, batch_idx):
        os.kill(os.getpid(), signal.SIGINT)
        step(self, batch, batch_idx)

    def alone(self, *args, **options):
        return batches(self, *args, **{**options, "rank": 0})

    monkeypatch.setattr(Corpus, "train_batches", alone)  # there is no first process here
    monkeypatch.setattr(LanguageModelModule, "training_step", interrupt)
    monkeypatch.setattr(L.Trainer, "is_global_zero", property(lambda trainer: False))
    monkeypatch.setenv("RANK", "1")
    assert train(tiny_run(tmp_path)).figures == {}
    assert not (tmp_path / "outputs").exists()


def test_a_run_is_locked_while_it_trains_and_free_afterwards(tmp_path, monkeypatch):
    step, refused = LanguageModelModule.training_step, []

    def second(self, batch, batch_idx):
        with pytest.raises(ArcforgeError, match=rf"in use by process {os.getpid()}\b") as error:
            [folder] = (tmp_path / "outputs").glob("*-*-*/*")
            train(tiny_run(tmp_path, f"resume={folder}"))
        refused.append(error)
        step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModelModule, "training_step", second)
        run = train(tiny_run(tmp_path, "trainer.max_steps=2"))
    assert len(refused) == 2
    rows = (run.dir / "metrics.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "2"]
    train(tiny_run(tmp_path, "trainer.max_steps=3", "resume=latest"))


def test_a_run_whose_configuration_is_refused_lets_another_resume_it(tmp_path):
    run = train(tiny_run(tmp_path, "trainer.max_steps=2")).dir
    with pytest.raises(ArcforgeError, match="seed was 0, now 1"):
        train(tiny_run(tmp_path, "resume=latest", "seed=1"))
    with locked(run):
        pass


def test_a_folder_with_a_run_in_it_is_refused_before_work(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"folder='.*one': exists: name a new folder, or continue its run with res"):
        train(tiny_run(tmp_path, f"folder={folder}"))
    assert not (tmp_path / "outputs").exists() and list(folder.iterdir()) == []


def test_a_run_resumed_by_its_path_needs_no_output_folder(tmp_path):
    run = train(tiny_run(tmp_path, "trainer.max_steps=2", f"folder={tmp_path / 'one'}")).dir
    train(tiny_run(tmp_path, "trainer.max_steps=3", f"resume={run}", f"output_dir={tmp_path / 'new'}"))
    assert (tmp_path / "new" / "latest").resolve() == run.resolve()


def test_a_finished_run_that_is_resumed_has_one_last_evaluation(tmp_path):
    run = train(tiny_run(tmp_path, "trainer.max_steps=4")).dir
    rows = (run / "eval.csv").read_text().splitlines()
    result = train(tiny_run(tmp_path, "trainer.max_steps=4", "resume=latest"))
    assert result.dir == run and result.status == "finished"
    assert [row.split(",")[0] for row in (run / "eval.csv").read_text().splitlines()] == [
        row.split(",")[0] for row in rows
    ]


@pytest.mark.parametrize("field", ["output_dir", "folder"])
def test_an_output_folder_that_cannot_be_written_is_reported_before_any_work(tmp_path, monkeypatch, field):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(run_module, "build_data", lambda *a, **k: pytest.fail("work has begun"))
    for place, reason in ((tmp_path / "file" / "runs", "Not a directory"), (Path("/proc/runs"), "")):
        with pytest.raises(ConfigError, match=rf"{field}='{place}': cannot be written: {reason}"):
            train(tiny_run(tmp_path, f"{field}={place}"))
    assert not (tmp_path / "outputs").exists()


def test_two_runs_of_one_second_get_folders_of_their_own(tmp_path, monkeypatch):
    taken = [tmp_path / "a", tmp_path / "a", tmp_path / "b"]
    monkeypatch.setattr(rundir, "dated_folder", lambda root, name: taken.pop(0))
    assert [rundir.create_run_dir(tmp_path, "x").name for _ in range(2)] == ["a", "b"]


def test_latest_and_by_name_lead_to_a_run_from_its_first_checkpoint_on(tmp_path, monkeypatch):
    step, seen = LanguageModelModule.training_step, []

    def look(self, batch, batch_idx):
        links = [tmp_path / "outputs" / "latest", tmp_path / "outputs" / "by-name" / "second"]
        seen.append([link.exists() and link.resolve().name.endswith("second") for link in links])
        step(self, batch, batch_idx)

    first = train(tiny_run(tmp_path, "name=first", "trainer.max_steps=1"))
    monkeypatch.setattr(LanguageModelModule, "training_step", look)
    second = train(tiny_run(tmp_path, "name=second", "trainer.max_steps=4", "trainer.checkpoint_every=2"))
    assert seen == [[False, False], [False, False], [True, True], [True, True]]
    assert (tmp_path / "outputs" / "by-name" / "first").resolve() == first.dir.resolve()
    assert (tmp_path / "outputs" / "latest").resolve() == second.dir.resolve()


def test_a_run_without_a_checkpoint_does_not_take_latest(tmp_path, monkeypatch):
    def fails(self, batch, batch_idx):
        raise ArcforgeError("the engine is gone")

    first = train(tiny_run(tmp_path, "trainer.max_steps=1"))
    monkeypatch.setattr(LanguageModelModule, "training_step", fails)
    with pytest.raises(ArcforgeError, match="the engine is gone"):
        train(tiny_run(tmp_path))
    assert (tmp_path / "outputs" / "latest").resolve() == first.dir.resolve()


def test_more_threads_than_cores_are_warned_of(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(session_module, "allowed_cores", lambda: 2)
    monkeypatch.setattr(session_module, "use_threads", lambda threads: None)
    train(tiny_run(tmp_path, "trainer.threads=3", "trainer.max_steps=1"))
    assert "warning: trainer.threads=3, but this process may use 2 cores" in capsys.readouterr().out
