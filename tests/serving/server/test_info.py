import json

import anthropic
import pytest

from arcforge_core import __version__
from arcforge_core.tokenizer.tokenizer import Tokenizer
from support.servers import client_of, small_state

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def test_the_model_is_listed_and_shown(client):
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("small", "model", 1024)
    assert card["root"] == "small"
    assert client.get("/v1/models/small").json() == card
    for other in ("large", "a/b"):
        answer = client.get(f"/v1/models/{other}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"


def test_the_version_is_that_of_the_package(client):
    assert client.get("/version").json() == {"version": __version__}


def test_the_cache_bounds_the_context(tokenizer):
    with client_of(small_state(tokenizer, cache_tokens=64)) as client:
        assert client.get("/v1/models/small").json()["max_model_len"] == 64
        answer = client.post("/v1/completions", json={"prompt": [1] * 60, "max_tokens": 5})
        assert answer.status_code == 400
        assert "context length is 64 tokens" in answer.json()["error"]["message"]


def test_texts_and_conversations_become_ids_and_back(client, tokenizer):
    def tokens(**body):
        answer = client.post("/tokenize", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    ids = tokenizer.encode("one ü")
    assert tokens(prompt="one ü")["tokens"] == [tokenizer.bos_id, *ids]
    plain = tokens(prompt="one ü", add_special_tokens=False, return_token_strs=True)
    assert plain == {
        "count": len(ids),
        "max_model_len": 1024,
        "tokens": ids,
        "token_strs": [tokenizer.decode([i]) for i in ids],
    }
    text = "[gMASK]<sop><|user|>Hi"
    assert tokenizer.decode(tokens(**CHAT)["tokens"]) == f"{text}<|assistant|><think>"
    assert tokenizer.decode(tokens(**CHAT, thinking={"type": "disabled"})["tokens"]) == f"{text}<|assistant|></think>"
    assert tokenizer.decode(tokens(**CHAT, add_generation_prompt=False)["tokens"]) == text
    tool = {"type": "function", "function": {"description": "d", "name": "f"}}
    shown = tokenizer.decode(tokens(**CHAT, tools=[tool])["tokens"])
    assert '{"description": "d", "name": "f"}' in shown  # in the client's order
    assert client.post("/detokenize", json={"tokens": tokens(**CHAT)["tokens"]}).json() == {
        "prompt": f"{text}<|assistant|><think>"
    }
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_what_is_sent_is_what_tokenize_says(client):
    ids = client.post("/tokenize", json=CHAT).json()["tokens"]
    answer = client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1, "return_token_ids": True})
    assert answer.json()["prompt_token_ids"] == ids


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", **CHAT}, 400, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, 400, "prompt"),
        ("/tokenize", {"prompt": [1]}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "large"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**5]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "large"}, 404, "model"),
    ],
)
def test_bad_requests_are_refused(client, path, body, status, param):
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


def test_health_and_readiness(tokenizer):
    state = small_state(tokenizer)
    with client_of(state) as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json() == {"status": "ready"}
        state.engine.pause("keep")
        assert (client.get("/ready").status_code, client.get("/ready").json()) == (200, {"status": "paused"})
        state.engine.resume()
        assert client.get("/ready").json() == {"status": "ready"}
        state.closing = True
        assert client.get("/health").status_code == 200
        assert (client.get("/ready").status_code, client.get("/ready").json()) == (503, {"status": "shutting down"})
        refused = client.post("/v1/completions", json={"prompt": [1]})
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded_error")
        state.closing = False
        state.engine.close()
        for path in ("/health", "/ready"):
            assert (client.get(path).status_code, client.get(path).json()) == (503, {"status": "engine stopped"})
        assert client.post("/v1/completions", json={"prompt": [1]}).status_code == 503


def test_a_model_without_a_chat_template_completes_only(tokenizer):
    definition = json.loads(tokenizer.definition)
    definition["added_tokens"] = [t for t in definition["added_tokens"] if t["content"] not in ("<think>", "</think>")]
    with client_of(small_state(Tokenizer(json.dumps(definition)))) as client:
        assert client.post("/v1/completions", json={"prompt": "one", "max_tokens": 1}).status_code == 200
        for path in ("/v1/chat/completions", "/tokenize"):
            answer = client.post(path, json=CHAT)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "messages"
            assert "small has no chat template" in answer.json()["error"]["message"]


def test_models_are_shown_in_anthropics_form_to_its_clients(live, claude):
    state, _ = live
    (card,) = claude.models.list()
    assert (card.id, card.type, card.display_name, card.max_input_tokens) == ("small", "model", "small", 1024)
    assert (card.lifecycle, card.created_at.timestamp()) == ("active", state.created)
    assert claude.models.retrieve("small") == card
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.models.retrieve("large")
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_tokenizers_without_a_beginning_get_none(tokenizer):
    definition = {**json.loads(tokenizer.definition), "post_processor": None}
    with client_of(small_state(Tokenizer(json.dumps(definition)))) as client:
        ids = client.post("/tokenize", json={"prompt": "one two"}).json()["tokens"]
        assert ids == tokenizer.encode("one two")
        body = {"prompt": "one two", "max_tokens": 1, "return_token_ids": True, "echo": True, "temperature": 0}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["prompt_token_ids"] == ids
    assert choice["text"].startswith("one two")
