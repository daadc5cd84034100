"""Answers written after the shapes in vLLM 0.32's and SGLang 0.5.23's sources, and what an output is made of them."""

import json

import pytest
from fastapi.responses import JSONResponse

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_serving.engine.errors import RemoteError

PARAMS = SamplingParams(max_new_tokens=4, temperature=0.0, top_logprobs=2, prompt_logprobs=True, stop_token_ids=(9,))


def vllm(**changes):
    """A reply of ``/inference/v1/generate`` to the prompt 1, 2, 3; the sampled token comes first of the likeliest."""
    entries = [
        {"token_id": 7, "logprob": -1.5, "rank": 3, "top_logprobs": [
            {"token_id": 7, "logprob": -1.5, "rank": 3}, {"token_id": 5, "logprob": -0.5, "rank": 1},
            {"token_id": 6, "logprob": -1.0, "rank": 2}]},
        {"token_id": 9, "logprob": -0.25, "rank": 1, "top_logprobs": [
            {"token_id": 9, "logprob": -0.25, "rank": 1}, {"token_id": 4, "logprob": -2.0, "rank": 2}]},
    ]  # fmt: skip
    choice = {
        "index": 0, "finish_reason": "stop", "stop_reason": 9, "token_ids": [7, 9], "routed_experts": None,
        "sampling_mask": None, "logprobs": {"content": entries},
        "weight_versions": [{"version": "4", "start": 0, "end": 1}, {"version": "5", "start": 1, "end": 2}],
    }  # fmt: skip
    prompt = [
        None,
        {"2": {"logprob": -3.0, "rank": 9, "decoded_token": None}, "8": {"logprob": -0.75, "rank": 1}},
        {"3": {"logprob": -0.125, "rank": 1}, "1": {"logprob": -4.0, "rank": 2}},
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 2}}
    return {"request_id": "a", "choices": [{**choice, **changes}], "prompt_logprobs": prompt, "usage": usage}


def sglang(**changes):
    """A reply of ``/generate`` to the same; ``output_ids`` lacks the token that ended it."""
    meta = {
        "id": "a", "finish_reason": {"type": "stop", "matched": 9}, "prompt_tokens": 3, "weight_version": "5",
        "total_retractions": 0, "completion_tokens": 2, "cached_tokens": 2, "e2e_latency": 0.1,
        "weight_versions": [{"version": "4", "start": 0, "end": 1}, {"version": "5", "start": 1, "end": 2}],
        "input_token_logprobs": [[None, 1, None], [-3.0, 2, None], [-0.125, 3, None]],
        "input_top_logprobs": [None, [[-0.75, 8, None], [-3.0, 2, None]], [[-0.125, 3, None], [-4.0, 1, None]]],
        "output_token_logprobs": [[-1.5, 7, None], [-0.25, 9, None]],
        "output_top_logprobs": [[[-0.5, 5, None], [-1.0, 6, None]], [[-0.25, 9, None], [-2.0, 4, None]]],
    }  # fmt: skip
    return {"text": "", "output_ids": [7], "meta_info": {**meta, **changes}}


REPLY = {"vllm": vllm, "sglang": sglang}


def ask(fake, engine, reply, params=PARAMS):
    fake.faults.append(JSONResponse(reply))
    return engine.generate([[1, 2, 3]], params)[0]


def test_an_output_of_it(kind, fake, engine):
    output = ask(fake, engine, REPLY[kind]())
    assert (output.token_ids, output.logprobs, output.finish_reason) == ([7, 9], [-1.5, -0.25], "stop")
    assert output.top_logprobs == [[(5, -0.5), (6, -1.0)], [(9, -0.25), (4, -2.0)]]
    assert output.prompt_logprobs == [-3.0, -0.125]
    assert output.prompt_top_logprobs == [[(8, -0.75), (2, -3.0)], [(3, -0.125), (1, -4.0)]]
    assert (output.weight_versions, output.weight_version, output.oldest_version) == ([(4, 1), (5, 1)], 5, 4)
    assert output.cached_tokens == 2


def test_what_is_sent(kind, fake, engine):
    params = SamplingParams(5, 1.0, 0.9, 8, 0.1, (9,), 11, presence_penalty=0.5, logit_bias={3: 2.0})
    ask(fake, engine, REPLY[kind](), params)
    path, content = fake.calls[-1]
    body = json.loads(content)
    given = body["sampling_params"]
    assert body["token_ids" if kind == "vllm" else "input_ids"] == [1, 2, 3]
    common = {"temperature": 1.0, "top_p": 0.9, "top_k": 8, "min_p": 0.1, "presence_penalty": 0.5}
    assert {name: given[name] for name in common} == common
    assert given["logit_bias"] == {"3": 2.0} and given["stop_token_ids"] == [9]
    if kind == "vllm":
        assert path == "/inference/v1/generate" and "model" not in body
        assert (given["max_tokens"], given["seed"], given["ignore_eos"], given["logprobs"]) == (5, 11, True, 0)
        assert given["prompt_logprobs"] is None
    else:
        assert path == "/generate" and body["return_logprob"] is True and body["logprob_start_len"] == -1
        assert (given["max_new_tokens"], given["sampling_seed"], given["ignore_eos"]) == (5, 11, False)


def test_a_name_for_the_model(kind, fake, make):
    if kind == "vllm":
        ask(fake, make(served_name="glm"), vllm())
        assert json.loads(fake.calls[-1][1])["model"] == "glm"


@pytest.mark.parametrize(("given", "reason"), [("length", "length"), ("abort", "abort")])
def test_other_ends(kind, fake, engine, given, reason):
    changes = {"finish_reason": given if kind == "vllm" else {"type": given, "length": 2, "message": "Aborted"}}
    assert ask(fake, engine, REPLY[kind](**changes)).finish_reason == reason


def test_stop_functions_cut_afterwards(kind, fake, engine):
    params = SamplingParams(max_new_tokens=4, should_stop=lambda ids: list(ids) == [7], stop_token_ids=(9,))
    output = ask(fake, engine, REPLY[kind](), params)
    assert (output.token_ids, output.logprobs, output.weight_versions) == ([7], [-1.5], [(4, 1)])
    assert output.finish_reason == "stop"


def test_an_end_that_nobody_asked_for_is_named(kind, fake, engine):
    if kind == "sglang":
        with pytest.raises(ConfigError, match=r"stop_token_ids=\[\]: must hold the model's own end token 9"):
            ask(fake, engine, sglang(), SamplingParams(max_new_tokens=4))


def test_logprobs_that_are_no_numbers(kind, fake, engine):
    reply = REPLY[kind]()
    if kind == "vllm":
        reply["choices"][0]["logprobs"]["content"][1]["logprob"] = -9999.0
    else:
        reply["meta_info"]["output_token_logprobs"][1][0] = -9999.0
    with pytest.raises(CheckpointError, match="not finite"):
        ask(fake, engine, reply)


@pytest.mark.parametrize("reply", [{}, [], {"choices": [], "meta_info": {}}, None])
def test_another_shape(kind, fake, engine, reply):
    with pytest.raises(RemoteError, match="another shape"):
        ask(fake, engine, reply)


def test_fields_that_it_cannot_do(kind, make, fake):
    engine = make() if kind == "vllm" else make(original_logprobs=False)
    before = len(fake.calls)
    for changes, name in (
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 2.5}, "repetition_penalty"),
        ({"logit_bias": {3: 101.0}}, r"logit_bias\[3\]"),
        ({"temperature": 0.5}, "temperature"),
    ):
        if (kind, name) == ("vllm", "temperature"):
            continue
        with pytest.raises(ConfigError, match=f"^{name}="):
            engine.generate([[1], [2]], [SamplingParams(), SamplingParams(**changes)])
    assert len(fake.calls) == before


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
@pytest.mark.parametrize("original", [True, False])
def test_rollouts_are_refused_at_temperatures_whose_logprobs_a_server_does_not_report(
    kind, make, temperature, original
):
    """RL learns from the sampled distribution; each server reports it under other conditions."""
    engine = make(**({"original_logprobs": original} if kind == "sglang" else {}))
    params = SamplingParams(max_new_tokens=2, temperature=temperature, sampled_logprobs=True)
    if temperature == 1.0 or (kind == "sglang" and not original):
        engine.check(params)
        return
    with pytest.raises(ConfigError, match=f"^temperature={temperature}: .*log-probs"):
        engine.check(params)
