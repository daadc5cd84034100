"""Errors of later stages are found before the first one trains."""

import pytest

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError, DataError
from arcforge_core.pipeline.check import check_data, check_stages
from arcforge_core.testing.small_models import small_model


def test_each_stage_says_how_it_starts(plan):
    first, second, third = check_stages(plan())
    assert first == ""
    assert second.startswith("starting from stage base: ")
    assert "model.max_position_embeddings 48 -> 64, model.rope_theta 10000.0 -> 1000000.0" in second
    assert third.endswith("changed: model.max_position_embeddings 64 -> 200")


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("model.hidden_size=32", CheckpointError, r"stage last: stage extend does not fit the model: .*embed_tokens"),
        ("attention.form=gqa", CheckpointError, r"stage last: stage extend does not fit the model: .*q_a_proj"),
        ("trainer.trainable=[indexer]", ConfigError, r"stage last: trainer\.trainable\[0\]='indexer'"),
        ("+trainer.extra.max_epochs=3", ConfigError, r"stage last: trainer\.extra=\['max_epochs'\]"),
        ("+trainer.extra.no_such=3", ConfigError, r"stage last: trainer\.extra=.*not accepted by lightning"),
    ],
)
def test_models_that_do_not_follow_each_other(plan, override, error, message):
    with pytest.raises(error, match=message):
        check_stages(plan(extra={"last": [override]}))


def test_a_variant_that_cannot_start_from_the_one_before(plan):
    pytest.importorskip("arcforge_attention")
    extra = {"extend": ["attention=gqa"], "last": ["attention=mla"]}
    with pytest.raises(ArcforgeError, match=r"stage extend: init='stage base': its attention is reference; attention="):
        check_stages(plan(extra=extra))


def test_what_the_first_stage_begins_with_is_looked_at(plan, tmp_path):
    with pytest.raises(CheckpointError, match=r"stage base: .*neither a model"):
        check_stages(plan(f"init={tmp_path / 'absent'}"))
    save_pretrained(small_model(), tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"stage base: .* does not fit the model"):
        check_stages(plan(f"init={tmp_path / 'model'}"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.paths=[no_such_folder]", r"stage last: .*no_such_folder"),
        ("data.long_share=1.0", r"stage last: .*begin at data\.long_share=1 of trainer\.sequence_length=9984"),
        ("data.heldout=0", r"stage last: data\.heldout=0: no documents are held out"),
    ],
)
def test_data_of_a_later_stage(plan, override, message):
    long = ["trainer.sequence_length=9984", "trainer.micro_batch_tokens=9984", "model.max_position_embeddings=9984"]
    changes = [*long, "data.packing=long_documents", override] if "long" in override else [override]
    with pytest.raises(DataError, match=message):
        check_data(plan(extra={"last": changes}))


def test_later_stages_are_tokenised_as_the_first(plan, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("arcforge_core.pipeline.check.StepLoader", lambda corpus, config, cursor: seen.append(corpus))
    check_data(plan(extra={"last": [f"data.cache_dir={tmp_path / 'other'}", "data.tokenizer.train_bytes=1000"]}))
    assert len({corpus.tokenizer.sha256 for corpus in seen}) == 1
    assert [corpus.manifest["tokenizer"]["path"] is None for corpus in seen] == [True, False, False]
