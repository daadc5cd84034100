import pytest

from arcforge_core.configs import CopyConfig, SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.environment import Task
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.environments import CopyEnvironment
from arcforge_core.model.engine import SimpleEngine
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl import rollout as module
from arcforge_rl.rollout import Completion, ModelAgent, NoopAgent, OracleAgent, roll_out


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def model_agent(tokenizer: Tokenizer, **params: object) -> ModelAgent:
    engine = SimpleEngine(SimpleEngineConfig(), small_model(vocab_size=TOKENIZER_SIZE))
    return ModelAgent(engine, tokenizer, SamplingParams(**{"max_new_tokens": 8, **params}))  # type: ignore[arg-type]


def test_oracle_earns_everything_and_noop_nothing() -> None:
    environment = CopyEnvironment(CopyConfig())
    assert [r.rewards["reward"] for r in roll_out(environment, OracleAgent(environment), 3)] == [1, 1, 1]
    assert [r.rewards["reward"] for r in roll_out(environment, NoopAgent(), 3)] == [0, 0, 0]


def test_every_task_gets_its_rollouts_in_order() -> None:
    environment = CopyEnvironment(CopyConfig())
    rollouts = list(roll_out(environment, NoopAgent(), episodes=50, per_task=3))
    assert [r.index for r in rollouts] == list(range(150))
    assert [r.task for r in rollouts] == [environment.task(n // 3) for n in range(150)]


def test_finished_rollouts_are_delivered_before_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    asked: list[int] = []

    def agent(tasks: list[Task], indices: list[int]) -> list[Completion]:
        asked.extend(indices)
        return [Completion("") for _ in tasks]

    rollouts = roll_out(CopyEnvironment(CopyConfig()), agent, 5)
    next(rollouts)
    assert asked == [0, 1]
    list(rollouts)
    assert asked == [0, 1, 2, 3, 4]


def test_prompt_begins_a_document_and_ids_match_the_text(tokenizer: Tokenizer) -> None:
    task = CopyEnvironment(CopyConfig()).task(0)
    (completion,) = model_agent(tokenizer)([task], [0])
    assert completion.prompt_ids == [tokenizer.bos_id, *tokenizer.encode(task.prompt)]
    assert completion.token_ids is not None
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(completion.token_ids) == 8
    assert completion.text == tokenizer.decode(completion.token_ids)
    assert (completion.finish_reason, completion.weight_version) == ("length", 0)


def test_end_of_text_stops_and_is_not_part_of_the_text(tokenizer: Tokenizer) -> None:
    agent = model_agent(tokenizer, temperature=0.0)
    task = CopyEnvironment(CopyConfig()).task(0)
    first = agent([task], [0])[0].token_ids
    assert first is not None
    head = agent.engine.model.lm_head.weight.data  # type: ignore[attr-defined]
    head[[first[0], tokenizer.eos_id]] = head[[tokenizer.eos_id, first[0]]]  # now the first choice is the end of text
    (completion,) = agent([task], [0])
    assert completion.token_ids == [tokenizer.eos_id]
    assert (completion.text, completion.finish_reason) == ("", "stop")


def test_each_rollout_has_its_own_seed_whatever_its_batch(tokenizer: Tokenizer) -> None:
    environment = CopyEnvironment(CopyConfig())
    agent = model_agent(tokenizer, seed=5)
    task = environment.task(0)
    together = agent([task] * 4, [0, 1, 2, 3])
    assert len({tuple(c.token_ids or ()) for c in together}) == 4
    assert agent([task], [2])[0].token_ids == together[2].token_ids
