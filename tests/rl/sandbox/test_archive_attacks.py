"""Attacks by what a program leaves: archives, trees, planted links."""

import asyncio
import io
import os
import sys
import tarfile
from dataclasses import replace

import pytest

from arcforge_core.contracts.sandbox import Command, SandboxBoundError, SandboxError
from arcforge_rl.sandbox.files import pack, unpack
from arcforge_rl.sandbox.trees import Size, copy_tree
from support.sandbox_attacks import LIMITS
from support.steps import longest_step

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")


def archive(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, changes, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in changes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def links_too_long_to_resolve():
    """Links through which a short path has a real one beyond the kernel's limit, where Python before 3.11.13 gives up.

    The target of the last of them then looks as if it were in the target's directory (CVE-2025-4517).
    """
    members, folder, steps = [], "", "abcdefghijklmnop"
    for step in steps:
        members += [
            (f"{folder}{'d' * 247}", {"type": tarfile.DIRTYPE, "mode": 0o755}, b""),
            (f"{folder}{step}", {"type": tarfile.SYMTYPE, "linkname": "d" * 247}, b""),
        ]
        folder += f"{'d' * 247}/"
    last = f"{'/'.join(steps)}/{'l' * 254}"
    return [
        *members,
        (last, {"type": tarfile.SYMTYPE, "linkname": "../" * len(steps)}, b""),
        ("escape", {"type": tarfile.SYMTYPE, "linkname": f"{last}/../.."}, b""),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "escape/secret"}, b""),
        ("hard", {}, b"overwritten"),
    ]


@pytest.mark.parametrize(
    "members",
    [
        [("../outside", {}, b"x")],
        [("/tmp/arcforge-absolute", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, b"")],
        [("link", {"type": tarfile.SYMTYPE, "linkname": "/etc"}, b""), ("link/outside", {}, b"x")],
        [("link", {"type": tarfile.SYMTYPE, "linkname": "../.."}, b""), ("link/outside", {}, b"x")],
        [("hard", {"type": tarfile.LNKTYPE, "linkname": "../../secret"}, b"")],
        [("device", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 1}, b"")],
        [("pipe", {"type": tarfile.FIFOTYPE}, b"")],
        links_too_long_to_resolve(),
    ],
    ids=[
        "dot dot",
        "absolute link",
        "through a link",
        "through a relative link",
        "hard link",
        "device",
        "pipe",
        "links",
    ],
)
def test_an_archive_that_leaves_its_folder(members, tmp_path):
    (tmp_path / "secret").write_text("x")
    with pytest.raises(SandboxError):
        unpack(archive(("good", {}, b"x"), *members), tmp_path / "a" / "b", Size.of_disk(1 << 20))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "secret"]
    assert (tmp_path / "secret").read_text() == "x"


def plant(folder, *paths):
    """Makes directories, and a file of 5,000 bytes in the last one."""
    for path in paths:
        (folder / path).mkdir(parents=True)
    (folder / paths[-1] / "f").write_bytes(bytes(range(250)) * 20)


@pytest.mark.parametrize(
    ("room", "bound", "paths"),
    [
        (Size(4999, 200), "bytes", ["d"]),
        (Size(5000, 3), "members", ["d/e", "d/g"]),
        (Size(5000, 200), "depth", ["/".join("d" * 129)]),
        (Size(5000, 200), "path", ["/".join(["d" * 204] * 5)]),
    ],
)
@pytest.mark.parametrize("way", ["snapshot", "download"])
def test_a_tree_beyond_a_bound(way, room, bound, paths, tmp_path):
    plant(tmp_path / "tree", *paths)
    with pytest.raises(SandboxBoundError) as raised:
        if way == "snapshot":
            (tmp_path / "new").mkdir()
            copy_tree(str(tmp_path / "tree"), str(tmp_path / "new"), room)
        else:
            unpack(pack(tmp_path / "tree"), tmp_path / "new", room)
    limit = {"bytes": 4999, "members": 3, "depth": 128, "path": 1024}[bound]
    assert (raised.value.bound, raised.value.limit) == (bound, limit)
    assert f"{limit:,}" in str(raised.value) or str(limit) in str(raised.value)


@pytest.fixture(params=["snapshot", "download"])
def copy_out(request, run, tmp_path):
    """Copies the work directory to the host and returns where it is."""

    def copy_out():
        if request.param == "snapshot":
            run.wait(run.sandbox.snapshot(tmp_path / "new"))
            return tmp_path / "new"
        run.wait(run.sandbox.download("/workspace", tmp_path / "new"))
        [folder] = (tmp_path / "new").iterdir()
        return folder

    return copy_out


HOLES_AND_LINKS = """
import os
with open("data", "wb") as file:
    file.write(os.urandom(2 << 20))
for n in range(40):
    os.link("data", f"link{n}")
for n in range(20):
    with open(f"holes{n}", "wb") as file:
        file.seek(7 << 20)
        file.write(b"middle")
        file.truncate(15 << 20)
for n in range(3):
    os.truncate(os.open(f"nothing{n}", os.O_CREAT | os.O_WRONLY), 15 << 20)
with open("many", "wb") as file:
    for n in range(12):
        file.seek(n << 20)
        file.write(b"data%02d" % n)
"""


def test_holes_and_links_take_no_more_of_the_host_than_of_the_sandbox(run, copy_out):
    assert run(HOLES_AND_LINKS).ok
    folder = copy_out()
    taken = {path.stat().st_ino: path.stat().st_blocks * 512 for path in folder.iterdir()}
    assert sum(taken.values()) < 4 << 20
    assert (folder / "link39").samefile(folder / "data")
    assert (folder / "nothing2").read_bytes() == bytes(15 << 20)
    assert (folder / "many").read_bytes() == b"".join((b"data%02d" % n).ljust(1 << 20, b"\0") for n in range(12))[
        : (11 << 20) + 6
    ]
    assert (folder / "holes3").read_bytes() == bytes(7 << 20) + b"middle" + bytes((8 << 20) - 6)


def test_links_of_a_base_stay_links_in_the_next_snapshot(run, backend, loop, tmp_path):
    assert run("import os\nopen('f', 'wb').write(bytes(range(256)) * 4096)\nos.link('f', 'g')").ok
    run.wait(run.sandbox.snapshot(tmp_path / "first"))
    second = loop.run_until_complete(backend.open(tmp_path / "first", LIMITS))
    loop.run_until_complete(second.snapshot(tmp_path / "second"))
    loop.run_until_complete(second.stop())
    assert (tmp_path / "second/f").samefile(tmp_path / "second/g")


def test_more_than_the_host_would_take(run, backend, copy_out):
    """Where the work directory is not bounded as a whole, its copy still is."""
    if any("work directory is not bounded" in gap for gap in backend.gaps()):
        assert run("for n in 'abc':\n open(n, 'wb').write(bytes(range(256)) * 40000)").ok
        with pytest.raises(SandboxBoundError, match=r"more than .* bytes"):
            copy_out()


DEEP = """
import os
for n in range(300):
    os.mkdir("d")
    os.chdir("d")
"""


def test_a_tree_too_deep_harms_nobody(run, backend, loop, copy_out, tmp_path):
    assert run(DEEP).ok
    with pytest.raises(SandboxBoundError, match="more than 128 directories"):
        copy_out()
    assert not (tmp_path / "new").exists()
    run.wait(run.sandbox.stop())
    after = loop.run_until_complete(backend.open(limits=LIMITS))  # the keeper lives
    loop.run_until_complete(after.stop())


NAMES = [b"new\nline", b"end\n", b"not \xff\xfe utf-8", b"-rf", b"--checkpoint-action=exec=sh", b" ", b"*", b"\\"]


def test_any_name_may_be_copied(run, copy_out):
    source = f"import os\nfor name in {NAMES}:\n os.mkdir(name)\n open(name + b'/' + name, 'wb').write(name)"
    assert run(source).ok
    folder = copy_out()
    assert sorted(os.listdir(os.fsencode(folder))) == sorted(NAMES)
    for name in NAMES:
        assert (folder / os.fsdecode(name) / os.fsdecode(name)).read_bytes() == name


@pytest.mark.parametrize("name", ["end\n", "-x", "d/"])
def test_the_name_asked_for_is_the_one_that_comes(run, name, tmp_path):
    assert run("import os\nfor n in ('end', 'end\\n', '-x', 'd'): os.mkdir(n); open(n + '/f', 'w').write(n)").ok
    run.wait(run.sandbox.download(name, tmp_path / "new"))
    [folder] = (tmp_path / "new").iterdir()
    assert (folder / "f").read_text() == folder.name == name.rstrip("/")


MANY = "import os\nfor n in range(90):\n os.mkdir('d')\n os.chdir('d')\n for m in range(20): open(str(m), 'w').close()"


def test_copying_leaves_the_event_loop_free(run, loop, tmp_path):
    assert run(MANY).ok
    assert longest_step(loop, run.sandbox.download("d", tmp_path / "new")) < 0.3
    assert longest_step(loop, run.sandbox.upload(tmp_path / "new", "again")) < 0.3


@pytest.mark.parametrize("plant", ["ln -s /etc/passwd d/l", "mkfifo d/p", "ln -s ../../../.. d/l"])
def test_what_cannot_be_downloaded(run, plant, tmp_path):
    assert run.shell(f"mkdir d; echo x > d/f; {plant}").ok
    with pytest.raises(SandboxError):
        run.wait(run.sandbox.download("d", tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_snapshot_takes_no_rights_and_follows_no_link(run, tmp_path, targets):
    run.shell(f"mkdir d; echo x > d/f; chmod u+s d/f; ln -s {targets['SECRET']} d/l; mkfifo d/p; ln -s / d/root")
    run.wait(run.sandbox.snapshot(tmp_path / "new"))
    assert sorted(p.name for p in (tmp_path / "new/d").iterdir()) == ["f", "l", "root"]
    assert (tmp_path / "new/d/f").stat().st_mode & 0o7000 == 0
    assert (tmp_path / "new/d/l").is_symlink() and (tmp_path / "new/d/root").is_symlink()
    with pytest.raises(SandboxError, match="FileExists"):
        run.wait(run.sandbox.snapshot(tmp_path / "new"))


def test_a_folder_closed_against_its_owner_is_removed(run):
    closed = "os.mkdir('d'); open('d/f', 'w').close(); f = os.open('d', os.O_RDONLY); os.fchmod(f, 0)"
    assert run(f"import os; {closed}").ok
    run.wait(run.sandbox.stop())
    assert not os.path.exists(run.sandbox.work)


def test_a_base_that_does_not_fit_is_one_line(backend, loop, tmp_path):
    """Where root gives its files to the sandbox's user, each takes one of those that the sandbox may have."""
    for n in range(300):
        (tmp_path / str(n)).touch()
    small = replace(LIMITS, disk_bytes=1 << 20)

    async def scene():
        try:
            sandbox = await backend.open(tmp_path, small)
        except SandboxBoundError as error:
            return str(error), error.bound, error.limit
        done = await sandbox.exec(Command(("/bin/sh", "-c", "ls | wc -l"), limits=LIMITS))
        await sandbox.stop()
        return int(done.stdout)

    result = loop.run_until_complete(asyncio.wait_for(scene(), 30))
    if backend.views is not None and os.getuid() == 0:
        message, *rest = result
        assert rest == ["members", 256] and "\n" not in message
        assert f"base {tmp_path} has 300 files" in message and "disk_bytes=1,048,576" in message, message
    else:
        assert result == 300
