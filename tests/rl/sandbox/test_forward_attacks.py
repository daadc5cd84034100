"""Connections through a forwarded port, and attacks on everything to which it must not lead."""

import asyncio
import contextlib
import fcntl
import json
import os
import resource
import signal
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import Command, SandboxFault
from arcforge_rl.configs.commands import BubblewrapConfig
from arcforge_rl.sandbox.bubblewrap import Bubblewrap
from arcforge_rl.sandbox.forks import children
from arcforge_rl.sandbox.python import python_inside
from arcforge_rl.sandbox.relay import CONNECTIONS
from arcforge_rl.sandbox.state import STATE
from support.sandbox_attacks import LIMITS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")
PYTHON, READ_ONLY = python_inside()
PORT = 8000
DIAL = f"""
import os, select, socket, sys, threading, time
def dial(port={PORT}):
    return socket.create_connection(("127.0.0.1", port), timeout=20)
def everything(s):
    data = b""
    while chunk := s.recv(1 << 16):
        data += chunk
    return data
"""


@pytest.fixture(scope="module")
def backend(loop):
    backend = Bubblewrap(BubblewrapConfig(read_only=READ_ONLY))
    yield backend
    loop.run_until_complete(backend.close())


@pytest.fixture
def scene(backend, loop, tmp_path):
    """Runs `work(sandbox, python)` in a sandbox whose port leads to a server with the given handler."""

    def scene(work, answer=None):
        async def play():
            path = tmp_path / "gateway"
            server = await asyncio.start_unix_server(ending(answer or echo), path, limit=1 << 16)
            sandbox = await backend.open(limits=LIMITS, forward={PORT: path})
            try:
                return await work(sandbox, server)
            finally:
                await sandbox.stop()
                server.close()
                await over()

        return loop.run_until_complete(asyncio.wait_for(play(), 100))

    return scene


HANDLING: set[asyncio.Task] = set()


async def over():
    """Ends the handlers that still wait."""
    for task in HANDLING:
        task.cancel()
    await asyncio.gather(*HANDLING, return_exceptions=True)


def ending(answer):
    """A handler that closes its connection, also where the other side is gone."""

    async def handle(reader, writer):
        HANDLING.add(task := asyncio.current_task())
        task.add_done_callback(HANDLING.discard)
        try:
            with contextlib.suppress(ConnectionError):
                await answer(reader, writer)
        finally:
            writer.close()

    return handle


async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write(b".")


def python(source, env=None, **limits):
    return Command((PYTHON, "-I", "-S", "-c", DIAL + source), env=env or {}, limits=replace(LIMITS, **limits))


def relays(backend):
    """The relays of a keeper, which are its only children that are the keeper's program."""
    keeper = backend.client.process.pid
    line = Path(f"/proc/{keeper}/cmdline").read_bytes()
    return [pid for pid in children(keeper) if Path(f"/proc/{pid}/cmdline").read_bytes() == line]


def test_directions_close_independently(scene):
    """The server answers once it has all: it hears the end of the request."""

    async def work(sandbox, _):
        done = await sandbox.exec(python("s = dial(); s.sendall(b'hello'); s.shutdown(1); print(everything(s))"))
        assert done.stdout == b"b'hello.'\n", done

    scene(work)


def test_the_server_may_close_its_direction_first(scene):
    heard = []

    async def answer(reader, writer):
        writer.write(b"over")
        writer.write_eof()
        heard.append(await reader.read())

    async def work(sandbox, _):
        source = "s = dial(); print(everything(s)); s.sendall(b'x' * 300_000); s.close()"
        assert (await sandbox.exec(python(source))).stdout == b"b'over'\n"
        while not heard:
            await asyncio.sleep(0.01)
        assert heard == [b"x" * 300_000]

    scene(work, answer)


def test_large_bodies_on_many_connections(scene):
    """64 at a time, one of them with 10 MB in each direction; all bytes arrive."""
    source = """
bad = []
def talk(size):
    s, body = dial(), os.urandom(size)
    writer = threading.Thread(target=lambda: (s.sendall(body), s.shutdown(1)))
    writer.start()
    if everything(s) != body + b".": bad.append(size)
    writer.join()
for n in range(2):
    threads = [threading.Thread(target=talk, args=(size,)) for size in [10 << 20] + 20 * [200_000]]
    for t in threads: t.start()
    for t in threads: t.join()
idle = [dial() for _ in range(63)]
talk(1 << 20)
for s in idle:
    s.sendall(b"one")
    assert s.recv(10) == b"one"
print(bad)
"""

    async def work(sandbox, _):
        done = await sandbox.exec(python(source, memory_bytes=2 << 30, processes=64))  # each thread reserves some
        assert done.stdout == b"[]\n", done

    scene(work)


def test_an_event_arrives_before_the_next_is_sent(scene):
    """The server sends each only when the program has confirmed the one before."""
    confirmed = asyncio.Queue()

    async def answer(reader, writer):
        line = await reader.readline()
        if line != b"stream\n":
            confirmed.put_nowait(line)
            return
        for n in range(30):
            writer.write(b"data: %d\n\n" % n)
            assert await confirmed.get() == b"%d\n" % n

    source = """
s = dial(); s.sendall(b"stream\\n")
for n in range(30):
    assert s.recv(100) == b"data: %d\\n\\n" % n
    c = dial(); c.sendall(b"%d\\n" % n); c.close()
print(everything(s))
"""

    async def work(sandbox, _):
        assert (await sandbox.exec(python(source))).stdout == b"b''\n"

    scene(work, answer)


def test_a_server_that_does_not_read_makes_the_program_wait(scene):
    async def answer(reader, writer):
        await reader.read(1)
        await asyncio.sleep(60)

    source = """
s = dial(); s.settimeout(1); sent = 0
try:
    while True: sent += s.send(bytes(1 << 16))
except TimeoutError: print(sent)
"""

    async def work(sandbox, _):
        assert 1 << 16 < int((await sandbox.exec(python(source))).stdout) < 4 << 20

    scene(work, answer)


def test_a_program_that_does_not_read_makes_the_server_wait(scene):
    sent = []

    async def answer(reader, writer):
        writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(1):
                    writer.write(bytes(1 << 16))
                    await writer.drain()
                sent.append(1 << 16)
        sent.append(0)

    async def work(sandbox, _):
        process = await sandbox.start(python("s = dial(); time.sleep(60)"))
        while not sent or sent[-1]:
            await asyncio.sleep(0.05)
        process.kill()
        assert 1 << 16 < sum(sent) < 4 << 20

    scene(work, answer)


def test_a_program_that_goes_is_noticed(scene):
    """A server need not generate for nobody."""
    ends = []

    async def answer(reader, writer):
        try:
            while True:
                writer.write(b"token")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            ends.append("gone")

    async def work(sandbox, _):
        process = await sandbox.start(python("s = dial(); s.recv(5); print('has', flush=True); time.sleep(60)"))
        assert await process.stdout.readline() == b"has\n"
        process.kill()
        while not ends:
            await asyncio.sleep(0.01)

    scene(work, answer)


def test_a_server_that_breaks_off_is_noticed(scene):
    """An answer that was cut off must not look like one that ended."""

    async def answer(reader, writer):
        await reader.readline()
        writer.transport.pause_reading()
        writer.write(b"half")
        await writer.drain()
        waiting = bytearray(4)
        while not int.from_bytes(waiting, sys.byteorder):  # bytes unread when the connection is given up
            await asyncio.sleep(0.01)
            fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.FIONREAD, waiting)

    source = """
s = dial(); s.sendall(b"go\\n"); print(s.recv(10), flush=True); s.sendall(b"unread")
try: print(everything(s))
except ConnectionResetError: print("reset")
"""

    async def work(sandbox, _):
        assert (await sandbox.exec(python(source))).stdout == b"b'half'\nreset\n"

    scene(work, answer)


def test_a_killed_relay_is_a_fault(scene, backend):
    """By the host: nothing inside can reach it."""
    source = "s = dial(); print('open', flush=True); print(everything(s))\nprint(everything(dial()))"

    async def work(sandbox, _):
        process = await sandbox.start(python(source))
        assert await process.stdout.readline() == b"open\n"
        [relay] = relays(backend)
        os.kill(relay, signal.SIGKILL)
        assert b"Error" in await process.stderr.read(), "neither its connection nor a new one is open"
        with pytest.raises(SandboxFault, match="relay"):
            await sandbox.exec(Command(("/bin/true",)))

    scene(work)


def test_a_server_that_is_gone_and_comes_back(scene, tmp_path):
    source = """
try:
    s = dial(); s.sendall(b"x"); print(s.recv(10))
except (ConnectionResetError, ConnectionRefusedError): print("reset")
"""

    async def work(sandbox, server):
        server.close()
        await server.wait_closed()
        assert (await sandbox.exec(python(source))).stdout == b"reset\n"
        (tmp_path / "gateway").unlink(missing_ok=True)
        assert (await sandbox.exec(python(source))).stdout == b"reset\n"
        async with await asyncio.start_unix_server(ending(echo), tmp_path / "gateway"):
            assert (await sandbox.exec(python(source))).stdout == b"b'x'\n"

    scene(work)


REACH = """
import json
found, targets = [], json.loads(os.environ["TARGETS"])
def attempt(name, work):
    try:
        work()
        found.append(name)
    except OSError: pass
def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(1)
        s.connect(address)
attempt("tcp", lambda: connect(socket.AF_INET, ("127.0.0.1", int(targets["TCP"]))))
attempt("any", lambda: connect(socket.AF_INET, ("0.0.0.0", int(targets["TCP"]))))
attempt("v6", lambda: connect(socket.AF_INET6, ("::1", int(targets["TCP"]))))
attempt("world", lambda: connect(socket.AF_INET, ("1.1.1.1", 53)))
attempt("link", lambda: connect(socket.AF_INET, ("169.254.169.254", 80)))
attempt("abstract", lambda: connect(socket.AF_UNIX, "\\0" + targets["ABSTRACT"]))
attempt("named", lambda: connect(socket.AF_UNIX, targets["NAMED"]))
attempt("gateway", lambda: connect(socket.AF_UNIX, targets["GATEWAY"]))
attempt("other", lambda: connect(socket.AF_INET, ("127.0.0.1", 8001)))
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(0.3); s.connect(("127.0.0.1", int(targets["UDP"]))); s.send(b"?"); assert s.recv(10)
attempt("udp", udp)
for path in ("/proc/net/unix", "/proc/net/tcp"):
    if targets["GATEWAY"] in open(path).read(): found.append(path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cwd", "root", "fd"):
        attempt(f"/proc/{pid}/{name}", lambda: os.stat(f"/proc/{pid}/{name}{targets['GATEWAY']}"))
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
import ctypes
def enter():
    if ctypes.CDLL(None).setns(os.open("/proc/1/ns/net", 0), 0): raise OSError
attempt("namespace", enter)
print(json.dumps([found, interfaces, dial().recv(10).decode()]))
"""


def test_nothing_else_is_reached(scene, backend, targets, tmp_path):
    """Other ports, the host's network, abstract and named sockets, the forwarded one's file, and other sandboxes'."""

    async def answer(reader, writer):
        writer.write(b"mine")

    async def other(reader, writer):
        writer.write(b"other")

    async def work(sandbox, _):
        aims = {name: targets[name] for name in ("TCP", "UDP", "ABSTRACT", "NAMED")}
        aims["GATEWAY"] = str(tmp_path / "gateway")
        async with await asyncio.start_unix_server(ending(other), tmp_path / "other") as server:
            second = await backend.open(limits=LIMITS, forward={8001: tmp_path / "other"})
            done = await sandbox.exec(python(REACH, {"TARGETS": json.dumps(aims)}))
            mine = await second.exec(python("print(dial(8001).recv(10))\ndial(8000)"))
            await second.stop()
            server.close()
        assert json.loads(done.stdout) == [[], ["lo"], "mine"], done
        assert mine.stdout == b"b'other'\n" and b"ConnectionRefusedError" in mine.stderr

    scene(work, answer)


def test_thousands_of_connections(scene, backend, tmp_path):
    """They take neither the caller's nor the relay's memory, and no other sandbox waits for them."""
    hog = """
held = []
for _ in range(8):
    if os.fork() == 0:
        for _ in range(450):
            s = socket.socket(); s.setblocking(False)
            try: s.connect(("127.0.0.1", 8000))
            except BlockingIOError: pass
            held.append(s)
        print("held", len(held), flush=True)
        time.sleep(60)
for _ in range(8): os.wait()
"""
    quick = python("s = dial(); s.sendall(b'x'); s.shutdown(1); print(everything(s))")

    async def work(sandbox, _):
        before = set(relays(backend))
        second = await backend.open(limits=LIMITS, forward={PORT: tmp_path / "gateway"})
        [mine] = before
        hogs = await sandbox.start(python(hog))
        for _ in range(8):
            assert await hogs.stdout.readline() == b"held 450\n"
        await asyncio.sleep(0.3)
        assert (await second.exec(quick)).stdout == b"b'x.'\n"
        descriptors = len(os.listdir(f"/proc/{mine}/fd"))
        assert CONNECTIONS < descriptors < 2 * CONNECTIONS + 32
        size = int(Path(f"/proc/{mine}/statm").read_text().split()[1]) * resource.getpagesize()
        assert size < 100 << 20
        hogs.kill()
        await hogs.wait()
        assert (await sandbox.exec(quick)).stdout == b"b'x.'\n", "the connections of the dead are given back"
        await second.stop()

    scene(work)


def test_a_connection_that_never_sends(scene):
    async def work(sandbox, _):
        silent = await sandbox.start(python("s = [dial() for _ in range(20)]; print('open', flush=True); input()"))
        assert await silent.stdout.readline() == b"open\n"
        done = await sandbox.exec(python("s = dial(); s.sendall(b'x'); print(s.recv(10))"))
        assert done.stdout == b"b'x'\n"
        silent.stdin.write(b"\n")
        assert (await silent.wait()).ok

    scene(work)


def test_the_relay_cannot_be_signalled_and_its_port_not_taken(scene):
    attack = """
for pid in (-1, 1):
    try: os.kill(pid, 9)
    except OSError: pass
for address in ("127.0.0.1", "0.0.0.0", "::"):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try: s.bind((address, 8000)); s.listen(); print("taken", address)
    except OSError: pass
"""

    async def work(sandbox, _):
        assert b"taken" not in (await sandbox.exec(python(attack))).stdout.replace(b"taken ::", b"")
        done = await sandbox.exec(python("s = dial(); s.sendall(b'x'); print(s.recv(10))"))
        assert done.stdout == b"b'x'\n", done

    scene(work)


def test_no_relay_outlives_its_sandbox_or_keeper(backend, loop, tmp_path):
    async def play():
        async with await asyncio.start_unix_server(ending(echo), tmp_path / "gateway"):
            own = Bubblewrap(BubblewrapConfig(read_only=READ_ONLY))
            first, second = [await own.open(limits=LIMITS, forward={PORT: tmp_path / "gateway"}) for _ in "12"]
            both = relays(own)
            assert len(both) == 2
            await first.stop()
            [left] = relays(own)
            own.client.process.kill()
            async with asyncio.timeout(10):
                while any(Path(f"/proc/{pid}/exe").exists() for pid in both):
                    await asyncio.sleep(0.02)
            with pytest.raises(SandboxFault):
                await second.exec(Command(("/bin/true",)))
            await own.close()
            return left in both

    assert loop.run_until_complete(asyncio.wait_for(play(), 60))


def test_commands_without_a_forwarded_port_have_networks_of_their_own(backend, loop):
    async def play():
        sandbox = await backend.open(limits=LIMITS)
        source = "s = socket.create_server(('127.0.0.1', 8000)); print('listens', flush=True); input()"
        server = await sandbox.start(python(source))
        assert await server.stdout.readline() == b"listens\n"
        done = await sandbox.exec(python("dial()"))
        await sandbox.stop()
        return done.stderr

    assert b"ConnectionRefusedError" in loop.run_until_complete(asyncio.wait_for(play(), 30))


def test_a_socket_where_the_keeper_has_its_own_files_is_reached(backend, loop):
    path = Path(f"{STATE}/arcforge-test-socket-{os.getpid()}")

    async def play():
        async with await asyncio.start_unix_server(ending(echo), path):
            sandbox = await backend.open(limits=LIMITS, forward={PORT: path})
            done = await sandbox.exec(python("s = dial(); s.sendall(b'hello'); s.shutdown(1); print(everything(s))"))
            await sandbox.stop()
        path.unlink(missing_ok=True)
        return done.stdout

    assert loop.run_until_complete(asyncio.wait_for(play(), 30)) == b"b'hello.'\n"
