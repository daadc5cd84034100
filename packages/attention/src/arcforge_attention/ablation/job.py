"""The job ``ablation``: one attention variant at the budget of all others, measured on retrieval and loss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from arcforge_attention.ablation.page import write_page
from arcforge_attention.ablation.stages import base_run, dense_attention, further_runs
from arcforge_attention.configs import AblationConfig, AblationOptions, SwaConfig, SwaPatternConfig
from arcforge_attention.swa_command import PatternScore, windowed
from arcforge_attention.swa_search import checked_windows, search_pattern
from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.checkpoint.start import start_from
from arcforge_core.config.schema import AttentionConfig, TrainConfig
from arcforge_core.config.sweep import SweepJob
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.console.result import Result
from arcforge_core.contracts.data import Document
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import ConfigError
from arcforge_core.eval.long_context.run import Grid, evaluate_long_context, filler_texts
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.build import build_model, check_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.params import cache_bytes
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.run import train


def run(config: AblationConfig) -> Result:
    """Trains the base unless an earlier job has, converts it, trains it further, and measures before and after.

    Every run keeps its folder; the same command skips finished runs and resumes the others.

    Raises:
        ConfigError: lengths too short to separate variants, a variant without a dense base, or options of a run.
    """
    options = config.ablation
    config = replace(config, attention=compared(config.attention, options))
    check(config)
    base = finished(base_run(config))
    if base.status != "finished":
        return base
    measuring = Measuring(config, base.dir)
    if isinstance(config.attention, SwaPatternConfig) and not config.attention.pattern:
        pattern = measuring.search(config.attention.window)
        config = replace(config, attention=replace(config.attention, pattern=pattern))
    before = measuring.scores(measuring.converted(config.attention))
    figures: dict[str, Any] = {f"converted {name}": score for name, score in before.items()}
    last = base
    for stage in further_runs(config):
        last = finished(replace(stage, init=str(last.dir)))
        if last.status != "finished":
            return last
    model = load_pretrained(find_checkpoint(last.dir), ops=measuring.ops)
    figures |= measuring.scores(model)
    for name in ("heldout_loss", "bits_per_byte", "tokens_per_s"):
        figures[name] = last.figures[name]
    longest = max(options.lengths)
    figures["cache_bytes_per_token"] = cache_bytes(model, longest) / longest
    Result(last.dir, figures).show(f"attention={config.attention.name} seed={config.seed}")
    figures["pattern"] = getattr(config.attention, "pattern", "")
    figures["status"] = "finished"

    def page(folder: Path, jobs: Sequence[SweepJob]) -> Path:
        return write_page(folder, jobs, options)

    return Result(last.dir, figures, page)


def compared(attention: AttentionConfig, options: AblationOptions) -> AttentionConfig:
    """Returns a variant with this comparison's windows, and with its pattern where it is to alternate."""
    if isinstance(attention, SwaConfig) and options.window is not None:
        attention = replace(attention, window=options.window)
    if type(attention) is SwaConfig and options.interleave is not None:
        attention = replace(attention, pattern=options.interleave)
    return attention


def check(config: AblationConfig) -> None:
    """Refuses options that the ablation sets itself, and lengths at which windows or selections hide little."""
    options = config.ablation
    if config.resume is not None:
        raise ConfigError("resume", config.resume, "must be null: the same command resumes unfinished runs")
    for name in ("minutes", "max_tokens"):
        if (budget := getattr(config.trainer, name)) is not None:
            accepted = "must be null: budgets are steps, ablation.base_steps and ablation.further_steps"
            raise ConfigError(f"trainer.{name}", budget, accepted)
    check_model(config.model, dense_attention(config.attention))
    if not (isinstance(config.attention, SwaPatternConfig) and not config.attention.pattern):  # not yet searched
        check_model(config.model, config.attention)
    least = max(4 * config.model.index_topk, 8 * getattr(config.attention, "window", options.window or 0))
    if min(options.lengths) < least:
        accepted = f"must be at least {least}: four times model.index_topk, eight times the window"
        raise ConfigError("ablation.lengths", options.lengths, accepted)
    if max(options.lengths) > config.model.max_position_embeddings:
        accepted = f"the model allows at most {config.model.max_position_embeddings} positions"
        raise ConfigError("ablation.lengths", options.lengths, accepted)


def finished(config: TrainConfig) -> Result:
    """Returns the run of a configuration: an earlier one, an interrupted one resumed, or a new one."""
    what = {k: v for k, v in asdict(config).items() if k not in ("output_dir", "resume", "hardware")}
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    config = replace(config, name=f"{config.name}-{digest}")
    for run_dir in sorted(Path(config.output_dir).glob(f"*/*-{config.name}"), reverse=True):
        summary = run_dir / "summary.json"
        figures: dict[str, Any] = json.loads(summary.read_text()) if summary.is_file() else {}
        if figures.get("status") == "finished":
            return Result(run_dir, figures)
        if any((run_dir / "checkpoints").glob("step-*")):
            return train(replace(config, resume=str(run_dir)))
    return train(config)


class Measuring:
    """The examples, tokenizer and kernels shared by all measurements of a job."""

    def __init__(self, config: AblationConfig, base: Path) -> None:
        self.config, self.base = config, base
        self.ops = Ops(build_hardware(config.hardware), config.trainer.deterministic)
        self.tokenizer = Tokenizer.load(find_checkpoint(base))
        data = replace(config.data, tokenizer=replace(config.data.tokenizer, path=str(find_checkpoint(base))))
        corpus = build_data(data, model_vocab_size=config.model.vocab_size, progress=False)
        self.documents: list[Document] = corpus.heldout_documents()

    def converted(self, attention: AttentionConfig) -> CausalLM:
        """Returns the base converted to another variant, without further training."""
        model = build_model(self.config.model, attention, self.ops)
        start_from(model, str(self.base))
        return model.eval()

    def scores(self, model: CausalLM) -> dict[str, float]:
        """Returns the share of right answers by task and length, and by length."""
        p = self.config.ablation
        report = evaluate_long_context(
            SimpleEngine(SimpleEngineConfig(), model, batch_size=64), self.tokenizer, self.documents,
            p.tasks, p.lengths, p.depths, p.samples,
        )  # fmt: skip
        scores = {f"{task}@{n}": report.score(task, n) for task in p.tasks for n in p.lengths}
        scores |= {f"retrieval@{n}": score for n, score in report.by_length().items()}
        return {name: score for name, score in scores.items() if score is not None}

    def search(self, window: int) -> str:
        """Returns the pattern with windows in half of the layers that keeps most of the base's retrieval, untrained."""
        p, layers = self.config.ablation, self.config.model.num_hidden_layers
        base = load_pretrained(find_checkpoint(self.base), ops=self.ops)
        grid = Grid(p.tasks, p.lengths, p.depths, p.search_samples)
        scorer = PatternScore(
            windowed(base, window, str(self.base)), self.tokenizer, filler_texts(self.documents), grid
        )
        result = search_pattern(scorer, layers, windows=checked_windows(None, layers))
        assert result.pattern is not None  # only an interrupted search has none
        return result.pattern
