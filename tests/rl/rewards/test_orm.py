"""The component ``orm``: in this process, at a server, and at servers that give no score."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from tests.rl.rollouts.test_others import server

from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Episode, EpisodeFailure, Reply, Task
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.ops.dispatch import default_ops
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs.rewards import OrmConfig
from arcforge_rl.rewards.orm import OutcomeRewardModel
from arcforge_serving.server.app import create_app
from support.policies import save_policy, save_scorer
from support.servers import LOCAL, small_state

TASK = Task("t", "two and two", "")
EPISODE = Episode((Message("user", TASK.prompt), Message("assistant", "four")), Reply("four"))


def measured(config: OrmConfig) -> float:
    return asyncio.run(OutcomeRewardModel(config).measure(TASK, EPISODE))


def test_a_score_is_the_same_here_and_at_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_scorer(tmp_path / "scorer")
    own = measured(OrmConfig(checkpoint=str(folder)))
    assert own == RewardModel(folder, default_ops()).score(EPISODE.messages)
    state = small_state(small_tokenizer())
    state.reward = RewardModel(folder, default_ops())
    with TestClient(create_app(state), base_url=LOCAL) as client:

        def handle(request: httpx.Request) -> httpx.Response:
            answer = client.post("/pooling", content=request.content, headers={"content-type": "application/json"})
            return httpx.Response(answer.status_code, content=answer.content)

        made = httpx.AsyncClient
        monkeypatch.setattr(httpx, "AsyncClient", lambda **of: made(transport=httpx.MockTransport(handle)))
        assert measured(OrmConfig(url=LOCAL)) == pytest.approx(own, abs=1e-6)
        with pytest.raises(EpisodeFailure, match=r"HTTP 404: .*this server has 'small'"):
            measured(OrmConfig(url=LOCAL, model="other"))
        both = client.post("/pooling", json={"input": ["four", "five"]}).json()
        assert [one["index"] for one in both["data"]] == [0, 1] and both["data"][0]["data"] != both["data"][1]["data"]
        for body, said in (
            ({}, "one of messages and input"),
            ({"input": "x", "encoding_format": "base64"}, "must be float"),
            ({"messages": [{"role": "boss"}]}, "messages"),
        ):
            answer = client.post("/pooling", json=body)
            assert answer.status_code == 400 and said in answer.text
        state.reward = None
        assert "is no reward model" in client.post("/pooling", json={"input": "x"}).text


NAN = {"data": [{"data": [float("nan")]}]}


@pytest.mark.parametrize(
    ("answer", "reason", "requests"),
    [
        ((503, b"busy"), "HTTP 503: busy", 2),
        ((429, b"wait"), "HTTP 429: wait", 2),
        ((400, b"no"), "HTTP 400: no", 1),
        ((200, b"{half"), "JSONDecodeError", 2),
        ((200, {"data": []}), "no score of one conversation", 2),
        ((200, {"data": [{"data": [1, 2]}]}), "no score of one conversation", 2),
        ((200, NAN), "score is nan", 1),
    ],
)
def test_a_server_without_a_score_is_a_failure(
    answer: Any, reason: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.01)
    with server([answer]) as (url, asked), pytest.raises(EpisodeFailure, match=reason) as error:
        measured(OrmConfig(url=url, attempts=2))
    assert error.value.failure.kind == "verifier" and len(asked) == requests


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, "must name one of checkpoint and url"),
        ({"url": "x"}, r"options\.url='x'"),
        ({"checkpoint": "x", "model": "m"}, "are of a server"),
        ({"url": "http://x", "seconds": 0.0}, r"options\.seconds"),
        ({"url": "http://x", "key_variable": "NOT_SET_ANYWHERE"}, r"options\.key_variable"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], refused: str) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=refused):
        OutcomeRewardModel(OrmConfig(**options))


def test_a_folder_without_a_head_is_no_reward_model(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "policy")
    with pytest.raises(ConfigError, match=r"options\.checkpoint=.*has no scalar_head"):
        OutcomeRewardModel(OrmConfig(checkpoint=str(folder)))
