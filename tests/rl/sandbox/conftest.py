"""Sandboxes of this machine, and what the attacks aim at. Nothing skips where the default backend is missing."""

import asyncio
import ctypes
import os
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import Command
from arcforge_rl.configs.commands import BubblewrapConfig, LandlockConfig
from arcforge_rl.sandbox.bubblewrap import Bubblewrap
from arcforge_rl.sandbox.landlock import Landlock
from arcforge_rl.sandbox.python import python_inside
from arcforge_rl.sandbox.system import landlock_abi
from support.sandbox_attacks import LIMITS

PYTHON, READ_ONLY = python_inside()
libc = ctypes.CDLL(None, use_errno=True)


def answer(listener, over):
    while not over.is_set():
        try:
            if listener.type == socket.SOCK_DGRAM:
                listener.sendto(b"secret", listener.recvfrom(100)[1])
            else:
                connection, _ = listener.accept()
                connection.sendall(b"secret")
                connection.close()
        except OSError:  # nobody came, or went again
            continue


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """What the attacks aim at; returned as their environment."""
    folder = tmp_path_factory.mktemp("host")
    listeners = [socket.socket(), socket.socket(type=socket.SOCK_DGRAM), *(socket.socket(socket.AF_UNIX) for _ in "12")]
    tcp_socket, udp_socket, abstract, named = listeners
    tcp_socket.bind(("127.0.0.1", 0))
    udp_socket.bind(("127.0.0.1", 0))
    abstract.bind(f"\0arcforge-test-{os.getpid()}")
    named.bind(str(folder / "socket"))
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(str(folder / "datagrams"))
    for listener in (tcp_socket, abstract, named):
        listener.listen()
    over = threading.Event()
    threads = [threading.Thread(target=answer, args=(listener, over)) for listener in listeners]
    for listener, thread in zip(listeners, threads, strict=True):
        listener.settimeout(0.1)
        thread.start()
    secret, victim, shared = folder / "secret", folder / "victim", Path(f"/dev/shm/arcforge-test-{os.getpid()}")
    secret.write_text("top secret")
    secret.chmod(0o600)
    victim.write_text("untouched")
    shared.write_text("shared")
    key = 0x41520000 + os.getpid() % 65536
    memory = libc.shmget(key, 4096, 0o1600)
    neighbour = subprocess.Popen(["sleep", "600"])
    held = (folder / "held").open("w")
    inheritable = os.dup(held.fileno())
    os.set_inheritable(inheritable, True)
    os.environ["ARCFORGE_TEST_TOKEN"] = "callers-token"
    yield {
        "TCP": str(tcp_socket.getsockname()[1]),
        "UDP": str(udp_socket.getsockname()[1]),
        "ABSTRACT": f"arcforge-test-{os.getpid()}",
        "NAMED": str(folder / "socket"),
        "DATAGRAMS": str(folder / "datagrams"),
        "SECRET": str(secret),
        "VICTIM": str(victim),
        "CALLERS_HOME": str(Path.home()) if os.access(Path.home(), os.R_OK) else str(folder),
        "CHECKOUT": __file__,
        "HELD_OPEN": str(folder / "held"),
        "SHARED": str(shared),
        "SHMKEY": str(key),
        "NEIGHBOUR": str(neighbour.pid),
    }
    over.set()
    for thread in threads:
        thread.join()  # before its socket is closed, whose number another file may get
    del os.environ["ARCFORGE_TEST_TOKEN"]
    os.close(inheritable)
    held.close()
    neighbour.kill()
    neighbour.wait()
    libc.shmctl(memory, 0, None)
    shared.unlink()
    for listener in (*listeners, datagrams):
        listener.close()


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


BACKENDS = {"bubblewrap": lambda: Bubblewrap(BubblewrapConfig(read_only=READ_ONLY))}
if landlock_abi() >= 6:
    BACKENDS["landlock"] = lambda: Landlock(LandlockConfig(read_only=READ_ONLY))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request, loop):
    backend = BACKENDS[request.param]()
    yield backend
    loop.run_until_complete(backend.close())


@pytest.fixture
def run(backend, loop):
    """Runs coroutines; `run.sandbox` is a fresh sandbox, `run(program, limits)` runs Python in it."""

    class Run:
        sandbox = loop.run_until_complete(backend.open(limits=LIMITS))

        def wait(self, coroutine):
            return loop.run_until_complete(asyncio.wait_for(coroutine, 60))

        def __call__(self, source, env=None, **limits):
            command = Command((PYTHON, "-I", "-S", "-"), source.encode(), env or {}, limits=replace(LIMITS, **limits))
            return self.wait(self.sandbox.exec(command))

        def shell(self, text, **limits):
            return self.wait(self.sandbox.exec(Command(("/bin/sh", "-c", text), limits=replace(LIMITS, **limits))))

    run = Run()
    yield run
    run.wait(run.sandbox.stop())
