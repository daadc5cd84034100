"""Where chats have token ids: as vLLM and as SGLang."""

import json

import pytest

from support.servers import client_of, small_state

ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def answer(client, **fields):
    response = client.post("/v1/chat/completions", json={**ASK, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_vllms_places(client):
    whole = answer(client, return_token_ids=True)
    (choice,) = whole["choices"]
    assert len(choice["token_ids"]) == 4
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert not {"prompt_token_ids", "meta_info"} & set(choice)


def test_sglangs_places(client):
    wanted = answer(client, return_token_ids=True)
    whole = answer(client, return_token_ids=True, token_id_style="sglang", n=2)
    assert "prompt_token_ids" not in whole
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [wanted["prompt_token_ids"]] * 2
    assert whole["choices"][0]["token_ids"] == wanted["choices"][0]["token_ids"]


def test_sglangs_fields(client):
    wanted = answer(client, return_token_ids=True, logprobs=True)
    whole = answer(client, return_prompt_token_ids=True, return_meta_info=True, logprobs=True)
    (choice,) = whole["choices"]
    assert not {"token_ids", "weight_versions"} & set(choice)
    assert choice["prompt_token_ids"] == wanted["prompt_token_ids"]
    meta = choice["meta_info"]
    ids = wanted["choices"][0]["token_ids"]
    assert [id_ for _, id_, _ in meta["output_token_logprobs"]] == ids
    logprobs = [entry["logprob"] for entry in wanted["choices"][0]["logprobs"]["content"]]
    assert [logprob for logprob, _, _ in meta["output_token_logprobs"]] == pytest.approx(logprobs, abs=1e-4)
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(wanted["prompt_token_ids"]), 4)
    assert meta["weight_version"] == "0"
    assert "output_token_logprobs" not in answer(client, return_meta_info=True)["choices"][0]["meta_info"]


@pytest.mark.parametrize(("fields", "matched"), [
    ({"stop_token_ids": list(range(280)), "max_tokens": 9}, None),
    ({"guided_choice": ["one two"], "stop": "two", "max_tokens": 20}, "two"),
])  # fmt: skip
def test_what_ended_a_choice_is_named(client, fields, matched):
    off = {"thinking": {"type": "disabled"}, "ignore_eos": False}
    (choice,) = answer(client, return_meta_info=True, return_token_ids=True, **off, **fields)["choices"]
    wanted = choice["token_ids"][-1] if matched is None else matched
    assert choice["meta_info"]["finish_reason"] == {"type": "stop", "matched": wanted}


def test_prompts_may_be_ids_under_both_names(client):
    ids = answer(client, return_token_ids=True)["prompt_token_ids"]
    fields = {"return_token_ids": True, "messages": []}
    one, two = answer(client, prompt_token_ids=ids, **fields), answer(client, input_ids=ids, **fields)
    assert one["choices"][0]["token_ids"] == two["choices"][0]["token_ids"]
    beside = answer(client, input_ids=ids, return_token_ids=True, messages=[{"role": "user", "content": "Not shown"}])
    assert beside["prompt_token_ids"] == ids
    for fields in ({"input_ids": ids, "prompt_token_ids": ids}, {"input_ids": [10**6]}):
        response = client.post("/v1/chat/completions", json={**ASK, "messages": [], **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "input_ids")


def test_streams_have_them_in_the_first_and_last_chunk_of_a_choice(client):
    wanted = answer(client, return_token_ids=True)
    fields = {
        **ASK,
        "stream": True,
        "return_token_ids": True,
        "return_meta_info": True,
        "token_id_style": "sglang",
        "n": 2,
    }
    lines = client.post("/v1/chat/completions", json=fields).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert not any("prompt_token_ids" in chunk for chunk in chunks)
    for index in range(2):
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert parts[0]["prompt_token_ids"] == wanted["prompt_token_ids"]
        assert not any("prompt_token_ids" in part for part in parts[1:])
        assert [id_ for part in parts for id_ in part.get("token_ids", ())] == wanted["choices"][0]["token_ids"]
        assert parts[-1]["meta_info"]["completion_tokens"] == 4


def test_the_servers_option_is_the_default(tokenizer):
    state = small_state(tokenizer)
    state.token_id_style = "sglang"
    with client_of(state) as client:
        assert "prompt_token_ids" in answer(client, return_token_ids=True)["choices"][0]
        assert "prompt_token_ids" in answer(client, return_token_ids=True, token_id_style="vllm")
