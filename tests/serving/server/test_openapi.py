"""Requests made from the OpenAPI document, good and bad ones: none is a fault of ours, and replies are as it says."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from arcforge_core.checkpoint.reward_model import RewardModel
from arcforge_core.ops.dispatch import default_ops
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_serving.server.app import create_app
from support.policies import save_scorer
from support.servers import small_state

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def api(tokenizer, tmp_path_factory):
    state = small_state(tokenizer, small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=64))
    state.reward = RewardModel(save_scorer(tmp_path_factory.mktemp("scorer")), default_ops())
    state.engine.start()
    yield schemathesis.openapi.from_asgi("/openapi.json", create_app(state))
    state.engine.close()


def statuses_of(operation, mode):
    """Returns what requests made from an operation are answered with; right ones have a few fields each."""
    statuses, fields = set(), ["prompt"]
    claude = operation.path.startswith("/v1/messages")
    needed = {"prompt", "messages", "tokens", "input"} | ({"max_tokens"} if claude else set())
    if operation.body:
        document = operation.schema.raw_schema
        content = document["paths"][operation.path]["post"]["requestBody"]["content"]
        if "application/json" in content:
            name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
            fields += document["components"]["schemas"][name]["properties"]

    @settings(
        max_examples=max(12, settings.default.max_examples // 8),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), kept=st.sets(st.sampled_from(fields), max_size=3))
    def ask(case, kept):
        if isinstance(case.body, dict):  # what is right would only take long
            if mode is GenerationMode.POSITIVE:
                case.body = {key: case.body[key] for key in case.body if key in kept | needed}
                if claude:  # it must be given, and cannot be guessed
                    case.body["model"] = "small"
                for path, field in (("/tokenize", "prompt"), ("/pooling", "input")):  # what few draws have by chance
                    if operation.path == path and not {field, "messages"} & {n for n in case.body if case.body[n]}:
                        case.body = {field: "a"}
                if operation.path == "/v1/chat/completions" and not case.body.get("messages"):  # most have none
                    case.body["messages"] = [{"role": "user", "content": "a"}]
            for name, most in (("n", 2), ("max_tokens", 3), ("max_completion_tokens", 3), ("max_output_tokens", 3)):
                if isinstance(case.body.get(name), int):
                    case.body[name] = min(case.body[name], most)
        statuses.add(case.call_and_validate(checks=CHECKS).status_code)

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE and not operation.body  # takes nothing that could be wrong
    return statuses


@pytest.mark.slow(reason="hundreds of requests")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_a_fault_of_ours(api, mode):
    operations = [found.ok() for found in api.get_all_operations()]
    assert len(operations) >= 8
    for operation in operations:
        statuses = statuses_of(operation, mode)
        if operation.path.startswith("/v1/rl"):
            assert statuses <= {403}  # there is no admin's key
        elif operation.body:
            assert (200 if mode is GenerationMode.POSITIVE else 400) in statuses, operation.path


def test_the_document_names_the_routes(api):
    document = api.raw_schema
    assert {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}", "/tokenize", "/detokenize",
        "/health", "/ready", "/v1/responses", "/v1/responses/{id}", "/v1/messages", "/v1/messages/count_tokens",
    } <= set(document["paths"])  # fmt: skip
    replies = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert set(replies["200"]["content"]) == {"application/json", "text/event-stream"}
    for path, error in (("/v1/chat/completions", "ErrorBody"), ("/v1/messages", "AnthropicError")):
        replies = document["paths"][path]["post"]["responses"]
        assert replies["400"]["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{error}"}
    assert "422" not in replies
