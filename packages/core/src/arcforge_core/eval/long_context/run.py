"""Measures a model on the tasks, cell by cell, short lengths first; a rerun skips finished cells."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from arcforge_core.configs import LONG_CONTEXT_TASKS as TASKS
from arcforge_core.console.progress import track
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.eval.long_context.report import Cell, LongContextReport, resume
from arcforge_core.eval.long_context.tasks import TASKS_WITH_DEPTH, Encodes, Example, ExampleMaker, score

if TYPE_CHECKING:
    from arcforge_core.contracts.data import Document
    from arcforge_core.contracts.engine import Engine
    from arcforge_core.tokenizer.tokenizer import Tokenizer

Completer = Callable[[Sequence[Example]], Sequence[str]]
"""Returns the greedy completion of each prompt, at most `Example.max_new_tokens` tokens long."""
BATCH_TOKENS = 32768
"""Prompt tokens per call of the engine; a longer prompt gets a call of its own."""


@dataclass(frozen=True)
class Grid:
    """The cells to measure: `samples` examples for each task, length and depth."""

    tasks: Sequence[str] = TASKS
    lengths: Sequence[int] = (256, 512, 1024)
    depths: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    samples: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tasks", "lengths", "depths"):
            if not getattr(self, name):
                raise ConfigError(name, [], "must name at least one")
        if self.samples < 1:
            raise ConfigError("samples", self.samples, "must be at least 1")

    def places(self) -> list[tuple[str, int, float | None]]:
        """Returns the cells; a task without depth has one per length, with the examples of all depths together."""
        return [
            (task, length, depth)
            for length in sorted(set(self.lengths))
            for task in dict.fromkeys(self.tasks)
            for depth in (sorted(set(self.depths)) if task in TASKS_WITH_DEPTH else [None])
        ]

    def count(self, task: str) -> int:
        """Returns the number of examples in each cell of a task."""
        return self.samples if task in TASKS_WITH_DEPTH else self.samples * len(set(self.depths))

    def examples(self, maker: ExampleMaker, place: tuple[str, int, float | None]) -> list[Example]:
        task, length, depth = place
        return [maker.make(task, length, depth=depth, seed=self.seed, index=n) for n in range(self.count(task))]


def evaluate_long_context(
    engine: Engine,
    tokenizer: Tokenizer,
    documents: Iterable[Document],
    tasks: Sequence[str] = TASKS,
    lengths: Sequence[int] = Grid.lengths,
    depths: Sequence[float] = Grid.depths,
    samples: int = Grid.samples,
    seed: int = Grid.seed,
    *,
    subject: str = "model",
    output: Path | None = None,
) -> LongContextReport:
    """Measures an engine; equal documents, tokenizer and seed give every model the same examples.

    Args:
        engine: the engine to measure; it must allow ``max(lengths)`` positions.
        tokenizer: tokenizer of its model.
        documents: filler for the prompts, not seen in training; generated documents are skipped.
        tasks, lengths, depths, samples, seed: see `Grid`.
        subject: description of the model; part of the settings that must be equal to continue a report.
        output: folder of the report; an earlier report there is continued.

    Raises:
        ConfigError: a task is unknown, or a length is too short for a task; raised before generating.
        DataError: there is no text, or `output` holds another evaluation.
    """
    texts = filler_texts(documents)
    settings = settings_of(subject, lengths_in(tokenizer), texts, seed)
    grid = Grid(tasks, lengths, depths, samples, seed)
    return run_grid(engine_completer(engine, tokenizer), tokenizer, texts, grid, settings, output)


def settings_of(subject: str, lengths_in: str, texts: Sequence[str], seed: int, **more: str) -> dict[str, Any]:
    """Returns the settings that all cells of a report share."""
    return {"subject": subject, "lengths_in": lengths_in, **more, "texts": texts_hash(texts), "seed": seed}


def lengths_in(tokenizer: Tokenizer) -> str:
    """Returns the unit of lengths, in words."""
    return f"tokens of tokenizer {tokenizer.sha256[:12]}"


def run_grid(
    complete: Completer,
    tokenizer: Encodes,
    texts: Sequence[str],
    grid: Grid,
    settings: dict[str, Any],
    output: Path | None,
) -> LongContextReport:
    """Measures any completer of prompts; `settings` come from `settings_of`.

    Raises:
        ConfigError: as `evaluate_long_context`, before completing any prompt.
        DataError: as `evaluate_long_context`.
    """
    maker = ExampleMaker(texts, tokenizer)
    report = LongContextReport(settings) if output is None else resume(output, settings)
    places = grid.places()
    done = {cell.place for cell in report.cells if len(cell.scores) == grid.count(cell.task)}
    for place in places:
        if place[1] == min(grid.lengths):  # fails early if the shortest length is too short
            grid.examples(maker, place)
    for place in track([p for p in places if p not in done], "long-context cells"):
        examples = grid.examples(maker, place)
        scores = [score(e, said) for e, said in zip(examples, complete(examples), strict=True)]
        report.add(Cell(*place, tuple(scores), mean(e.prompt_tokens for e in examples)))
        if output is not None:
            report.write(output)
    return report.only(places)


def filler_texts(documents: Iterable[Document]) -> list[str]:
    """Returns the texts of documents that are not generated episodes."""
    return [document.text for document in documents if not document.text_of]


def texts_hash(texts: Sequence[str]) -> str:
    """Returns a short hash of the texts and their order."""
    found = hashlib.sha256()
    for text in texts:
        found.update(hashlib.sha256(text.encode()).digest())
    return found.hexdigest()[:16]


def engine_completer(engine: Engine, tokenizer: Tokenizer) -> Completer:
    """Returns a completer that uses an engine; prompts look like the beginning of a document in training."""

    def complete(examples: Sequence[Example]) -> list[str]:
        return [text for batch in _batches(examples) for text in _complete(engine, tokenizer, batch)]

    return complete


def _complete(engine: Engine, tokenizer: Tokenizer, examples: Sequence[Example]) -> list[str]:
    stop = (tokenizer.eos_id,)
    params = [SamplingParams(e.max_new_tokens, temperature=0.0, stop_token_ids=stop) for e in examples]
    outputs = engine.generate([[tokenizer.bos_id, *tokenizer.encode(e.prompt)] for e in examples], params)
    return [tokenizer.decode(o.token_ids[: -1 if o.finish_reason == "stop" else None]) for o in outputs]


def _batches(examples: Sequence[Example]) -> Iterator[list[Example]]:
    batch: list[Example] = []
    for example in examples:
        if batch and sum(e.length for e in batch) + example.length > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch
