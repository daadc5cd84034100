import asyncio

import pytest

from arcforge_core.configs import CopyConfig, SimpleEngineConfig
from arcforge_core.contracts.chat import Message, Tool
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.environment import Agents, Task
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.environments.copy import CopyEnvironment
from arcforge_core.environments.scripted import ScriptedAgent
from arcforge_core.errors import ConfigError
from arcforge_core.model.engine import SimpleEngine
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl import rollout as module
from arcforge_rl.rollout import Player, Players, Rollout, model_players, oracle_players, roll_out, silent_players

ENVIRONMENT = CopyEnvironment(CopyConfig())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def engine() -> SimpleEngine:
    return SimpleEngine(SimpleEngineConfig(), small_model(vocab_size=TOKENIZER_SIZE))


def sampled(players: Players, task: Task, indices: list[int]) -> list[Rollout]:
    """One rollout of a task for each number, all in one batch."""

    async def all_of_them() -> list[Rollout]:
        async def one(index: int) -> Rollout:
            player = players(task, index)
            episode = await ENVIRONMENT.run(task, Agents(player.agent))
            return Rollout(index, task, episode, await ENVIRONMENT.score(task, episode), player.turns)

        return await asyncio.gather(*map(one, indices))

    return asyncio.run(all_of_them())


def test_oracle_earns_everything_and_noop_nothing() -> None:
    assert [r.outcome.reward for r in roll_out(ENVIRONMENT, oracle_players(ENVIRONMENT), 3)] == [1, 1, 1]
    assert [r.outcome.reward for r in roll_out(ENVIRONMENT, silent_players(), 3)] == [0, 0, 0]


def test_every_task_gets_its_rollouts_in_order() -> None:
    rollouts = list(roll_out(ENVIRONMENT, silent_players(), episodes=50, per_task=3))
    assert [r.index for r in rollouts] == list(range(150))
    assert [r.task for r in rollouts] == [ENVIRONMENT.task(n // 3) for n in range(150)]


def test_finished_rollouts_are_delivered_before_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    asked: list[int] = []

    def players(task: Task, index: int) -> Player:
        asked.append(index)
        return Player(ScriptedAgent([]))

    rollouts = roll_out(ENVIRONMENT, players, 5)
    next(rollouts)
    assert asked == [0, 1]
    list(rollouts)
    assert asked == [0, 1, 2, 3, 4]


def test_prompt_begins_a_document_and_ids_match_the_text(tokenizer: Tokenizer) -> None:
    task = ENVIRONMENT.task(0)
    (rollout,) = sampled(model_players(engine(), tokenizer, SamplingParams(8)), task, [0])
    (turn,) = rollout.turns
    assert turn.prompt_ids == [tokenizer.bos_id, *tokenizer.encode(task.prompt)]
    assert len(turn.logprobs) == len(turn.token_ids) == 8
    assert rollout.episode.reply.text == tokenizer.decode(turn.token_ids)
    assert (turn.finish_reason, turn.weight_version) == (rollout.episode.finish_reason, 0) == ("length", 0)


def test_end_of_text_stops_and_is_not_part_of_the_text(tokenizer: Tokenizer) -> None:
    made, task = engine(), ENVIRONMENT.task(0)
    players = model_players(made, tokenizer, SamplingParams(8, temperature=0.0))
    (before,) = sampled(players, task, [0])
    first = before.turns[0].token_ids[0]
    head = made.model.lm_head.weight.data
    head[[first, tokenizer.eos_id]] = head[[tokenizer.eos_id, first]]  # now the first choice is the end of text
    (after,) = sampled(players, task, [0])
    assert after.turns[0].token_ids == [tokenizer.eos_id]
    assert (after.episode.reply.text, after.episode.finish_reason) == ("", "stop")


def test_each_rollout_has_its_own_seed_whatever_its_batch(tokenizer: Tokenizer) -> None:
    players, task = model_players(engine(), tokenizer, SamplingParams(8, seed=5)), ENVIRONMENT.task(0)
    together = sampled(players, task, [0, 1, 2, 3])
    assert len({tuple(r.turns[0].token_ids) for r in together}) == 4
    assert sampled(players, task, [2])[0].turns[0].token_ids == together[2].turns[0].token_ids


def test_conversations_that_wait_share_a_batch(tokenizer: Tokenizer) -> None:
    made = engine()
    sizes: list[int] = []
    generate = made.generate

    def counted(prompts: list[list[int]], params: list[SamplingParams]) -> list[GenerationOutput]:
        sizes.append(len(prompts))
        return generate(prompts, params)

    made.generate = counted  # type: ignore[method-assign, assignment]
    list(roll_out(ENVIRONMENT, model_players(made, tokenizer, SamplingParams(2)), 3, 2))
    assert sizes == [6]


def test_an_engine_that_fails_is_heard(tokenizer: Tokenizer) -> None:
    made = engine()
    made.generate = lambda prompts, params: 1 / 0  # type: ignore
    with pytest.raises(ZeroDivisionError):
        list(roll_out(ENVIRONMENT, model_players(made, tokenizer, SamplingParams(2)), 1))


def test_tools_without_a_chat_template_are_refused(tokenizer: Tokenizer) -> None:
    player = model_players(engine(), tokenizer, SamplingParams(2))(ENVIRONMENT.task(0), 0)
    with pytest.raises(ConfigError, match="chat template"):
        asyncio.run(player.agent.reply([Message("user", "x")], [Tool({"name": "calculator"})]))
