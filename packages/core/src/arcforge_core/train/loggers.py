"""Components of kind ``logger``: destinations of a run's scalars in addition to ``metrics.csv``."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

from arcforge_core.configs import CsvLoggerConfig, MlflowLoggerConfig, TensorBoardLoggerConfig, WandbLoggerConfig


def tensorboard(config: TensorBoardLoggerConfig, run_dir: Path) -> TensorBoardLogger:
    """Returns a logger that writes event files to ``<run_dir>/tensorboard``."""
    return TensorBoardLogger(run_dir, name="", version="tensorboard")


def csv(config: CsvLoggerConfig, run_dir: Path) -> CSVLogger:
    """Returns a logger to ``<run_dir>/csv/version_0/metrics.csv``; a resumed run writes the next version."""
    return CSVLogger(run_dir, name="csv", flush_logs_every_n_steps=1)


def wandb(config: WandbLoggerConfig, run_dir: Path) -> WandbLogger:
    """Returns a logger to Weights & Biases; the folder name is the run id, so a resumed run continues its record."""
    import wandb as library

    if library.run is not None:
        library.finish()  # the previous job of a sweep: Lightning would continue its record
    name = run_name(run_dir)
    return WandbLogger(name=name, version=name, save_dir=run_dir, offline=config.offline, project=config.project)


def mlflow(config: MlflowLoggerConfig, run_dir: Path) -> MLFlowLogger:
    """Returns a logger to an MLflow server, or without one to the database ``<run_dir>/mlflow.db``."""
    uri = config.tracking_uri or f"sqlite:///{run_dir.resolve()}/mlflow.db"
    return MLFlowLogger(config.experiment, run_name=run_name(run_dir), tracking_uri=uri)


def run_name(run_dir: Path) -> str:
    """Returns the date, time and name of a run, e.g. ``2026-01-31-09-30-00-train``."""
    return f"{run_dir.parent.name}-{run_dir.name}"
