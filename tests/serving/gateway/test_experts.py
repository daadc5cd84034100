"""Sessions record the experts of every token that was read, through forks, on disk and over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from arcforge_core.contracts.algorithm import Branch
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.gateway.sessions import Sessions
from serving.gateway.conftest import script
from serving.gateway.test_http import ONE, ask, more, record
from support.experts import routed
from support.servers import client_of, scripted_state
from support.sessions import TEMPLATE, TOKENIZER


def check(branches: Sequence[Branch], model) -> None:
    """Each branch has the experts of all tokens before its last sampled one."""
    for branch in branches:
        last = int(np.flatnonzero(branch.sampled)[-1]) if branch.num_sampled else 0
        assert branch.experts is not None and last <= branch.routed < len(branch)
        np.testing.assert_array_equal(branch.experts, routed(model, branch.ids)[: branch.routed])


def test_each_branch_has_the_experts_of_its_tokens(tmp_path: Path) -> None:
    state = scripted_state(TOKENIZER, script, record_experts=True)
    with client_of(state, gateway_app(state, GatewayConfig(sessions=5, log=str(tmp_path)))) as http:
        opened = http.post("/sessions", json={}).json()
        first = ask(http, opened)
        body = more(ONE, first)
        second = ask(http, opened, body)
        ask(http, opened, more(body, second, "plain four"))
        ask(http, opened, more(body, second, "plain five"))  # a sibling
        ask(http, opened, {**ONE, "messages": [{"role": "user", "content": "plain other"}]})
        edited = more(body, second, "plain six")
        edited["messages"][-2] = {"role": "assistant", "content": "two"}
        ask(http, opened, edited)
        found = record(http, opened)
        state.engine.pause()  # the model is read here now
        assert len(found.branches) >= 4 and {turn.drift for turn in found.turns} >= {"new", "clean", "fork"}
        check(found.branches, state.engine.model)
        assert sum(branch.num_sampled for branch in found.branches) + found.masked_tokens == sum(
            turn.completion_tokens for turn in found.turns
        )
    sessions = Sessions(TEMPLATE, GatewayConfig(5, log=str(tmp_path)), "small")
    sessions.end()
    again = sessions.find(opened["id"]).record()
    assert [*again.branches] == [*found.branches] and again.as_json() == found.as_json()


def test_an_engine_that_records_none_leaves_records_as_they_were() -> None:
    state = scripted_state(TOKENIZER, script)
    with client_of(state, gateway_app(state, GatewayConfig(sessions=5))) as http:
        opened = http.post("/sessions", json={}).json()
        ask(http, opened)
        found = record(http, opened)
        assert all(branch.experts is None for branch in found.branches)
        assert all("experts" not in part for part in found.as_json()["parts"])
