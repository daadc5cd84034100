"""An engine with weights of its own, its trainer, and what they say to each other."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save

from arcforge_core import save_pretrained
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.engine_suite import continuation_logits
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.server.app import create_app
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.shared.state import ServerState
from support.servers import LOCAL

ADMIN, USER = {"Authorization": "Bearer admin-key"}, {"Authorization": "Bearer users-key"}
KEYS = {USER_KEYS: "users-key,other-key", ADMIN_KEYS: "admin-key"}
PROMPT = list(range(2, 22))
State = dict[str, torch.Tensor]


def trainer(seed: int) -> CausalLM:
    return small_model(seed, vocab_size=TOKENIZER_SIZE)


def state_of(model: CausalLM) -> State:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def server(tmp_path: Path) -> ServerState:
    engine = PagedEngine(PagedEngineConfig(page_size=4, max_running=4, cache_tokens=1024), trainer(0))
    state = ServerState(engine, small_tokenizer(), "small")
    state.guard, state.weights_root = Guard.of(ServeConfig(PagedEngineConfig()), KEYS), tmp_path / "root"
    state.weights_root.mkdir()
    save_pretrained(trainer(1), state.weights_root / "new")
    return state


@pytest.fixture
def client(server: ServerState) -> Iterator[TestClient]:
    with TestClient(create_app(server), LOCAL, headers=ADMIN) as client:
        yield client


def slow_down(server: ServerState, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.02) -> None:
    original = server.engine.model.embed

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return original(*args)

    monkeypatch.setattr(server.engine.model, "embed", slow)


def control(client: TestClient, route: str, status: int = 200, **body: Any) -> dict[str, Any]:
    response = client.post(f"/v1/rl/{route}", json=body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def upload(client: TestClient, content: bytes, status: int = 200, **query: Any) -> dict[str, Any]:
    response = client.post("/v1/rl/update_weights/tensors", content=content, params=query)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def complete(client: TestClient, prompt: list[int] = PROMPT, count: int = 8, **body: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 0, "return_token_ids": True, **body}
    response = client.post("/v1/completions", json={"ignore_eos": True, **body}, headers=USER)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def assert_of(model: CausalLM, choice: dict[str, Any], prompt: list[int] = PROMPT) -> None:
    """Tokens and log-probs are those of the trainer's forward pass."""
    logits_SV = continuation_logits(model, prompt, choice["token_ids"])
    assert choice["token_ids"] == logits_SV.argmax(-1).tolist()
    wanted_S = logits_SV.log_softmax(-1).gather(1, torch.tensor(choice["token_ids"])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(choice["logprobs"]["token_logprobs"]), wanted_S, atol=1e-5, rtol=0)


def in_background(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


GOOD = save(state_of(trainer(1)))


def assert_as_before(client: TestClient, server: ServerState, version: int = 0) -> None:
    choice = complete(client)
    assert choice["weight_versions"] == [[version, 8]]
    assert_of(trainer(0), choice)
    assert client.get("/v1/rl/status").json()["operation"] is None
    assert not list(Path(tempfile.gettempdir()).glob("arcforge-weights-*"))
    server.engine.check()
