"""Tokens that branches share are computed once: same log-probabilities, losses and gradients, fewer tokens."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rl.trainer.conftest import Compose

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_config, small_model
from arcforge_core.testing.traces import make_branch
from arcforge_rl.algorithms.grpo import Grpo
from arcforge_rl.configs.algorithms import GrpoConfig
from arcforge_rl.trainer.build import preset
from arcforge_rl.trainer.module import policy_tokens
from arcforge_rl.trainer.prefixes import LEAST, by_ids
from arcforge_rl.trainer.routing import RoutingReplay
from arcforge_rl.trainer.run import run
from arcforge_rl.trainer.tokens import KEYS, pack, read

from .test_run import metrics

pytest.importorskip("arcforge_attention")

VOCABULARY = 100
VARIANTS: dict[str, dict[str, Any]] = {
    "mla": {},
    "dsa": {"index_relu": False},
    "gqa": {},
    "swa": {"window": 24},
}


def model_of(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> CausalLM:
    """A model whose experts' choices and selected keys have clear margins."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        attention = registry().get("attention", name).load_schema()(**{**VARIANTS.get(name, {}), **options})
        sizes = small_config(vocab_size=VOCABULARY, max_position_embeddings=512, index_topk=20)
        return build_model(sizes, attention).to(dtype)


def groups_of(seed: int, groups: Sequence[int], prompt: int = 40, most: int = 20, branches: int = 1) -> list[Trace]:
    """Groups of rollouts of one prompt; further branches of a rollout continue a part of its first one."""
    draw, traces = random.Random(seed), []
    for group, size in enumerate(groups):
        ids = [draw.randrange(VOCABULARY) for _ in range(draw.randint(prompt // 2, prompt))]
        for number in range(size):
            name = f"{group}.{number}"
            parts = [begun(ids, make_branch(draw, f"{name}.0", draw.randint(1, most), prompt=1))]
            for k in range(1, draw.randint(1, branches)):
                head = parts[0].ids[: draw.randint(1, len(parts[0]))].tolist()
                parts.append(begun(head, make_branch(draw, f"{name}.{k}", draw.randint(1, most), prompt=1, between=3)))
            rewards = {"reward": draw.random()}
            traces.append(Trace(f"task {group}", f"group {group}", name, parts, rewards))
    return traces


def begun(ids: list[int], branch: Branch) -> Branch:
    """The branch after other tokens, which it did not sample."""
    found = Branch(branch.branch_id, ids, [False] * len(ids), [0.0] * len(ids), [-1] * len(ids))
    found.extend(branch.ids, branch.sampled, branch.logprobs, branch.versions)
    return found


def replied(name: str, last: int, reply: list[int]) -> Branch:
    """The last token of a prompt and a reply."""
    count = len(reply)
    return Branch(name, [last, *reply], [False] + [True] * count, [-1.0] * (count + 1), [0] * (count + 1))


def results(model: CausalLM, traces: list[Trace], room: int, share: bool) -> tuple[dict[str, Any], int, int]:
    """Log-probs by branch, losses, gradients; tokens computed and read."""
    algorithm = Grpo(GrpoConfig(), preset("none"))
    algorithm.score(traces)
    model.zero_grad()
    logprobs: dict[str, torch.Tensor] = {}
    loss, computed, tokens = 0.0, 0, 0
    for micro in pack(traces, room, alike=by_ids if share else None):
        found = read(model, micro, 1.0)
        parts = found.logprobs_S.detach().split([branch.num_sampled for branch in micro.branches()])
        logprobs |= {branch.branch_id: part for branch, part in zip(micro.branches(), parts, strict=True)}
        value = sum(algorithm.loss(policy_tokens(micro, found, None)).parts.values())
        assert isinstance(value, torch.Tensor)
        value.backward()
        loss, computed, tokens = loss + float(value.detach()), computed + len(micro.tokens_T), tokens + micro.num_read
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"logprobs": logprobs, "loss": loss, "gradients": gradients}, computed, tokens


def check_variant(name: str, examples: int) -> None:
    models = {dtype: model_of(name, dtype) for dtype in (torch.float64, torch.float32)}

    @given(
        seed=st.integers(0, 10_000),
        groups=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        room=st.sampled_from([60, 150, 4096]),
        branches=st.integers(1, 3),
    )
    @settings(max_examples=examples, deadline=None, database=None)
    def check(seed: int, groups: list[int], room: int, branches: int) -> None:
        for dtype, tight in ((torch.float64, 1e-10), (torch.float32, 1e-6)):
            (shared, computed, read_), (alone, _, all_) = (
                results(models[dtype], groups_of(seed, groups, branches=branches), room, share)
                for share in (True, False)
            )
            assert computed <= read_ == all_
            assert shared["loss"] == pytest.approx(alone["loss"], rel=tight, abs=tight)  # near 0: advantages cancel
            total, wanted = (sum(part.sum() for part in of["logprobs"].values()) for of in (shared, alone))
            assert float(total) == pytest.approx(float(wanted), rel=tight)
            most = 1e-10 if dtype == torch.float64 else 5e-6  # nats of a token
            torch.testing.assert_close(shared["logprobs"], alone["logprobs"], atol=most, rtol=tight)
            assert shared["gradients"].keys() == alone["gradients"].keys()
            for parameter, gradient in alone["gradients"].items():
                scale = float(gradient.abs().max()) or 1.0
                found = shared["gradients"][parameter] / scale
                torch.testing.assert_close(found, gradient / scale, atol=10 * most, rtol=0, msg=parameter)

    check()


@pytest.mark.parametrize("name", VARIANTS)
def test_shared_tokens_change_neither_log_probs_nor_losses_nor_gradients(name: str) -> None:
    check_variant(name, examples=3)


@pytest.mark.nightly
@pytest.mark.parametrize("name", VARIANTS)
def test_more_shared_tokens_change_nothing(name: str) -> None:
    check_variant(name, examples=50)


@pytest.mark.parametrize("options", [{"form": "absorbed"}, {"indexer_training": "dense"}], ids=str)
def test_other_forms_of_attention_share_too(options: dict[str, Any]) -> None:
    model = model_of("dsa", **options)
    (shared, computed, read_), (alone, _, _) = (
        results(model, groups_of(3, (4, 2)), 4096, share) for share in (True, False)
    )
    assert computed < read_
    torch.testing.assert_close(shared["logprobs"], alone["logprobs"], atol=1e-10, rtol=1e-10)


def test_a_prompt_is_computed_once_and_short_common_beginnings_are_not_shared() -> None:
    prompt = list(range(40))
    replies = [[50, 51, 52, 53], [50, 51, 60], [70]]
    branches = [begun(prompt, replied(f"b{n}", 40, reply)) for n, reply in enumerate(replies)]
    traces = [Trace("t", "g", branch.branch_id, [branch], {"reward": 1.0}) for branch in branches]
    (micro,) = pack(traces, 4096, alike=by_ids)
    assert micro.batch.query_lengths() == [41, 3, 2], "the reply of one token reads the prompt alone"
    assert micro.batch.positions_T.tolist() == [*range(41), 41, 42, 43, 41, 42]
    assert [len(rows) for rows in micro.rows] == [44, 43, 41] and micro.num_read == 128
    for branch, rows in zip(micro.branches(), micro.rows, strict=True):
        assert micro.tokens_T[rows].tolist() == branch.ids[: len(rows)].tolist()
    assert micro.target_S.tolist() == [50, 51, 52, 53, 50, 51, 60, 70]
    assert (micro.row_S == 40).sum() == 3, "all first sampled tokens follow the prompt's last one"
    short = [begun(prompt[: LEAST - 4], replied(f"b{n}", 40, reply)) for n, reply in enumerate(replies)]
    few = [Trace("t", "g", branch.branch_id, [branch], {"reward": 1.0}) for branch in short]
    (micro,) = pack(few, 4096, alike=by_ids)
    assert micro.batch.paths is None and micro.batch.num_tokens == micro.num_read


@given(seed=st.integers(0, 10_000), room=st.integers(30, 400), split=st.booleans())
@settings(max_examples=20, deadline=None)
def test_every_branch_is_read_whole_and_no_micro_batch_is_larger_than_asked(seed: int, room: int, split: bool) -> None:
    traces = groups_of(seed, (4, 3, 5), branches=4)
    micros = pack(traces, room, split, by_ids)
    names = [branch.branch_id for micro in micros for branch in micro.branches()]
    assert names == [branch.branch_id for trace in traces for branch in trace.branches]
    for micro in micros:
        alone = len(micro.branches()) == 1 if split else len(micro.traces) == 1
        assert alone or (micro.batch.num_tokens <= room and micro.num_read <= KEYS * room)
        for branch, rows in zip(micro.branches(), micro.rows, strict=True):
            assert micro.tokens_T[rows].tolist() == branch.ids[: branch.index_T[-1]].tolist()
            assert micro.batch.positions_T[rows].tolist() == [*range(len(rows))]


def test_balance_and_loads_count_a_token_once_for_each_branch() -> None:
    model, traces = model_of("gqa"), groups_of(5, (4, 3))
    out = []
    for alike in (by_ids, None):
        (micro,) = pack(traces, 4096, alike=alike)
        out.append(model.hidden(micro.tokens_T, micro.batch))
    shared, alone = out
    torch.testing.assert_close(shared.aux_losses["balance"], alone.aux_losses["balance"], rtol=1e-9, atol=0)
    assert shared.expert_loads.keys() == alone.expert_loads.keys() != set()
    for layer, load_E in alone.expert_loads.items():
        assert torch.equal(shared.expert_loads[layer], load_E)


def test_replayed_experts_are_those_of_all_branches_that_share_a_token() -> None:
    model, traces = model_of("mla"), groups_of(7, (3, 3))
    replay = RoutingReplay(model)
    (micro,) = pack(traces, 4096, alike=by_ids)
    with replay.recording(micro), torch.no_grad():
        before_S = read(model, micro, 1.0).logprobs_S
    (again,) = pack(traces, 4096, alike=replay.alike)
    assert again.batch.num_tokens == micro.batch.num_tokens < micro.num_read
    with replay.replaying(again):
        torch.testing.assert_close(read(model, again, 1.0).logprobs_S.detach(), before_S, atol=1e-12, rtol=0)
    changed = replay._experts["0.1.0"]
    replay._experts["0.1.0"] = [layer_TK.flip(0) for layer_TK in changed]
    (other,) = pack(traces, 4096, alike=replay.alike)
    assert other.batch.num_tokens > micro.batch.num_tokens, "a branch with other experts shares nothing"
    with replay.replaying(other):
        found_S = read(model, other, 1.0).logprobs_S
    (single,) = pack(traces[1:2], 4096)
    with replay.replaying(single):
        wanted_S = read(model, single, 1.0).logprobs_S
    first = traces[0].num_sampled
    torch.testing.assert_close(found_S[first : first + len(wanted_S)], wanted_S, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["simple_gdn", "gdn"])
def test_layers_with_a_state_share_nothing_and_say_so(name: str) -> None:
    model = model_of(name)
    assert not model.shares_prefixes and model_of("swa").shares_prefixes and not small_model().shares_prefixes
    (micro,) = pack(groups_of(1, (3,)), 4096, alike=by_ids)
    with pytest.raises(ValueError, match=f"attention={name} cannot share tokens between sequences"):
        model.hidden(micro.tokens_T, micro.batch)


def test_a_run_shares_its_prompts_unless_it_is_told_not_to(small_run: Compose, sparse_policy: Path) -> None:
    rows = {}
    for share in ("true", "false"):
        options = f"init={sparse_policy}", "trainer.max_steps=1", "environment.letters=24", "evaluation.tasks=0"
        rows[share] = metrics(run(small_run(f"trainer.share_prefixes={share}", *options)).dir)[-1]
    assert float(rows["true"]["shared_tokens"]) > 0.4
    assert not rows["false"].get("shared_tokens")
    for name in ("policy_loss", "entropy", "grad_norm"):
        assert float(rows["true"][name]) == pytest.approx(float(rows["false"][name]), rel=1e-4, abs=1e-6)
