"""Attacks on the sandboxes of this machine: each is a small program that must fail inside.

An attack is a function whose source is run by the Python inside; it fails by raising. Where that is harmless the same
program also runs without a sandbox, and must succeed there: a test that could not fail would show nothing. Other
families are in the files beside this one; `test_ordinary_user.py` runs all of them again as another user.
"""
# ruff: noqa: SIM115 - attacks are short, and their processes end

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import CommandStatus
from arcforge_rl.sandbox import seccomp
from arcforge_rl.sandbox.python import python_inside
from support.sandbox_attacks import program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")
PYTHON, _ = python_inside()
ROOT = os.getuid() == 0
libc = ctypes.CDLL(None, use_errno=True)  # the attacks' own name, which their prelude has


# ---- the attacks: 1, network; targets are this test's own listeners on the loopback address ---------------------


def tcp():
    address, patience = ("127.0.0.1", int(os.environ["TCP"])), float(os.environ.get("PATIENCE", "2"))
    with socket.create_connection(address, patience) as s:
        assert s.recv(10) == b"secret"


def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(float(os.environ.get("PATIENCE", "0.3")))
        s.sendto(b"?", ("127.0.0.1", int(os.environ["UDP"])))
        assert s.recv(10) == b"secret"


def dns():
    query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x04test\x00\x00\x01\x00\x01"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(float(os.environ.get("PATIENCE", "0.3")))
        s.connect(("127.0.0.1", int(os.environ["UDP"])))
        s.send(query)
        assert s.recv(10)


def abstract_socket():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\0" + os.environ["ABSTRACT"])
        assert s.recv(10) == b"secret"


def named_socket():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.environ["NAMED"])
        assert s.recv(10) == b"secret"


def datagram_pair():
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as s:
        s.sendto(b"?", os.environ["DATAGRAMS"])


def listen_for_the_host():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        address, patience = ("127.0.0.1", int(os.environ["TCP"])), float(os.environ.get("PATIENCE", "2"))
        socket.create_connection(address, patience).close()


def raw_socket():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


def packet_socket():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()


def machine_socket():
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError as error:
        assert error.errno != 1, "the filter"  # a kernel without it is no merit of the sandbox


# ---- 2, files of the host -------------------------------------------------------------------------------------------


def read_a_private_file():
    assert "top secret" in open(os.environ["SECRET"]).read()


def read_shadow():
    assert "root:" in open("/etc/shadow").read()


def list_the_home():
    assert os.listdir(os.environ["CALLERS_HOME"]) is not None


def read_the_checkout():
    assert open(os.environ["CHECKOUT"]).read()


def write_outside():
    with open(os.environ["VICTIM"], "w") as file:
        file.write("changed")


def dot_dot():
    assert open("../" * 30 + os.environ["SECRET"]).read()


def symbolic_link():
    os.symlink(os.environ["SECRET"], f"link{os.getpid()}")
    assert open(f"link{os.getpid()}").read()


def hard_link():
    os.link(os.environ["SECRET"], os.path.join(os.environ["TMPDIR"], f"hard{os.getpid()}"))


def roots_of_processes():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if open(f"/proc/{name}/root{os.environ['SECRET']}").read():
                    return
            except OSError:
                continue
    raise PermissionError("none")


def files_of_processes():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                links = [os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd")]
            except OSError:
                continue
            if os.environ["HELD_OPEN"] in links:
                return
    raise PermissionError("none")


def device_node():
    os.mknod(os.path.join(os.environ["TMPDIR"], f"device{os.getpid()}"), 0o600 | 0o020000, os.makedev(1, 1))


def mount_something():
    if libc.mount(b"none", os.environ["TMPDIR"].encode(), b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")


def replace_programs():
    with open("/usr/bin/arcforge-planted", "w") as file:
        file.write("#!/bin/sh\n")


def a_set_user_id_program():
    assert libc.prctl(39, 0, 0, 0, 0) == 0  # PR_GET_NO_NEW_PRIVS


def write_system_settings():
    with open("/proc/sys/kernel/domainname", "r+") as file:
        file.write("sandboxed")


def write_sys():
    with open("/sys/kernel/mm/transparent_hugepage/enabled", "r+") as file:
        file.write("never")


# ---- 3, secrets ------------------------------------------------------------------------------------------------------


def variables_of_processes():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if b"callers-token" in open(f"/proc/{name}/environ", "rb").read():
                    return
            except OSError:
                continue
    raise PermissionError("none")


def command_lines():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if b"arcforge" in open(f"/proc/{name}/cmdline", "rb").read():
                    return
            except OSError:
                continue
    raise PermissionError("none")


def inherited_files():
    for fd in range(3, 1024):
        try:
            os.fstat(fd)
        except OSError:
            continue
        return
    raise PermissionError("none")


def shared_memory_file():
    assert open(os.environ["SHARED"]).read()


def system_v_memory():
    if libc.shmget(int(os.environ["SHMKEY"]), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "shmget")


def core_dump():
    import resource

    assert resource.getrlimit(resource.RLIMIT_CORE)[1] != 0


# ---- 8, what would help to get out -----------------------------------------------------------------------------------


def user_namespace():
    if libc.unshare(0x10000000):
        raise OSError(ctypes.get_errno(), "unshare")


def user_namespace_by_clone():
    import platform

    number = 56 if platform.machine() == "x86_64" else 220
    pid = libc.syscall(number, 0x10000000 | 17, 0, 0, 0, 0)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def trace_the_parent():
    pid = os.fork()
    if not pid:
        os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def read_a_neighbours_memory():
    buffer = ctypes.create_string_buffer(b"own memory")
    vector = struct.pack("PP", ctypes.addressof(buffer), 4)
    target = struct.pack("PP", ctypes.addressof(ctypes.create_string_buffer(4)), 4)
    if libc.process_vm_readv(os.getpid(), target, 1, vector, 1, 0) != 4:
        raise OSError(ctypes.get_errno(), "process_vm_readv")


def lease_a_file():
    """Its owner's programs then wait when they open it."""
    import fcntl

    path = os.path.join(os.environ["TMPDIR"], f"leased{os.getpid()}")
    open(path, "w").close()
    with open(path) as file:
        fcntl.fcntl(file, 1024, fcntl.F_RDLCK)


def write_a_neighbours_memory():
    pid = os.fork()
    if not pid:
        os.read(os.pipe()[0], 1)
    try:
        open(f"/proc/{pid}/mem", "r+b").close()
    finally:
        os.kill(pid, 9)


def write_its_own_memory():
    open(f"/proc/self/task/{os.getpid()}/mem", "r+b").close()


def write_the_first_processs_memory():
    """From where the exit code is reported."""
    open("/proc/1/mem", "r+b").close()


def kill_a_neighbour():
    os.kill(int(os.environ["NEIGHBOUR"]), 0)


def type_into_the_terminal():
    import fcntl

    try:
        fcntl.ioctl(0, 0x5412, b"x")
    except OSError as error:
        assert error.errno != 1, "the filter"


def set_the_clock():
    import time

    time.clock_settime(time.CLOCK_REALTIME, time.time())


ATTACKS = (
    tcp, udp, dns, abstract_socket, named_socket, datagram_pair, listen_for_the_host, raw_socket, packet_socket,
    machine_socket, read_a_private_file, read_shadow, list_the_home, read_the_checkout, write_outside, dot_dot,
    symbolic_link, hard_link, roots_of_processes, files_of_processes, device_node, mount_something,
    replace_programs, a_set_user_id_program, write_system_settings, write_sys, variables_of_processes,
    command_lines, inherited_files, shared_memory_file, system_v_memory, core_dump, user_namespace,
    user_namespace_by_clone, trace_the_parent, lease_a_file, read_a_neighbours_memory, write_a_neighbours_memory,
    write_its_own_memory, write_the_first_processs_memory, kill_a_neighbour, type_into_the_terminal,
    set_the_clock,
)  # fmt: skip
AS_ROOT_ONLY = {"read_shadow", "raw_socket", "packet_socket", "device_node"}
"""Controls that an ordinary user could not pass without a sandbox either."""
NO_CONTROL = {
    "write_the_first_processs_memory": "it would be the machine's",
    "mount_something": "it would mount",
    "replace_programs": "it would write to /usr",
    "write_system_settings": "it would change the machine",
    "a_set_user_id_program": "the machine may have given these rights up for everyone",
    "set_the_clock": "it would",
    "write_sys": "it would change the machine",
    "user_namespace": "the machine may forbid it to everyone",
    "user_namespace_by_clone": "the machine may forbid it to everyone",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_the_attack_fails(attack, run, targets):
    done = run(program(attack), targets)
    assert done.outcome is CommandStatus.EXIT, done
    assert done.stdout.startswith(b"HELD"), done
    assert Path(targets["VICTIM"]).read_text() == "untouched"


@pytest.mark.parametrize(
    "attack", [a for a in ATTACKS if a.__name__ not in NO_CONTROL], ids=lambda attack: attack.__name__
)
def test_the_attack_would_succeed_outside(attack, targets, tmp_path):
    if attack.__name__ in AS_ROOT_ONLY and not ROOT:
        attack = read_a_private_file  # what this user may do; root's run has the other one
    env = {**os.environ, **targets, "TMPDIR": str(Path(targets["SECRET"]).parent), "PATIENCE": "60"}
    done = subprocess.run(
        [PYTHON, "-I", "-S", "-c", program(attack)],
        env=env, cwd=tmp_path, close_fds=False, capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith(b"BROKEN"), done
    if attack is write_outside:
        Path(targets["VICTIM"]).write_text("untouched")


SYSTEM_CALL_PROBE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
errors = {}
for name, number in json.loads(os.environ["CALLS"]).items():
    ctypes.set_errno(0)
    pid = os.fork()
    if not pid:
        result = libc.syscall(number, -1, -1, -1, -1, -1)
        os._exit(ctypes.get_errno() if result == -1 else 0)
    errors[name] = os.waitpid(pid, 0)[1] >> 8
print(json.dumps(errors))
"""


def test_the_filter_refuses_every_call_on_its_list(run, backend):
    column, _ = seccomp.ARCHITECTURES[os.uname().machine]
    denied = seccomp.DENIED | ({} if backend.views is not None else seccomp.DENIED_ON_THE_HOST)
    calls = {name: numbers[column] for name, numbers in denied.items() if numbers[column] is not None}
    done = run(SYSTEM_CALL_PROBE, {"CALLS": json.dumps(calls)})
    errors = json.loads(done.stdout)
    assert set(errors.values()) == {1}, {name: error for name, error in errors.items() if error != 1}
