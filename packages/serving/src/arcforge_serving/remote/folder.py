"""Weights that reach a server through a folder which it can read, too."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from arcforge_core.checkpoint.hf.folder import write_hf
from arcforge_core.contracts.engine import UnfinishedUpdateError
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.files.atomic import replacing
from arcforge_core.files.find import CONFIG
from arcforge_core.generation.weights import next_version
from arcforge_serving.engine.errors import RemoteError
from arcforge_serving.remote.engine import RemoteEngine


def weights_folder(root: str | None) -> Path:
    """Returns the folder of ``engine.weights_dir``.

    Raises:
        ConfigError: there is none.
    """
    if root is None or not Path(root).is_dir():
        raise ConfigError("engine.weights_dir", root, "must be a folder that the server reads too, to hand it weights")
    return Path(root).resolve()


class FolderEngine(RemoteEngine):
    """A `RemoteEngine` whose server reads transformers directories below ``engine.weights_dir``."""

    _folder: Path | None = None

    def update_weights(
        self,
        state: Mapping[str, Tensor],
        *,
        version: int | None = None,
        checksum: str | None = None,
        reset: bool = False,
    ) -> None:
        """Writes a state dict below ``engine.weights_dir`` and has the server read it; see the contract.

        Raises:
            ConfigError: see the contract; there is no such folder; the architecture has no name among others.
            CheckpointError: see the contract.
            UnfinishedUpdateError: the server failed, or took too long.
        """
        next_version(self.weight_version, version, reset)
        weights_folder(self.config.weights_dir)
        super().update_weights(state, version=version, checksum=checksum, reset=reset)

    def _install(self, staged: Mapping[str, Tensor], version: int, reset: bool) -> None:
        folder = weights_folder(self.config.weights_dir) / f"version-{version}"
        with replacing(folder, marker=CONFIG) as partial:
            write_hf(partial, self.model.config, self.model.attention, dict(staged))
        try:
            self._load(folder, version)
        except RemoteError as error:
            raise UnfinishedUpdateError(f"weight update {version}: {error}") from error
        except ConfigError as error:
            raise CheckpointError(f"weight update {version}: {error}") from error
        if self._folder is not None and self._folder != folder:
            shutil.rmtree(self._folder)  # the one before: the server has read the new one
        self._folder = folder

    def _load(self, folder: Path, version: int) -> None:
        """Has the server read new weights, and name them by their version."""
        raise NotImplementedError
