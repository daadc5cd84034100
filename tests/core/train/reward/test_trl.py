"""Loss and gradient of preferences are those of TRL's reward trainer: lengths, margins, centring, several passes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.config.compose import compose_config
from arcforge_core.config.reward import RewardTrainConfig
from arcforge_core.model.scalar import ScalarModel
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_tokenizer
from arcforge_core.train.reward.module import RewardModule
from arcforge_core.train.reward.pairs import EncodedPair

pytestmark = pytest.mark.slow  # importing TRL and transformers' trainer takes 5 s
PADDING = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=TOKENIZER_SIZE, num_key_value_heads=1, max_position_embeddings=64, pad_token_id=PADDING, **sizes
    )
    path = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    small_tokenizer().save(path)
    return path


def pairs(seed: int = 0) -> list[EncodedPair]:
    draw = random.Random(seed)

    def text() -> list[int]:
        return [draw.randrange(PADDING + 1, TOKENIZER_SIZE) for _ in range(draw.randint(1, 12))]

    return [EncodedPair(text(), text(), draw.choice([0.0, 0.5, 2.0])) for _ in range(7)]


def of_trl(folder: Path, head_1D: torch.Tensor, centring: float, batch: list[EncodedPair], tmp_path: Path) -> Any:
    """The trainer's loss of a batch that its own collator pads, and the model with the gradient."""
    transformers, trl = pytest.importorskip("transformers"), pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from trl.trainer.reward_trainer import DataCollatorForPreference

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    model.score.weight.data.copy_(head_1D)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(PADDING)
    args = trl.RewardConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False,
        center_rewards_coefficient=centring or None, max_length=None,
    )  # fmt: skip
    rows = [{"chosen_ids": pair.chosen, "rejected_ids": pair.rejected, "margin": pair.margin} for pair in batch]
    trainer = trl.RewardTrainer(
        model, args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer
    )
    loss = trainer.compute_loss(model.train(), DataCollatorForPreference(PADDING)(rows))
    loss.backward()
    return float(loss.detach()), model


def gradients_in_our_order(folder: Path, model: Any, path: Path) -> dict[str, torch.Tensor]:
    """The peer's gradients as the weights of a checkpoint, which our reader orders as it does weights."""
    transformers = pytest.importorskip("transformers")
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inner = dict(whole.model.named_parameters())
    for name, parameter in model.model.named_parameters():
        inner[name].data.copy_(parameter.grad)
    whole.save_pretrained(path)
    return dict(load_pretrained(path, torch.float32).named_parameters())


@pytest.mark.parametrize(("centring", "most"), [(0.0, 100_000), (0.01, 30)])
def test_loss_and_gradient_equal_those_of_trl(folder: Path, tmp_path: Path, centring: float, most: int) -> None:
    given = (
        f"init={folder}", "pairs.files=[none.jsonl]", "objective.margin=1", f"objective.centring={centring}",
        f"trainer.micro_batch_tokens={most}", "optimizer=torch_adamw", "schedule=constant", "hardware=torch_cpu",
        "trainer.max_steps=1",
    )  # fmt: skip
    config = compose_config("reward", RewardTrainConfig, list(given))
    scalar = ScalarModel(load_pretrained(folder, torch.float32)).train()
    torch.nn.init.normal_(scalar.head.weight, generator=torch.Generator().manual_seed(1))
    batch = pairs()
    module = RewardModule(scalar, config, batch)
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[method-assign]  # no trainer around it
    loss, right = module._backward(batch)
    wanted, model = of_trl(folder, scalar.head.weight.data, centring, batch, tmp_path)
    assert loss == pytest.approx(wanted, rel=1e-5) and 0 < right < 1
    torch.testing.assert_close(scalar.head.weight.grad, model.score.weight.grad, rtol=1e-4, atol=1e-6)
    theirs = gradients_in_our_order(folder, model, tmp_path / "gradient")
    ours = {name: parameter.grad for name, parameter in scalar.model.named_parameters() if parameter.grad is not None}
    assert len(ours) > 10 and float(sum(grad.abs().sum() for grad in ours.values())) > 0
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-3, atol=1e-6)
