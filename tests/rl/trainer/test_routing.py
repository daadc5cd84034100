"""Replayed routing: the same experts whatever the router has become, and the same numbers while it has not."""

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_core.errors import ConfigError
from arcforge_core.model.moe import Router
from arcforge_core.testing.small_models import small_model
from arcforge_core.testing.traces import make_traces
from arcforge_rl.trainer.routing import RoutingReplay
from arcforge_rl.trainer.run import run
from arcforge_rl.trainer.tokens import PolicyMicro, pack, read


def chosen(model: torch.nn.Module, micro: PolicyMicro) -> list[torch.Tensor]:
    """Experts that layers are given, in the order of the layers."""
    found: list[torch.Tensor] = []
    routers = [module for module in model.modules() if isinstance(module, Router)]
    handles = [r.register_forward_hook(lambda _, __, routed: found.append(routed[0])) for r in routers]
    read(model, micro, 1.0)  # type: ignore[arg-type]
    for handle in handles:
        handle.remove()
    return found


def test_choices_are_kept_for_each_branch_and_packing_does_not_matter() -> None:
    model = small_model(vocab_size=100)
    traces = make_traces(4, (3, 3), branches=2)
    replay = RoutingReplay(model)
    for micro in pack(traces, 20):
        with replay.recording(micro), torch.no_grad():
            before = read(model, micro, 1.0).logprobs_S
        with replay.replaying(micro):
            assert torch.equal(read(model, micro, 1.0).logprobs_S, before), "the router has not moved"
    (whole,) = pack(traces, 4096)
    wanted = chosen(model, whole)
    with torch.no_grad():
        for router in (module for module in model.modules() if isinstance(module, Router)):
            router.weight.neg_()
    moved = chosen(model, whole)
    with replay.replaying(whole):
        kept = chosen(model, whole)
        loss = read(model, whole, 1.0).logprobs_S.sum()
    assert all(torch.equal(a, b) for a, b in zip(wanted, kept, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(wanted, moved, strict=True))
    loss.backward()
    gates = [module.weight.grad for module in model.model.modules() if isinstance(module, Router)]
    assert gates and all(grad is not None and bool(grad.abs().sum() > 0) for grad in gates), "gates still learn"
    assert chosen(model, whole)[0].equal(moved[0]), "nothing is left behind"


def test_a_dense_model_has_nothing_to_replay() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.replay_routing=True: this model has no experts"):
        RoutingReplay(small_model(first_k_dense_replace=2))


def test_a_run_replays_its_routing(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[int] = []
    replaying = RoutingReplay.replaying

    def watched(replay: RoutingReplay, micro: PolicyMicro):  # type: ignore[no-untyped-def]
        replayed.append(micro.batch.num_tokens)
        return replaying(replay, micro)

    monkeypatch.setattr(RoutingReplay, "replaying", watched)
    run(small_run("trainer.updates=2", "trainer.replay_routing=true", "trainer.max_steps=2"))
    assert len(replayed) >= 4
    with pytest.raises(ConfigError, match=r"trainer\.replay_routing=True: must be false"):
        small_run("trainer.replay_routing=true")
