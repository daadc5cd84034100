"""Checks of a pipeline's stages before the first one runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from arcforge_core.checkpoint.pretrained import find_checkpoint, open_checkpoint
from arcforge_core.checkpoint.start import Start, plan_start, start_at
from arcforge_core.config.schema import TrainConfig
from arcforge_core.data.tokens.pipeline import build_data, with_tokenizer
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.meta import meta_device
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.pipeline.plan import Stage, named
from arcforge_core.pipeline.recipe import PLACEHOLDER, filled
from arcforge_core.plugins.loader import registry
from arcforge_core.train.adapter import check_adapter
from arcforge_core.train.prepare import freeze
from arcforge_core.train.run import StepLoader
from arcforge_core.train.trainer import build_trainer, check_components


def check_stages(stages: Sequence[Stage]) -> list[str]:
    """Builds every training stage's model on the meta device, and compares it with the one that it starts from.

    Returns:
        For each stage a line about its start; an empty one where it starts from nothing, or is another job.

    Raises:
        ArcforgeError: something does not fit; the stage is named.
    """
    starts: list[str] = []
    built: dict[str, CausalLM] = {}
    models: dict[str, CausalLM] = {}
    for stage in stages:
        config, start = stage.config, None
        with named(stage.name):
            if stage.job.name == "train":
                sizes = repr((config.model, config.attention))
                if sizes not in built:
                    with meta_device():
                        built[sizes] = build_model(config.model, config.attention, Ops(None))
                models[stage.name] = model = built[sizes]
                freeze(model, config.trainer.trainable)
                check_parts(config)
                start = start_of(stage, model, models)
                if config.adapter.name != "none":
                    check_adapter(config, model, start)
            elif stage.source in models:  # another kind of training leaves the model as it is
                models[stage.name] = models[stage.source]
        starts.append("" if start is None else str(start))
    return starts


def start_of(stage: Stage, model: CausalLM, models: Mapping[str, CausalLM]) -> Start | None:
    """Returns the weights that a stage's model takes from its source; None if there are none, or not known yet."""
    if stage.source is None:
        init = stage.config.init
        return None if init is None else start_at(model, open_checkpoint(find_checkpoint(init, "init")))
    source = models.get(stage.source)
    if source is None:
        return None
    shapes = {name: tensor.shape for name, tensor in state_of(source).items()}
    return plan_start(model, source.config, source.attention, shapes, f"stage {stage.source}")


def check_parts(config: TrainConfig) -> None:
    """Loads the optimizer, the schedule, the hardware, loggers and callbacks, and has Lightning check its settings."""
    check_components(config)
    registry().get("optimizer", config.optimizer.name).load()
    registry().get("schedule", config.schedule.name).load()(config.schedule)
    alone = dataclasses.replace(config, logger={}, callback={})  # they may write or connect when they are built
    build_trainer(alone, build_hardware(config.hardware), Path(config.output_dir))


def check_data(stages: Sequence[Stage], places: Mapping[str, str] | None = None) -> None:
    """Builds the data of the stages of the job ``train``, with the tokenizer that each will have.

    Left out are stages whose data or tokenizer comes from a stage that has not run yet.

    Args:
        stages: those that are not finished.
        places: folders of the finished ones.

    Raises:
        ArcforgeError: a corpus cannot be used at its stage's lengths; the stage is named.
    """
    tokenizers: dict[str, str] = {}
    for stage in stages:
        config = filled(stage.config, places or {})
        source = dataclasses.replace(stage, config=config).source
        known = source is None or source in tokenizers
        if stage.job.name != "train":
            if source in tokenizers:
                tokenizers[stage.name] = tokenizers[source]
            continue
        if not known or PLACEHOLDER.search(str(config.data)):
            continue
        with named(stage.name):
            if source is not None and config.data.tokenizer.path is None:
                tokenizer = dataclasses.replace(config.data.tokenizer, path=tokenizers[source])
                config = dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=tokenizer))
            elif source is None and config.init is not None:
                config = dataclasses.replace(config, data=with_tokenizer(config.data, config.init))
            corpus = build_data(config.data, model_vocab_size=config.model.vocab_size)
            trainer = config.trainer
            StepLoader(corpus, config, cursor=0)
            corpus.heldout_batches(trainer.sequence_length, trainer.micro_batch_tokens, trainer.eval_tokens)
        tokenizers[stage.name] = str(corpus.folder / "tokenizer")
