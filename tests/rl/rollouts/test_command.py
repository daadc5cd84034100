import asyncio
import json
from pathlib import Path

import pytest
import torch

from arcforge_core import save_pretrained
from arcforge_core.config.compose import compose_config
from arcforge_core.config.sources import ConversationsDataConfig
from arcforge_core.contracts.environment import Agents, Episode, Task
from arcforge_core.data.conversations.source import ConversationsSource
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl.configs.commands import EnvConfig
from arcforge_rl.rollouts import command as module
from arcforge_rl.rollouts.command import run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), folder, small_tokenizer())
    return folder


def config(tmp_path: Path, *overrides: str) -> EnvConfig:
    return compose_config("env", EnvConfig, [f"output_dir={tmp_path}", *overrides])


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_real_rollouts_are_written_with_the_models_own_logprobs(tmp_path: Path, checkpoint: Path) -> None:
    result = run(config(tmp_path, f"checkpoint={checkpoint}", "episodes=5", "rollouts=2", "hardware=torch_cpu"))
    written = rows(result.dir)
    assert len({row["rollout"] for row in written}) == result.figures["rollouts"] == 10
    assert len({row["task"] for row in written}) == 5
    assert result.figures["mean reward"] == sum(row["rewards"]["reward"] for row in written) / 10  # type: ignore[index]
    assert result.figures["generated tokens"] == sum(sum(row["branches"][0]["sampled"]) for row in written)  # type: ignore
    assert result.figures["tokens/s"] > 0
    model = small_model(vocab_size=TOKENIZER_SIZE)
    for row in written:
        (branch,) = row["branches"]  # type: ignore[misc]
        ids, place = torch.tensor(branch["ids"]), torch.tensor(branch["sampled"]).nonzero()[:, 0]
        logprobs = model(ids[None]).logits[0, place - 1].detach().log_softmax(-1)
        wanted = logprobs.gather(1, ids[place, None])[:, 0]
        torch.testing.assert_close(torch.tensor(branch["logprobs"])[place], wanted, atol=1e-5, rtol=1e-5)
        assert [version for version in branch["versions"] if version >= 0] == [0] * len(place)
        assert set(row["reasons"]) == set(row["rewards"])  # type: ignore[call-overload]


def test_same_seed_gives_the_same_rollouts(tmp_path: Path, checkpoint: Path) -> None:
    first, second, other = (
        run(config(tmp_path, f"checkpoint={checkpoint}", "episodes=4", f"seed={seed}")).dir for seed in (1, 1, 2)
    )
    assert first != second
    assert rows(first) == rows(second)
    assert rows(first) != rows(other)


@pytest.mark.parametrize("environment", ["arithmetic", "copy"])
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("noop", 0.0)])
def test_environments_are_checked_without_a_model(
    tmp_path: Path, environment: str, agent: str, reward: float, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(config(tmp_path, f"agent={agent}", f"environment={environment}", "episodes=3"))
    assert result.figures["mean reward"] == reward
    assert "tokens/s" not in result.figures
    assert [row["branches"] for row in rows(result.dir)] == [[]] * 3
    assert str(result.dir / "rollouts.jsonl") in capsys.readouterr().out


def test_rollouts_that_earned_1_become_records(tmp_path: Path) -> None:
    """Of an environment with tools and of one without, as `data=conversations` reads them."""
    unused = [f"environment.parts.{name}=0" for name in ("math", "science", "code")]
    parts = ["+environment.parts.copy=1", "environment.parts.tool_math=1", *unused]
    for agent in ("oracle", "noop"):
        options = (f"agent={agent}", "environment=mixture", *parts, "episodes=6", "records=true")
        result = run(config(tmp_path / agent, *options))
        assert len(rows(result.dir)) == 6
    assert not list(tmp_path.glob("noop/**/kept")), "silence earns nothing"
    (folder,) = tmp_path.glob("oracle/**/kept")
    (plain,), (tools,) = [list((folder / corpus).iterdir()) for corpus in ("reasoning", "agent")]
    records, calls = ([json.loads(line) for line in file.read_text().splitlines()] for file in (plain, tools))
    assert len(records) == len(calls) == 3
    assert [message["role"] for message in records[0]["messages"]] == ["user", "assistant"]
    assert records[0]["thinking"] == "off" and "tools" not in records[0]
    assert calls[0]["tools"] and any(message.get("tool_calls") for message in calls[0]["messages"])
    source = ConversationsSource(ConversationsDataConfig(folders=[str(folder)]))
    assert len([source.conversation(document) for document in source.documents()]) == 6


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "agent=model needs a folder"),
        (["agent=oracle", "checkpoint=here"], "uses no model"),
        (["agent=orakel"], "did you mean 'oracle'"),
        (["agent=noop", "episodes=0"], "episodes=0"),
        (["agent=noop", "rollouts=0"], "rollouts=0"),
        (["agent=noop", "max_new_tokens=0"], "max_new_tokens=0"),
        (["agent=noop", "temperature=-1"], "temperature=-1"),
        (["agent=noop", "environment.digits=0"], "environment.digits=0"),
        (["agent=noop", "environment=arithmetics"], "did you mean 'arithmetic'"),
    ],
)
def test_bad_configurations_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, *overrides)
    assert message in str(caught.value)


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        run(config(tmp_path, "checkpoint=nowhere"))


def test_unwritable_output_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArcforgeError, match="cannot write"):
        run(config(tmp_path / "file", "agent=noop"))


def test_rollouts_are_written_as_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WIDTH", 2)
    seen: list[int] = []
    run_episode = CopyEnvironment.run

    async def watched(environment: CopyEnvironment, task: Task, agents: Agents) -> Episode:
        (found,) = tmp_path.rglob("rollouts.jsonl")
        seen.append(len(found.read_text().splitlines()))
        await asyncio.sleep(0.01 * len(seen))
        return await run_episode(environment, task, agents)

    monkeypatch.setattr(CopyEnvironment, "run", watched)
    run(config(tmp_path, "agent=noop", "environment=copy", "episodes=5"))
    assert seen[:2] == [0, 0] and seen[-1] > 0


def test_thinking_is_an_option_of_those_who_can(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = []
    for thinking in ("off", "on"):
        result = run(config(tmp_path, f"checkpoint={checkpoint}", "episodes=1", f"thinking={thinking}"))
        (branch,) = rows(result.dir)[0]["branches"]  # type: ignore[misc]
        prompts.append(branch["ids"][: branch["sampled"].index(True)])
    assert prompts[0] != prompts[1]

    def none(tokenizer: object) -> None:
        raise ConfigError("chat_template", None, "there is none")

    monkeypatch.setattr("arcforge_core.episodes.agent.build_chat_template", none)
    with pytest.raises(ConfigError, match="thinking='on': needs a chat template"):
        run(config(tmp_path, f"checkpoint={checkpoint}", "episodes=1", "thinking=on"))
