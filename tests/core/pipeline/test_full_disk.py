"""A pipeline whose disk fills up: one clear line, finished stages stay, and with room it resumes."""

import errno
import importlib
import os
import subprocess
from dataclasses import replace

import pytest
import torch

from arcforge_core import load_pretrained
from arcforge_core.cli.errors import USER_ERROR, run_main
from arcforge_core.files import rundir
from arcforge_core.pipeline import run as pipeline_run
from arcforge_core.pipeline.plan import CommandLine
from arcforge_core.pipeline.run import run_pipeline
from arcforge_core.pipeline.state import PipelineState
from arcforge_core.train import run as run_module
from arcforge_core.train.state import checkpoints

SIZE = 32 * 2**20
"""Bytes of the disk, on which the whole pipeline fits."""
PHASES = {
    "checks": ("arcforge_core.pipeline.run:check_data", 1, 0),
    "folder": ("arcforge_core.pipeline.run:create_run_dir", 1, 0),
    "first state": ("arcforge_core.pipeline.run:run_stages", 1, 0),
    "data": ("arcforge_core.data.tokens.pipeline:build_shards", 1, 0),
    "step": ("arcforge_core.train.module:TrainingModule.scheduled_optimizer", 2, 0),
    "checkpoint": ("arcforge_core.train.callbacks.checkpointing:write_checkpoint", 1, 0),
    "report": ("arcforge_core.train.run:write_report", 1, 0),
    "next stage": ("arcforge_core.pipeline.run:record_inputs", 2, 1),
    "its step": ("arcforge_core.train.module:TrainingModule.scheduled_optimizer", 6, 1),
    "its report": ("arcforge_core.train.run:write_report", 2, 1),
    "last page": ("arcforge_core.pipeline.run:figures_text", 1, 3),
}
"""Phase -> the function that begins it, its how-manieth call, and the number of stages that are finished by then."""


class Disk:
    """A small disk of its own."""

    def __init__(self, folder):
        self.folder, self.ballast = folder, folder / "ballast"

    def fill(self):
        with self.ballast.open("wb", buffering=0) as file:
            for size in (2**16, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def fill_when(self, monkeypatch, place, time):
        """Fills the disk at the begin of a function's call number `time`."""
        module, _, names = place.partition(":")
        owner, calls = importlib.import_module(module), []
        *path, name = names.split(".")
        for each in path:
            owner = getattr(owner, each)
        real = getattr(owner, name)

        def filling(*args, **kwargs):
            calls.append(name)
            if len(calls) == time:
                self.fill()
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, filling)


@pytest.fixture
def small_pages(monkeypatch):
    """Pages without charts, written as the real ones are."""

    def write_page(folder, state=None):
        rundir.write_text(folder / "index.html", "a page" * 1000)
        return folder / "index.html"

    monkeypatch.setattr(run_module, "write_report", write_page)
    monkeypatch.setattr(pipeline_run, "write_page", write_page)
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e9)


@pytest.fixture
def disk(tmp_path):
    if os.geteuid():
        pytest.skip("only root mounts a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", folder], check=True)
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


def weights(folder):
    return [dict(load_pretrained(checkpoints(run)[-1]).state_dict()) for run in sorted(folder.glob("[1-3]-*"))]


@pytest.fixture(scope="module")
def undisturbed():
    """Weights of the three stages without a fault, once there are some."""
    return []


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.usefixtures("small_pages")
@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="each phase trains three stages")
def test_a_full_disk_costs_nothing_that_is_finished(phase, disk, recipe, undisturbed, monkeypatch, capsys):
    place, time, finished = PHASES[phase]
    config = recipe(output_dir=str(disk.folder / "pipelines"))
    config.overrides += [f"data.cache_dir={disk.folder / 'cache'}", "hardware=torch_cpu"]
    if not undisturbed:
        undisturbed += weights(run_pipeline(replace(config, output_dir=str(disk.folder / "o")), CommandLine()).dir)
        subprocess.run(["rm", "-r", disk.folder / "o", disk.folder / "cache"], check=True)
    with monkeypatch.context() as patch:
        disk.fill_when(patch, place, time)
        assert run_main(lambda: run_pipeline(config, CommandLine()) and 0)() == USER_ERROR
    said = capsys.readouterr().err
    [line] = [line for line in said.splitlines() if line.startswith("error:")]
    assert "No space left" in line and str(disk.folder.name) in line and "Traceback" not in said, said
    left = [path.name for path in disk.folder.rglob("*") if path.name.endswith((".tmp", ".partial"))]
    assert not left
    run = disk.folder / "pipelines" / "latest"
    if run.exists():
        assert len(PipelineState.read(run.resolve()).finished) == finished
    else:
        assert not finished and not [*(disk.folder / "pipelines").glob("*/*")]
    disk.ballast.unlink()
    folder = run_pipeline(replace(config, resume="latest" if run.exists() else None), CommandLine()).dir
    assert PipelineState.read(folder).status == "finished"
    for ours, wanted in zip(weights(folder), undisturbed, strict=True):
        assert all(torch.equal(ours[name], wanted[name]) for name in wanted)


def test_a_text_that_does_not_fit_leaves_the_old_one_and_names_its_file(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    rundir.write_text(path, "old")

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rundir, "flush", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*state\.json'"):
        rundir.write_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"] and path.read_text() == "old"
