"""The adapter with a fake client, which records its calls and runs the command on this machine."""

import asyncio
import json
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import (
    Command,
    CommandStatus,
    ExitStatus,
    SandboxError,
    SandboxFault,
    SandboxLimits,
    SandboxUser,
)
from arcforge_rl.configs.commands import DockerConfig
from arcforge_rl.sandbox.docker import Docker

CLIENT = """#!{python}
import json, os, subprocess, sys
arguments = sys.argv[1:]
with open("{log}", "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if arguments[0] == "version":
    print("99.0")
elif arguments[0] == "inspect":
    print(open("{state}").read())
elif arguments[0] == "run" and "--detach" not in arguments:
    command = arguments[arguments.index("IMAGE") + 1:]
    name = arguments[arguments.index("--name") + 1]
    for option in arguments:
        if option.startswith("--volume=/"):
            outside, inside, _ = option.removeprefix("--volume=").split(":")
            command = [word.replace(inside, outside) for word in command]
    process = subprocess.Popen([sys.executable if word == "python3" else word for word in command])
    open("{folder}/" + name, "w").write(str(process.pid))
    sys.exit(process.wait() % 256)
elif arguments[0] in ("kill", "rm") and os.path.exists("{folder}/" + arguments[-1]):
    number = int(arguments[2]) if "--signal" in arguments else 9
    try:
        os.kill(int(open("{folder}/" + arguments[-1]).read()), number)
    except ProcessLookupError:
        pass
elif arguments[0] == "kill":
    sys.exit("no such container")
"""


@dataclass
class Client:
    """The fake client, the calls it received, and its answer about a container that has ended."""

    program: Path
    log: Path
    state: Path

    def calls(self, word):
        return [call for call in map(json.loads, self.log.read_text().splitlines()) if call[0] == word]


@pytest.fixture
def client(tmp_path):
    client = Client(tmp_path / "client", tmp_path / "log", tmp_path / "state")
    client.state.write_text("false 0 ")
    text = CLIENT.format(python=sys.executable, log=client.log, state=client.state, folder=tmp_path)
    client.program.write_text(text)
    client.program.chmod(0o755)
    return client


def run(client, command, limits=None):
    async def scene():
        async with Docker(DockerConfig(program=str(client.program), image="IMAGE")) as backend:
            sandbox = await backend.open(limits=limits)
            return await sandbox.exec(command)

    return asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_container_is_closed_and_bounded(client):
    limits = SandboxLimits(cpu_seconds=3, memory_bytes=1 << 28, processes=7, disk_bytes=1 << 20)
    done = run(client, Command(("sh", "-c", "cat; echo err >&2"), b"in", {"K": "v"}, "folder"), limits)
    assert (done.outcome, done.stdout, done.stderr) == (CommandStatus.EXIT, b"in", b"err\n")
    arguments = " ".join(client.calls("run")[1])
    for part in (
        "--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", "--user 65534:65534",
        "--pids-limit 7", f"--memory {1 << 28} --memory-swap {1 << 28}", "--ulimit cpu=3:4", "--ulimit core=0",
        f"--ulimit fsize={1 << 20}", "--pull never", "--workdir /workspace/folder", "--env K=v",
        f"--tmpfs /tmp:rw,nosuid,nodev,size={1 << 20}",
    ):  # fmt: skip
        assert part in arguments
    [volume] = client.calls("volume")[:1]
    assert any(f"size={1 << 20},nr_inodes=256" in part for part in volume)


def test_what_was_made_is_removed(client):
    run(client, Command(("true",)))
    made = {call[call.index("--name") + 1] for call in client.calls("run")}
    assert made == {call[-1] for call in client.calls("rm")}
    assert client.calls("volume")[-1][1:3] == ["rm", "--force"]


@pytest.mark.parametrize(
    ("state", "outcome", "code"),
    [
        ("false 3 ", CommandStatus.EXIT, 3),
        ("false 139 ", CommandStatus.SIGNAL, 11),
        ("true 137 ", CommandStatus.OUT_OF_MEMORY, None),
    ],
)
def test_results_are_typed(client, state, outcome, code):
    client.state.write_text(state)
    done = run(client, Command(("true",)))
    assert (done.outcome, done.code) == (outcome, code)


def test_time_out_and_flood_kill_the_container(client):
    done = run(client, Command(("sleep", "60")), SandboxLimits(wall_seconds=0.5))
    assert done.outcome is CommandStatus.TIMEOUT and done.seconds < 50
    done = run(client, Command(("yes",)), SandboxLimits(output_bytes=100))
    assert done.outcome is CommandStatus.OUTPUT_LIMIT and len(done.stdout) == 100


def test_a_container_that_does_not_start_is_a_fault(client):
    client.state.write_text("false 127 no such runtime")
    with pytest.raises(SandboxFault, match="no such runtime"):
        run(client, Command(("true",)))


def test_without_a_daemon_it_refuses(tmp_path):
    backend = Docker(DockerConfig(program=str(tmp_path / "missing")))
    assert not backend.probe().ok
    with pytest.raises(SandboxError, match="missing was not found"):
        asyncio.run(backend.open())


def play(client, scene, forward=None):
    """Plays a scene with a sandbox."""

    async def whole():
        async with Docker(DockerConfig(program=str(client.program), image="IMAGE")) as backend:
            return await scene(await backend.open(forward=forward))

    return asyncio.run(asyncio.wait_for(whole(), 30))


def test_a_started_program_has_a_container_with_streams(client):
    client.state.write_text("false 5 ")

    async def scene(sandbox):
        text = "read x; echo out $x; echo err >&2; read y; exit 5"
        process = await sandbox.start(Command(("sh", "-c", text), env={"K": "v"}))
        process.stdin.write(b"1\n")
        assert await process.stdout.readline() == b"out 1\n"
        done = await sandbox.exec(Command(("echo", "beside")))
        assert done.stdout == b"beside\n"
        process.stdin.close()
        assert await process.wait() == ExitStatus(CommandStatus.EXIT, 5)
        assert (await process.stdout.read(), await process.stderr.read()) == (b"", b"err\n")

    play(client, scene)
    arguments = " ".join(client.calls("run")[1])
    for part in ("--interactive --init", "--network none", "--cap-drop ALL", "--env K=v", "--log-driver none"):
        assert part in arguments
    assert {call[call.index("--name") + 1] for call in client.calls("run")} == {c[-1] for c in client.calls("rm")}


def test_a_started_program_is_signalled_and_killed(client):
    client.state.write_text("false 137 ")

    async def scene(sandbox):
        text = "trap 'echo usr' USR1; echo begun; while :; do sleep 0.05; done"
        process, other = [await sandbox.start(Command(("sh", "-c", text))) for _ in "12"]
        assert await process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGUSR1)
        assert await process.stdout.readline() == b"usr\n"
        process.kill()
        assert await process.wait() == ExitStatus(CommandStatus.SIGNAL, 9)
        await sandbox.stop()
        assert await other.wait() == ExitStatus(CommandStatus.SIGNAL, 9)
        with pytest.raises(SandboxError, match="stopped"):
            await sandbox.start(Command(("true",)))

    play(client, scene)


def test_a_daemon_that_fails_is_a_fault_of_a_started_program(client):
    client.state.write_text("false 127 no such runtime")

    async def scene(sandbox):
        process = await sandbox.start(Command(("true",)))
        with pytest.raises(SandboxFault, match="no such runtime"):
            await process.wait()
        with pytest.raises(SandboxFault, match="no such runtime"):
            await process.stdout.read()

    play(client, scene)


def test_a_container_relays_a_forwarded_port(client, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def echo(reader, writer):
        writer.write(await reader.read())
        writer.close()

    async def scene(sandbox):
        async with await asyncio.start_unix_server(echo, tmp_path / "gateway"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)  # the stand-in has no other network
            writer.write(b"through")
            writer.write_eof()
            answer = await reader.read()
            writer.close()
        await sandbox.exec(Command(("true",)))
        return answer, sandbox.id

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "gateway"))
    listener.close()
    answer, name = play(client, scene, {port: tmp_path / "gateway"})
    assert answer == b"through"
    holder, relay, command = (" ".join(call) for call in client.calls("run"))
    assert "--network none" in holder
    for call in (relay, command):
        assert f"--network container:{name}" in call and "--hostname" not in call
    assert f"--volume={tmp_path}:/forward/{port}:ro" in relay and str(tmp_path) not in command
    assert "--cap-drop ALL" in relay and f"{name}-relay" in [call[-1] for call in client.calls("rm")]


def test_an_image_that_cannot_relay_is_one_line(client, tmp_path):
    client.program.write_text(client.program.read_text().replace(f"[{'sys.executable'} if", '["/no/python3" if'))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "gateway"))
        with pytest.raises(SandboxError, match=r"forward: IMAGE needs Python 3\.11") as error:
            play(client, None, {8000: tmp_path / "gateway"})
    assert "\n" not in str(error.value)


def test_views_are_volumes_and_the_verifier_another_user(client, tmp_path):
    views = {
        "layers": [(tmp_path, "/opt/tool")], "folders": ["/app"], "verifier_folders": ["/logs/verifier"],
        "workdir": "/testbed",
    }  # fmt: skip

    async def scene():
        async with Docker(DockerConfig(program=str(client.program), image="IMAGE")) as backend:
            sandbox = await backend.open(**views)
            await sandbox.exec(Command(("true",), cwd="sub"))
            await sandbox.exec(Command(("true",), user=SandboxUser.VERIFIER))
            with pytest.raises(SandboxError, match="over its /usr"):
                await backend.open(layers=[(tmp_path, "/usr")])
            with pytest.raises(SandboxError, match="2 folders over each other at /opt/tool"):
                await backend.open(layers=[(tmp_path, "/opt/tool")] * 2)
            return sandbox.id

    name = asyncio.run(asyncio.wait_for(scene(), 30))
    holder, agent, verifier = (" ".join(call) for call in client.calls("run"))
    own = f"--volume {name}:/testbed", f"--volume {name}-f0:/app"
    for part in (*own, f"--volume {tmp_path}:/opt/tool:ro", "--user 65534:65534", "--workdir /testbed/sub"):
        assert f"{part} " in agent
    for part in (*(f"{one}:ro" for one in own), f"--volume {name}-v0:/logs/verifier", "--user 65533:65533"):
        assert f"{part} " in verifier
    assert "verifier" not in agent and f"{name}-v0" in holder
    made = {call[-1] for call in client.calls("volume") if call[1] == "create"}
    assert made == {name, f"{name}-f0", f"{name}-v0"}
    assert made == {call[-1] for call in client.calls("volume") if call[1] == "rm"}
