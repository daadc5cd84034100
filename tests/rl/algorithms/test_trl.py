"""Losses and gradients are those of TRL's trainer: padding, truncation, micro-batches, groups of equal rewards."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.testing.traces import tokens_of
from arcforge_rl.algorithms.cispo import Cispo
from arcforge_rl.algorithms.dapo import Dapo
from arcforge_rl.algorithms.grpo import Grpo
from arcforge_rl.algorithms.gspo import Gspo
from arcforge_rl.configs.algorithms import BoundsConfig, CispoConfig, DapoConfig, GrpoConfig, GspoConfig

VOCABULARY, LONGEST = 32, 9
pytestmark = pytest.mark.slow  # importing TRL and transformers' trainer takes 5 s


@pytest.fixture(scope="module")
def model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


@pytest.fixture(scope="module")
def make_trainer(model, tmp_path_factory):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    words = {f"w{n}": n for n in range(VOCABULARY)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")), pad_token="w0", eos_token="w1"
    )

    def make(**options):
        args = trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, bf16=False, report_to="none",
            per_device_train_batch_size=8, num_generations=4, max_completion_length=LONGEST,
            gradient_checkpointing=False, temperature=1.0, **options,
        )  # fmt: skip
        return trl.GRPOTrainer(
            model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=args,
            train_dataset=datasets.Dataset.from_list([{"prompt": "w3 w4"}] * 8), processing_class=tokenizer,
        )  # fmt: skip

    return make


def make_batch(seed=0):
    """Two groups of four: other lengths, one cut off, one group whose rewards are equal."""
    draw = torch.Generator().manual_seed(seed)
    traces = []
    for n in range(8):
        prompt = 2 + n // 4
        length = LONGEST if n == 5 else int(torch.randint(1, LONGEST, (), generator=draw))
        ids = torch.randint(3, VOCABULARY, (prompt + length,), generator=draw).tolist()
        logprobs = [0.0] * prompt + [-1.0] * length
        branch = Branch(str(n), ids, [False] * prompt + [True] * length, logprobs, [-1] * prompt + [0] * length)
        reward = 1.0 if n < 4 else (0.0, 1.0, 0.5, 1.0)[n - 4]
        traces.append(Trace(f"t{n // 4}", f"g{n // 4}", str(n), [branch], {"reward": reward}, truncated=n == 5))
    return traces


def logprobs_of(model, trace):
    """Log-probabilities by the model, [len(ids)], float64; 0 for the first token."""
    ids = torch.tensor(trace.branches[0].ids)[None]
    rows = model(ids).logits[0, :-1].double().log_softmax(-1)
    return torch.cat([torch.zeros(1, dtype=torch.float64), rows.gather(1, ids[0, 1:, None])[:, 0]])


def padded(traces):
    """TRL's batch: prompts padded left, completions right."""
    prompts = [t.branches[0].ids[~t.branches[0].sampled].tolist() for t in traces]
    answers = [t.branches[0].ids[len(p) :].tolist() for t, p in zip(traces, prompts, strict=True)]
    wide, long = max(map(len, prompts)), max(map(len, answers))
    batch = {
        "prompt_ids": torch.tensor([[0] * (wide - len(p)) + p for p in prompts]),
        "prompt_mask": torch.tensor([[0] * (wide - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": torch.tensor([a + [0] * (long - len(a)) for a in answers]),
        "completion_mask": torch.tensor([[1] * len(a) + [0] * (long - len(a)) for a in answers]),
    }

    def column(name):
        rows = [t.branches[0].streams[name][t.branches[0].index_T].float() for t in traces]
        return torch.stack([torch.cat([row, torch.zeros(long - len(row))]) for row in rows])

    batch["old_per_token_logps"], batch["ref_per_token_logps"] = column("old"), column("reference")
    batch["advantages"] = column("advantages")[:, 0]
    batch["num_items_in_batch"] = batch["completion_mask"].sum()
    return batch


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


CASES = {
    "grpo": (Grpo(GrpoConfig(kl=0.04), BoundsConfig()), {"loss_type": "grpo", "use_bias_correction_kl": False}),
    "grpo, KL with ratios": (Grpo(GrpoConfig(kl=0.04, unbiased_kl=True), BoundsConfig()), {"loss_type": "grpo"}),
    "dr_grpo": (
        Grpo(GrpoConfig(mean="constant", max_tokens=LONGEST, scale="none"), BoundsConfig()),
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
    ),
    "dapo": (Dapo(DapoConfig(), BoundsConfig()), {"loss_type": "dapo", "epsilon_high": 0.28}),
    "gspo": (
        Gspo(GspoConfig(clip_low=0.02, clip_high=0.03), BoundsConfig()),
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
    ),
    "cispo": (Cispo(CispoConfig(clip_high=0.1), BoundsConfig()), {"loss_type": "cispo", "epsilon_high": 1.1}),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_those_of_trl(name, model, make_trainer):
    algorithm, options = CASES[name]
    traces, trainer = make_batch(), make_trainer(**options)
    trainer.current_gradient_accumulation_steps = 1
    trainer.beta = algorithm.config.kl  # given as an option, it would load a reference model from the hub
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for trace in traces:
            here, branch = logprobs_of(model, trace), trace.branches[0]
            for stream, spread in (("old", 0.3), ("reference", 0.5)):
                noise = spread * torch.randn(len(here), generator=draw, dtype=torch.float64)
                branch.streams[stream] = here + noise
    algorithm.score(traces)
    theirs = trainer._compute_loss(model, padded(traces))
    wanted = gradients(model, theirs)
    model.zero_grad()
    total = 0.0
    for part in (traces[:3], traces[3:]):  # micro-batches that cut a group
        current = {t.branches[0].branch_id: logprobs_of(model, t) for t in part}
        loss = sum(algorithm.loss(tokens_of(part, current)).parts.values())
        loss.backward()
        total += float(loss.detach())
    assert total == pytest.approx(float(theirs.detach()), rel=1e-4, abs=1e-6)
    for parameter, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted[parameter], rtol=1e-3, atol=1e-6)


def test_advantages_are_those_of_trl():
    """The formula of its trainer, which adds 1e-4 to the deviation, ours 1e-6; equal rewards get exactly nothing."""
    traces = make_batch()
    Grpo(GrpoConfig(), BoundsConfig()).score(traces)
    found = [float(t.branches[0].streams["advantages"][0]) for t in traces]
    rewards = torch.tensor([t.reward for t in traces]).view(2, 4)
    theirs = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    assert found == pytest.approx(theirs.flatten().tolist(), rel=1e-3)
    assert found[:4] == [0.0] * 4
