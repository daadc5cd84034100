"""Records and weights of finished runs of reinforcement learning."""

import csv
from pathlib import Path

import torch

from arcforge_core import load_pretrained
from arcforge_core.files.find import find_checkpoint


def metrics(folder: Path) -> list[dict[str, str]]:
    """Returns the rows of ``metrics.csv``."""
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def evaluations(folder: Path) -> list[dict[str, str]]:
    """Returns the rows of ``evaluations.csv``, without times."""
    with (folder / "evaluations.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the weights of a run's last checkpoint."""
    return load_pretrained(find_checkpoint(folder)).state_dict()
