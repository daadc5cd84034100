"""Inputs of the parts of a run: the options of its server, and the configuration of its trainer."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arcforge_core.config.config_file import written
from arcforge_core.config.schema import ComponentConfig, EngineConfig
from arcforge_core.errors import ConfigError
from arcforge_core.files.find import find_checkpoint
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.collection import AsynchronousConfig
from arcforge_rl.configs.launching import SupervisedLauncherConfig
from arcforge_rl.configs.learning import RlConfig

SERVED, CLIENT = "paged", "arcforge"
"""The engine that a server runs, and the one that asks a server."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
"""`RlConfig.sampling_precision` -> `dtype` of the server."""
SESSIONS = 2
"""Sessions that the gateway offers per rollout that runs: one that is repeated may not be closed yet."""


def launcher_of(config: RlConfig) -> SupervisedLauncherConfig:
    """Returns the launcher's options, after checks of what it needs of the run.

    Raises:
        ConfigError: the engine cannot be served, several engines are asked for sessions, or there are processes of
            another launcher already.
    """
    launcher = config.launcher
    assert isinstance(launcher, SupervisedLauncherConfig)
    if config.engine.name not in (SERVED, CLIENT):
        accepted = f"launcher={launcher.name} serves engine={SERVED}; engine={CLIENT} has options of its client"
        raise ConfigError("engine", config.engine.name, accepted)
    if config.harness is not None and launcher.engines > 1:
        accepted = "must be 1 with a harness: sessions live in one process"
        raise ConfigError("launcher.engines", launcher.engines, accepted)
    return launcher


def serve_options(config: RlConfig, socket: str | None, further: Sequence[str] = ()) -> list[str]:
    """Returns the options of ``arcforge-serve``, each an argument; those of `launcher.serve` replace ours.

    Args:
        config: of the run.
        socket: path of a Unix socket to listen on as well.
        further: options of ours.
    """
    launcher = launcher_of(config)
    ours = [
        f"checkpoint={written(initial_checkpoint(config))}", "port=0", "shutdown_seconds=0",
        f"dp={launcher.engines}", f"deterministic={written(config.trainer.deterministic)}",
        *changed("hardware", config.hardware), *further,
    ]  # fmt: skip
    if config.engine.name == SERVED:
        ours += changed("engine", config.engine)
    if config.trainer.replay_routing == "engine":
        ours.append("engine.record_experts=true")
    if dtype := DTYPES.get(config.sampling_precision):
        ours.append(f"dtype={dtype}")
    if config.harness is not None:
        ours.append(f"gateway.sessions={SESSIONS * config.harness.concurrency}")
    if socket is not None:
        ours.append(f"unix_socket={written(socket)}")
    named = {option.lstrip("+").partition("=")[0] for option in launcher.serve}
    return [option for option in ours if option.partition("=")[0] not in named] + list(launcher.serve)


def changed(section: str, config: ComponentConfig) -> list[str]:
    """Returns the options that make a component's default configuration this one."""
    default = registry().get(section, config.name).load_schema()(name=config.name)
    fields = [field.name for field in dataclasses.fields(config) if field.name != "name"]
    values = {name: getattr(config, name) for name in fields}
    options = [
        f"{section}.{name}={written(value)}" for name, value in values.items() if value != getattr(default, name)
    ]
    return [f"{section}={config.name}", *options]


def initial_checkpoint(config: RlConfig) -> str:
    """Returns the folder of the weights that the run begins with, a resumed one too: the server starts from them.

    Raises:
        CheckpointError: it is not there.
    """
    if config.resume is None or config.init is not None:
        return str(find_checkpoint(str(config.init), "init").resolve())
    resumed = f"{config.output_dir}/latest" if config.resume == "latest" else config.resume
    return str(find_checkpoint(resumed, "resume").resolve())


def trainer_config(config: RlConfig, url: str, threads: int | None, socket: str | None) -> RlConfig:
    """Returns the configuration of the trainer: an engine at a URL, an orchestrator apart, its own cores.

    Args:
        config: of the run.
        url: of the server.
        threads: of the trainer, unless `trainer.threads` says otherwise.
        socket: of the gateway, for sandboxes; None where the run names one, or needs none.
    """
    engine, collection, harness = config.engine, config.collection, config.harness
    if isinstance(collection, AsynchronousConfig):
        most = getattr(engine, "max_running", None) if harness is None else None
        concurrency = collection.concurrency or most
        collection = replace(collection, orchestrator="process", concurrency=concurrency)
    if engine.name != CLIENT:
        schema: Any = registry().get("engine", CLIENT).load_schema()
        client: EngineConfig = schema(name=CLIENT, url=url)
    else:
        client = replace(engine, url=url)  # type: ignore[call-arg]  # it has the field
    if socket is not None:
        harness = replace(harness, gateway_socket=socket)  # type: ignore[type-var]  # it has the field
    trainer = config.trainer if threads is None else replace(config.trainer, threads=config.trainer.threads or threads)
    return replace(config, engine=client, collection=collection, harness=harness, trainer=trainer)


def wants_socket(config: RlConfig) -> bool:
    """Returns whether a harness needs the gateway's socket in its sandboxes, and the run names none."""
    harness = config.harness
    return getattr(harness, "place", None) == "sandbox" and getattr(harness, "gateway_socket", "") is None


def serve_command(options: Sequence[str]) -> list[str]:
    """Returns the command of a server."""
    return [sys.executable, "-m", "arcforge_core", "serve", *options]


def role_command(role: str) -> list[str]:
    """Returns the command of a trainer or an orchestrator; the role is there for those who list processes."""
    return [sys.executable, "-m", "arcforge_rl.launch.roles", role]
