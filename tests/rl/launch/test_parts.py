"""Options of a run survive the way to its server and its trainer, and cores are shared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from tests.rl.trainer.conftest import policy

from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.configs.launching import LocalLauncherConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.launch.cores import cores_of
from arcforge_rl.launch.job import run
from arcforge_rl.launch.parts import launcher_of, serve_options, trainer_config, wants_socket

__all__ = ["policy"]


def composed(policy: Path, *options: str) -> RlConfig:
    return compose_config("rl", RlConfig, [f"init={policy}", "hardware=torch_cpu", "launcher=local", *options])


def served(options: Sequence[str]) -> Any:
    """Returns the configuration that ``arcforge-serve`` makes of options."""
    from arcforge_serving.configs import ServeConfig

    return compose_config("serve", ServeConfig, options)


@pytest.mark.parametrize(
    ("typed", "names", "engine"),
    [
        ("[engine.max_running=24,served_name=x]", "x", 24),
        ("[served_name=x]", "x", 64),
        ("engine.max_running=24", None, 24),
        ("[\"served_name='a, b'\",engine.max_running=24]", "a, b", 24),
    ],
)
def test_options_of_the_server_pass_as_they_are_typed(policy: Path, typed: str, names: str | None, engine: int) -> None:
    found = served(serve_options(composed(policy, f"launcher.serve={typed}"), None))
    assert (found.served_name, found.engine.max_running) == (names, engine)


@pytest.fixture(scope="module")
def whole(policy: Path) -> RlConfig:
    return composed(policy, "engine.tier_mb=1")


@given(path=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1))
def test_any_path_passes_to_the_server(whole: RlConfig, path: str) -> None:
    option = serve_options(whole, f"/tmp/{path}")[-1]
    assert OverridesParser.create().parse_override(option).value() == f"/tmp/{path}"


def test_the_server_is_that_of_the_run(policy: Path) -> None:
    options = ("engine.max_running=32", "trainer.deterministic=true", "trainer.precision=bf16", "launcher.engines=2")
    found = served(serve_options(composed(policy, *options, "trainer.replay_routing=engine"), None))
    assert (found.checkpoint, found.port, found.dp, found.dtype) == (str(policy), 0, 2, "bfloat16")
    assert served(serve_options(composed(policy, "rollout.precision=bf16"), None)).dtype == "bfloat16"
    assert found.deterministic and found.engine.max_running == 32 and found.engine.record_experts
    assert found.hardware.name == "torch_cpu" and not found.gateway.sessions
    asked = served(serve_options(composed(policy, "harness=loop", "launcher.serve=[port=8123]"), "/tmp/socket"))
    assert (asked.gateway.sessions, asked.unix_socket, asked.port) == (32, "/tmp/socket", 8123)


def test_the_trainer_asks_the_server_and_has_its_orchestrator_apart(policy: Path) -> None:
    config = composed(policy, "collection=async", "engine.max_running=32")
    told = trainer_config(config, "http://127.0.0.1:1", 3, None)
    assert (told.engine.name, told.engine.url) == ("arcforge", "http://127.0.0.1:1")  # type: ignore[attr-defined]
    assert (told.collection.orchestrator, told.collection.concurrency) == ("process", 32)  # type: ignore[attr-defined]
    assert told.trainer.threads == 3
    client = composed(policy, "engine=arcforge", "engine.stream=false", "trainer.threads=2")
    told = trainer_config(client, "http://127.0.0.1:1", 3, None)
    assert not told.engine.stream and told.trainer.threads == 2 and told.collection == client.collection  # type: ignore[attr-defined]
    boxed = composed(policy, "harness=command", "harness.command=x", "environment=copy")
    assert wants_socket(boxed) and not wants_socket(config)
    assert trainer_config(boxed, "http://x", None, "/tmp/gateway").harness.gateway_socket == "/tmp/gateway"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("engine=simple",), r"engine='simple': launcher=local serves engine=paged"),
        (("harness=loop", "launcher.engines=2"), r"launcher\.engines=2: must be 1 with a harness"),
        (("launcher.trainer_cores=[9999]",), r"launcher\.trainer_cores=\[9999\]: must be among the cores"),
        (("launcher.serve=[fast]",), r"launcher\.serve='fast': must be options of arcforge-serve"),
        (("launcher.engine_cores=[0,0]",), r"launcher\.engine_cores=\[0, 0\]: must be different numbers"),
        (("launcher.restarts=-1",), r"launcher\.restarts=-1"),
        (("launcher.hang_seconds=0",), r"launcher\.hang_seconds=0\.0: must be finite and above 0"),
        (("launcher=ray", "launcher.strategy=CLOSE"), r"launcher\.strategy='CLOSE': must be one of"),
        (("launcher=ray", "launcher.worker_cpus=0"), r"launcher\.worker_cpus=0\.0: must be finite and above 0"),
        (("launcher=ray", "launcher.trainer_gpus=-1"), r"launcher\.trainer_gpus=-1"),
        (("launcher=ray", "harness=command", "harness.command=x"), r"harness\.gateway_socket=None: must be named with"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(policy: Path, options: tuple[str, ...], named: str) -> None:
    with pytest.raises(ArcforgeError, match=named):
        run(composed(policy, *options))


def test_without_ray_one_line_says_how_to_get_it(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"launcher='ray': needs the package ray: pip install 'arcforge-rl\[ray\]'"):
        run(composed(policy, "launcher=ray"))


def test_a_launcher_needs_no_engine_of_a_server_for_agents(policy: Path) -> None:
    launcher_of(composed(policy, "harness=loop"))
    with pytest.raises(ConfigError, match=r"harness='loop': needs the gateway of a server.*launcher=local"):
        composed(policy, "harness=loop", "launcher=none")


@pytest.mark.parametrize(
    ("usable", "given_cores", "found"),
    [
        ([4], {}, ([4], [4], [4])),
        ([4, 5], {}, ([4], [5], [4, 5])),
        ([4, 5, 6, 7, 8], {}, ([4, 5, 6], [7, 8], [4, 5, 6, 7, 8])),
        ([4, 5, 6], {"trainer_cores": [5]}, ([5], [4, 6], [4, 5, 6])),
        ([4, 5], {"engine_cores": [4, 5], "orchestrator_cores": [5]}, ([4, 5], [4, 5], [5])),
    ],
)
def test_cores_are_shared(
    monkeypatch: pytest.MonkeyPatch, usable: list[int], given_cores: dict[str, list[int]], found: tuple[list[int], ...]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4, 9)))
    shared = cores_of(LocalLauncherConfig(**given_cores), usable)  # type: ignore[arg-type]
    assert (shared["trainer"], shared["engine"], shared["orchestrator"]) == found
