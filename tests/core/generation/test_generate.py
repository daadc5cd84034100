import pytest
import torch
from torch import Tensor

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.generate import check_request, generate
from arcforge_core.testing.small_models import small_config, small_model


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_bad_parameters_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{field}="):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_bad_requests_are_named() -> None:
    config, params = small_config(), SamplingParams(max_new_tokens=100)
    check_request(config, [1] * 28, params)
    with pytest.raises(ConfigError, match=r"must be at most 99: the prompt has 29 tokens, the model 128 positions"):
        check_request(config, [1] * 29, params)
    with pytest.raises(ConfigError, match="at least one token"):
        check_request(config, [], params)
    with pytest.raises(ConfigError, match=r"prompt=64: token ids must be in \[0, 64\)"):
        check_request(config, [1, 64], params)
    with pytest.raises(ConfigError, match="stop_token_ids=-1"):
        check_request(config, [1], SamplingParams(stop_token_ids=(3, -1)))


def test_the_head_sees_last_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = small_model(), []
    logits = model.logits

    def count(hidden_TD: Tensor) -> Tensor:
        rows.append(hidden_TD.shape[0])
        return logits(hidden_TD)

    monkeypatch.setattr(model, "logits", count)
    generate(model, [[1] * 20, [2] * 30], [SamplingParams(max_new_tokens=3), SamplingParams(max_new_tokens=2)])
    assert rows == [2, 2, 1]  # a finished sequence leaves the batch


def test_each_step_feeds_new_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, fed = small_model(), []
    run_layers = model.run_layers

    def count(x_TD: Tensor, *rest: object) -> object:
        fed.append(len(x_TD))
        return run_layers(x_TD, *rest)

    monkeypatch.setattr(model, "run_layers", count)
    generate(model, [[1] * 20], [SamplingParams(max_new_tokens=4)])
    assert fed == [20, 1, 1, 1]


@pytest.mark.parametrize("training", [True, False])
def test_mode_is_restored_even_after_an_error(training: bool) -> None:
    model = small_model().train(training)
    model.generate([[1, 2]], max_new_tokens=2)
    assert model.training == training
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    with pytest.raises(CheckpointError, match="not finite"):
        model.generate([[1, 2]], max_new_tokens=2)
    assert model.training == training


@pytest.mark.parametrize(
    "nothing", [[], torch.zeros(0, 3, dtype=torch.int64), [1, 2], torch.zeros(3, dtype=torch.int64)]
)
def test_what_is_no_list_of_prompts_is_refused(nothing) -> None:
    with pytest.raises(ConfigError, match="at least one prompt") as error:
        small_model().generate(nothing)
    assert error.value.field == "input_ids"


def test_generate_of_the_model_pads_with_minus_one() -> None:
    model = small_model()
    out = model.generate([[1], [2, 3, 4]], max_new_tokens=5)
    assert out.shape == (2, 8)
    assert out[0, 6:].tolist() == [-1, -1]
    alone = model.generate(torch.tensor([[2, 3, 4]]), max_new_tokens=5)
    assert out[1].tolist() == alone[0].tolist()


def test_sequences_of_one_call_draw_from_seeds_of_their_own() -> None:
    first, second = small_model().generate([[1], [1]], max_new_tokens=20, temperature=1.0).tolist()
    assert first != second
