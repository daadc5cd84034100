"""Reinforcement learning in a loop of one's own: sample groups, reward, REINFORCE within the group, sync the weights.

    python examples/own_rl.py [STEPS]

The reward is a function of the text: the share of digits in it. `arcforge-rl` does the same with verifiers,
corrections, evaluations and exact resume (docs/rl.md).
"""

from __future__ import annotations

import sys

import torch

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_optim import build_optimizer
from arcforge_serving import Engine, SamplingParams

GROUP, TOKENS = 32, 12


def share_of_digits(text: str) -> float:
    """Returns the reward of a text."""
    return sum(character.isdigit() for character in text) / max(1, len(text))


def main(steps: int = 12) -> tuple[float, float]:
    """Returns the mean reward of the first and of the last step."""
    folder = find_checkpoint("demo")
    tokenizer = Tokenizer.load(folder)
    policy = load_pretrained(folder, dtype=torch.float32).train()
    engine = Engine(load_pretrained(folder, dtype=torch.float32))  # a copy: the policy changes while it samples
    optimizer = build_optimizer("adamw", policy, lr=3e-4)
    prompt = [tokenizer.bos_id, *tokenizer.encode("def f(x):")]
    means = []
    for step in range(steps):
        outputs = engine.generate([prompt], SamplingParams(max_new_tokens=TOKENS, n=GROUP, seed=1000 * step))
        ids_BS = torch.tensor([prompt + output.token_ids for output in outputs])
        rewards_B = torch.tensor([share_of_digits(tokenizer.decode(output.token_ids)) for output in outputs])
        advantages_B = (rewards_B - rewards_B.mean()) / (rewards_B.std() + 1e-6)
        logprobs_BSV = policy(ids_BS[:, :-1]).logits.log_softmax(-1)
        sampled_BT = logprobs_BSV.gather(-1, ids_BS[:, 1:, None])[:, len(prompt) - 1 :, 0]
        optimizer.zero_grad()
        (-(advantages_B[:, None] * sampled_BT).mean()).backward()
        optimizer.step()
        engine.update_weights(policy.state_dict())
        means.append(rewards_B.mean().item())
    print(f"reward {means[0]:.2f} -> {means[-1]:.2f}")
    return means[0], means[-1]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
