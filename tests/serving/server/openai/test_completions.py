import json
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_core.tokenizer.tokenizer import Tokenizer
from support.servers import client_of, small_state

URL = "/v1/completions"


def complete(client: TestClient, **body: object) -> dict[str, Any]:
    response = client.post(URL, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(client: TestClient, status: int = 400, **body: object) -> dict[str, Any]:
    response = client.post(URL, json=body)
    assert response.status_code == status, response.text
    problem: dict[str, Any] = response.json()["error"]
    assert problem.keys() == {"message", "type", "param", "code"}
    return problem


def greedy(model: CausalLM, ids: list[int], count: int) -> list[int]:
    out: list[int] = model.generate([ids], max_new_tokens=count)[0, len(ids) :].tolist()
    return out


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
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
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
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 30,
        "total_tokens": 33,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }
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
    embed = model.embed

    def counted(tokens_T: torch.Tensor) -> torch.Tensor:
        fed.append(len(tokens_T))
        return embed(tokens_T)

    monkeypatch.setattr(model, "embed", counted)
    ended, whole = complete(client, **body, stop=stop)["choices"]
    count = len(ended["token_ids"])
    assert 0 < count < 20
    assert fed[:count] == [2] * count
    assert fed[count + 1 :] == [1] * (19 - count)  # an engine that looks ahead feeds one token after the stop string
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
    with client_of(small_state(tokenizer, model)) as client:
        answer = complete(client, prompt=[1], temperature=0)
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1


def events(client: TestClient, **body: object) -> list[dict[str, Any]]:
    response = client.post(URL, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def near(value: Any) -> Any:
    """Returns what equals a value but for rounding: which sequences share a step depends on when they come."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-5)
    if isinstance(value, list):
        return [near(one) for one in value]
    return {name: near(one) for name, one in value.items()} if isinstance(value, dict) else value


def test_a_stream_is_the_whole_in_pieces(client: TestClient) -> None:
    body = {"prompt": [[3], [4, 5]], "n": 2, "max_tokens": 12, "seed": 5, "logprobs": 2, "return_token_ids": True}
    whole = complete(client, **body, stop=["o", "A"])
    *chunks, last = events(client, **body, stop=["o", "A"], stream_options={"include_usage": True})
    assert last["choices"] == []
    assert {**last["usage"], "prompt_tokens_details": None} == {**whole["usage"], "prompt_tokens_details": None}
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in chunks)
    assert len({chunk["id"] for chunk in (*chunks, last)}) == 1
    for choice in whole["choices"]:
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [id_ for part in parts for id_ in part["token_ids"]] == choice["token_ids"]
        for name, values in choice["logprobs"].items():
            assert [value for part in parts for value in part["logprobs"][name]] == near(values)
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert parts[-1]["weight_versions"] == choice["weight_versions"] == [[0, len(choice["token_ids"])]]
        assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"]
    assert "usage" not in events(client, prompt=[1])[-1]


def test_echo_begins_with_the_prompt(client: TestClient, tokenizer: Tokenizer) -> None:
    body = {"max_tokens": 3, "temperature": 0}
    for prompt in ("one ü", [5, 6, 200, 7]):
        text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
        plain = complete(client, prompt=prompt, **body)["choices"][0]["text"]
        assert complete(client, prompt=prompt, **body, echo=True)["choices"][0]["text"] == text + plain
        parts = [chunk["choices"][0]["text"] for chunk in events(client, prompt=prompt, **body, echo=True)]
        assert "".join(parts) == text + plain
        assert parts[0].startswith(text)


def test_echo_with_log_probs_scores_the_prompt(client: TestClient, model: CausalLM, tokenizer: Tokenizer) -> None:
    ids = [5, 6, 70, 8]
    wanted = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    body = {"prompt": ids, "echo": True, "logprobs": 2, "return_token_ids": True}
    for tokens in (0, 3):
        answer = complete(client, **body, max_tokens=tokens, temperature=0)
        (choice,) = answer["choices"]
        shown = choice["logprobs"]
        assert answer["usage"]["completion_tokens"] == tokens == len(choice["token_ids"])
        assert shown["tokens"][:4] == [tokenizer.decode([i]) for i in ids]
        assert shown["text_offset"][:4] == [0, 1, 2, 3]
        assert shown["token_logprobs"][0] is None
        assert shown["top_logprobs"][0] is None
        chosen = wanted.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        assert shown["token_logprobs"][1:4] == pytest.approx(chosen, abs=1e-5)
        likeliest = wanted.max(-1).values.tolist()  # others may be spelt alike, and share a key
        assert [max(row.values()) for row in shown["top_logprobs"][1:4]] == pytest.approx(likeliest, abs=1e-5)
        assert len(shown["tokens"]) == 4 + tokens
        assert choice["finish_reason"] == "length"
    bare = complete(client, **{**body, "logprobs": 0}, max_tokens=3, temperature=0)["choices"][0]["logprobs"]
    assert bare["token_logprobs"] == shown["token_logprobs"]
    assert [row and list(row.values()) for row in bare["top_logprobs"]] == [
        None if logprob is None else [logprob] for logprob in bare["token_logprobs"]
    ]
    parts = [chunk["choices"][0] for chunk in events(client, **body, max_tokens=3, temperature=0)]
    assert "".join(part["text"] for part in parts) == choice["text"]
    assert [value for part in parts for value in part["logprobs"]["token_logprobs"]] == shown["token_logprobs"]


def test_the_models_own_end_is_passed_with_ignore_eos(tokenizer: Tokenizer) -> None:
    model = small_model(vocab_size=TOKENIZER_SIZE)
    first = greedy(model, [1], 1)[0]
    head = model.lm_head.weight.data
    head[[first, tokenizer.eos_id]] = head[[tokenizer.eos_id, first]]
    with client_of(small_state(tokenizer, model)) as client:
        body = {"prompt": [1], "temperature": 0, "max_tokens": 5, "return_token_ids": True}
        assert complete(client, **body)["choices"][0]["token_ids"] == [tokenizer.eos_id]
        (choice,) = complete(client, **body, ignore_eos=True)["choices"]
        assert len(choice["token_ids"]) == 5
        assert choice["text"] == tokenizer.decode([i for i in choice["token_ids"] if i != tokenizer.eos_id])


def test_penalties_and_biases_reach_the_engine(client: TestClient, model: CausalLM, tokenizer: Tokenizer) -> None:
    body = {"prompt": [9, 10], "max_tokens": 12, "seed": 4, "return_token_ids": True}
    for fields in (
        {"presence_penalty": 2.0},
        {"frequency_penalty": -2.0},
        {"repetition_penalty": 3.0},
        {"logit_bias": {"7": 100, "8": 99.5}},
    ):
        (choice,) = complete(client, **body, **fields)["choices"]
        params: dict[str, Any] = {"max_new_tokens": 12, "seed": 4, "stop_token_ids": (tokenizer.eos_id,), **fields}
        if "logit_bias" in fields:
            params["logit_bias"] = {7: 100.0, 8: 99.5}
        (wanted,) = SimpleEngine(SimpleEngineConfig(), model).generate([[9, 10]], SamplingParams(**params))
        assert choice["token_ids"] == wanted.token_ids


def test_cached_tokens_are_told(client: TestClient) -> None:
    body = {"prompt": [[*range(100, 148)], [*range(50, 98)]], "n": 2, "max_tokens": 1}
    assert complete(client, **body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert complete(client, **body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 64  # of whole pages


def test_any_int64_is_a_seed(client: TestClient) -> None:
    def text(seed: int) -> str:
        found: str = complete(client, prompt=[1, 2], max_tokens=12, seed=seed)["choices"][0]["text"]
        return found

    assert text(-1) == text(2**62 - 1) != text(1)
    assert text(-(2**63)) == text(0)
    assert refused(client, prompt=[1], seed=2**63)["param"] == "seed"


def test_usage_so_far(client: TestClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": [1, 2, 3], "max_tokens": 6, "stream": True, "stream_options": options}
    lines = client.post(URL, json=body).text.split("\n\n")[:-2]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 6 and chunks[-1]["choices"] == []
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {3}


def test_tokens_as_ids(client: TestClient) -> None:
    body = {"prompt": [1, 2], "max_tokens": 4, "logprobs": 2, "return_token_ids": True, "echo": True}
    choice = complete(client, **body, return_tokens_as_token_ids=True)["choices"][0]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{id_}" for id_ in ids]
    assert all(
        f"token_id:{id_}" in top for id_, top in zip(ids, choice["logprobs"]["top_logprobs"], strict=True) if top
    )


def test_least_tokens(client: TestClient, tokenizer: Tokenizer) -> None:
    body: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    plain = complete(client, **body)["choices"][0]
    stop = plain["token_ids"][1]
    assert len(complete(client, **body, stop_token_ids=[stop])["choices"][0]["token_ids"]) == 2
    held = complete(client, **body, stop_token_ids=[stop], min_tokens=5)["choices"][0]
    assert stop not in held["token_ids"][:5] and len(held["token_ids"]) > 5
    problem = refused(client, prompt=[1], max_tokens=4, min_tokens=5)
    assert problem["message"] == "min_tokens: must be at most max_tokens, 4"


def test_stop_strings_are_looked_for_after_the_least_tokens(client: TestClient, tokenizer: Tokenizer) -> None:
    said = [tokenizer.decode([id_]) for id_ in tokenizer.encode("ab ab ab")]
    body: dict[str, Any] = {"prompt": [1], "max_tokens": 32, "stop": ["b"], "guided_choice": ["ab ab ab"]}
    assert complete(client, **body)["choices"][0]["text"] == "a"
    first = next(n for n in range(1, len(said)) if "b" in "".join(said[:n]))
    kept = "".join(said[:first])
    answer = complete(client, **body, min_tokens=first)["choices"][0]["text"]
    assert answer == (kept + "".join(said[first:]).split("b")[0])
    assert len(answer) > 1
