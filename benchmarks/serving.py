"""The serving engine on the clock, beside transformers and beside itself.

    python benchmarks/serving.py [--quick] [--only PART ...] [--rounds N] [--checkpoint DIR] [--threads N]
                                 [--json FILE] [--plot FILE]

- `dsa_throughput`: 16 mixed requests (prompts of 32 to 1,024 tokens, outputs of 32 to 256) on the preset `small` with
  DSA (23M parameters, fp32, random weights) through our engine and through transformers' `generate`, one request at a
  time and in batches padded on the left. Its continuous batching takes no DSA; what it says is in the report.
- `dsa_decode_32k`: a decoded token after 32,704 others, the same model. Our engine reads the prompt itself; what it
  has cached then is put into transformers' cache, so that both decode after the same entries.
- `dense_throughput`: 16 mixed requests of Python text on SmolLM2-135M, each side in the faster of bf16 and fp32,
  transformers' continuous batching too, its cache sized for them. `dense_single`: one request.
- `prefix_reuse`: requests that share 90% of their prompt, after an earlier one that does too, against the same engine
  with `engine.prefix_cache=false`; `prefix_reuse_nothing_known` without the earlier one.
- `tokens_per_forward`, `speculation_wall`: MTP drafts, with a trained `--checkpoint`.

Settings of both sides (tokens of a step here; attention, experts, `torch.compile`, size of a batch, pages and tokens of
a step there) are those that were the fastest in a sweep; then the best of each kind run in turns, and the ratio is that
of medians, ours to the best of theirs. Outputs are greedy and compared token for token: where two part, the judge
(transformers' own logits, in fp32) must see a near-tie. For that comparison alone transformers' selection of keys is
given our rule for equals, see `benchmarks/attention.py`. Requests end by their number of tokens, never by an end token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _generation import Arm, Ids, Request, Times, compare, continuous, logits_of, mixed, ours, static, take_turns
from _machine import describe_machine
from _peers import EXPERTS, Peer, Swept, peers, sweep
from _rounds import Ratio, add, ratio, show
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.checkpoint.pretrained import load_pretrained, load_with_tokenizer
from arcforge_core.checkpoint.smollm2 import smollm2
from arcforge_core.config.compose import compose
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.data.split import heldout_documents
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from attention import Subject, fastest_peer, our_decoding, their_decoding, ties_to_the_lower

PROMPTS, OUTPUTS, COUNT = (32, 1024), (32, 256), 16
LONG, LONG_STEPS, THEIR_TOKEN = 32_704, 16, 7
SHARED, PREFIXED, SHORT = 0.9, 2048, 4
BEGINNING, DRAFTS = 64, 3
ALWAYS = {"draft_tokens": DRAFTS, "drafting": "always"}
TIE_FP32, TIE_BF16 = 2e-2, 0.25
"""Standard deviations of the logits; the first as `benchmarks/attention.py` has it: keys at the border move them."""
STEPS = (256, 1024, 4096)
BATCHES = (1, 4, 16)
CACHES = ((32, 256), (32, 1024), (128, 512))
"""Of transformers' continuous batching: tokens of a page, and of a step; pages are as many as the requests need."""
Part = tuple[dict[str, Any], dict[str, Ratio | float]]


def fastest_arms(
    kinds: dict[str, dict[str, Arm]], requests: Sequence[Request], quick: bool
) -> tuple[dict[str, Arm], Any]:
    """Returns the fastest arm of each kind, and the seconds of all; with `quick` the last one of each, untried."""
    if quick:
        return {kind: list(arms.values())[-1] for kind, arms in kinds.items()}, None
    chosen, tried = {}, {}
    for kind, arms in kinds.items():
        swept = sweep(arms, partial(timing, arms, requests), repeats=0)
        chosen[kind], tried[kind] = arms[swept.best], swept.tried
    return chosen, tried


def timing(arms: dict[str, Arm], requests: Sequence[Request], name: str) -> Callable[[], float]:
    """Returns what times an arm."""
    return lambda: seconds_of(arms[name], requests)


def seconds_of(arm: Arm, requests: Sequence[Request]) -> float:
    """Returns the seconds of one round of an arm, warmed up by two requests."""
    return take_turns({"arm": arm}, requests, 1, 2)[0]["arm"].wall[0]


def fastest_setting(
    load: Callable[[Peer], Any], candidates: Sequence[Peer], requests: Sequence[Request], quick: bool
) -> Swept[Peer]:
    """Returns the sweep over transformers' settings that generate our tokens the fastest, a few requests in a batch.

    The outputs of the chosen setting are compared with ours afterwards.
    """
    few = [Request(request.prompt[:256], min(16, request.tokens)) for request in requests[: min(4, len(requests))]]

    def prepare(peer: Peer) -> Callable[[], float]:
        arm = static(load(peer), len(few))
        return lambda: seconds_of(arm, few)

    def further(best: Peer) -> list[Peer]:
        return [] if quick else [replace(best, compiled=True)]

    return sweep(candidates, prepare, further)


def beside(times: dict[str, Times], requests: Sequence[Request]) -> tuple[dict[str, Any], Ratio]:
    """Returns the figures of all arms, and how many times as fast ours is as the best other."""
    tokens = sum(request.tokens for request in requests)
    figures = {name: found.report(tokens) for name, found in times.items()}
    best = max((name for name in figures if name != "ours"), key=lambda name: figures[name]["tokens_per_s"])
    return figures, ratio(times[best].wall, times["ours"].wall)


# ---- DSA -------------------------------------------------------------------------------------------------------------


def dsa_model(folder: str) -> CausalLM:
    """Returns our model, and writes its weights for transformers."""
    model = Subject(None).model("dsa").eval()
    export_hf(model, folder)
    return model


def dsa_throughput(options: argparse.Namespace) -> Part:
    """Mixed requests on the DSA model."""
    outputs = (8, 64) if options.quick else OUTPUTS
    with tempfile.TemporaryDirectory() as folder:
        model = dsa_model(folder)
        requests = mixed(COUNT, model.config.vocab_size, PROMPTS, outputs, seed=1)
        candidates = peers(("fp32",), EXPERTS)  # ours is fp32, and tokens are compared
        swept = fastest_setting(lambda peer: peer.load(folder), candidates, requests, options.quick)
        theirs, refusal = swept.best.load(folder), refused(swept.best.load(folder))
    kinds = {
        "ours": {
            f"{n} tokens a step": ours(model, max_batch_tokens=n) for n in (STEPS[:2] if options.quick else STEPS)
        },
        "transformers, single": {"1": static(theirs, 1)},
        "transformers, batches": {f"of {n}": static(theirs, n) for n in BATCHES[1:]},
    }
    arms, tried = fastest_arms(kinds, requests, options.quick)
    times, found = take_turns(arms, requests, options.rounds, 2)
    with ties_to_the_lower():
        agreement = compare(
            partial(logits_of, theirs), requests, found["ours"], static(theirs, COUNT)(requests), TIE_FP32
        )
    figures, faster = beside(times, requests)
    report = {"arms": figures, "sweep": tried, "agreement": agreement, "continuous_batching": refusal}
    return {**report, "settings": str(swept.best), "settings_sweep": swept.tried}, {"dsa_throughput": faster}


def refused(theirs: Any) -> str:
    """Returns what transformers' continuous batching says to a model, which it changes."""
    try:
        continuous(theirs, *CACHES[0])([Request([1, 2, 3], 2)])
    except Exception as error:  # whatever it raises is the answer
        return f"{type(error).__name__}: {error}"
    return "it works: this benchmark should measure it"


def dsa_decode_32k(options: argparse.Namespace) -> Part:
    """A token after a long prompt."""
    with tempfile.TemporaryDirectory() as folder:
        model = dsa_model(folder)
        prompt = mixed(1, model.config.vocab_size, (LONG, LONG), (1, 1), seed=2)[0].prompt
        engine = PagedEngine(PagedEngineConfig(cache_tokens=LONG + 256, overlap=False, max_batch_tokens=4096), model)
        start = time.perf_counter()
        engine.generate([prompt], SamplingParams(1, temperature=0.0))
        prefill = time.perf_counter() - start
        kept = cached(engine, prompt)
        prepare = partial(their_decoding, config=model.config, kept=kept)
        swept, job = fastest_peer(folder, prepare, our_decoding(model, kept), options.quick)
    longer = [*prompt, THEIR_TOKEN]
    (drawn,) = engine.generate([longer], SamplingParams(1, temperature=0.0))[0].token_ids
    with ties_to_the_lower():
        logits_V = job().double()
    gap = float((logits_V.max() - logits_V[drawn]) / logits_V.std())
    if gap > TIE_FP32:
        raise SystemExit(f"our token is {gap:.1e} standard deviations below transformers': nothing to compare")
    milliseconds: dict[str, list[float]] = {"ours": [], "transformers": []}
    for _ in range(options.rounds):
        milliseconds["ours"] += steps(engine, longer)
        job()
        milliseconds["transformers"].append(1e3 * job.seconds)  # type: ignore[attr-defined]
    engine.close()
    medians = {name: statistics.median(values) for name, values in milliseconds.items()}
    report = {"milliseconds": medians, "prefill_s": prefill, "cached_tokens": len(kept[0]["latent"]), "gap": gap}
    report |= {"settings": str(swept.best), "sweep": swept.tried}
    return report, {"dsa_decode_32k": medians["transformers"] / medians["ours"]}


def cached(engine: PagedEngine, prompt: Ids) -> list[dict[str, Tensor]]:
    """Returns what the engine's shared pages hold of a prompt, by layer and entry: whole pages only."""
    nodes = engine.scheduler.tree.match(prompt, len(prompt) // engine.config.page_size)
    pages = torch.tensor([node.page for node in nodes])
    size = engine.config.page_size
    rows = (pages[:, None] * size + torch.arange(size)).flatten()
    return [{name: x[rows] for name, x in layer.entries.items()} for layer in engine.store.layers]


def steps(engine: PagedEngine, prompt: Ids) -> list[float]:
    """Returns the milliseconds of steps that decode after a prompt whose pages are there."""
    (stream,) = engine.submit(prompt, SamplingParams(LONG_STEPS, temperature=0.0))
    found = []
    for _ in range(LONG_STEPS):
        start = time.perf_counter()
        engine.step()
        found.append(1e3 * (time.perf_counter() - start))
    while engine.step():
        pass
    if stream.result().cached_tokens != LONG:
        raise SystemExit(f"only {stream.result().cached_tokens} of {LONG} tokens were found in the cache")
    return found[1:]


# ---- a dense model ---------------------------------------------------------------------------------------------------


DENSE_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def dense_models() -> tuple[dict[str, CausalLM], Callable[[Peer], Any], list[int]]:
    """Returns SmolLM2 as ours by dtype, what loads it as transformers', and the ids of a text."""
    folder, ops = smollm2(), Ops(select_hardware("cpu"))
    models = {name: load_pretrained(folder, dtype=dtype, ops=ops).eval() for name, dtype in DENSE_DTYPES.items()}

    def theirs(peer: Peer) -> Any:
        loaded = peer.load(folder)
        loaded.generation_config.eos_token_id = None
        return loaded

    text = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted(Path(statistics.__file__).parent.glob("a*.py"))
    )
    return models, theirs, Tokenizer.load(folder).encode(text)


def fastest_dtype(models: dict[str, CausalLM], requests: Sequence[Request]) -> Swept[str]:
    """Returns the sweep over ours in each dtype."""
    arms = {dtype: ours(model) for dtype, model in models.items()}
    return sweep(arms, partial(timing, arms, requests), repeats=0)


def dense_throughput(options: argparse.Namespace) -> Part:
    """Mixed requests on SmolLM2, each side in its faster dtype: outputs may part where two tokens are nearly equal."""
    models, load, text = dense_models()
    prompts, outputs = ((32, 256), (8, 32)) if options.quick else (PROMPTS, OUTPUTS)
    requests = mixed(COUNT, text, prompts, outputs, seed=3)
    own = fastest_dtype(models, requests)
    model = models[own.best]
    swept = fastest_setting(load, peers(tuple(models)), requests, options.quick)
    theirs, paged = load(swept.best), load(replace(swept.best, compiled=False))
    kinds = {
        "ours": {
            f"{n} tokens a step": ours(model, max_batch_tokens=n) for n in (STEPS[:2] if options.quick else STEPS)
        },
        "transformers, single": {"1": static(theirs, 1)},
        "transformers, batches": {f"of {n}": static(theirs, n) for n in BATCHES[1:]},
        "transformers, continuous": {
            f"pages of {page}, {n} tokens a step": continuous(paged, page, n) for page, n in CACHES
        },
    }
    arms, tried = fastest_arms(kinds, requests, options.quick)
    times, found = take_turns(arms, requests, options.rounds, 2)
    judge = partial(logits_of, load(Peer()))
    agreement = {
        name: compare(judge, requests, found["ours"], ids, TIE_BF16) for name, ids in found.items() if name != "ours"
    }
    figures, faster = beside(times, requests)
    report = {"arms": figures, "sweep": tried, "agreement": agreement, "settings": str(swept.best)}
    sweeps = {"settings_sweep": swept.tried, "dtype": own.best, "dtype_sweep": own.tried}
    return {**report, **sweeps}, {"dense_throughput": faster}


def dense_single(options: argparse.Namespace) -> Part:
    """One request on SmolLM2."""
    models, load, text = dense_models()
    requests = mixed(1, text, (64, 64), (32, 32) if options.quick else (128, 128), seed=4)
    own, swept = fastest_dtype(models, requests), fastest_setting(load, peers(tuple(models)), requests, options.quick)
    arms = {"ours": ours(models[own.best]), "transformers": static(load(swept.best), 1)}
    times, found = take_turns(arms, requests, options.rounds, 1)
    judge = partial(logits_of, load(Peer()))
    agreement = compare(judge, requests, found["ours"], found["transformers"], TIE_BF16)
    figures, faster = beside(times, requests)
    report = {"arms": figures, "agreement": agreement, "settings": str(swept.best), "settings_sweep": swept.tried}
    return {**report, "dtype": own.best, "dtype_sweep": own.tried}, {"dense_single": faster}


# ---- beside itself ---------------------------------------------------------------------------------------------------


def prefix_reuse(options: argparse.Namespace) -> Part:
    """Requests that share most of their prompts, with and without the prefix cache."""
    model = Subject(None).model("dsa").eval()
    common, own = round(SHARED * PREFIXED), PREFIXED - round(SHARED * PREFIXED)
    prefix = mixed(1, model.config.vocab_size, (common, common), (1, 1), seed=5)[0].prompt
    tails = mixed(8 if options.quick else 32, model.config.vocab_size, (own, own), (SHORT, SHORT), seed=6)
    requests = [Request([*prefix, *tail.prompt], tail.tokens) for tail in tails]
    arms = {
        "ours": ours(model, before=requests[-1]),
        "ours, nothing known": ours(model),
        "missed": ours(model, prefix_cache=False),
    }
    times, found = take_turns(arms, requests[:-1], options.rounds, 2)
    judge = partial(logits_of, model)
    agreement = {
        name: compare(judge, requests[:-1], found["missed"], ids, TIE_FP32)
        for name, ids in found.items()
        if name != "missed"
    }
    tokens = sum(request.tokens for request in requests[:-1])
    figures = {name: each.report(tokens) for name, each in times.items()}
    seconds = {name: each["seconds"] for name, each in figures.items()}
    ratios = {
        "prefix_reuse": seconds["missed"] / seconds["ours"],
        "prefix_reuse_nothing_known": seconds["missed"] / seconds["ours, nothing known"],
    }
    return {"arms": figures, "agreement": agreement}, ratios


# ---- speculation -----------------------------------------------------------------------------------------------------


def trained(options: argparse.Namespace, count: int) -> tuple[CausalLM, list[Request]]:
    """Returns the checkpoint's model, and requests that begin documents held out from the recipe `small_base`."""
    model, tokenizer = load_with_tokenizer(options.checkpoint, select_hardware("cpu"))
    data = compose(["experiment=small_base"]).data
    source = registry().get("data", data.name).load()(data)
    found = []
    for document in heldout_documents(source, data.heldout):
        ids = [tokenizer.bos_id, *tokenizer.encode(document.text)][:BEGINNING]
        if len(ids) == BEGINNING:
            found.append(Request(ids, 32 if options.quick else 128))
        if len(found) == count:
            return model, found
    raise SystemExit(f"the recipe holds out {len(found)} documents of {BEGINNING} tokens, {count} are needed")


def tokens_per_forward(options: argparse.Namespace) -> Part:
    """Tokens from a forward that checks three drafts: accepted ones, and the one that comes anyway."""
    model, requests = trained(options, COUNT)
    engine = PagedEngine(PagedEngineConfig(draft_tokens=DRAFTS, drafting="always"), model)
    report: dict[str, Any] = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        before = engine.stats()
        params = [SamplingParams(request.tokens, temperature=temperature) for request in requests]
        engine.generate([request.prompt for request in requests], params)
        after = engine.stats()
        checked = after.drafts - before.drafts
        if not checked:
            raise SystemExit(f"nothing was drafted: {after.speculation}")
        accepted = [a - b for a, b in zip(after.accepted_by_position, before.accepted_by_position, strict=True)]
        report[name] = {
            "tokens_per_forward": 1 + sum(accepted) / checked,
            "accepted_by_position": [each / checked for each in accepted],
        }
    engine.close()
    return report, {"tokens_per_forward": report["greedy"]["tokens_per_forward"]}


def speculation_wall(options: argparse.Namespace) -> Part:
    """With drafts against without: one request, as many as pay; and sixteen, where they may switch themselves off."""
    report, ratios = {}, {}
    for count in (1, COUNT):
        model, requests = trained(options, count)
        arms = {"off": ours(model), "on": ours(model, draft_tokens=DRAFTS), "always": ours(model, **ALWAYS)}
        times, found = take_turns(arms, requests, options.rounds, 1)
        tokens = sum(request.tokens for request in requests)
        figures = {name: each.report(tokens) for name, each in times.items()}
        agreement = compare(partial(logits_of, model), requests, found["off"], found["on"], TIE_FP32)
        report[f"{count} at a time"] = {"arms": figures, "agreement": agreement}
        ratios["speculation_wall" if count == 1 else f"speculation_wall_{count}"] = (
            figures["on"]["tokens_per_s"] / figures["off"]["tokens_per_s"]
        )
    return report, ratios


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "dsa_throughput": dsa_throughput,
    "dsa_decode_32k": dsa_decode_32k,
    "dense_throughput": dense_throughput,
    "dense_single": dense_single,
    "prefix_reuse": prefix_reuse,
    "tokens_per_forward": tokens_per_forward,
    "speculation_wall": speculation_wall,
}
TRAINED = ("tokens_per_forward", "speculation_wall")


def main() -> None:
    """Measures what is asked for and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of fewer tokens, settings untried")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="all but those that need a checkpoint")
    parser.add_argument("--checkpoint", metavar="DIR", help="a model of the recipe small_base, or its run")
    parser.add_argument("--rounds", type=int, help="3, or 1 with --quick")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="an image, a panel for each part")
    options = parser.parse_args()
    options.only = options.only or [part for part in PARTS if options.checkpoint or part not in TRAINED]
    if not options.checkpoint and set(options.only) & set(TRAINED):
        parser.error(f"{' and '.join(TRAINED)} need --checkpoint: drafts of random weights are never accepted")
    options.rounds = options.rounds or (1 if options.quick else 3)
    report: dict[str, Any] = {"benchmark": "serving", "machine": describe_machine(options.threads), "ratios": {}}
    for part in options.only:
        report[part], ratios = PARTS[part](options)
        add(report, ratios)
        print(json.dumps({part: report[part]}, indent=2), flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))
    show(report)
    if options.plot:
        plot({part: report[part] for part in options.only}, options.plot)


def plot(parts: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws a panel of bars for each part: tokens per second, or milliseconds a token."""
    import matplotlib.pyplot as plt

    panels_of = {}
    for part, found in parts.items():
        nested = {f"{part}, {name}": each for name, each in found.items() if isinstance(each, dict) and "arms" in each}
        panels_of |= nested or {part: found}
    panels_of.pop("tokens_per_forward", None)  # one number
    if not panels_of:
        raise SystemExit("--plot: tokens_per_forward alone is no picture")
    figure, panels = plt.subplots(1, len(panels_of), figsize=(4.5 * len(panels_of), 4.5), squeeze=False)
    for axes, (part, found) in zip(panels[0], panels_of.items(), strict=True):
        values = found.get("milliseconds") or {name: arm["tokens_per_s"] for name, arm in found["arms"].items()}
        bars = axes.bar([name.replace(", ", ",\n") for name in values], list(values.values()))
        axes.bar_label(bars, fmt="{:,.1f}")
        axes.set(title=part, ylabel="milliseconds a token" if "milliseconds" in found else "tokens per second")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
