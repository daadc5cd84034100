"""``launcher=ray``: over an imitation of Ray in this process by default, and over Ray itself nightly.

Ray is no requirement of the tests, which would take minutes longer to install: the nightly test brings it from PyPI, in
an environment of its own that sees the packages of this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.rl.launch.test_local import ready, rewards, small, trained
from tests.rl.trainer.conftest import policy

from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.configs.launching import RayLauncherConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.launch import on_ray
from arcforge_rl.launch.child import ProcessPart
from arcforge_rl.launch.on_ray import Cluster, RayMaker, connected

__all__ = ["policy"]
RAY = "ray==2.60.0"


class Gone(Exception):
    """Ray's `RayActorError`."""


class Late(Exception):
    """Ray's `GetTimeoutError`."""


class Imitation:
    """The parts of Ray that are used: actors are objects of this process, and calls happen when they are got."""

    def __init__(self, cpus: float = 8.0, nodes: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.cpus, self.nodes, self.actors = cpus, nodes, list[Any]()
        self.inits: list[dict[str, Any]] = []
        self.group: Any = None
        self.down = True

    def the(self, module: str) -> Any:
        parts = {
            "ray": self,
            "ray.util": SimpleNamespace(get_node_ip_address=lambda: self.nodes[len(self.actors) % len(self.nodes)]),
            "ray.exceptions": SimpleNamespace(RayActorError=Gone, GetTimeoutError=Late),
            "ray.util.placement_group": SimpleNamespace(
                placement_group=self.placed, remove_placement_group=lambda group: setattr(self, "group", None)
            ),
            "ray.util.scheduling_strategies": SimpleNamespace(
                PlacementGroupSchedulingStrategy=lambda group, index: (group, index)
            ),
        }
        return parts[module]

    def is_initialized(self) -> bool:
        return not self.down

    def init(self, **options: Any) -> None:
        self.inits.append(options)
        if options.get("address") == "nowhere":
            raise ConnectionError("no cluster")
        self.down = False

    def shutdown(self) -> None:
        self.down = True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus, "node:1": 1.0}

    def placed(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        def wait() -> None:
            if sum(bundle.get("CPU", 0) for bundle in bundles) > self.cpus:
                raise Late

        self.group = SimpleNamespace(bundles=bundles, strategy=strategy, ready=lambda: wait)
        return self.group

    def remote(self, kind: Callable[[], Any]) -> Any:
        def make() -> Any:
            self.actors.append(Actor(kind()))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=make))

    def get(self, work: Callable[[], Any], timeout: float) -> Any:
        return work()

    def kill(self, actor: Any) -> None:
        actor.dead = True
        actor.of.release()  # as the kernel does it


class Actor:
    """A method's `remote` gives the call, to be made later; that of a dead actor fails."""

    def __init__(self, of: Any) -> None:
        self.of, self.dead = of, False

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Callable[[], Any]:
            def call() -> Any:
                if self.dead:
                    raise Gone
                return getattr(self.of, name)(*arguments)

            return call

        return SimpleNamespace(remote=remote)


@pytest.fixture
def imitation(monkeypatch: pytest.MonkeyPatch) -> Imitation:
    found = Imitation()
    monkeypatch.setattr(on_ray, "the", found.the)
    return found


def test_actors_hold_the_processes_and_their_deaths_are_seen(imitation: Imitation, tmp_path: Path) -> None:
    config = RayLauncherConfig(trainer_cpus=2, engine_gpus=1, worker_gpus=0.5, strategy="SPREAD")
    part = ProcessPart("trainer", ["sleep", "60"], b"", dict(os.environ), None, tmp_path / "log", "/")
    with connected(config) as cluster:
        assert imitation.group.bundles == [{"CPU": 2}, {"CPU": 1.0, "GPU": 1}, {"CPU": 1.0, "GPU": 0.5}]
        assert imitation.group.strategy == "SPREAD" and imitation.inits[0]["num_cpus"] >= 4
        first = cluster.start(part)
        assert first.poll() is None
        imitation.kill(imitation.actors[0])
        assert first.poll() == -signal.SIGKILL
        first.signal(signal.SIGINT)
        first.release()
        cluster.prepare("trainer")
        second = cluster.start(part)
        assert second.poll() is None and len(imitation.actors) == 4
        second.signal(signal.SIGTERM)
        while second.poll() is None:
            time.sleep(0.01)
        assert second.poll() == -signal.SIGTERM
        second.release()
    assert imitation.down and imitation.group is None


def test_a_cluster_without_room_and_none_at_all_are_refused(imitation: Imitation) -> None:
    words = r"launcher\.address=None: has no room within 300 s for the bundles CPU 9; CPU 1; CPU 1: it has CPU 8"
    with pytest.raises(ConfigError, match=words), connected(RayLauncherConfig(trainer_cpus=9)):
        pass
    with (
        pytest.raises(ConfigError, match=r"launcher\.address='nowhere': Ray is not there: no cluster"),
        connected(RayLauncherConfig(address="nowhere")),
    ):
        pass
    imitation.down = False
    with connected(RayLauncherConfig()):
        pass
    assert not imitation.down, "a program's own connection stays"


def test_nodes_apart_meet_at_their_addresses_and_the_server_asks_for_a_key(
    imitation: Imitation, policy: Path, tmp_path: Path
) -> None:
    config = compose_config(
        "rl", RlConfig, [f"init={policy}", "hardware=torch_cpu", "collection=async", "launcher=ray"]
    )
    here = maker_at(config, [("127.0.0.1", 1), ("127.0.0.1", 2)])
    assert here.address == ("127.0.0.1", 1)
    assert not any(option.startswith("host=") for option in here.part("engine", tmp_path, "", None).command)
    apart = maker_at(config, [("10.0.0.1", 1), ("10.0.0.2", 2)])
    server = apart.part("engine", tmp_path, "", None)
    assert "host=10.0.0.2" in server.command and server.variables["ARCFORGE_SERVE_KEYS"]
    assert server.variables["OMP_NUM_THREADS"] == "1" and apart.address == ("10.0.0.1", 1)
    apart.cluster.spots["trainer"] = on_ray.Spot("10.0.0.3", 9)
    apart.before("trainer")
    assert apart.address == ("10.0.0.3", 9), "a trainer that replaces another one may be elsewhere"
    apart.cluster.spots["engine"] = on_ray.Spot("10.0.0.9", 9)
    with pytest.raises(ArcforgeError, match=r"the node 10\.0\.0\.2 of the engine's server is gone"):
        apart.before("engine")


def maker_at(config: RlConfig, spots: list[tuple[str, int]]) -> RayMaker:
    """Returns a maker for a trainer and a server at these places, whose actors are there."""
    assert isinstance(config.launcher, RayLauncherConfig)
    cluster = Cluster(config.launcher, None)
    cluster.spots = {role: on_ray.Spot(*spot) for role, spot in zip(("trainer", "engine"), spots, strict=True)}
    cluster._ready = dict.fromkeys(("trainer", "engine"))
    return RayMaker(config, cluster)


def with_ray(folder: Path) -> Path:
    """Returns the Python of an environment with Ray that sees the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (python,) = (folder / "bin").glob("python")
    subprocess.run([python, "-m", "pip", "install", "-q", RAY], check=True)
    ours = sysconfig.get_path("purelib")
    (place,) = folder.glob("lib/python*/site-packages")
    (place / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return python


@pytest.mark.nightly(reason="installs Ray from PyPI and starts a cluster, 650 MiB and half a minute")
@pytest.mark.timeout(1800)
def test_it_ends_in_the_rewards_of_local_though_an_actor_is_killed(policy: Path, tmp_path: Path) -> None:
    python = with_ray(tmp_path / "venv")
    local = trained(sys.executable, small(policy, tmp_path / "local", "launcher=local"), tmp_path)
    calm = trained(str(python), small(policy, tmp_path / "calm", "launcher=ray"), tmp_path)

    def kill(process: subprocess.Popen[str]) -> None:
        folder = ready(process, tmp_path / "killed")
        keepers = [pid for pid in children(process.pid) if "Keeper" in command(pid)]
        held = {role_of(child): pid for pid in keepers for child in children(pid)}
        for role in ("orchestrator", "engine"):
            os.kill(held[role], signal.SIGKILL)
        assert folder.is_dir()

    killed = trained(str(python), small(policy, tmp_path / "killed", "launcher=ray"), tmp_path, kill)
    assert rewards(local) == rewards(calm) == rewards(killed)
    synchronous = [
        "init=demo", "environment=math", "collection=sync", "hardware=torch_cpu", "rollout.groups=2",
        "rollout.group_size=4", "rollout.max_new_tokens=16", "evaluation.tasks=0", "trainer.max_steps=2",
        "trainer.precision=fp32", "trainer.deterministic=true", "trainer.threads=1",
    ]  # fmt: skip
    found = [
        trained(python, [*synchronous, f"output_dir={tmp_path / 'sync' / launcher}", f"launcher={launcher}"], tmp_path)
        for python, launcher in ((sys.executable, "local"), (str(python), "ray"))
    ]
    assert rewards(found[0]) == rewards(found[1])
    assert "restarting" in killed[1] and json.loads((calm[0] / "summary.json").read_text())["status"] == "finished"


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Returns all descendants of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *children(child)]
    return found


def role_of(pid: int) -> str:
    text = command(pid)
    return "engine" if " serve " in text else "orchestrator" if text.rstrip().endswith("orchestrator") else ""
