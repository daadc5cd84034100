"""Commits unpacked into folders, and the commands of their packages."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


class UserError(Exception):
    """Something that the caller can put right."""


def git(root: Path, *arguments: str) -> bytes:
    """Runs git and returns its output."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True)
    if done.returncode:
        raise UserError(done.stderr.decode().strip())
    return done.stdout


def unpack(root: Path, commit: str, folder: Path, parts: Sequence[str] = ("packages", "conf")) -> Path:
    """Writes these folders of a commit to `folder`; ``.`` is the working tree, which is used in place."""
    if commit == ".":
        return root
    try:
        sha = git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()
    except UserError as error:
        accepted = "give a commit, a branch, a tag, or . for the working tree"
        raise UserError(f"{commit} is no commit of {root}; {accepted}") from error
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", sha, *parts))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def environment(tree: Path, python: str) -> dict[str, str]:
    """Returns variables with which Python imports the packages of `tree`, and makes sure that it does."""
    sources = sorted(tree.glob("packages/*/src"))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
    names = [path.parent.name for source in sources for path in source.glob("arcforge_*/__init__.py")]
    code = "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep='\\n')"
    done = subprocess.run([python, "-c", code, *names], env=variables, capture_output=True, text=True, cwd=tree)
    if done.returncode:
        raise UserError(f"{tree}: its packages cannot be imported:\n{done.stderr.strip()}")
    for name, file in zip(names, done.stdout.splitlines(), strict=True):
        if not Path(file).resolve().is_relative_to(tree.resolve()):
            raise UserError(f"{name} is imported from {file} and not from {tree}")
    return variables


@dataclass
class Tree:
    """A source tree and the Python that runs its commands; ``name`` is how the caller wrote it."""

    name: str
    folder: Path
    python: str

    @cached_property
    def variables(self) -> dict[str, str]:
        """The environment of its processes."""
        return environment(self.folder, self.python)

    @cached_property
    def scripts(self) -> dict[str, str]:
        """Script name -> ``module:function``, from the ``pyproject.toml`` of each package."""
        tables = (tomllib.loads(path.read_text()) for path in sorted(self.folder.glob("packages/*/pyproject.toml")))
        return {name: target for table in tables for name, target in table["project"].get("scripts", {}).items()}

    def command(self, script: str, *arguments: str) -> list[str]:
        """Returns the command line that runs a script of the tree."""
        if script not in self.scripts:
            raise UserError(f"{self.name} has no script {script}; it has {', '.join(self.scripts)}")
        module, _, function = self.scripts[script].partition(":")
        code = f"import sys; sys.argv[0] = {script!r}; from {module} import {function} as main; sys.exit(main())"
        return [self.python, "-c", code, *arguments]

    def run(self, script: str, *arguments: str, timeout: float = 600.0) -> str:
        """Runs a script on one thread and returns its output.

        Raises:
            UserError: it failed; with its last lines.
        """
        command = self.command(script, *arguments)
        variables = {**self.variables, **ONE_THREAD}
        try:
            done = subprocess.run(
                command, env=variables, cwd=self.folder, stdout=-1, stderr=subprocess.STDOUT, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{self.name}: {script} took longer than {timeout:.0f} s") from error
        said = done.stdout.decode(errors="replace")
        if done.returncode:
            last = said.strip().splitlines()[-15:]
            raise UserError("\n".join([f"{self.name}: {script} ended with status {done.returncode}:", *last]))
        return said
