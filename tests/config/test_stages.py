"""Presets of training stages."""

from arcforge_core.config.compose import compose


def test_sft_trains_on_conversations_by_default():
    config = compose(["stage=sft"])
    assert (config.data.name, config.data.packing, config.optimizer.weight_decay) == ("conversations", "best_fit", 0.0)
    assert config.optimizer.adamw_lr is None and config.trainer.trainable == []


def test_dsa_has_the_papers_rates():
    warmup, sparse = (compose([f"stage={name}"]) for name in ("dsa_warmup", "dsa_sparse"))
    assert (warmup.attention.name, warmup.attention.indexer_training) == ("dsa", "dense")
    assert (warmup.optimizer.lr, warmup.optimizer.lr * warmup.schedule.final) == (5e-3, 2e-4)
    assert warmup.trainer.trainable == [r"\.indexer\."]
    assert (sparse.attention.indexer_training, sparse.optimizer.lr, sparse.schedule.final) == ("sparse", 1e-5, 1.0)
    assert sparse.trainer.trainable == []
