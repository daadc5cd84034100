"""Several processes quantise a checkpoint to the tensors of one process, also after a kill."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from arcforge_core.errors import ArcforgeError, CheckpointError
from arcforge_hw.quantization import command
from arcforge_hw.quantization.walk import Walk
from support.calibration import quantise_config, save_source, small_text_model
from support.marks import nightly_case

EXPERTS = {"intermediate_size": 64, "moe_intermediate_size": 32, "q_lora_rank": 32}


def work(
    rank: int, count: int, port: int, folder: Path, options: dict[str, Any], prepare: Callable[[int], None]
) -> None:
    """Runs the command as one of several processes; writes what it raises, and how often it ran a row of text."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    prepare(rank)
    runs, true = [0], Walk._run

    def counting(*args: Any) -> Any:
        runs[0] += 1
        return true(*args)

    Walk._run = counting  # type: ignore[method-assign]
    try:
        command.run(quantise_config(folder, "shared", **options))
    except ArcforgeError as error:
        (folder / f"{rank}.txt").write_text(str(error))
    (folder / f"{rank} rows").write_text(str(runs[0]))


def started(
    count: int, folder: Path, prepare: Callable[[int], None] = lambda rank: None, **options: Any
) -> list[int | None]:
    """Runs the command in forked processes and returns their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    arguments = [(rank, count, port, folder, options, prepare) for rank in range(count)]
    running = [context.Process(target=work, args=each) for each in arguments]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    return [process.exitcode for process in running]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Returns what a checkpoint stores, and checks that its index says where."""
    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    found = {file.name: load_file(file) for file in folder.glob("*.safetensors")}
    assert all(name in found[file] for name, file in where.items())
    return {name: x for stored in found.values() for name, x in stored.items()}


def assert_same(folder: Path) -> None:
    one, shared = tensors(folder / "one"), tensors(folder / "shared")
    assert one.keys() == shared.keys()
    assert all(torch.equal(one[name], x) for name, x in shared.items())
    configs = [json.loads((folder / name / "config.json").read_text()) for name in ("one", "shared")]
    assert configs[0] == configs[1]
    assert not list(folder.glob(".*unfinished"))


@pytest.mark.parametrize("weights, rounding", [("int4", "gptq"), nightly_case("w4a8", "ssz")])
def test_three_processes_write_the_tensors_of_one(tmp_path: Path, weights: str, rounding: str) -> None:
    """Five rows in two layers: one process has a row less."""
    save_source(small_text_model(outliers=16.0, **EXPERTS), tmp_path)
    options = {"weights": weights, "rounding": rounding, "rows": 5}
    command.run(quantise_config(tmp_path, "one", **options))
    assert started(3, tmp_path, **options) == [0, 0, 0]
    assert not list(tmp_path.glob("*.txt"))
    assert [(tmp_path / f"{rank} rows").read_text() for rank in range(3)] == ["4", "4", "2"]
    assert_same(tmp_path)


def killed_at(rename: int) -> Callable[[int], None]:
    """Returns what kills the second process before a rename."""

    def prepare(rank: int) -> None:
        renames, true = [0], os.rename

        def killing(*args: Any, **kwargs: Any) -> None:
            renames[0] += 1
            if rank == 1 and renames[0] == rename:
                os.kill(os.getpid(), signal.SIGKILL)
            true(*args, **kwargs)

        os.rename = killing  # type: ignore[assignment]

    return prepare


@pytest.mark.nightly
def test_after_a_kill_of_one_the_other_ends_with_a_line_and_both_resume(tmp_path: Path) -> None:
    save_source(small_text_model(), tmp_path)
    command.run(quantise_config(tmp_path, "one", rounding="gptq"))
    assert started(2, tmp_path, killed_at(2), rounding="gptq") == [0, -signal.SIGKILL]
    assert "another process" in (tmp_path / "0.txt").read_text()
    assert (tmp_path / ".shared.unfinished").is_dir() and not (tmp_path / "shared").exists()
    (tmp_path / "0.txt").unlink()
    with pytest.raises(CheckpointError, match="made with other settings"):
        command.run(quantise_config(tmp_path, "shared", rounding="gptq"))
    assert started(2, tmp_path, rounding="gptq") == [0, 0]
    assert not list(tmp_path.glob("*.txt"))
    assert_same(tmp_path)


def test_each_process_needs_a_row(tmp_path: Path) -> None:
    save_source(small_text_model(), tmp_path)
    started(3, tmp_path, rows=2)
    for rank in range(3):
        assert (tmp_path / f"{rank}.txt").read_text() == "WORLD_SIZE=3: must be at most 2, the rows of calibration text"
