"""Replayed routing: the same experts whatever the router has become, and the same numbers while it has not."""

import asyncio
import copy
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.algorithm import Trace
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Episode, Outcome, Reply
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup, TextDialogue
from arcforge_core.episodes.asking import Streams
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.episodes.rollout import UNSCORED, Rollout
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.model.moe import Router
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_core.testing.traces import make_traces
from arcforge_rl.orchestrator.record import pack as pack_rollout
from arcforge_rl.orchestrator.record import unpack
from arcforge_rl.trainer.routing import RoutingReplay
from arcforge_rl.trainer.run import run
from arcforge_rl.trainer.tokens import PolicyMicro, pack, read
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

from .test_run import metrics


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
    with pytest.raises(ConfigError, match=r"trainer\.replay_routing='trainer': this model has no experts"):
        RoutingReplay(small_model(first_k_dense_replace=2))


def test_a_run_replays_its_routing(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[int] = []
    replaying = RoutingReplay.replaying

    def watched(replay: RoutingReplay, micro: PolicyMicro):  # type: ignore[no-untyped-def]
        replayed.append(micro.batch.num_tokens)
        return replaying(replay, micro)

    monkeypatch.setattr(RoutingReplay, "replaying", watched)
    run(small_run("trainer.updates=2", "trainer.replay_routing=trainer", "trainer.max_steps=2"))
    assert len(replayed) >= 4
    with pytest.raises(ConfigError, match=r"trainer\.replay_routing='trainer': must be none or engine"):
        small_run("trainer.replay_routing=trainer")


# ---- the engine's choices --------------------------------------------------------------------------------------------


def perturbed(model: torch.nn.Module) -> Any:
    """Returns a copy that chooses other experts: the bias changes the choice, never the gates."""
    found = copy.deepcopy(model)
    for number, router in enumerate(module for module in found.modules() if isinstance(module, Router)):
        with torch.no_grad():
            router.e_score_correction_bias.normal_(generator=torch.Generator().manual_seed(number)).mul_(0.3)
    return found


def sampled(engine: PagedEngine, turns: int = 3, **options: Any) -> list[Trace]:
    """Returns conversations of several turns: later ones find the earlier ones in the prefix cache."""
    tokenizer = small_tokenizer()
    setup = SamplingSetup(TextDialogue(tokenizer), 7, 1.0, 128, **{"experts": True, **options})
    engine.start()
    traces = []
    for number in range(4):
        agent = PolicyAgent(Streams(engine), number, setup, f"seed/{number}")
        said: list[Message] = [Message("user", f"one two {number} " * 2)]
        for _ in range(turns):
            reply = asyncio.run(agent.reply(said))
            said += [reply.message, Message("user", " 3 ")]
        traces.append(Trace("t", "g", str(number), agent.branches, {"reward": 1.0}))
    engine.close()
    return traces


@pytest.mark.parametrize("options", [{}, {"draft_tokens": 2, "drafting": "always"}], ids=["plain", "drafts"])
def test_the_trainer_computes_with_the_engines_experts(options: dict[str, Any]) -> None:
    model = small_model(vocab_size=TOKENIZER_SIZE, n_routed_experts=8, num_hidden_layers=3)
    config = PagedEngineConfig(page_size=4, record_experts=True, **options)
    engine = PagedEngine(config, perturbed(model))
    traces = sampled(engine)
    assert engine.stats().cached_tokens > 0 and (not options or engine.stats().drafts > 0)
    replay = RoutingReplay(model, of_engine=True)
    (micro,) = pack(traces, 4096)
    with torch.no_grad():
        without = (read(model, micro, 1.0).logprobs_S - micro.rollout_S).abs()
        with replay.first(micro):
            gap = (read(model, micro, 1.0).logprobs_S - micro.rollout_S).abs()
    assert float(gap.max()) < 1e-5
    assert float(without.max()) > 1e-2 and float(without.mean()) > 1e-3


def test_recorded_rollouts_keep_them() -> None:
    model = small_model(vocab_size=TOKENIZER_SIZE)
    (trace, *_) = sampled(PagedEngine(PagedEngineConfig(record_experts=True), model))
    task, reply = CopyEnvironment(CopyConfig()).task(0), Reply("x")
    rollout = Rollout(
        0, task, "d", Episode((reply.message,), reply), Outcome({"reward": 1.0}, {}), trace.branches, False, ()
    )
    (found,) = unpack(pack_rollout(rollout), task, UNSCORED).branches
    assert found.experts is not None and (found.experts == trace.branches[0].experts).all()
    assert found.routed == len(found) - 1 or found.routed == len(found) - 1 - 3, "all but what no turn has read"


def test_branches_without_experts_are_one_line() -> None:
    model = small_model(vocab_size=TOKENIZER_SIZE)
    (micro,) = pack(sampled(PagedEngine(PagedEngineConfig(), model), experts=False), 4096)
    with pytest.raises(
        ArcforgeError, match=r"the engine recorded none for \d+ tokens, 1 layers and 2 experts"
    ) as found:
        RoutingReplay(model, of_engine=True).replaying(micro).__enter__()
    assert "\n" not in str(found.value)


@pytest.mark.slow(reason="two runs")
def test_a_run_replays_the_engines_experts(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's routers are perturbed at each update: only with its experts is the gap that of rounding."""
    install = PagedEngine._install

    def disturbed(engine: PagedEngine, staged: Any, version: int | None) -> None:
        install(engine, staged, version)
        engine.model.load_state_dict(perturbed(engine.model).state_dict())

    monkeypatch.setattr(PagedEngine, "_install", disturbed)
    options = ("engine=paged", "evaluation.tasks=0", "trainer.max_gap=9")
    rows = {
        kind: metrics(run(small_run(*options, f"trainer.replay_routing={kind}")).dir) for kind in ("engine", "none")
    }
    gaps = {kind: [float(row["logprob_gap"]) for row in of] for kind, of in rows.items()}
    assert max(gaps["engine"]) < 1e-5 and max(gaps["none"][1:]) > 1e-4
    with pytest.raises(ConfigError, match=r"trainer\.replay_routing='engine': needs engine=paged, or engine=arcforge"):
        small_run("trainer.replay_routing=engine")
