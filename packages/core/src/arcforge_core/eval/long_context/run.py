"""Measures a model on the tasks, cell by cell, short lengths first; finished cells are kept and not measured again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from arcforge_core.cli.progress import track
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.eval.long_context.report import Cell, LongContextReport, resume
from arcforge_core.eval.long_context.tasks import TASKS, TASKS_WITH_DEPTH, Encodes, Example, ExampleMaker, score

if TYPE_CHECKING:
    from arcforge_core.contracts.data import Document
    from arcforge_core.contracts.engine import Engine
    from arcforge_core.data.tokenizer import Tokenizer

Completer = Callable[[Sequence[Example]], Sequence[str]]
"""Gives what a model says after each prompt, greedily, `Example.max_new_tokens` tokens of it at most."""
BATCH_TOKENS = 32768
"""Tokens of the prompts that an engine is given at once, unless one is longer."""


@dataclass(frozen=True)
class Grid:
    """What is measured: `samples` examples for each task, length and depth."""

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
        """Returns the cells; a task without depth has one for each length, of as many examples as the others' all."""
        return [
            (task, length, depth)
            for length in sorted(set(self.lengths))
            for task in dict.fromkeys(self.tasks)
            for depth in (sorted(set(self.depths)) if task in TASKS_WITH_DEPTH else [None])
        ]

    def count(self, task: str) -> int:
        """Returns the number of examples of a task's cells."""
        return self.samples if task in TASKS_WITH_DEPTH else self.samples * len(set(self.depths))

    def examples(self, maker: ExampleMaker, place: tuple[str, int, float | None]) -> list[Example]:
        """Returns the examples of a cell."""
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
        engine: generates; it must allow ``max(lengths)`` positions.
        tokenizer: of its model.
        documents: whose text fills the prompts; texts that training has not seen. Generated ones are left out.
        tasks, lengths, depths, samples, seed: see `Grid`.
        subject: what is measured, in words; part of what must be equal to go on with a report.
        output: a folder in which the report is kept; an earlier one there is gone on with.

    Raises:
        ConfigError: an unknown task, or a length that is too short for a task; nothing has been generated.
        DataError: no text, or `output` holds another evaluation.
    """
    texts = filler_texts(documents)
    settings = settings_of(subject, lengths_in(tokenizer), texts, seed)
    grid = Grid(tasks, lengths, depths, samples, seed)
    return run_grid(engine_completer(engine, tokenizer), tokenizer, texts, grid, settings, output)


def settings_of(subject: str, lengths_in: str, texts: Sequence[str], seed: int, **more: str) -> dict[str, Any]:
    """Returns what must be equal for cells to belong to one report."""
    return {"subject": subject, "lengths_in": lengths_in, **more, "texts": texts_hash(texts), "seed": seed}


def lengths_in(tokenizer: Tokenizer) -> str:
    """Returns in what lengths are counted, in words."""
    return f"tokens of tokenizer {tokenizer.sha256[:12]}"


def run_grid(
    complete: Completer,
    tokenizer: Encodes,
    texts: Sequence[str],
    grid: Grid,
    settings: dict[str, Any],
    output: Path | None,
) -> LongContextReport:
    """Measures whatever completes prompts; `settings` are those of `settings_of`.

    Raises:
        ConfigError: as `evaluate_long_context`; nothing has been completed.
        DataError: as `evaluate_long_context`.
    """
    maker = ExampleMaker(texts, tokenizer)
    report = LongContextReport(settings) if output is None else resume(output, settings)
    places = grid.places()
    done = {cell.place for cell in report.cells if len(cell.scores) == grid.count(cell.task)}
    for place in places:
        if place[1] == min(grid.lengths):  # where a length can be too short
            grid.examples(maker, place)
    for place in track([p for p in places if p not in done], "long-context cells"):
        examples = grid.examples(maker, place)
        scores = [score(e, said) for e, said in zip(examples, complete(examples), strict=True)]
        report.add(Cell(*place, tuple(scores), mean(e.prompt_tokens for e in examples)))
        if output is not None:
            report.write(output)
    return report.only(places)


def filler_texts(documents: Iterable[Document]) -> list[str]:
    """Returns the texts of documents that are no generated episodes."""
    return [document.text for document in documents if document.text_of is None]


def texts_hash(texts: Sequence[str]) -> str:
    """Returns a short hash of the texts in their order."""
    found = hashlib.sha256()
    for text in texts:
        found.update(hashlib.sha256(text.encode()).digest())
    return found.hexdigest()[:16]


def engine_completer(engine: Engine, tokenizer: Tokenizer) -> Completer:
    """Returns a completer of an engine; prompts look like the beginning of a document in training."""

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
