import pytest
import torch

from arcforge_core.testing.small_models import small_model
from arcforge_serving.engine.drafting import KEPT_FOR, DraftHead


@pytest.fixture
def model():
    return small_model(vocab_size=64)


def test_a_short_list_has_the_tokens_that_came_most(model):
    head = DraftHead(model, size=4)
    head.see(torch.tensor([9, 9, 9, 40, 40, 7, 63, 63]))
    hidden_ND = torch.randn(3, 32)
    logits_NV = head.logits(hidden_ND, version=0)
    assert logits_NV.isfinite().nonzero()[:, 1].view(3, 4).tolist() == [[7, 9, 40, 63]] * 3
    torch.testing.assert_close(logits_NV[:, [7, 9, 40, 63]], model.logits(hidden_ND)[:, [7, 9, 40, 63]])


def test_the_list_is_made_anew_after_a_while_and_with_new_weights(model):
    head, hidden_ND = DraftHead(model, size=1), torch.randn(1, 32)
    assert head.logits(hidden_ND, 0).isfinite().nonzero()[0, 1] == 0  # nothing was seen: the lowest id
    head.see(torch.tensor([5]))
    assert head.logits(hidden_ND, 0).isfinite().nonzero()[0, 1] == 0
    for _ in range(KEPT_FOR):
        logits_NV = head.logits(hidden_ND, 0)
    assert logits_NV.isfinite().nonzero()[0, 1] == 5
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    assert torch.equal(head.logits(hidden_ND, 0), logits_NV)
    torch.testing.assert_close(head.logits(hidden_ND, 1), 2 * logits_NV)


def test_small_and_other_heads_are_used_whole(model):
    hidden_ND = torch.randn(2, 32)
    assert torch.equal(DraftHead(model, size=16).logits(hidden_ND, 0), model.logits(hidden_ND))

    class Other(torch.nn.Module):
        def forward(self, x):
            return x.sum(-1, keepdim=True).expand(-1, 64)

    model.lm_head = Other()
    assert torch.equal(DraftHead(model, size=4).logits(hidden_ND, 0), model.logits(hidden_ND))
