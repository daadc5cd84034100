"""Texts and functions written by the model before and after training, for the report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import lightning as L

from arcforge_core.chat.load import build_chat_template
from arcforge_core.config.schema import TrainConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.console.progress import working
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.data.tokens.pipeline import Corpus
from arcforge_core.eval.python_functions import function_names, sample_functions
from arcforge_core.files.rundir import write_json
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.train.module import LanguageModelModule

PROMPT_TOKENS = 48
TEMPERATURE = 0.6


class Samples(L.Callback):
    """Writes ``samples.json`` and ``functions.json``, texts of the model ``before`` and ``after`` training."""

    def __init__(self, corpus: Corpus, run_dir: Path, config: TrainConfig) -> None:
        self.corpus, self.run_dir, self.config = corpus, run_dir, config

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Samples from the initial model of a new run."""
        assert isinstance(module, LanguageModelModule)
        if trainer.is_global_zero and module.progress.step == 0:
            self.write(module.model, "before")

    def write(self, model: CausalLM, when: str) -> None:
        """Samples and adds the result under `when`."""
        engine = SimpleEngine(SimpleEngineConfig(), model, batch_size=64)
        settings = self.config.trainer
        if settings.samples:
            with working(f"sampling texts {when} training"):
                self._add("samples.json", when, self._continuations(engine))
        if settings.python_functions:
            with working(f"sampling functions {when} training"):
                names = function_names(self.corpus.heldout_documents(), settings.python_functions, self.config.seed)
                report = sample_functions(
                    engine, self.corpus.tokenizer, names, temperature=TEMPERATURE, seed=self.config.seed
                )
            self._add("functions.json", when, dataclasses.asdict(report))

    def _continuations(self, engine: SimpleEngine) -> list[dict[str, str]]:
        """Continues the openings of evenly spaced held-out documents; lengths are limited by the model's positions.

        For conversations it answers the messages before the first target.
        """
        if self.corpus.whole:
            return self._answers(engine)
        documents = self.corpus.heldout_documents()
        count = min(self.config.trainer.samples, len(documents))
        tokenizer = self.corpus.tokenizer
        chosen = [documents[i * len(documents) // count] for i in range(count)]
        positions = self.config.model.max_position_embeddings
        opening = min(PROMPT_TOKENS, positions // 3)
        new = min(self.config.trainer.sample_tokens, positions - opening - 1)
        prompts = [[tokenizer.bos_id, *tokenizer.encode(d.text[: 8 * PROMPT_TOKENS])[:opening]] for d in chosen]
        params = [
            SamplingParams(new, TEMPERATURE, stop_token_ids=(tokenizer.eos_id,), seed=self.config.seed + n)
            for n in range(count)
        ]
        outputs = engine.generate(prompts, params)
        return [
            {
                "prompt": tokenizer.decode(p[1:]),
                "text": tokenizer.decode([t for t in o.token_ids if t != tokenizer.eos_id]),
            }
            for p, o in zip(prompts, outputs, strict=True)
        ]

    def _answers(self, engine: SimpleEngine) -> list[dict[str, str]]:
        tokenizer = self.corpus.tokenizer
        most = self.config.model.max_position_embeddings - 2
        prompts = self.corpus.heldout_prompts(self.config.trainer.samples, most)
        stops = build_chat_template(tokenizer).stop_ids
        new = self.config.trainer.sample_tokens
        params = [
            SamplingParams(
                min(new, most + 1 - len(prompt)), TEMPERATURE, stop_token_ids=stops, seed=self.config.seed + n
            )
            for n, prompt in enumerate(prompts)
        ]
        outputs = engine.generate(prompts, params)
        return [
            {"prompt": tokenizer.decode(p), "text": tokenizer.decode(o.token_ids)}
            for p, o in zip(prompts, outputs, strict=True)
        ]

    def _add(self, file: str, when: str, value: Any) -> None:
        path = self.run_dir / file
        content = json.loads(path.read_text()) if path.exists() else {}
        write_json(path, {**content, when: value})
