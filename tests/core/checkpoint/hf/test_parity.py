"""Logits of transformers and ours on the same directory, written by either."""

import datetime
import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from arcforge_core import load_pretrained
from arcforge_core.checkpoint.hf import ARCHITECTURES, export_hf
from arcforge_core.config.schema import RopeScalingConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_config
from support.hf_models import TOP_K, hf_configs, randomise

pytest.importorskip("arcforge_attention")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow(reason="imports transformers and builds dozens of its models")

TOLERANCE = 1e-4
SEED_NAME = "ARCFORGE_PARITY_SEED"
SEED_OF_DAY = int(os.environ.get(SEED_NAME) or datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
"""Of the drawn configurations: other ones every day."""
LENGTHS = (TOP_K, 13)  # below and above the indexer's top-k
REFERENCE = Ops(None)  # any size; kernels want aligned rows


@pytest.fixture(autouse=True, scope="module")
def quiet():
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def open_theirs(folder):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    return model.eval(), report


def largest_difference(ours, theirs, seed=0):
    generator, differences = torch.Generator().manual_seed(seed), []
    for length in LENGTHS:
        ids_BS = torch.randint(ours.config.vocab_size, (2, length), generator=generator)
        with torch.no_grad():
            differences.append(float((ours(ids_BS).logits - theirs(ids_BS).logits).abs().max()))
    return max(differences)


def small(variant, seed=0, options=None, **sizes):
    attention = registry().get("attention", variant).load_schema()(**options or {})
    model = build_model(small_config(**sizes), attention, REFERENCE).eval()
    randomise(model, seed)
    return model


@pytest.fixture
def seed_of_day(capsys):
    """Says how to draw the same configurations on another day."""
    with capsys.disabled():
        print(f"\n{SEED_NAME}={SEED_OF_DAY} repeats this test's configurations")


@pytest.mark.usefixtures("seed_of_day")
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@seed(SEED_OF_DAY)
@settings(  # shrinking would take minutes; one call of the fixture serves all examples
    max_examples=10, database=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_both_directions(architecture, data):
    config, attention = data.draw(hf_configs(architecture))
    note(f"{SEED_NAME}={SEED_OF_DAY}: {config} {attention}")
    number = data.draw(st.integers(0, 99))
    ours = build_model(config, attention, REFERENCE).eval()
    randomise(ours, number)
    with tempfile.TemporaryDirectory() as folder:
        export_hf(ours, Path(folder) / "ours", architecture)
        theirs, report = open_theirs(Path(folder) / "ours")
        assert not report["missing_keys"] and not report["mismatched_keys"]
        mtp = f"model.layers.{config.num_hidden_layers}."
        assert all(name.startswith(mtp) for name in report["unexpected_keys"])
        assert largest_difference(ours, theirs, number) <= TOLERANCE

        again = load_pretrained(Path(folder) / "ours", ops=REFERENCE)
        assert (again.config, again.attention) == (ours.config, ours.attention)
        before, after = ours.state_dict(), again.state_dict()
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)

        randomise(theirs, number + 1)
        del theirs.config.arcforge  # as from somebody who has never heard of us
        theirs.save_pretrained(Path(folder) / "theirs")
        again = load_pretrained(Path(folder) / "theirs", ops=REFERENCE)
        assert largest_difference(again, theirs, number) <= TOLERANCE


@pytest.mark.parametrize("architecture", ["deepseek_v3", "glm4_moe_lite"])
def test_half_split_rope_of_mla(architecture, tmp_path):
    """`rope_interleave` is a flag; we write true and read both."""
    export_hf(small("mla"), tmp_path / "ours", architecture)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours", rope_interleave=False)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomise(theirs, 1)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs", ops=REFERENCE)
    assert largest_difference(ours, theirs) <= TOLERANCE
    theirs.config.rope_interleave = True
    assert largest_difference(ours, theirs) > 1e-2


@pytest.mark.parametrize("attention", ["mla", "reference"])
def test_yarn_of_the_deepseek_v3_release(attention, tmp_path):
    """Its softmax is sharpened for whole heads, its rotated part is not stretched in length."""
    scaling = RopeScalingConfig("yarn", 40.0, 16, mscale=1.0, mscale_all_dim=1.0)
    ours = small(attention, rope_scaling=scaling)
    export_hf(ours, tmp_path / "ours", "deepseek_v3")
    theirs, _ = open_theirs(tmp_path / "ours")
    assert theirs.model.layers[0].self_attn.scaling == pytest.approx(16**-0.5 * 1.3688879454113936**2)
    assert theirs.model.rotary_emb.attention_scaling == 1.0
    assert largest_difference(ours, theirs) <= TOLERANCE
    assert largest_difference(load_pretrained(tmp_path / "ours", ops=REFERENCE), theirs) <= TOLERANCE
    theirs.model.layers[0].self_attn.scaling = 16**-0.5
    assert largest_difference(ours, theirs) > 1e-2


def test_experts_stacked_as_in_memory(tmp_path):
    export_hf(small("dsa", index_n_heads=32), tmp_path / "ours")
    theirs, _ = open_theirs(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs", save_original_format=False)
    ours = load_pretrained(tmp_path / "theirs", ops=REFERENCE)
    assert largest_difference(ours, theirs) <= TOLERANCE


def test_shards_and_bfloat16(tmp_path):
    ours = small("gqa").to(torch.bfloat16)
    export_hf(ours, tmp_path / "ours", max_shard_bytes=5_000)
    assert len(list((tmp_path / "ours").glob("model-*.safetensors"))) > 3
    theirs, report = open_theirs(tmp_path / "ours")
    assert theirs.dtype == torch.bfloat16 and not report["missing_keys"]
    again = load_pretrained(tmp_path / "ours", ops=REFERENCE).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_no_shared_expert_is_one_of_width_zero(tmp_path):
    ours = small("mla", n_shared_experts=0)
    export_hf(ours, tmp_path / "ours")
    theirs, _ = open_theirs(tmp_path / "ours")
    assert largest_difference(ours, theirs) <= TOLERANCE


@pytest.mark.parametrize(("variant", "architecture"), [("mla", "deepseek_v3"), ("gqa", "glm4_moe")])
def test_mtp_module_is_theirs(variant, architecture, tmp_path, monkeypatch):
    from transformers.modeling_layers import MtpModel

    options = {"qk_norm": True} if variant == "gqa" else None
    ours = small(variant, options=options, num_hidden_layers=2)
    export_hf(ours, tmp_path / "ours", architecture)
    theirs, _ = open_theirs(tmp_path / "ours")
    # it finds the module by a list of the released models' layer numbers
    monkeypatch.setattr(theirs, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.2.*"])
    [layer] = MtpModel.from_pretrained(theirs).eval().layers
    ids_T, hidden_TD = torch.randint(64, (9,)), torch.randn(9, 32)
    batch, positions = SequenceBatch.build([9]), torch.arange(9)[None]
    mask = torch.full((9, 9), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        embedding_TD = ours.embed(ids_T)
        tables = theirs.model.rotary_emb(embedding_TD[None], positions)
        wanted_TD = layer(embedding_TD[None], hidden_TD[None], tables, mask, positions, None)
        wanted_TD = wanted_TD[0] if isinstance(wanted_TD, tuple) else wanted_TD
        got_TD = ours.mtp.step(embedding_TD, hidden_TD, batch, ours.rope(batch)).x_TD
    torch.testing.assert_close(got_TD, wanted_TD.view(9, 32), rtol=0, atol=TOLERANCE)
