"""The worker: computes steps, and alone touches the tensors of the cache.

Shapes: T tokens, R rows that are sampled from, S tokens of a prompt, D hidden size, V vocabulary.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from arcforge_core.contracts.engine import Token
from arcforge_core.generation.generate import evaluating, score_hidden
from arcforge_core.generation.recorded import Recorded
from arcforge_core.generation.sampling import SamplingOps
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.cores import CoreLimit
from arcforge_serving.engine.drafting import Drafter
from arcforge_serving.engine.experts import ExpertChoices
from arcforge_serving.engine.kvcache.store import PageStore
from arcforge_serving.engine.kvcache.tier import FileTier
from arcforge_serving.engine.sampling import Sampled, sample_segments
from arcforge_serving.engine.scheduler import Move, Spill
from arcforge_serving.engine.step import Step, StepOutput
from arcforge_serving.engine.trace import Trace


class Worker:
    """Computes steps, one at a time; all that touches the cache's tensors happens here, in the order of the steps."""

    def __init__(
        self,
        model: CausalLM,
        store: PageStore,
        tier: FileTier | None,
        trace: Trace,
        drafter: Drafter | None = None,
        choices: ExpertChoices | None = None,
    ) -> None:
        self.choices = choices
        self.model, self.store, self.tier, self.trace, self.drafter = model, store, tier, trace, drafter
        follows = model.device.type == "cpu" and not model.ops.deterministic  # other threads may be other bits
        self.cores = CoreLimit("engine") if follows else None
        self.recorded, self.ops = Recorded(model, store), SamplingOps(model)  # type: ignore[arg-type]

    def run(self, step: Step) -> None:
        """Computes a step and sets its outcome, or what went wrong."""
        try:
            if self.cores is not None:
                self.cores.follow()
            with self.trace.span("step", segments=len(step.segments), tokens=len(step.tokens_T)):
                outcome = self._compute(step)
        except Exception as error:
            step.output.set_exception(error)
        else:
            step.output.set_result(outcome)

    @torch.inference_mode()
    def _compute(self, step: Step) -> StepOutput:
        if step.moves and self.drafter is not None:
            self.drafter.catch_up()
        for move in step.moves:
            self._move(move)
        tokens_T = step.tokens_T.numpy()  # the same memory, written to in a tenth of the time
        for row, sequence in step.holes:
            tokens_T[row] = sequence.latest
        device = self.model.device
        with evaluating(self.model) if self.model.training else nullcontext():
            with self.trace.span("forward"):
                batch = step.batch.to(device)
                if self.choices is not None:
                    self.choices.begin()
                hidden_TD = self.recorded.hidden(step.tokens_T.to(device), batch)
                if self.choices is not None and self.store.experts is not None:
                    self.choices.write(self.store.experts, batch)
                firsts = zip(step.sample_rows, step.sampling, strict=True)
                rows = [first + place for first, segment in firsts for place in range(1 + segment.drafts)]
                sampled_RD = hidden_TD
                if len(rows) < len(hidden_TD):
                    sampled_RD = hidden_TD[torch.tensor(rows, dtype=torch.int64, device=device)]
                logits_RV = self.model.logits(sampled_RD) if rows else None
            asked = any(segment.sequence.params.prompt_logprobs for segment in step.segments)
            prompt_tokens = self._score_prompts(step, hidden_TD) if asked else {}
            with self.trace.span("sample", rows=len(rows)):
                allowed = None if step.in_turns else step.allowed.result()
                sampled: list[Sampled] = []
                if logits_RV is not None:
                    known = self.ops.argmax_logprob(logits_RV)
                    sampled = sample_segments(step.sampling, logits_RV.cpu(), known, allowed, self.ops.sample)
            drafts: list[list[int]] = [[] for _ in sampled]
            if self.drafter is not None:
                with self.trace.span("draft", tokens=step.drafting):
                    self.drafter.follow(step, hidden_TD, sampled)
                    if step.drafting:
                        drafts = self.drafter.draft(step, hidden_TD, sampled)
            return StepOutput(sampled, drafts, prompt_tokens)

    @torch.inference_mode()
    def catch_up(self) -> None:
        """Has the cache hold all that it will; no step is being computed."""
        if self.drafter is not None:
            self.drafter.catch_up()

    def _move(self, move: Move) -> None:
        if isinstance(move, Spill):
            assert self.tier is not None
            self.tier.write(move.ticket, self.store.read(move.page))
        else:
            self.store.write(move.page, move.record)

    def _score_prompts(self, step: Step, hidden_TD: Tensor) -> dict[int, list[Token]]:
        """Returns what the rows of prompts say about the prompts' next tokens, where that was asked for."""
        scored, ends = {}, step.batch.cu_query[1:].tolist()
        for number, (segment, end) in enumerate(zip(step.segments, ends, strict=True)):
            sequence = segment.sequence
            if sequence.params.prompt_logprobs and segment.start < sequence.prompt_length - 1:
                targets = sequence.tokens[segment.start + 1 : sequence.prompt_length][: segment.length]
                first = end - segment.length
                hidden_SD = hidden_TD[first : first + len(targets)]
                scored[number] = score_hidden(self.model, self.ops, hidden_SD, targets, sequence.params.top_logprobs)
        return scored
