"""Steps in sequence: scheduled, launched, and their results handed out.

One thread drives, another one, the worker, computes. While the worker computes a step, the next one is scheduled, laid
out and handed over, and the results of the previous one are given to their readers. The host assumes that every
sequence continues: the worker fills in its token when the next step starts. A sequence that ended by a stop token
has one row too many in the step that was launched meanwhile; its result is dropped.

Where tokens are drafted the next step cannot be laid out before it is known how many of them were accepted, so that
steps go in turns: neither thread works while the other does.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from arcforge_core.contracts.engine import Token
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.generate import ended
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.processor import allowed_cores, memory_bytes
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.drafting import Drafter
from arcforge_serving.engine.errors import IntegrityError, QueueFullError
from arcforge_serving.engine.experts import ExpertChoices, experts_of
from arcforge_serving.engine.kvcache.store import PageStore, keeps_state, page_bytes
from arcforge_serving.engine.kvcache.tier import FileTier
from arcforge_serving.engine.sampling import Sampled
from arcforge_serving.engine.scheduler import Scheduler
from arcforge_serving.engine.sequence import SequenceState
from arcforge_serving.engine.speculation import Speculation, drafts_of
from arcforge_serving.engine.step import Step, StepOutput, build
from arcforge_serving.engine.trace import Trace
from arcforge_serving.engine.worker import Worker

MIB, GIB = 2**20, 2**30


def overlaps(config: PagedEngineConfig, device: torch.device) -> bool:
    """Returns whether steps are prepared while others are computed.

    On a CPU whose cores all compute, the thread that prepares takes one of them from a product's threads, and the
    others wait for it: steps take several times as long.
    """
    if config.overlap is not None:
        return config.overlap
    return device.type != "cpu" or torch.get_num_threads() < allowed_cores()


def page_count(config: PagedEngineConfig, page_bytes: int, longest: int) -> int:
    """Returns how many pages the cache has: enough for ``cache_tokens`` if given, else as many as ``cache_mb`` holds.

    Memory that ``max_running`` sequences of the greatest length could never fill is not allocated.

    Args:
        config: the options.
        page_bytes: of a page's record.
        longest: positions of the model.

    Raises:
        ConfigError: ``cache_mb`` holds no page.
    """
    if config.cache_tokens is not None:
        return config.cache_tokens // config.page_size
    pages = config.cache_mb * MIB // max(page_bytes, 1)
    if pages < 1:
        accepted = f"must hold at least one page, which takes {page_bytes} bytes of this model"
        raise ConfigError("engine.cache_mb", config.cache_mb, accepted)
    return min(pages, config.max_running * -(-longest // config.page_size))


def check_fits(config: PagedEngineConfig, cache_bytes: int, capacity: int) -> None:
    """Refuses a cache that is larger than the machine's memory.

    Raises:
        ConfigError: names the option that asked for it.
    """
    if cache_bytes > capacity:
        field = "cache_mb" if config.cache_tokens is None else "cache_tokens"
        text = f"the cache takes {cache_bytes / GIB:,.1f} GiB, this machine has {capacity / GIB:,.1f}"
        raise ConfigError(f"engine.{field}", getattr(config, field), text)


class Driver:
    """Owns scheduler, cache and worker; one thread at a time.

    Args:
        config: see `PagedEngineConfig`.
        model: computes the steps.

    Attributes:
        weight_version: of the model's weights.
        prefix_reuse: ``on``, or why prefixes are not shared.
        drafting: ``on``, or why no tokens are drafted.
        speculation: decides how many, and counts accepted drafts.
        scheduler, store, tier: the cache's books, its tensors, and where evicted pages go.
        trace: times of the parts of steps.
        steps, generated: steps launched, tokens handed out.
    """

    def __init__(self, config: PagedEngineConfig, model: CausalLM) -> None:
        self.model, self.weight_version = model, 0
        specs, longest = model.cache_spec(), model.config.max_position_embeddings
        draft_tokens, self.drafting = drafts_of(config, model)
        self.speculation = Speculation(draft_tokens, config.drafting == "auto")
        mtp = model.mtp_cache_spec() if draft_tokens else None
        choices = ExpertChoices(model) if config.record_experts else None
        experts = None if choices is None else choices.spec
        further = [spec for spec in (mtp, experts) if spec is not None]
        record = page_bytes([*specs, *further], model.dtype, config.page_size)
        pages = page_count(config, record, longest)
        if model.device.type == "cpu":
            check_fits(config, pages * record, memory_bytes())
        self.prefix_reuse = "on"
        if not config.prefix_cache:
            self.prefix_reuse = "off: engine.prefix_cache=false"
        elif keeps_state(specs):
            self.prefix_reuse = "off: the model keeps a state per sequence, which pages do not hold"
        self.tier: FileTier | None = None
        if config.tier_mb and self.prefix_reuse == "on":
            if config.tier_mb * MIB < record:
                raise ConfigError("engine.tier_mb", config.tier_mb, f"a page of this model takes {record} bytes")
            self.tier = FileTier(config.tier_mb * MIB // record, record, config.tier_dir)
        self.scheduler = Scheduler(
            config, pages, min(longest, pages * config.page_size), self.prefix_reuse == "on", self.tier, draft_tokens
        )
        self.store = PageStore(
            specs, pages=pages, sequences=config.max_running, page_size=config.page_size,
            dtype=model.dtype, device=model.device, mtp=mtp, experts=experts,
        )  # fmt: skip
        self.trace = Trace()
        self.steps = self.generated = 0
        drafter = Drafter(model, self.store) if draft_tokens else None
        self.worker = Worker(model, self.store, self.tier, self.trace, drafter, choices)
        self._executor = ThreadPoolExecutor(1, "arcforge-worker") if overlaps(config, model.device) else None
        self._flights: deque[Step] = deque()  # launched and not handed out: at most two, for a moment
        self._last: tuple[tuple[int, int] | None, float] = None, 0.0  # kind of the last step, when it was handed out

    def close(self) -> None:
        """Ends the worker and deletes the second tier; all sequences have ended."""
        if self._executor is not None:
            self._executor.shutdown()
        if self.tier is not None:
            self.tier.close()

    def advance(self) -> bool:
        """Launches a step and hands out the previous one; returns whether there was either."""
        was_busy = bool(self._flights)
        drafting, in_turns = self._plan()
        if in_turns:
            self.settle()
        step = self._prepare(drafting, in_turns)
        if step is None:
            self.settle()
            if was_busy and not self.scheduler.running and (faults := self.scheduler.faults()):
                raise IntegrityError("; ".join(faults[:8]))
            self._last = None, 0.0
            return was_busy
        self.steps += 1
        self._flights.append(step)
        if in_turns:
            step.allowed.set_result([])  # the worker asks
        elif self._executor is None or not any(sequence.matcher for sequence in step.sampled_sequences):
            self._allow(step)  # else grammars are asked while it is computed
        if self._executor is None:
            self.worker.run(step)
            self.settle()
        else:
            self._executor.submit(self.worker.run, step)
            self.settle(leave=0 if in_turns else 1)
            if not step.allowed.done():
                self._allow(step)
        return True

    def _plan(self) -> tuple[int, bool]:
        """Returns how many tokens the next step drafts, and whether it goes in turns: it drafts or checks drafts."""
        if not self.speculation.most:
            return 0, False
        running = self.scheduler.running
        drafting = self.speculation.choose(sum(sequence.decodes for sequence in running))
        return drafting, drafting > 0 or any(sequence.drafts for sequence in running)

    def _prepare(self, drafting: int, in_turns: bool) -> Step | None:
        with self.trace.span("prepare"):
            segments = self.scheduler.schedule(drafting)
            return build(self.scheduler, segments, self.weight_version, drafting, in_turns) if segments else None

    def _allow(self, step: Step) -> None:
        """Asks the grammars what may come next."""
        sequences = step.sampled_sequences
        if not any(sequence.matcher for sequence in sequences):
            step.allowed.set_result([None] * len(sequences))
            return
        with self.trace.span("allow"):
            step.allowed.set_result([self._ask(sequence) for sequence in sequences])

    def _ask(self, sequence: SequenceState) -> Tensor | None:
        if sequence.matcher is None or sequence.finished:
            return None
        try:
            return sequence.matcher.allowed()
        except Exception as error:  # of this request's grammar
            self._fail(sequence, error)
            return None

    def settle(self, leave: int = 0) -> None:
        """Waits for launched steps, except the last `leave`, and hands out their results."""
        while len(self._flights) > leave:
            step = self._flights[0]
            if not step.allowed.done():
                self._allow(step)
            error = step.output.exception()
            self._flights.popleft()
            with self.trace.span("hand out"):
                if error is not None:
                    self.fail_running(error)
                else:
                    self._hand_out(step, step.output.result())

    def _hand_out(self, step: Step, outcome: StepOutput) -> None:
        for number, tokens in outcome.prompt_tokens.items():
            segment = step.segments[number]
            known = segment.sequence.prompt_tokens  # more than the segment's start after a preemption
            known += tokens[max(0, len(known) - segment.start) :]
        self._time(step)
        for segment, sampled, drafts in zip(step.sampling, outcome.sampled, outcome.drafts, strict=True):
            sequence = segment.sequence
            if sequence.finished:
                continue
            sequence.pending -= 1
            if not sampled.finite:
                self.scheduler.tree.turn()  # its prefixes may be shared already
                self._fail(sequence, CheckpointError("the model's logits are not finite for this sequence"))
                continue
            if segment.drafts:  # entries of drafts that were not accepted do not count
                sequence.cached -= segment.drafts - max(len(sampled.tokens) - 1, 0)
                self.speculation.count(segment.drafts, len(sampled.tokens) - 1)
                sequence.drafted += segment.drafts
                sequence.accepted += max(len(sampled.tokens) - 1, 0)
            sequence.drafts = drafts
            self._give(sequence, sampled, step)
            if sampled.error is not None and not sequence.finished:
                self._fail(sequence, sampled.error)

    def _give(self, sequence: SequenceState, sampled: Sampled, step: Step) -> None:
        """Hands a sequence's tokens to its reader, up to the one that ends it."""
        for number, token in enumerate(sampled.tokens):
            sequence.take(token, step.version)
            self.generated += 1
            matcher = sequence.matcher
            try:
                if matcher is not None and not step.in_turns:  # else the worker did
                    matcher.accept(token.id)
                if number < len(sampled.tokens) - 1:
                    matcher = None  # it is further already, and let the next token pass
                reason = ended(sequence.params, sequence.tokens, matcher, sequence.prompt_length)
            except Exception as error:  # of this request's grammar or stop function
                sequence.stream.put(token)
                self._fail(sequence, error)
                return
            if reason is not None:
                self._finish(sequence, reason, token)
                return
            sequence.stream.put(token)

    def _time(self, step: Step) -> None:
        """Records the time of a step that follows another of its kind."""
        kind, now = None, time.perf_counter()
        drafts = {segment.drafts for segment in step.segments}
        if len(drafts) == 1 and all(s.length == 1 + s.drafts and s.samples for s in step.segments):
            checked = drafts.pop()
            kind = (len(step.segments), step.drafting) if checked == step.drafting else None
        last, then = self._last
        if kind is not None and kind == last:
            self.speculation.took(*kind, now - then)
        self._last = kind, now

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _finish(self, sequence: SequenceState, reason: str, last: Token | None = None) -> None:
        output = sequence.output(reason, self.weight_version)
        if self.store.experts is not None and reason != "abort":
            output = replace(output, experts=experts_of(sequence, self.store.experts))
        self._leave(sequence)
        sequence.stream.close(output, last)

    def _fail(self, sequence: SequenceState, error: Exception) -> None:
        self._leave(sequence)
        sequence.stream.fail(error)

    def _leave(self, sequence: SequenceState) -> None:
        sequence.finished = True
        self.scheduler.remove(sequence)

    def refuse(self, sequence: SequenceState) -> None:
        """Fails a sequence that waited in the place of an owner with fewer of them."""
        self._fail(sequence, QueueFullError("the queue is full, and its place belongs to another owner"))

    def abort(self, sequence: SequenceState) -> None:
        """Ends a sequence with the reason ``abort``; no effect on one that has ended."""
        if not sequence.finished:
            self._finish(sequence, "abort")

    def abort_all(self) -> None:
        """Ends all sequences, running and waiting."""
        for sequence in [*self.scheduler.running, *self.scheduler.queued()]:
            self.abort(sequence)

    def fail_running(self, error: BaseException) -> None:
        """Fails all running sequences: the entries that a step was to compute are missing."""
        for sequence in list(self.scheduler.running):
            self._fail(sequence, error if isinstance(error, Exception) else RuntimeError(str(error)))
        self.scheduler.tree.turn()
