"""Critics: their parameters, their start, and that values come true."""

import copy
from pathlib import Path

import pytest
import torch

from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.step import NonFiniteError
from arcforge_rl.configs.learning import CriticConfig
from arcforge_rl.trainer.critic import SeparateCritic, build_critic
from arcforge_rl.trainer.run import run
from arcforge_rl.trainer.streams import add_stream
from arcforge_rl.trainer.tokens import PolicyMicro, pack
from support.policies import save_policy

from .conftest import Compose
from .test_run import metrics


@pytest.fixture
def tokenizer(policy: Path) -> Tokenizer:
    return Tokenizer.load(policy)


def traces() -> list[Trace]:
    """Two answers to each of two prompts; those that begin with 7 are rewarded."""
    made = []
    for number, (asked, said) in enumerate([(1, 7), (1, 8), (2, 7), (2, 8)]):
        branch = Branch("b")
        branch.read([asked, 3])
        branch.sample([said, 5, 6], [-1.0] * 3, [0] * 3)
        made.append(Trace("t", str(asked), str(number), [branch], {"reward": float(said == 7)}))
    return made


def forbidden() -> torch.Tensor:
    raise AssertionError("a model of its own does not ask for the policy's hidden states")


def micro_of(made: list[Trace]) -> PolicyMicro:
    (micro,) = pack(made, 1000)
    return micro


def test_a_separate_critic_learns_the_rewards_and_leaves_the_policy(policy: Path, tokenizer: Tokenizer) -> None:
    model = load_pretrained(policy, torch.float32)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    critic = build_critic(CriticConfig(model="separate", lr=3e-3), model, str(policy), tokenizer)
    micro = micro_of(traces())
    reward_S = torch.tensor([trace.reward for trace in micro.traces])[micro.trace_S]
    known_S = torch.tensor([False, True, True] * 4)  # once 7 or 8 is read
    assert not critic(micro, forbidden).any()
    for _ in range(60):
        (critic(micro, forbidden) - reward_S).square().mean().backward()
        critic.clip(1.0)
        critic.step()
    value_S = critic(micro, forbidden)
    assert (value_S - reward_S)[known_S].abs().max() < 0.1
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_gives_no_value_is_not_trained(policy: Path, tokenizer: Tokenizer) -> None:
    model = load_pretrained(policy, torch.float32)
    critic = build_critic(CriticConfig(model="separate"), model, str(policy), tokenizer)
    assert isinstance(critic, SeparateCritic)
    critic(micro_of(traces()), forbidden).sum().backward()
    with_gradient = {name for name, parameter in critic.named_parameters() if parameter.grad is not None}
    trained = {name for name, parameter in critic.named_parameters() if parameter.requires_grad}
    assert with_gradient <= trained and "head.weight" in trained
    assert not any(name.startswith(("model.lm_head", "model.mtp")) for name in trained)


def test_values_of_a_separate_critic_are_those_of_each_trace_alone(policy: Path, tokenizer: Tokenizer) -> None:
    model = load_pretrained(policy, torch.float32)
    critic = build_critic(CriticConfig(model="separate"), model, str(policy), tokenizer)
    torch.nn.init.normal_(critic.head.weight)
    together, alone = traces(), traces()
    add_stream(together, "values", 1000, model.device, lambda micro: critic(micro, forbidden))
    for trace in alone:
        add_stream([trace], "values", 1000, model.device, lambda micro: critic(micro, forbidden))
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.branches[0].streams["values"], other.branches[0].streams["values"])
    assert together[0].branches[0].streams["values"][2:].abs().min() > 0


def test_its_state_comes_back_to_the_same_bits(policy: Path, tokenizer: Tokenizer) -> None:
    model = load_pretrained(policy, torch.float32)
    micro = micro_of(traces())

    def steps(critic: torch.nn.Module, count: int) -> torch.Tensor:
        for _ in range(count):
            (critic(micro, forbidden) - 1).square().sum().backward()
            critic.step()
        return critic(micro, forbidden).detach()

    config = CriticConfig(model="separate", lr=1e-2)
    whole = build_critic(config, model, str(policy), tokenizer)
    steps(whole, 2)
    again = build_critic(config, model, str(policy), tokenizer)
    again.restore(copy.deepcopy(whole.state()))
    assert torch.equal(steps(whole, 2), steps(again, 2))


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_a_gradient_that_is_not_finite_is_named(policy: Path, tokenizer: Tokenizer, kind: str) -> None:
    critic = build_critic(CriticConfig(model=kind), load_pretrained(policy), str(policy), tokenizer)
    critic.head.weight.grad = torch.full_like(critic.head.weight, torch.nan)
    with pytest.raises(NonFiniteError, match=r"the gradient of critic\.head\.weight is not finite"):
        critic.clip(1.0)


def test_a_critic_must_read_what_the_policy_writes(policy: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = load_pretrained(policy)
    save_pretrained(
        small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=8), tmp_path / "short", small_tokenizer()
    )
    config = CriticConfig(model="separate", init=str(tmp_path / "short"))
    if Tokenizer.load(tmp_path / "short").sha256 == tokenizer.sha256:
        accepted = r"its max_position_embeddings is 8; it reads what the policy writes"
    else:
        accepted = "has another tokenizer"
    with pytest.raises(ConfigError, match=rf"critic\.init='.*short': .*{accepted}"):
        build_critic(config, model, str(policy), tokenizer)


@pytest.mark.slow(reason="two runs")
@pytest.mark.usefixtures("learnable")
def test_ppo_takes_steps_with_either_critic(small_run: Compose, tmp_path: Path) -> None:
    other = save_policy(tmp_path / "other")
    rows = {
        options: metrics(run(small_run("algorithm=ppo", *options)).dir)
        for options in [("critic.model=shared",), ("critic.model=separate", f"critic.init={other}", "critic.lr=0.01")]
    }
    first, second = rows.values()
    assert first[0]["reward"] == second[0]["reward"]  # of the same rollouts
    losses = [float(row["value_loss"]) for row in second]
    assert losses != [float(row["value_loss"]) for row in first] and min(losses) >= 0
