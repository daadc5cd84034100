"""The base of environments that play packages of third parties."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from arcforge_core.contracts.sandbox import Command, SandboxBackend, SandboxFault, SandboxLimits
from arcforge_core.episodes.tools import ToolEnvironment
from arcforge_rl.configs.external import PackageConfig
from arcforge_rl.external.package import package_of
from arcforge_rl.sandbox.mcp_servers import check_client


class PackageEnvironment(ToolEnvironment):
    """Tasks of a package that is shown in sandboxes, in which a program of ours uses it.

    Attributes:
        module: a directory that the package must have.
        limits: of the sandboxes.
        folder: of the package.
        layers: argument of `SandboxBackend.open`.
        python: the interpreter inside.
        notice: name, version and licence of the package, in one line.

    Raises:
        DataError, LayerError: the package is not there or cannot be read.
        ConfigError: it is of another version of Python, or the package of MCP's client is missing.
    """

    judges_work = True
    module: ClassVar[str]
    limits: ClassVar[SandboxLimits]

    def __init__(self, config: PackageConfig) -> None:
        super().__init__(config)
        check_client(config.name)
        package = package_of(config.name, config.path, self.module)
        self.folder, self.python, self.notice = package.folder, package.python, package.notice
        self.layers: list[tuple[Path, str]] = package.layers

    def program(self) -> str:
        """Returns the text of the program that runs in sandboxes: ``inside.py`` beside the environment's module."""
        beside = resources.files(type(self).__module__.rpartition(".")[0])
        return beside.joinpath("inside.py").read_text(encoding="utf-8")

    def asking(self, given: Any) -> Callable[[SandboxBackend], Coroutine[Any, Any, Any]]:
        """Returns work for a desk: the program's answer in a fresh sandbox.

        Args:
            given: its standard input, as JSON; its standard output is JSON, too.

        Raises:
            SandboxFault: in the work: the sandbox or the program broke.
        """

        async def work(backend: SandboxBackend) -> Any:
            sandbox = await backend.open(limits=self.limits, layers=self.layers)
            try:
                command = Command((self.python, "-I", "-c", self.program()), json.dumps(given).encode())
                done = await sandbox.exec(command)
            finally:
                await sandbox.stop()
            try:
                return json.loads(done.stdout if done.ok else b"")
            except ValueError as error:
                said = done.stderr[-300:].decode(errors="replace")
                raise SandboxFault(f"{self.module} ended with {done.outcome.value} {done.code}: {said}") from error

        return work
