import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.engine import SimpleEngine
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_serving.server.app import create_app

URL = "/v1/completions"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return small_model(vocab_size=TOKENIZER_SIZE)


@pytest.fixture(scope="module")
def client(model: CausalLM, tokenizer: Tokenizer) -> Iterator[TestClient]:
    app = create_app(SimpleEngine(SimpleEngineConfig(), model), tokenizer, model.config, "small", max_waiting=6)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def complete(client: TestClient, **body: object) -> dict[str, Any]:
    response = client.post(URL, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(client: TestClient, status: int = 422, **body: object) -> dict[str, Any]:
    response = client.post(URL, json=body)
    assert response.status_code == status, response.text
    problem: dict[str, Any] = response.json()["error"]
    assert problem.keys() == {"message", "type", "param", "code"}
    return problem


def greedy(model: CausalLM, ids: list[int], count: int) -> list[int]:
    out: list[int] = model.generate([ids], max_new_tokens=count)[0, len(ids) :].tolist()
    return out


def test_health_and_models(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("small", "model", 128)


def test_text_prompt(client: TestClient, model: CausalLM, tokenizer: Tokenizer) -> None:
    answer = complete(client, model="small", prompt="one two", max_tokens=6, temperature=0)
    prompt = [tokenizer.bos_id, *tokenizer.encode("one two")]
    assert answer["object"] == "text_completion"
    assert answer["model"] == "small"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": tokenizer.decode(greedy(model, prompt, 6)),
            "finish_reason": "length",
            "logprobs": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 6,
        "total_tokens": len(prompt) + 6,
    }


def test_token_prompt_is_taken_as_it_is(client: TestClient, model: CausalLM) -> None:
    (choice,) = complete(client, prompt=[5, 6, 7], max_tokens=4, temperature=0, return_token_ids=True)["choices"]
    assert choice["prompt_token_ids"] == [5, 6, 7]
    assert choice["token_ids"] == greedy(model, [5, 6, 7], 4)


def test_several_prompts_and_choices_come_in_order(client: TestClient) -> None:
    answer = complete(client, prompt=[[1], [2, 3]], n=3, seed=7, max_tokens=5, return_token_ids=True)
    choices = answer["choices"]
    assert [c["index"] for c in choices] == list(range(6))
    assert [c["prompt_token_ids"] for c in choices] == [[1]] * 3 + [[2, 3]] * 3
    assert len({tuple(c["token_ids"]) for c in choices[:3]}) == 3
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33}
    texts = complete(client, prompt=["one", "two"], max_tokens=2, temperature=0)["choices"]
    assert [texts[i]["text"] for i in (0, 1)] == [
        complete(client, prompt=p, max_tokens=2, temperature=0)["choices"][0]["text"] for p in ("one", "two")
    ]


def test_seed_reproduces_and_its_absence_does_not(client: TestClient) -> None:
    def text(**body: object) -> str:
        found: str = complete(client, prompt=[1], max_tokens=20, **body)["choices"][0]["text"]
        return found

    assert text(seed=1) == text(seed=1)
    assert text(seed=1) != text(seed=2)
    assert text() != text()


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.3}, {"top_p": 0.2}, {"top_k": 2}, {"min_p": 0.5}, {"temperature": 0.0}, {"top_k": 10**30}],
)
def test_sampling_fields_reach_the_engine(client: TestClient, model: CausalLM, sampling: dict[str, float]) -> None:
    (choice,) = complete(client, prompt=[9], max_tokens=12, seed=4, return_token_ids=True, **sampling)["choices"]
    params = SamplingParams(max_new_tokens=12, seed=4, **sampling)  # type: ignore[arg-type]
    (wanted,) = SimpleEngine(SimpleEngineConfig(), model).generate([[9]], params)
    assert choice["token_ids"] == wanted.token_ids


def test_logprobs_are_the_models(client: TestClient, model: CausalLM, tokenizer: Tokenizer) -> None:
    (choice,) = complete(client, prompt=[1, 2], max_tokens=5, seed=0, logprobs=0, return_token_ids=True)["choices"]
    ids, shown = choice["token_ids"], choice["logprobs"]
    logprobs = model(torch.tensor([[1, 2, *ids]])).logits[0, 1:-1].log_softmax(-1)
    wanted = logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    assert shown["token_logprobs"] == pytest.approx(wanted, abs=1e-5)
    assert shown["tokens"] == [tokenizer.decode([i]) for i in ids]
    assert shown["text_offset"][0] == 0
    assert shown["text_offset"] == sorted(shown["text_offset"])


def test_stop_strings_cut_the_text_and_the_tokens(client: TestClient) -> None:
    body = {"prompt": [3], "max_tokens": 20, "seed": 5, "return_token_ids": True}
    (whole,) = complete(client, **body)["choices"]
    text = whole["text"]
    stop = text[8:10]
    answer = complete(client, **body, stop=["never there", stop], logprobs=0)
    (choice,) = answer["choices"]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
    count = len(choice["token_ids"])
    assert 0 < count < 20
    assert choice["token_ids"] == whole["token_ids"][:count]
    assert len(choice["logprobs"]["token_logprobs"]) == answer["usage"]["completion_tokens"] == count
    assert complete(client, **body, stop="never there")["choices"] == [whole]


def test_a_stop_string_ends_the_generation_of_its_own_sequence_only(
    client: TestClient, model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": [3], "max_tokens": 20, "seed": 5, "n": 2, "return_token_ids": True}
    first, second = complete(client, **body)["choices"]
    stop = next(c for c in first["text"] if c not in second["text"])
    fed: list[int] = []
    hidden = model.hidden

    def counted(tokens_T: torch.Tensor, *args: Any) -> Any:
        fed.append(len(tokens_T))
        return hidden(tokens_T, *args)

    monkeypatch.setattr(model, "hidden", counted)
    ended, whole = complete(client, **body, stop=stop)["choices"]
    count = len(ended["token_ids"])
    assert 0 < count < 20
    assert fed == [2] * count + [1] * (20 - count)  # it fed no token after the stop string
    assert ended["text"] == first["text"][: first["text"].index(stop)]
    assert whole == second


def test_the_stop_string_that_is_complete_first_counts(client: TestClient) -> None:
    body = {"prompt": [3], "max_tokens": 20, "seed": 5}
    text = complete(client, **body)["choices"][0]["text"]
    at = next(i for i in range(5, 20) if text[i] not in text[:i])
    (choice,) = complete(client, **body, stop=[text[at - 1 : at + 4], text[at]])["choices"]
    assert choice["text"] == text[:at]
    (choice,) = complete(client, **body, stop=[text[at], text[at - 2 : at + 1]])["choices"]  # complete at one token
    assert choice["text"] == text[: at - 2]


def test_stop_tokens_end_the_sequence(client: TestClient) -> None:
    body = {"prompt": [3], "max_tokens": 20, "seed": 5, "return_token_ids": True}
    (whole,) = complete(client, **body)["choices"]
    stop = whole["token_ids"][4]
    (choice,) = complete(client, **body, stop_token_ids=[stop])["choices"]
    assert choice["token_ids"] == whole["token_ids"][: whole["token_ids"].index(stop) + 1]
    assert choice["finish_reason"] == "stop"


def test_end_of_text_ends_and_is_not_shown(tokenizer: Tokenizer) -> None:
    model = small_model(vocab_size=TOKENIZER_SIZE)
    first = greedy(model, [1], 1)[0]
    head = model.lm_head.weight.data
    head[[first, tokenizer.eos_id]] = head[[tokenizer.eos_id, first]]
    app = create_app(SimpleEngine(SimpleEngineConfig(), model), tokenizer, model.config, "small")
    with TestClient(app) as client:
        answer = complete(client, prompt=[1], temperature=0)
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, TOKENIZER_SIZE]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": ["a", "\ud800"]}, "prompt"),
        ({"prompt": [1], "stream": True}, "stream"),
        ({"prompt": [1], "max_token": 5}, "max_token"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens"),
        ({"prompt": [1], "max_tokens": 128}, "max_tokens"),
        ({"prompt": [1], "max_tokens": 10**30}, "max_tokens"),
        ({"prompt": [1], "max_tokens": "5"}, "max_tokens"),
        ({"prompt": [1], "temperature": -1}, "temperature"),
        ({"prompt": [1], "temperature": float("nan")}, "temperature"),
        ({"prompt": [1], "temperature": float("inf")}, "temperature"),
        ({"prompt": [1], "top_p": 0}, "top_p"),
        ({"prompt": [1], "top_k": -1}, "top_k"),
        ({"prompt": [1], "min_p": 2}, "min_p"),
        ({"prompt": [1], "seed": -1}, "seed"),
        ({"prompt": [1], "seed": 2**63}, "seed"),
        ({"prompt": [1], "n": 0}, "n"),
        ({"prompt": [1], "n": 7}, "n"),
        ({"prompt": [1], "logprobs": 5}, "logprobs"),
        ({"prompt": [1], "logprobs": True}, "logprobs"),
        ({"prompt": [1], "stop": ""}, "stop"),
        ({"prompt": [1], "stop": ["a"] * 5}, "stop"),
        ({"prompt": [1], "stop": "\ud800"}, "stop"),
        ({"prompt": [1], "stop_token_ids": [10**9]}, "stop_token_ids"),
    ],
)
def test_bad_fields_are_refused_by_name(client: TestClient, body: dict[str, object], param: str) -> None:
    response = client.post(URL, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code == 422, response.text
    problem = response.json()["error"]
    assert problem["param"] == param
    assert problem["type"] == "invalid_request_error"
    assert problem["message"].startswith(f"{param}: ")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"text"', b"\xff", b'{"prompt": "a", "\\ud800": 1}'])
def test_bodies_that_are_no_request(client: TestClient, content: bytes) -> None:
    response = client.post(URL, content=content, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_unknown_model_and_path_have_the_same_shape(client: TestClient) -> None:
    assert "'small'" in refused(client, 404, model="large", prompt="a")["message"]
    response = client.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "Not Found"


def test_a_broken_model_is_our_fault_and_the_server_goes_on(tokenizer: Tokenizer) -> None:
    model = small_model(vocab_size=TOKENIZER_SIZE)
    app = create_app(SimpleEngine(SimpleEngineConfig(), model), tokenizer, model.config, "small")
    with TestClient(app, raise_server_exceptions=False) as client:
        good = model.lm_head.weight.detach().clone()
        model.lm_head.weight.data.fill_(float("nan"))
        assert "not finite" in refused(client, 500, prompt=[1])["message"]
        model.lm_head.weight.data.copy_(good)
        assert complete(client, prompt=[1])["choices"]
