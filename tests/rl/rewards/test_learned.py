"""A learned reward: its score, its mixture with the verifiers, and what cannot be a reward model."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.checkpoint.scalar import HEAD, load_scalar, save_scalar
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Episode, Outcome, Reply, Task
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.scalar import ScalarModel
from arcforge_core.ops.dispatch import default_ops
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl.configs.learning import RewardModelConfig
from arcforge_rl.rewards.learned import Rewarded, RewardedGroups, with_reward_model
from support.policies import save_scorer


def reward_model(folder: Path) -> RewardModel:
    return RewardModel(folder, default_ops())


def test_a_score_is_the_heads_number_after_the_last_token(tmp_path: Path) -> None:
    found = reward_model(save_scorer(tmp_path / "scorer"))
    messages = [Message("user", "two and two"), Message("assistant", "four")]
    ids, scalar = found.ids(messages), load_scalar(tmp_path / "scorer").requires_grad_(False)
    hidden_D = scalar.model.hidden(torch.tensor(ids), SequenceBatch.build([len(ids)])).hidden_TD[-1]
    assert found.score(messages) == pytest.approx(float(hidden_D @ scalar.head.weight[0] + scalar.head.bias), abs=1e-5)
    assert found.score(messages) != pytest.approx(found.score([*messages, Message("user", "and three")]), abs=1e-4)


def test_of_a_conversation_that_is_too_long_the_end_is_read(tmp_path: Path) -> None:
    found = reward_model(save_scorer(tmp_path / "scorer", max_position_embeddings=16))
    ids = found.ids([Message("user", "two and two is four, " * 20), Message("assistant", "yes")])
    longer = found.ids([Message("user", "two and two is four, " * 30), Message("assistant", "yes")])
    assert len(ids) == 16 and ids == longer
    assert math.isfinite(found.score([Message("user", "two " * 99)]))


def test_verified_and_learned_rewards_are_mixed(tmp_path: Path) -> None:
    schema, target = (registry().get("environment", "copy").load_schema(), registry().get("environment", "copy").load())
    environment = target(schema())
    folder = save_scorer(tmp_path / "scorer")
    assert with_reward_model(environment, RewardModelConfig(), default_ops()) is environment
    mixed = with_reward_model(environment, RewardModelConfig(str(folder), 0.25), default_ops())
    assert isinstance(mixed, Rewarded)
    task = mixed.task(3)
    for answer, verified in ((task.answer, 1.0), ("no", 0.0)):
        reply = Reply(answer)
        episode = Episode((Message("user", task.prompt), reply.message), reply)
        outcome = asyncio.run(mixed.score(task, episode))
        learned = 1.0 / (1.0 + math.exp(-mixed.model.score(episode.messages)))
        assert outcome.rewards["verified"] == verified and outcome.rewards["reward_model"] == pytest.approx(learned)
        assert outcome.reward == pytest.approx(0.75 * verified + 0.25 * learned)


def test_environments_that_compare_episodes_stay_such(tmp_path: Path) -> None:
    class Comparing:
        domain, num_tasks, compares = "d", None, True

        async def score_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Outcome]:
            return [Outcome({"reward": float(n)}, {}) for n in range(len(episodes))]

    mixed = with_reward_model(Comparing(), RewardModelConfig(str(save_scorer(tmp_path)), 0.5), default_ops())
    assert isinstance(mixed, RewardedGroups) and mixed.compares
    episodes = [Episode((Message("user", text),), Reply(text)) for text in ("a", "b")]
    outcomes = asyncio.run(mixed.score_group(Task("k", "p", "a"), episodes))
    assert [one.rewards["verified"] for one in outcomes] == [0.0, 1.0]
    assert all(one.reward == pytest.approx((n + one.rewards["reward_model"]) / 2) for n, one in enumerate(outcomes))


def test_what_is_no_reward_model_is_one_line(tmp_path: Path) -> None:
    plain, wide, damaged = tmp_path / "plain", tmp_path / "wide", tmp_path / "damaged"
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), plain, small_tokenizer())
    with pytest.raises(ConfigError, match=rf"reward_model\.checkpoint=.*has no {HEAD}: it is no reward model"):
        reward_model(plain)
    save_scorer(wide, vocab_size=TOKENIZER_SIZE - 8)
    with pytest.raises(ConfigError, match=rf"its tokenizer has \d+ ids, its model {TOKENIZER_SIZE - 8}"):
        reward_model(wide)
    (save_scorer(damaged) / HEAD).write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match=rf"{HEAD} is damaged or of another model: ") as found:
        reward_model(damaged)
    assert "\n" not in str(found.value)
    with pytest.raises(ConfigError, match=r"reward_model\.weight=1\.5"):
        RewardModelConfig(weight=1.5)


def test_a_scalar_model_is_written_and_read_with_its_head(tmp_path: Path) -> None:
    scalar = ScalarModel(small_model(vocab_size=TOKENIZER_SIZE))
    assert not scalar(torch.tensor([5, 6]), SequenceBatch.build([2])).any(), "0 until it is trained"
    torch.nn.init.normal_(scalar.head.weight)
    save_scalar(scalar, tmp_path / "model", small_tokenizer())
    ids_T, batch = torch.tensor([5, 6, 7]), SequenceBatch.build([3])
    torch.testing.assert_close(load_scalar(tmp_path / "model")(ids_T, batch), scalar(ids_T, batch))
    assert load_pretrained(tmp_path / "model").config == scalar.model.config
