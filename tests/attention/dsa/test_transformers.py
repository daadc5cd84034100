"""A whole DSA model beside transformers' `glm_moe_dsa`: logits however the tokens are fed, and greedy text."""

import pytest
import torch

from arcforge_attention.configs import DsaConfig
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.config.schema import MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.build import build_model
from arcforge_core.testing.small_models import small_config
from support.hf_models import randomise

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow(reason="imports transformers")

TOPK, TOKENS = 12, 40
SIZES = small_config(
    num_hidden_layers=3, num_attention_heads=4, index_n_heads=32, index_head_dim=16, index_topk=TOPK,
    mtp=MtpConfig(depths=0),
)  # fmt: skip


@pytest.fixture(scope="module", params=[[], ["full", "shared", "full"]], ids=["all full", "IndexShare"])
def models(request, tmp_path_factory):
    ours = build_model(SIZES, DsaConfig(indexer_types=request.param)).eval()
    randomise(ours, seed=3)
    folder = tmp_path_factory.mktemp("dsa") / "model"
    export_hf(ours, folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager"
    )
    return ours, theirs.eval()


@pytest.fixture
def ids():
    return torch.randint(SIZES.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))


def wanted(theirs, ids):
    with torch.no_grad():
        return theirs(ids).logits[0]


@torch.no_grad()
def fed(ours, ids, steps):
    """Our logits when the tokens come in pieces of these sizes."""
    cache = ours.new_cache([ids.shape[1]], page_size=8)
    parts = [ours(part, cache.batch([0], [len(part)]), cache).logits for part in ids[0].split(steps)]
    return torch.cat(parts)


@pytest.mark.parametrize("tokens", [TOPK, TOKENS], ids=["below top-k", "above top-k"])
@pytest.mark.parametrize("feeding", ["whole", "chunks", "token by token"])
def test_logits(models, ids, tokens, feeding):
    ours, theirs = models
    ids = ids[:, :tokens]
    steps = {"whole": [tokens], "chunks": [7, tokens - 7], "token by token": [1] * tokens}[feeding]
    torch.testing.assert_close(fed(ours, ids, steps), wanted(theirs, ids), rtol=1e-4, atol=1e-4)


def test_packed_documents(models, ids):
    ours, theirs = models
    lengths = (9, 1, 30)
    with torch.no_grad():
        packed_TV = ours(ids[0], SequenceBatch.build(lengths)).logits
    alone = [wanted(theirs, part[None]) for part in ids[0].split(lengths)]
    torch.testing.assert_close(packed_TV, torch.cat(alone), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def their_greedy_text(theirs, ids, new):
    """Their cached decoding, a token at a time; `generate` would follow the library's defaults for ends of texts."""
    out = theirs(ids, use_cache=True)
    for _ in range(new):
        token = out.logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, token], 1)
        out = theirs(token, past_key_values=out.past_key_values, use_cache=True)
    return ids


@pytest.mark.parametrize("prompt", [5, 20], ids=["grows over top-k", "begins above it"])
def test_greedy_text(models, ids, prompt):
    ours, theirs = models
    mine = ours.generate(ids[:, :prompt], max_new_tokens=24)
    assert mine.tolist() == their_greedy_text(theirs, ids[:, :prompt], 24).tolist()
