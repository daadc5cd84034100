"""``launcher=local``: the processes of a run on this machine, each with its own cores and log."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.errors import ConfigError
from arcforge_core.files.cgroups import cgroup_quota
from arcforge_rl.configs.collection import AsynchronousConfig
from arcforge_rl.configs.launching import LocalLauncherConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.launch.child import Child, Launched, ProcessPart
from arcforge_rl.launch.cores import cores_of, usable_cores
from arcforge_rl.launch.logs import Logs
from arcforge_rl.launch.parts import (
    initial_checkpoint,
    launcher_of,
    role_command,
    serve_command,
    serve_options,
    trainer_config,
    wants_socket,
)
from arcforge_rl.launch.roles import Errand
from arcforge_rl.launch.supervisor import ENGINE, ORCHESTRATOR, TRAINER, Supervisor, finish


def run(config: RlConfig) -> Result:
    """Starts the processes of a run and supervises them to its end.

    Raises:
        ConfigError, CheckpointError: before anything is started.
        ArcforgeError: a process did not start, or ended too often; or the trainer's own.
    """
    if not sys.platform.startswith("linux"):
        raise ConfigError("launcher", "local", "needs Linux, whose kernel ends processes with their parent")
    launcher_of(config)
    assert isinstance(config.launcher, LocalLauncherConfig)
    cores = cores_of(config.launcher, usable_cores(cgroup_quota()))
    say("; ".join(f"{role} on cores {','.join(map(str, cores[role]))}" for role in (ENGINE, ORCHESTRATOR, TRAINER)))
    with tempfile.TemporaryDirectory(prefix="arcforge-") as place:
        socket = str(Path(place) / "gateway") if wants_socket(config) else None
        maker = Maker(config, f"{place}/meeting", socket, cores, os.environ)
        return supervised(config, maker, lambda part: Child(part))


class Maker:
    """Makes the parts of a run.

    Args:
        config: of the run.
        address: where trainer and orchestrator meet.
        socket: of the gateway, where a harness needs one.
        cores: of each role; a role without a list has those of its parent.
        variables: of the environment.
        serve: further options of the server.

    Attributes:
        threads: of the trainer, where the run does not say.
        omp: threads of a role, where nothing else limits them.
    """

    def __init__(
        self,
        config: RlConfig,
        address: str | tuple[str, int],
        socket: str | None,
        cores: Mapping[str, Sequence[int]],
        variables: Mapping[str, str],
        serve: Sequence[str] = (),
    ) -> None:
        self.config, self.socket, self.cores = config, socket, cores
        self.address = address if isinstance(config.collection, AsynchronousConfig) else None
        self.launcher = launcher_of(config)
        self._serve, self._key = serve_options(config, socket, serve), secrets.token_bytes()
        admin = secrets.token_urlsafe()
        self.variables = {**variables, "PYTHONUNBUFFERED": "1", "ARCFORGE_ENGINE_KEY": admin}
        self._serving = {**self.variables, "ARCFORGE_SERVE_ADMIN_KEYS": admin}
        self.threads: int | None = len(cores[TRAINER]) if TRAINER in cores else None
        self.omp: Mapping[str, int] = {}

    def before(self, role: str) -> None:
        """Prepares for a part of this role."""

    def part(self, role: str, log: Path, url: str, resumed: Path | None) -> ProcessPart:
        """Returns a part of the run.

        Args:
            role: see `ProcessPart`.
            log: see `ProcessPart`.
            url: of the server; empty before its first start.
            resumed: folder of the run, for a trainer that replaces another one.
        """
        if role == ENGINE:
            port = url.rpartition(":")[2].rstrip("/")
            options = [f"port={port}" if url and option == "port=0" else option for option in self._serve]
            return self._part(role, serve_command(options), b"", self._serving, log)
        config = trainer_config(self.config, url, self.threads, self.socket)
        if resumed is not None:
            config = replace(config, resume=str(resumed), folder=None, init=None)
        errand = Errand(role, config, sys.argv, self.address, self._key, self.launcher.start_seconds)
        return self._part(role, role_command(role), pickle.dumps(errand), self.variables, log)

    def _part(
        self, role: str, command: Sequence[str], given: bytes, variables: Mapping[str, str], log: Path
    ) -> ProcessPart:
        if role in self.omp:
            variables = {**variables, "OMP_NUM_THREADS": str(self.omp[role])}
        return ProcessPart(role, command, given, variables, self.cores.get(role), log, os.getcwd())


def supervised(config: RlConfig, maker: Maker, start: Callable[[ProcessPart], Launched]) -> Result:
    """Supervises the processes of a run to its end, and returns what its trainer has found.

    Args:
        config: of the run.
        maker: makes its parts.
        start: starts one.

    Raises:
        ArcforgeError: see `run`.
    """
    near = Path(config.output_dir) if config.folder is None else Path(config.folder).parent
    logs = Logs(near, None if config.resume is None else run_folder(config))

    def begin(role: str, url: str, resumed: Path | None) -> Launched:
        maker.before(role)
        return start(maker.part(role, logs.path(role), url, resumed))

    orchestrated = maker.address is not None
    code = Supervisor(maker.launcher, logs, begin, orchestrated).run()
    try:
        finish(code, logs)
    finally:
        if code >= 0:
            logs.remove_unless_settled()
    assert logs.run_dir is not None
    summary = logs.run_dir / "summary.json"
    return Result(logs.run_dir, json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {})


def run_folder(config: RlConfig) -> Path:
    """Returns the folder of the run to resume.

    Raises:
        CheckpointError: it is not there.
    """
    found = Path(initial_checkpoint(replace(config, init=None)))
    return next((folder for folder in (found, *found.parents) if (folder / "config.yaml").is_file()), found)
