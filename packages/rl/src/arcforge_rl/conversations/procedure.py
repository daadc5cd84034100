"""``procedure=made_conversations``: makes conversations, trains on them, plays the held-out ones; one command."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

from arcforge_core.cli.progress import say
from arcforge_core.config.schema import TrainConfig
from arcforge_core.configs import ConversationsDataConfig, OneRunConfig
from arcforge_core.errors import ConfigError
from arcforge_core.train.run import RunResult, train
from arcforge_rl.configs import AutoSandboxConfig, ConversationsConfig, MadeConversationsConfig, MakingConfig
from arcforge_rl.conversations import write
from arcforge_rl.conversations.problem import HELDOUT, TRAIN

CORPORA = ("chat", "reasoning", "agent")


def run(config: TrainConfig) -> RunResult:
    """Makes the conversations unless a call with the same options has, and trains one run on them.

    What the configuration names besides, in `data` and in `generation.files`, is used too.

    Raises:
        ConfigError: the data are no conversations, or programs cannot be run in a sandbox here.
    """
    procedure = config.procedure
    assert isinstance(procedure, MadeConversationsConfig)
    if not isinstance(config.data, ConversationsDataConfig):
        raise ConfigError("data", config.data.name, "must be conversations: those that are made are added to them")
    folder = Path(procedure.folder)
    make(procedure, folder)
    files: dict[str, Any] = {
        name: [*getattr(config.data, name), str(folder / TRAIN / name)]
        for name in CORPORA
        if (folder / TRAIN / name).is_dir()
    }
    generation = replace(config.generation, files=[*config.generation.files, str(folder / HELDOUT)])
    return train(replace(config, procedure=OneRunConfig(), data=replace(config.data, **files), generation=generation))


def make(procedure: MadeConversationsConfig, folder: Path) -> None:
    """Makes the conversations, if those in the folder are others."""
    shared = {field.name: getattr(procedure, field.name) for field in dataclasses.fields(MakingConfig)}
    options = ConversationsConfig(**shared, sandbox=AutoSandboxConfig(), output_dir=str(folder))
    if write.made_with(folder) == write.settings(options):
        say(f"conversations: those in {folder} are what is wanted")
    else:
        write.run(options)
