import math

import pytest
import torch

from arcforge_core.config.schema import RopeScalingConfig
from arcforge_core.errors import ConfigError
from arcforge_core.model import rope
from arcforge_core.model.rope import rope_tables, softmax_factor
from arcforge_core.ops import reference

LAST = 202_751


def test_tables_are_right_at_the_last_position():
    dim, theta = 64, 1_000_000.0
    cos, sin = rope_tables(torch.tensor([0, 1, LAST]), dim, theta)
    assert cos.shape == sin.shape == (3, dim // 2) and cos.dtype == sin.dtype == torch.float32
    for row, position in enumerate([0, 1, LAST]):
        for pair in range(dim // 2):
            angle = position * theta ** (-2 * pair / dim)
            assert abs(float(cos[row, pair]) - math.cos(angle)) < 1e-7
            assert abs(float(sin[row, pair]) - math.sin(angle)) < 1e-7


def test_neighbouring_values_are_rotated_together_and_stay_in_place():
    positions, dim = torch.tensor([0, 3, LAST]), 8
    cos, sin = rope_tables(positions, dim, 100.0)
    x_THR = torch.randn(3, 2, dim)
    turned = torch.view_as_complex(x_THR.double().unflatten(-1, (-1, 2)))
    angles = positions.double()[:, None] * 100.0 ** (-torch.arange(0, dim, 2).double() / dim)
    expected = torch.view_as_real(turned * torch.exp(1j * angles)[:, None]).flatten(-2)
    torch.testing.assert_close(reference.rope(x_THR, cos, sin).double(), expected, rtol=0, atol=1e-6)


def test_scores_depend_on_the_distance_alone():
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(query_position: int, key_position: int) -> float:
        turned = [
            reference.rope(x, *rope_tables(torch.tensor([p]), 16, 1e6))
            for x, p in ((q, query_position), (k, key_position))
        ]
        return float((turned[0] * turned[1]).sum())

    assert math.isclose(score(7, 2), score(LAST, LAST - 5), abs_tol=1e-4)
    assert not math.isclose(score(7, 2), score(7, 4), abs_tol=1e-2)


def frequencies(scaling, dim=64, theta=5e5):
    """Angles of position 1, from tables of small angles."""
    cos, sin = rope_tables(torch.tensor([1]), dim, theta, scaling)
    return torch.atan2(sin, cos)[0], (cos**2 + sin**2).sqrt()[0]


STRETCHES = [
    {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    {"type": "llama3", "factor": 32.0, "original_max_position_embeddings": 512, "low_freq_factor": 2.0},
    {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.5},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.5},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4},
]


@pytest.mark.slow(reason="imports transformers")
@pytest.mark.parametrize("fields", STRETCHES)
def test_stretched_frequencies_are_those_of_transformers(fields):
    transformers = pytest.importorskip("transformers")
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    parameters = {**fields, "rope_type": fields["type"], "rope_theta": 5e5, "low_freq_factor": 1.0} | fields
    parameters |= {"high_freq_factor": 4.0} if fields["type"] == "llama3" else {}
    config = transformers.LlamaConfig(head_dim=64, rope_parameters={k: v for k, v in parameters.items() if k != "type"})
    wanted_F, factor = functions[fields["type"]](config, "cpu")
    got_F, length_F = frequencies(RopeScalingConfig(**fields))
    torch.testing.assert_close(got_F, wanted_F, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(length_F, torch.full((32,), factor))
    if fields["original_max_position_embeddings"] > 4:  # at 4, transformers' ramp is empty
        assert not torch.allclose(got_F, frequencies(None)[0], rtol=1e-3)


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.3688879454113936**2),
        ({"type": "yarn", "factor": 40.0, "mscale_all_dim": 0.5, "attention_factor": 3.0}, 1.1844439727056968**2),
        ({"type": "yarn", "factor": 40.0, "mscale": 1.0}, 1.0),
        ({"type": "yarn", "factor": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"type": "llama3", "factor": 40.0, "mscale_all_dim": 1.0}, 1.0),
        ({}, 1.0),
    ],
)
def test_softmax_factor_of_mla(fields, factor):
    assert softmax_factor(RopeScalingConfig(**fields)) == pytest.approx(factor)


def test_no_stretch_is_the_plain_table_bit_for_bit():
    positions = torch.arange(50)
    plain = rope_tables(positions, 16, 1e6)
    assert all(map(torch.equal, rope_tables(positions, 16, 1e6, RopeScalingConfig()), plain))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "yarm"}, "did you mean 'yarn'"),
        ({"factor": 0.5}, "rope_scaling.factor=0.5: must be at least 1"),
        ({"low_freq_factor": 4.0}, "low_freq_factor=4.0: must be above 0 and below high_freq_factor=4.0"),
        ({"beta_slow": 0.0}, "beta_slow=0.0"),
        ({"mscale": -1.0}, "mscale=-1.0"),
    ],
)
def test_impossible_stretches_are_refused(fields, message):
    with pytest.raises(ConfigError) as caught:
        RopeScalingConfig(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize("scaling", [None, RopeScalingConfig(**STRETCHES[0]), RopeScalingConfig(**STRETCHES[2])])
def test_tables_that_a_device_gathers_have_the_host_s_bits(scaling):
    positions_T, limit = torch.tensor([0, 7, 1, LAST - 200_000]), LAST - 199_999
    rows = rope._host_tables(torch.arange(limit), 16, 1e6, scaling)
    assert all(
        torch.equal(table_PF[positions_T], table_TF)
        for table_PF, table_TF in zip(rows, rope_tables(positions_T, 16, 1e6, scaling), strict=True)
    )
    cos_TF, _ = rope_tables(positions_T.to("meta"), 16, 1e6, scaling, limit)
    assert cos_TF.is_meta and cos_TF.shape == (4, 8)  # on its device, without reading a position


def test_tables_that_the_host_gathers_are_those_of_the_positions(monkeypatch):
    """They grow with the highest position, to a power of two at most the limit, and are computed once."""
    monkeypatch.setattr(rope, "_TABLES", {})
    computed, original = [], rope._host_tables
    monkeypatch.setattr(rope, "_host_tables", lambda at, *rest: computed.append(len(at)) or original(at, *rest))
    for positions in ([3, 0, 3], [5, 1], [40, 2], [7], [99]):
        positions_T = torch.tensor(positions)
        with torch.inference_mode():
            found = rope_tables(positions_T, 16, 1e6, None, 100)
        assert all(map(torch.equal, found, original(positions_T, 16, 1e6, None)))
    assert computed == [4, 8, 64, 100]
    (trained_PF, _) = next(iter(rope._TABLES.values()))
    assert not trained_PF.is_inference()
