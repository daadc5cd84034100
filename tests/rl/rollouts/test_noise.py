"""Noise on an engine's logits: as loud as asked for, another one for every token, the same again from its seed."""

import torch

from arcforge_core.testing.small_models import small_model
from arcforge_rl.rollouts.noise import LogitNoise


def test_noise_on_logits_is_as_loud_as_asked_and_comes_again_from_its_seed() -> None:
    model = small_model()
    hidden_TD = torch.randn(1, model.config.hidden_size).expand(200, -1)
    clean_TV = model.logits(hidden_TD)
    noise = LogitNoise(model, 0.5)
    noise.reseed("0/3")
    first_TV, second_TV = (model.logits(hidden_TD) - clean_TV for _ in range(2))
    noise.reseed("0/3")
    again_TV = model.logits(hidden_TD) - clean_TV
    assert abs(first_TV.std() - 0.5) < 0.01 and abs(first_TV.mean()) < 0.01
    assert torch.equal(first_TV, again_TV) and not torch.equal(first_TV, second_TV)
    assert not torch.equal(first_TV[0], first_TV[1]), "tokens with the same logits are off otherwise"
