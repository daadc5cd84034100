"""Histories of git repositories on this machine: commits of a branch, and the files of a commit.

git reads refs and objects of the repository and nothing else: neither its config nor its hooks, attributes, index or
alternates, as each of these can name a program or files elsewhere. It works in a folder of our own, into which the refs
are copied, and finds the objects by ``GIT_OBJECT_DIRECTORY``. Files are written from blobs without any filter, so those
of ``export-ignore`` are there, and Git LFS's are the pointers that the commit holds.
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.layers.store import LayerError

SECONDS = 600.0
MOST_COMMITS = 20_000
"""Commits that are read, from the latest."""
MOST_FILES, MOST_BYTES = 100_000, 1 << 30
"""Of a commit's files."""
MOST_OUTPUT = 1 << 29
"""Bytes that a command of git may print."""
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
REF = re.compile(r"refs/(?:heads|tags|remotes)/[^\s~^:?*\[\\]+")
LINK, SUBMODULE = "120000", "160000"
"""Modes of entries that are no files."""
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",
}  # fmt: skip
SETTINGS = ("core.commitGraph=false", "core.multiPackIndex=false", f"core.hooksPath={os.devnull}")


@dataclass(frozen=True)
class Commit:
    """A commit of a branch.

    Attributes:
        hash: of it.
        parents: hashes; the first one is the commit before it on the branch.
        created: when, in UTC, as SWE-bench writes it.
        message: whole.
        changed: path -> modes before and after, compared with the first parent.
    """

    hash: str
    parents: tuple[str, ...]
    created: str
    message: str
    changed: Mapping[str, frozenset[str]]


@contextmanager
def opened(source: Path) -> Iterator[History]:
    """Yields the history of a folder with a git repository, work tree or bare, or of a bundle.

    Raises:
        DataError: it is neither, or has objects elsewhere.
        LayerError: git is missing.
    """
    if shutil.which("git") is None:
        raise LayerError("tool", f"{source}: git was not found")
    with tempfile.TemporaryDirectory() as place:
        own = Path(place, "git")
        if source.is_file():
            objects, refs, head, shallow = own / "objects", *_unbundled(source, own), list[str]()
        else:
            folder = _folder_of(source)
            objects, refs, shallow = (folder / "objects").absolute(), _refs(folder), _lines(folder / "shallow")
            head = (_lines(folder / "HEAD") or [""])[0]
            _init(own, source, next(iter(refs.values()), head))
        (own / "packed-refs").write_text("".join(f"{value} {name}\n" for name, value in sorted(refs.items())))
        if HASH.fullmatch(head) or REF.fullmatch(head.removeprefix("ref: ")):
            (own / "HEAD").write_text(f"{head}\n")
        known = [line for line in shallow if HASH.fullmatch(line)]
        if known:
            (own / "shallow").write_text("".join(f"{line}\n" for line in known))
        yield History(source, own, objects, bool(known))


class History:
    """Commits and files of a repository, as `opened` yields it.

    Attributes:
        source: the repository.
        shallow: whether earlier commits were cut off.
    """

    def __init__(self, source: Path, own: Path, objects: Path, shallow: bool) -> None:
        self.source, self.shallow = source, shallow
        self._own, self._objects = own, objects

    def commits(self, branch: str = "") -> list[Commit]:
        """Returns the commits of a branch or range by first parents, the latest first, those without a parent left out.

        Args:
            branch: a branch, tag, commit or range ``A..B``; empty: the repository's own.

        Raises:
            DataError: the branch is unknown, or no commit has a parent.
        """
        ends = branch.split("..") if ".." in branch else ["", branch]
        if len(ends) != 2 or any(end.startswith(("-", ".")) for end in ends):
            raise DataError(f"--branch {branch!r}: must be a branch, tag, commit or range A..B")
        start, end = (self._commit(name, branch) if name else "" for name in (ends[0], ends[1] or "HEAD"))
        mark = secrets.token_hex(16)  # no message can hold it
        output = self._git(
            "log", "-z", "--first-parent", "--diff-merges=first-parent", "--raw", "-r", "--no-abbrev", "--no-renames",
            "--no-ext-diff", "--no-textconv", "--no-show-signature", "--no-mailmap", f"--max-count={MOST_COMMITS}",
            "--date=format-local:%Y-%m-%dT%H:%M:%SZ", f"--format={mark}%x00%H%x00%P%x00%cd%x00%B%x00",
            *([f"{start}..{end}"] if start else [end]), "--",
        )  # fmt: skip
        found = [_read(text) for text in os.fsdecode(output).split(f"{mark}\0")[1:]]
        if usable := [one for one in found if one.parents]:
            return usable
        if self.shallow:
            raise DataError(f"{self.source} is a shallow clone without a commit and the one before it; unshallow it")
        raise DataError(f"{self.source} has {len(found)} commits in {branch or 'HEAD'}, and none with one before it")

    def check_out(self, commit: str, to: Path) -> None:
        """Writes the files of a commit below a new folder; links and submodules are left out.

        Raises:
            DataError: objects are missing, a path leaves the folder, or the files are too many or too large.
        """
        listing = self._git("ls-tree", "-r", "-z", "-l", "--full-tree", commit)
        rows = [row.partition("\t") for row in os.fsdecode(listing).split("\0") if row]
        files = [(path, head.split()) for head, _, path in rows if head[:6] not in (LINK, SUBMODULE)]
        if any(not head[3].isdigit() for _, head in files):
            raise DataError("objects are missing, as in a partial clone")
        if len(files) > MOST_FILES or sum(int(head[3]) for _, head in files) > MOST_BYTES:
            raise DataError(f"has more than {MOST_FILES} files or {MOST_BYTES >> 20} MB")
        to.mkdir()
        words = self._words("cat-file", "--batch")
        with subprocess.Popen(
            words, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            for path, (mode, _, name, size) in files:
                process.stdin.write(f"{name}\n".encode())
                process.stdin.flush()
                if process.stdout.readline().split()[1:2] != [b"blob"]:
                    raise DataError("objects are missing or damaged")
                content = process.stdout.read(int(size) + 1)[:-1]
                _write(to, path, content, mode == "100755")

    def _commit(self, name: str, branch: str) -> str:
        try:
            return self._git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
        except DataError:
            pass
        listed = self._git("for-each-ref", "--count=9", "--format=%(refname:short)", "refs/heads", "refs/remotes")
        known = ", ".join(os.fsdecode(listed).split())
        if not known:
            raise DataError(f"{self.source} has no commit")
        raise DataError(f"--branch {branch or name}: is no commit of {self.source}; its branches are {known}")

    @property
    def _environment(self) -> dict[str, str]:
        own = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._own), "TZ": "UTC"}
        places = {"GIT_DIR": str(self._own), "GIT_OBJECT_DIRECTORY": str(self._objects)}
        return {**ENVIRONMENT, **own, **places}

    def _words(self, *words: str) -> list[str]:
        return ["git", *(part for one in SETTINGS for part in ("-c", one)), *words]

    def _git(self, *words: str) -> bytes:
        return _run(self._words(*words), self._environment)


def _run(words: list[str], environment: Mapping[str, str]) -> bytes:
    """Returns the output of a command of git.

    Raises:
        DataError: it fails, does not end in time, or prints too much.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        )
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            with process:
                assert process.stdout is not None
                output = process.stdout.read(MOST_OUTPUT + 1)
                if len(output) > MOST_OUTPUT:
                    process.kill()
        finally:
            timer.cancel()
        if process.returncode:
            said.seek(0)
            lines = said.read(1 << 16).decode(errors="replace").strip().splitlines()
            raise DataError(f"git cannot read it: {lines[0] if lines else f'exit code {process.returncode}'}")
    return output


def _read(text: str) -> Commit:
    name, parents, created, message, *rest = text.split("\0")
    raw = [part.strip("\n") for part in rest if part.strip("\n")]
    changed = {
        path: frozenset(mode for mode in head[1:].split()[:2] if int(mode))
        for head, path in zip(raw[::2], raw[1::2], strict=True)
    }
    return Commit(name, tuple(parents.split()), created, message, changed)


def _write(to: Path, path: str, content: bytes, executable: bool) -> None:
    parts = path.split("/")
    if posixpath.normpath(path) != path or ".." in parts or path.startswith("/"):
        raise DataError(f"names {path!r}, which is no path inside the repository")
    target = to / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if executable else 0o644)
    except OSError as error:
        raise DataError(f"{path!r} cannot be written: {error.strerror}") from error


def _folder_of(source: Path) -> Path:
    """Returns the folder of a repository's refs and objects."""
    inner = source / ".git"
    if inner.is_file():
        raise DataError(f"{source} is a linked work tree or a submodule; name the repository to which it belongs")
    folder = inner if inner.is_dir() else source
    if not all((folder / name).exists() for name in ("HEAD", "objects", "refs")):
        raise DataError(f"{source} is neither a folder with a git repository nor a bundle")
    if (folder / "reftable").exists():
        raise DataError(f"{source} keeps its refs in a reftable; name a bundle of it")
    elsewhere = [folder / "objects/info" / name for name in ("alternates", "http-alternates")]
    if any(path.is_symlink() for path in (inner, folder / "objects")) or any(map(os.path.lexists, elsewhere)):
        raise DataError(f"{source} has objects in another folder, which is not read; name a bundle of it")
    return folder


def _refs(folder: Path) -> dict[str, str]:
    """Returns branches and tags; a file of its own precedes ``packed-refs``."""
    rows = [line.split(" ", 1) for line in _lines(folder / "packed-refs") if line[:1] not in ("#", "^")]
    found = {row[1]: row[0] for row in rows if len(row) == 2}
    for place, _, names in os.walk(folder / "refs"):
        for path in (Path(place, name) for name in names):
            found[path.relative_to(folder).as_posix()] = (_lines(path) or [""])[0]
    return {name: value for name, value in found.items() if HASH.fullmatch(value) and REF.fullmatch(name)}


def _lines(path: Path) -> list[str]:
    """Returns the lines of a regular file; none if there is no such file."""
    if path.is_symlink() or not path.is_file():
        return []
    return [line.strip() for line in path.read_bytes().decode(errors="replace").splitlines()]


def _init(own: Path, source: Path, example: str) -> None:
    kind = "sha256" if len(example) == 64 else "sha1"
    environment = {**ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath), "HOME": str(own.parent)}
    _run(["git", "init", "-q", "--bare", "--template=", f"--object-format={kind}", str(own)], environment)


def _unbundled(source: Path, own: Path) -> tuple[dict[str, str], str]:
    """Reads a bundle into a folder of our own; returns its refs and its head."""
    with source.open("rb") as file:
        first = file.readline(64)
        second = file.readline(256)
    if not re.fullmatch(rb"# v[23] git bundle\n", first):
        raise DataError(f"{source} is neither a folder with a git repository nor a bundle")
    _init(own, source, "0" * (64 if b"object-format=sha256" in second else 40))
    environment = {**ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath), "HOME": str(own), "GIT_DIR": str(own)}
    try:
        output = _run(["git", "bundle", "unbundle", str(source.absolute())], environment)
    except DataError as error:
        told = "a bundle must have a whole history, as git bundle create FILE --all writes it"
        raise DataError(f"{source}: {error}; {told}") from error
    rows = [line.split(" ", 1) for line in os.fsdecode(output).splitlines()]
    found = {row[1]: row[0] for row in rows if len(row) == 2 and HASH.fullmatch(row[0])}
    refs = {name: value for name, value in found.items() if REF.fullmatch(name)}
    heads = [value for name, value in refs.items() if name.startswith("refs/heads/")]
    return refs, found.get("HEAD", heads[0] if len(heads) == 1 else "")
