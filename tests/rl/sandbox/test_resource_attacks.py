"""Attacks on the machine's resources: processes, memory, files, time, output."""

import io
import os
import signal
import sys
import tarfile

import pytest

from arcforge_core.contracts.sandbox import CommandStatus, SandboxFault
from arcforge_rl.sandbox.python import python_inside
from support.sandbox_attacks import LIMITS, outside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")
PYTHON, _ = python_inside()

FORKS = """
import os, signal, time
pids = []
try:
    while len(pids) < 150:
        pid = os.fork()
        if not pid:
            time.sleep(30)
            os._exit(0)
        pids.append(pid)
except OSError:
    pass
print(len(pids), flush=True)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


def test_a_fork_bomb(run):
    done = run(FORKS)
    assert 20 <= int(done.stdout) <= LIMITS.processes, done


def test_a_fork_bomb_outside():
    assert int(outside(PYTHON, FORKS).stdout) == 150


def test_threads_are_processes(run):
    done = run(
        "import threading, time\n"
        "for n in range(100): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()"
    )
    assert b"can't start new thread" in done.stderr, done


MEMORY = """
blocks = [bytearray(16 << 20) for _ in range(24)]
for block in blocks:
    block[::4096] = block[1::4096]
print('had it', flush=True)
"""


def test_memory(run, backend):
    done = run(MEMORY)
    assert b"had it" not in done.stdout
    if not any("memory" in gap for gap in backend.gaps()):
        assert done.outcome is CommandStatus.OUT_OF_MEMORY
    else:
        assert b"MemoryError" in done.stderr, done


OTHER_MEMORY = {
    "memfd": """
import os
files = [os.memfd_create("x") for _ in range(40)]
for file in files:
    for _ in range(10):
        os.write(file, bytes(1 << 20))
print("had it", flush=True)
""",
    "system v": """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype, libc.shmdt.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(40):
    memory = libc.shmget(0, 10 << 20, 0o1600)
    if memory < 0:
        raise MemoryError
    place = libc.shmat(memory, None, 0)
    ctypes.memset(place, 1, 10 << 20)
    libc.shmdt(place)
print("had it", flush=True)
""",
}


@pytest.mark.parametrize("kind", OTHER_MEMORY)
def test_memory_that_no_process_has_mapped(run, backend, kind):
    if any("memory" in gap for gap in backend.gaps()):
        assert "memfd" in " ".join(backend.gaps())
        return
    done = run(OTHER_MEMORY[kind])
    assert done.outcome is CommandStatus.OUT_OF_MEMORY or b"MemoryError" in done.stderr, done
    assert b"had it" not in done.stdout


def test_memory_outside():
    assert outside(PYTHON, MEMORY).stdout == "had it\n"


SEVERAL = """
import os, time
for _ in range(4):
    if not os.fork():
        block = bytearray(100 << 20)
        time.sleep(60)
        os._exit(0)
assert not os.wait()[1], "one has ended"
"""


def test_memory_of_several_processes(run, backend):
    if any("memory" in gap for gap in backend.gaps()):
        assert "per process" in " ".join(backend.gaps())  # then this is what the backend says that it does not do
        return
    done = run(SEVERAL)
    assert done.outcome is CommandStatus.OUT_OF_MEMORY


FILL = """
import os, sys
total = files = 0
folders = ["/", "/workspace", "/tmp", "/dev", "/dev/shm", "/run", "/var/tmp", "/etc", "/proc"]
for index, folder in enumerate([*folders, os.getcwd(), os.environ["TMPDIR"]]):
    try:
        for n in range(100):
            with open(f"{folder}/fill{index}-{n}", "wb", buffering=0) as file:
                files += 1
                for _ in range(20):
                    total += file.write(bytes(1 << 20))
    except OSError:
        continue
print(total)
"""


def is_bounded_as_a_whole(backend):
    return not any("work directory is not bounded" in gap for gap in backend.gaps())


def test_filling_the_disk(run, backend):
    if is_bounded_as_a_whole(backend):
        assert 0 < int(run(FILL).stdout) <= LIMITS.disk_bytes
    else:  # one file is bounded; the sum is among the gaps
        source = (
            "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nwith open('f', 'wb', buffering=0) as f:\n"
        )
        done = run(source + " while True: f.write(bytes(1 << 20))")
        assert b"File too large" in done.stderr


def test_filling_the_disk_is_over_with_the_sandbox(run, backend, loop):
    run(FILL) if is_bounded_as_a_whole(backend) else run("open('f', 'wb').write(bytes(1 << 20))")
    second = loop.run_until_complete(backend.open(limits=LIMITS))
    loop.run_until_complete(second.write("f", bytes(1 << 20)))
    loop.run_until_complete(second.stop())


def test_using_up_inodes(run, backend):
    source = "n = 0\ntry:\n while n < 20000:\n  open(f'i{n}', 'w').close()\n  n += 1\nexcept OSError: pass\nprint(n)"
    if is_bounded_as_a_whole(backend):
        assert 100 < int(run(source).stdout) <= LIMITS.disk_bytes // 4096


FILES = """
files = []
try:
    while len(files) < 1000:
        files.append(open("/dev/null"))
except OSError:
    pass
print(len(files))
"""


def test_using_up_open_files(run):
    assert 100 < int(run(FILES).stdout) < 512
    if os.sysconf("SC_OPEN_MAX") > 1024:
        assert int(outside(PYTHON, FILES).stdout) > 512


def test_spinning(run):
    done = run("while True: pass", cpu_seconds=1, wall_seconds=55)
    assert done.outcome is CommandStatus.SIGNAL
    assert done.code in (signal.SIGXCPU, signal.SIGKILL)


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(60)",
        "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)",
    ],
)
def test_sleeping_past_the_time_out(run, source):
    done = run(source, wall_seconds=0.3)
    assert done.outcome is CommandStatus.TIMEOUT
    assert done.seconds < 50


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("text", ["'y' * 1000000", r"'y\n' * 500000"], ids=["one line", "lines"])
def test_flooding_a_stream(run, stream, text):
    done = run(f"import sys\nwhile True: sys.{stream}.write({text})")
    assert done.outcome is CommandStatus.OUTPUT_LIMIT
    assert len(getattr(done, stream)) == LIMITS.output_bytes


def test_an_archive_that_unpacks_to_much_more(run, backend):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("zeros")
        member.size = 3 * LIMITS.disk_bytes
        tar.addfile(member, Zeros(member.size))
    run.wait(run.sandbox.write("bomb.tgz", buffer.getvalue()))
    done = run.shell("tar -xzf bomb.tgz; stat -c %s zeros")
    assert int(done.stdout or 0) <= LIMITS.disk_bytes


class Zeros(io.RawIOBase):
    """A file of zeros."""

    def __init__(self, size):
        self.left = size

    def read(self, count=-1):
        count = min(count, self.left)
        self.left -= count
        return bytes(count)


def test_less_memory_than_its_files_take_is_refused(run, backend):
    if not any("memory" in gap for gap in backend.gaps()) and backend.views is not None:
        assert run("open('f', 'wb').write(bytes(12 << 20))").ok
        with pytest.raises(SandboxFault, match="limits cannot be set"):
            run("pass", memory_bytes=4 << 20)
        assert run("pass").ok
