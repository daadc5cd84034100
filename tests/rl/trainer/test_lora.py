"""``adapter=lora``: the policy's adapters are trained, pushed alone and merged by the engine; its weights stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose
from tests.rl.trainer.test_engine_server import KEY, served
from tests.rl.trainer.test_run import metrics

from arcforge_core import load_pretrained
from arcforge_core.errors import ConfigError
from arcforge_core.files.find import is_adapter
from arcforge_core.model.adapt.lora import named_adapters
from arcforge_core.model.adapt.low_rank import BASE, A, B
from arcforge_core.model.causal_lm import CausalLM
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.run import run
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.remote.arcforge import ArcforgeEngine
from support.marks import nightly_case

LORA = ("adapter=lora", "adapter.rank=2", "optimizer.lr=0.02", "rollout.max_new_tokens=6", "rollout.drop_equal=false")
FREE = ("collection=async", "algorithm=double_sided", "collection.reset_optimizer=false", "collection.eta=0",
        "collection.max_staleness=0")  # fmt: skip
"""Without staleness: gaps compare rollouts of the trainer's own version."""


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """States that the run gives its engine."""
    found: list[dict[str, torch.Tensor]] = []
    for engine in (PagedEngine, ArcforgeEngine):
        update = engine.update_weights

        def pushed(self: Any, state: Any, *, update: Any = update, **given: Any) -> None:
            found.append(dict(state))
            update(self, state, **given)

        monkeypatch.setattr(engine, "update_weights", pushed)
    return found


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[CausalLM]:
    """Policies of the runs."""
    found: list[CausalLM] = []
    begin = PolicyModule.begin

    def begun(self: PolicyModule, *arguments: Any) -> None:
        found.append(self.model)
        begin(self, *arguments)

    monkeypatch.setattr(PolicyModule, "begin", begun)
    return found


def check(policy: Path, model: CausalLM, folder: Path, pushes: list[dict[str, torch.Tensor]], steps: int) -> None:
    base = load_pretrained(policy)
    own, adapters = model.state_dict(), dict(named_adapters(model))
    assert all(torch.equal(own[name], value) for name, value in base.state_dict().items()), "bit for bit"
    assert all(low.B.abs().max() > 0 for low in adapters.values()) and not [n for n in adapters if n.startswith("mtp.")]
    whole = sum(value.nbytes for value in base.state_dict().values())
    assert len(pushes) >= steps
    for state in pushes:
        assert set(state) == {BASE} | {name + part for name in adapters for part in (A, B)}
        assert sum(value.nbytes for value in state.values()) < whole / 2
    rows = metrics(folder)
    assert len(rows) == steps and all(float(row["logprob_gap"]) < 1e-5 for row in rows if row["logprob_gap"])
    assert any(row["logprob_gap"] for row in rows[1:]), "the engine's adapters were compared with the trainer's"
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    assert is_adapter(last) and not (last / "model.safetensors").exists()
    merged = load_pretrained(last).state_dict()
    for name, low in adapters.items():
        torch.testing.assert_close(merged[name], low.merged(own[name]).detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.slow(reason="two runs")
def test_adapters_are_trained_pushed_alone_and_resumed(
    small_run: Compose, policy: Path, pushes: list[dict[str, torch.Tensor]], trained: list[CausalLM]
) -> None:
    first = run(small_run(*LORA, "engine=paged", "trainer.max_steps=2"))
    check(policy, trained[0], first.dir, pushes, 2)
    second = run(small_run(*LORA, "engine=paged", "trainer.max_steps=4", "resume=latest"))
    assert second.dir == first.dir
    check(policy, trained[1], first.dir, pushes, 4)
    with pytest.raises(Exception, match=r"adapter\.rank was 2, now 3"):
        run(small_run(*LORA, "adapter.rank=3", "engine=paged", "resume=latest"))


@pytest.mark.slow(reason="a server process and a run")
@pytest.mark.parametrize(
    "options", [nightly_case(()), nightly_case(("dp=2",)), nightly_case(FREE)], ids=["sync", "two engines", "async"]
)
def test_a_server_merges_them(
    small_run: Compose,
    policy: Path,
    pushes: list[dict[str, torch.Tensor]],
    trained: list[CausalLM],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", KEY)
    mine = [each for each in options if each != "dp=2"]
    with served(policy, *(each for each in options if each == "dp=2")) as address:
        server = ("engine=arcforge", f"engine.url={address}", "engine.stream=false", "trainer.max_steps=3")
        found = run(small_run(*LORA, *server, *mine))
        check(policy, trained[0], found.dir, pushes, 3)
        again = run(small_run(*LORA, *server, *mine))  # the server has the adapters of the first run
        check(policy, trained[1], again.dir, pushes, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("adapter.dropout=0.1",), r"adapter\.dropout=0\.1: must be 0 in arcforge-rl"),
        (("trainer.trainable=[mlp]",), r"trainer\.trainable.*adapter=lora trains adapters only"),
        (("engine.weights=w8a8",), r"engine\.weights='w8a8': must be none with adapter=lora"),
    ],
)
def test_what_cannot_be_is_refused_before_work(small_run: Compose, options: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small_run(*LORA, "engine=paged", *options)
