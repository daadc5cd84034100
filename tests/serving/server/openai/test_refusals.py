"""Requests for completions that are refused, with the field and the reason."""

import json

import pytest
from fastapi.testclient import TestClient

from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.server.shared.errors import INVALID, Problem, problem_of
from serving.server.openai.test_completions import URL, complete, refused
from support.servers import client_of, small_state


def test_the_first_field_that_is_wrong_is_named_with_its_own_reason(client: TestClient) -> None:
    problem = refused(client, prompt=[1], temperature=-1, top_p=7)
    assert (problem["param"], problem["message"]) == (
        "temperature", "temperature: Input should be greater than or equal to 0",
    )  # fmt: skip


def test_what_the_engine_refuses_has_the_requests_name() -> None:
    problem = problem_of(ConfigError("max_new_tokens", 9, "must be less"))
    assert (problem.param, problem.message) == ("max_tokens", "max_tokens: must be less")


def test_problems_can_be_written_whatever_a_client_wrote() -> None:
    body = Problem(400, INVALID, "there is no \ud800", "field \udfff").body
    assert json.dumps(body, ensure_ascii=False).encode()
    assert body["error"]["message"] == r"there is no \ud800"


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
        ({"prompt": [1], "stream": 1}, "stream"),
        ({"prompt": [1], "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": [1], "stream": True, "stream_options": {"usage": True}}, "stream_options"),
        ({"prompt": [1], "suffix": "x"}, "suffix"),
        ({"prompt": [1], "best_of": 2}, "best_of"),
        ({"prompt": [1], "max_token": 5}, "max_token"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens"),
        ({"prompt": [1], "max_tokens": 1024}, "max_tokens"),
        ({"prompt": [1], "max_tokens": 10**30}, "max_tokens"),
        ({"prompt": [1], "max_tokens": "5"}, "max_tokens"),
        ({"prompt": [1], "temperature": -1}, "temperature"),
        ({"prompt": [1], "temperature": float("nan")}, "temperature"),
        ({"prompt": [1], "temperature": float("inf")}, "temperature"),
        ({"prompt": [1], "top_p": 0}, "top_p"),
        ({"prompt": [1], "top_k": -2}, "top_k"),
        ({"prompt": [1], "presence_penalty": -2.1}, "presence_penalty"),
        ({"prompt": [1], "frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"prompt": [1], "repetition_penalty": 0}, "repetition_penalty"),
        ({"prompt": [1], "repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"prompt": [1], "logit_bias": {"one": 1}}, "logit_bias"),
        ({"prompt": [1], "logit_bias": {"5000": 1}}, "logit_bias"),
        ({"prompt": [1], "logit_bias": {"-1": 1}}, "logit_bias"),
        ({"prompt": [1], "logit_bias": {"1": float("nan")}}, "logit_bias"),
        ({"prompt": [1], "logit_bias": {"1": 101}}, "logit_bias"),
        ({"prompt": [1], "priority": 101}, "priority"),
        ({"prompt": [1], "user": 5}, "user"),
        ({"prompt": [1] * 1024}, "prompt"),
        ({"prompt": [1], "min_p": 2}, "min_p"),
        ({"prompt": [1], "seed": -(2**63) - 1}, "seed"),
        ({"prompt": [1], "seed": 2**63}, "seed"),
        ({"prompt": [1], "n": 0}, "n"),
        ({"prompt": [1], "n": 129}, "n"),
        ({"prompt": [[1]] * 20, "n": 52}, "n"),
        ({"prompt": [1], "logprobs": 21}, "logprobs"),
        ({"prompt": [1], "logprobs": True}, "logprobs"),
        ({"prompt": [1], "stop": ""}, "stop"),
        ({"prompt": [1], "stop": "a" * 1001}, "stop"),
        ({"prompt": [1], "stop": ["a"] * 17}, "stop"),
        ({"prompt": [1], "stop": "\ud800"}, "stop"),
        ({"prompt": [1], "stop_token_ids": [10**9]}, "stop_token_ids"),
    ],
)
def test_bad_fields_are_refused_by_name(client: TestClient, body: dict[str, object], param: str) -> None:
    response = client.post(URL, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    problem = response.json()["error"]
    assert problem["param"] == param
    assert problem["type"] == "invalid_request_error"
    assert problem["message"].startswith(
        (f"{param}: ", "This model's maximum context length is 1024 tokens. However, ")
    )


def test_the_context_overflows_with_its_numbers(client: TestClient) -> None:
    problem = refused(client, prompt=[1] * 1000, max_tokens=30)
    assert (problem["code"], problem["param"]) == ("context_length_exceeded", "max_tokens")
    assert problem["message"] == (
        "This model's maximum context length is 1024 tokens. However, the prompt has 1000 tokens and 30 of output are "
        "wanted."
    )
    assert complete(client, prompt=[1] * 1000, max_tokens=24)["choices"]


def test_null_counts_as_not_given_and_harmless_fields_are_taken(client: TestClient) -> None:
    body = {"prompt": [5], "max_tokens": 4, "temperature": 0}
    plain = complete(client, **body)["choices"]
    nulls = dict.fromkeys(("stop", "n", "seed", "logprobs", "stream", "logit_bias", "suffix"))
    harmless = {"metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "x"}
    assert complete(client, **body, **nulls, **harmless, prompt_cache_key="k")["choices"] == plain


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"prompt": [1], "n": ' + b"9" * 9999 + b"}",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b'{"prompt": "a", "\\ud800": 1}',
    ],
)
def test_bodies_that_are_no_request(client: TestClient, content: bytes) -> None:
    response = client.post(URL, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_an_error_says_what_is_accepted(client: TestClient) -> None:
    assert refused(client, prompt=5)["message"] == "prompt: Input should be a valid string; a valid list"
    problem = refused(client, prompt=[1], max_token=5)
    assert problem["message"] == "max_token: this server does not know the field"
    problem = refused(client, prompt=[1], structured_outputs={"json": {}, "xml": "a"})
    assert problem["message"] == "structured_outputs: this server does not know the field (at structured_outputs.xml)"


def test_malformed_bodies_and_odd_names_are_told(client: TestClient) -> None:
    for content, param, message in (
        (b"{", None, "body: JSON decode error"),
        (b'{"prompt": [1], "a-b c": 1}', "a-b c", "a-b c: this server does not know the field"),
    ):
        problem = client.post(URL, content=content, headers={"content-type": "application/json"}).json()["error"]
        assert (problem["param"], problem["message"]) == (param, message)


def test_unknown_model_and_path_have_the_same_shape(client: TestClient) -> None:
    assert "'small'" in refused(client, 404, model="large", prompt="a")["message"]
    response = client.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "Not Found"


def test_a_broken_model_is_our_fault_and_the_server_goes_on(tokenizer: Tokenizer) -> None:
    model = small_model(vocab_size=TOKENIZER_SIZE)
    with client_of(small_state(tokenizer, model)) as client:
        good = model.lm_head.weight.detach().clone()
        model.lm_head.weight.data.fill_(float("nan"))
        assert "not finite" in refused(client, 500, prompt=[1])["message"]
        model.lm_head.weight.data.copy_(good)
        assert complete(client, prompt=[1])["choices"]
