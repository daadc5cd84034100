"""A session whose trainer decides how its turns are sampled and rendered."""

from __future__ import annotations

from typing import Any

import pytest

from arcforge_core.data.split import key_hash
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from support.servers import client_of, small_state
from support.sessions import TOKENIZER

WANTED = {"temperature": 0.1, "top_p": 0.5, "max_tokens": 50, "logit_bias": {"5": 3.0}, "seed": 1}
BODIES = {
    "chat/completions": {
        "messages": [{"role": "user", "content": "a"}], **WANTED, "presence_penalty": 1.0,
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 50, "temperature": 0.1, "top_p": 0.5},
    "responses": {"input": "a", "temperature": 0.1, "max_output_tokens": 50, "top_p": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
def test_a_client_chooses_neither_distribution_nor_mode(path: str) -> None:
    state = small_state(TOKENIZER)
    submit, asked = state.engine.submit, list[tuple[str, Any]]()

    def noted(prompt: Any, params: Any, **further: Any) -> Any:
        asked.append((TOKENIZER.decode(list(prompt)), params))
        return submit(prompt, params, **further)

    state.engine.submit = noted  # type: ignore[method-assign]
    imposed = {"temperature": 0.7, "sampled_logprobs": True, "max_new_tokens": 5, "seed": "s"}
    body = {"model": "small", **BODIES[path]}
    with client_of(state, gateway_app(state, GatewayConfig(sessions=9))) as http:
        for switches in ({}, {"enable_thinking": False}, None):
            given = imposed | ({} if switches is None else {"chat_template_kwargs": switches})
            session = http.post("/sessions", json=given).json()["id"]
            answer = http.post(f"/sessions/{session}/v1/{path}", json=body)
            assert answer.status_code == 200, answer.text
        free = http.post("/sessions", json={}).json()["id"]
        assert http.post(f"/sessions/{free}/v1/{path}", json=body).status_code == 200
    params = [one for _, one in asked[:3]]
    names = ("temperature", "top_p", "max_new_tokens", "presence_penalty", "logit_bias", "sampled_logprobs")
    assert all([getattr(one, name) for name in names] == [0.7, 1.0, 5, 0.0, {}, True] for one in params)
    assert {one.seed for one in params} == {key_hash("s/0") >> 1}
    thinks, thinks_not, own, also = [text for text, _ in asked]
    assert thinks.endswith("<think>") and not thinks_not.endswith("<think>"), "as the trainer says"
    assert own == also == (thinks_not if path == "chat/completions" else own), "as the client says"
    assert asked[3][1].temperature == 0.1 and asked[3][1].max_new_tokens == 50


def test_log_probs_of_no_distribution_are_refused(http: Any) -> None:
    answer = http.post("/sessions", json={"sampled_logprobs": True})
    assert answer.status_code == 400 and "needs a temperature above 0" in answer.text
