import pytest
import torch

from arcforge_core.model.init import init_weights
from arcforge_core.testing.small_models import small_model


@pytest.fixture(scope="module")
def model():
    return small_model(hidden_size=96, intermediate_size=128, num_hidden_layers=8, initializer_range=0.02)


def test_matrices_are_normal_with_the_configured_deviation(model):
    residual = (2 * 8) ** 0.5
    seen = set()
    for name, parameter in model.state_dict().items():
        if parameter.ndim < 2:
            continue
        writes_residual = "o_proj" in name or "down_proj" in name
        seen.add(writes_residual)
        expected = 0.02 / residual if writes_residual else 0.02
        error = 4 / parameter.numel() ** 0.5  # four standard errors
        assert float(parameter.std()) == pytest.approx(expected, rel=error), name
        assert abs(float(parameter.mean())) < expected * error, name
    assert seen == {True, False}


def test_norms_start_at_one_and_the_router_bias_at_zero(model):
    vectors = {name: p for name, p in model.named_parameters() if p.ndim < 2}
    assert vectors and all(torch.equal(p, torch.ones_like(p)) for p in vectors.values())
    buffers = dict(model.named_buffers())
    assert buffers and not any(b.any() for b in buffers.values())


def test_biases_start_at_zero():
    layer = torch.nn.LayerNorm(5)
    torch.nn.init.normal_(layer.bias)
    init_weights(layer, small_model().config)
    assert torch.equal(layer.bias, torch.zeros(5)) and torch.equal(layer.weight, torch.ones(5))


def test_modules_draw_their_own_weights_after_all_others():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.rate = torch.nn.Linear(40, 40), torch.nn.Parameter(torch.zeros(3))

        def init_own_weights(self):
            assert float(self.inner.weight.std()) == pytest.approx(0.2, rel=0.2)
            self.rate.fill_(7.0)

    layer = Own()
    init_weights(layer, small_model().config)
    assert layer.rate.tolist() == [7.0] * 3 and not layer.inner.bias.any()


def test_the_seed_decides_the_weights():
    first, same, other = (small_model(seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_the_first_loss_is_near_the_uniform_one():
    model = small_model(initializer_range=0.02)
    with torch.no_grad():
        logits = model(torch.randint(64, (4, 16))).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(64, (64,)))
    assert float(loss) == pytest.approx(torch.tensor(64.0).log().item(), abs=0.05)
