"""``environment=swe``: a solver repairs a repository in a sandbox; hidden tests judge its files in a fresh one."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxBackend, SandboxError, SandboxFault
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.base import EnvironmentBase
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import converse
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import SweConfig
from arcforge_rl.execution.lateness import verdict_in_time
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.swe.copies import near_copies
from arcforge_rl.swe.instance import Instance, read_instances
from arcforge_rl.swe.languages.base import WORKDIR, Language, RunRequest, files_of
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.results import TestRun
from arcforge_rl.swe.running import lay, opened
from arcforge_rl.swe.sources import LEFT_OUT

LONGEST_FILE = 1 << 20
MOST_FILES = 200
LATE = "the tests do not end in time over these files, and do over the repair's"


def _tool(name: str, description: str, *parameters: str) -> Tool:
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in parameters}, "required": [*parameters]}
    return Tool({"type": "function", "function": {"name": name, "description": description, "parameters": schema}})


TOOLS = (
    _tool("bash", "Runs a command in the repository; each call has a shell of its own.", "command"),
    _tool("edit", "Replaces a text that occurs once in a file; an empty one creates the file.", "path", "old", "new"),
)


@dataclass(frozen=True)
class SweTask(Task):
    """A task; the answer is the repair as a patch."""

    instance: Instance


class Swe(EnvironmentBase):
    """Instances of a folder, which ``arcforge-env swe`` writes.

    A repository with all of its instances and near copies is on one side of the split.

    Raises:
        DataError: the folder has no usable instances.
        ConfigError: no instance is on this side of the split, or a layer is missing.
    """

    domain = "swe"
    judges_work = True

    def __init__(self, config: SweConfig) -> None:
        super().__init__(config)
        self.folder = Path(config.path).expanduser()
        found = read_instances(self.folder)
        if config.whole:
            self.instances = found
        else:
            first, heldout = near_copies(self.folder, found), config.split == "heldout"
            sides = {one.repo: is_heldout_task(f"swe/{first.get(one.repo, one.repo)}") for one in found}
            self.instances = [one for one in found if sides[one.repo] == heldout]
        if not self.instances:
            repositories = ", ".join(sorted({one.repo for one in found}))
            raise ConfigError("environment.split", config.split, f"none of {repositories or 'no repository'} is there")
        self.num_tasks: int | None = len(self.instances)

    def task(self, index: int) -> Task:
        """Returns the task of an instance."""
        one = self.instances[index % len(self.instances)]
        return SweTask(one.instance_id, one.problem_statement, one.patch, one)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver work in a sandbox; the episode holds the files that differ from the repository's."""
        assert isinstance(task, SweTask)
        tree = self.folder / "trees" / task.instance.tree
        desk = shared_desk()
        language = language_of(task.instance.language)
        layers = language.shown(task.instance.packages)
        sandbox = await desk.do(lambda backend: opened(backend, language, tree, layers))

        async def use(call: ToolCall) -> str:
            given = {name: str(value) for name, value in call.arguments.items()}
            work = _bash(sandbox, **given) if call.name == "bash" else _edit(sandbox, **given)
            return await desk.do(lambda _: work)

        try:
            messages = [Message("user", task.prompt)]
            episode = await converse(agents, messages, TOOLS, use, max_calls=self.config.max_calls)
            files, flaw = await desk.do(lambda _: changed(sandbox, language, tree))
        finally:
            await desk.do(lambda _: sandbox.stop())
        return Episode(episode.messages, episode.reply, episode.finish_reason, {"files": files, "flaw": flaw})

    @reward(timeout=None)
    async def resolved(self, task: Task, episode: Episode) -> Score:
        """Runs the tests over the solver's files in a fresh sandbox: all that it must turn and keep must pass.

        Raises:
            NoVerdict: they do not end in time, not even over the repair.
        """
        assert isinstance(task, SweTask)
        if flaw := episode.artefacts.get("flaw"):
            return Score(0.0, str(flaw))
        one, files = task.instance, episode.artefacts.get("files") or {}

        async def over(files: Mapping[str, str | None]) -> TestRun | None:
            run = await self.tested(one, files)
            return None if run.late or by_time_alone(one, run) else run

        async def control() -> bool:
            return await over(one.repair(self.folder / "trees" / one.tree)) is not None

        run = await verdict_in_time(lambda: over(files), control, f"the tests of {one.instance_id}")
        return Score(0.0, LATE) if run is None else verdict(one, run)

    @metric(timeout=None)
    def files_changed(self, task: Task, episode: Episode) -> int:
        """Counts the files that differ."""
        return len(episode.artefacts.get("files") or ())

    async def tested(self, instance: Instance, files: Mapping[str, str | None]) -> TestRun:
        """Returns the run of an instance's tests over some files.

        Raises:
            SandboxFault: the sandbox broke, twice.
        """
        language, tree = language_of(instance.language), self.folder / "trees" / instance.tree
        layers, python = language.shown(instance.packages), shared_desk().python
        paths = sorted(path for path in instance.tests if language.takes(path))

        async def attempt(backend: SandboxBackend) -> TestRun:
            sandbox = await opened(backend, language, tree, layers)
            try:
                await lay(sandbox, {**allowed(files, language), **instance.tests})
                request = RunRequest(
                    sandbox, python, paths, self.config.seconds, packages=instance.packages, explained=False
                )
                return await language.run(request)
            finally:
                await sandbox.stop()

        return await shared_desk().retry(attempt)

    def oracle(self, task: Task) -> Script:
        """Returns the calls that write the repair."""
        assert isinstance(task, SweTask)
        return [*writing(task.instance.repair(self.folder / "trees" / task.instance.tree)), Reply("Done.")]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns attempts to pass without a repair: those of `Language.cheats`, and a repository without its code."""
        assert isinstance(task, SweTask)
        language, tree = language_of(task.instance.language), self.folder / "trees" / task.instance.tree
        code = shlex.join(path for path in files_of(tree) if language.is_code(path))
        nothing = Reply(calls=(ToolCall("bash", {"command": f"rm -f -- {code}"}),))
        cheats = [writing(files) for files in language.cheats(task.instance, tree)]
        return [[*turns, Reply("Done.")] for turns in (*cheats, [nothing])]


def verdict(instance: Instance, run: TestRun) -> Score:
    """Returns 1 if every test of both lists passed; one that was not reported has failed."""
    if not run.whole:
        return Score(0.0, run.reason)
    for name, tests in (("FAIL_TO_PASS", instance.FAIL_TO_PASS), ("PASS_TO_PASS", instance.PASS_TO_PASS)):
        missed = [test for test in tests if not run.passed(test)]
        if missed:
            how = run.outcomes.get(missed[0], "not reported")
            return Score(0.0, f"{len(missed)} of {len(tests)} tests in {name} did not pass: {missed[0]} ({how})")
    return Score(1.0, f"{len(instance.FAIL_TO_PASS)} tests turned, {len(instance.PASS_TO_PASS)} kept")


def by_time_alone(instance: Instance, run: TestRun) -> bool:
    """Returns whether every test that did not pass, of those that must, was ended by a time limit."""
    missed = {test for test in (*instance.FAIL_TO_PASS, *instance.PASS_TO_PASS) if not run.passed(test)}
    return run.whole and bool(missed) and missed <= run.endless


def allowed(files: Mapping[str, str | None], language: Language) -> dict[str, str | None]:
    """Returns the solver's files without tests and without files that decide what the test runner does."""
    return {p: text for p, text in files.items() if not language.is_test(p) and not language.is_setting(p)}


async def changed(sandbox: Sandbox, language: Language, tree: Path) -> tuple[dict[str, str | None], str]:
    """Returns the text files of the work directory that differ from a tree, and why they cannot be judged.

    Raises:
        SandboxFault: the sandbox broke.
    """
    unwanted = " -o ".join(f"-name '{name}'" for name in (*LEFT_OUT, *language.left_out))
    listing = rf"find . -type d \( {unwanted} \) -prune -o -type f -not -name '*.pyc' -printf '%P\0'"
    done = await sandbox.exec(Command(("/bin/sh", "-c", listing), cwd=WORKDIR))
    names = {name for name in done.stdout.decode(errors="surrogateescape").split("\0") if name}
    if not done.ok:
        return {}, "the files of the repository cannot be listed"
    before = await asyncio.to_thread(texts_of, tree)
    found: dict[str, str | None] = {name: None for name in before if name not in names}
    sums = await sandbox.exec(Command(("/bin/sh", "-c", f"{listing} | xargs -0 -r sha256sum -z --"), cwd=WORKDIR))
    if not sums.ok:
        return {}, "the files of the repository cannot be read"
    hashes = dict(_pairs(sums.stdout))
    for name in sorted(names):
        known = before.get(name)
        if known is not None and sha256(known).hexdigest() == hashes.get(name):
            continue
        if len(found) >= MOST_FILES:
            return {}, f"more than {MOST_FILES} files differ"
        try:
            found[name] = (await sandbox.read(f"{WORKDIR}/{name}", LONGEST_FILE)).decode()
        except SandboxFault:
            raise
        except (SandboxError, UnicodeDecodeError):
            continue  # binary files and such as are too long belong to no repair
    return found, ""


def _pairs(data: bytes) -> list[tuple[str, str]]:
    rows = [row.decode(errors="surrogateescape") for row in data.split(b"\0") if row]
    return [(row[66:], row[:64]) for row in rows]


def texts_of(tree: Path) -> dict[str, bytes]:
    """Returns the contents of the files of a tree."""
    paths = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(tree)): path.read_bytes() for path in paths}


def writing(files: Mapping[str, str | None]) -> list[Reply]:
    """Returns the turns that write files."""
    turns: list[dict[str, Any]] = []
    for path, text in files.items():
        turns.append({"command": f"rm -f -- '{path}'"})
        if text is not None:
            turns.append({"path": path, "old": "", "new": text})
    return [Reply(calls=(ToolCall("bash" if "command" in turn else "edit", turn),)) for turn in turns]


async def _bash(sandbox: Sandbox, command: str) -> str:
    done = await sandbox.exec(Command(("/bin/sh", "-c", command), cwd=WORKDIR))
    ending = "" if done.ok else f"\n[{done.outcome.value}{'' if done.code is None else f' {done.code}'}]"
    return (done.stdout + done.stderr).decode(errors="replace").rstrip("\n") + ending


async def _edit(sandbox: Sandbox, path: str, old: str, new: str) -> str:
    try:
        try:
            text = (await sandbox.read(path, LONGEST_FILE)).decode(errors="replace")
        except SandboxFault:
            raise
        except SandboxError:
            text = ""
        if text and (not old or text.count(old) != 1):
            return f"Error: the text must occur once in {path}; it occurs {text.count(old) if old else 0} times"
        if not text and old:
            return f"Error: there is no text in {path}"
        await sandbox.write(path, (text.replace(old, new) if old else new).encode())
    except SandboxFault:
        raise
    except SandboxError as error:
        return f"Error: {error}"
    return f"{path} is written"
