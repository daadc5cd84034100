"""All numbers of one cluster for one model and workload, each with unit, tier and source."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_hw.planner.chip import Chip
from arcforge_hw.planner.counts import ModelCount, Weights
from arcforge_hw.planner.facts import Fact, counted, derive
from arcforge_hw.planner.machine import Machine
from arcforge_hw.planner.memory import fit, given_devices
from arcforge_hw.planner.serving import best_decode, best_prefill
from arcforge_hw.planner.training import best_training

HOUR, MILLION = 3600.0, 1e6


@dataclass(frozen=True)
class Workload:
    """The work of a cluster.

    Attributes:
        context, new_tokens: tokens of a prompt and of its answer.
        ttft, tpot: limits in seconds, or None.
        batch, sequence: tokens of a training step (None plans none) and of one of its sequences.
    """

    context: int
    new_tokens: int
    ttft: float | None = None
    tpot: float | None = None
    batch: int | None = None
    sequence: int = 4096


@dataclass(frozen=True)
class Cluster:
    """Servers of one chip.

    Attributes:
        name: as shown.
        chip: its data, assumptions included.
        machine: its rates.
        nodes: servers.
        devices: per server; None takes the chip's number.
        price: of a device for an hour, or unknown.
    """

    name: str
    chip: Chip
    machine: Machine
    nodes: int
    devices: int | None
    price: Fact

    @property
    def per_node(self) -> Fact:
        """Devices per server."""
        return self.chip.devices_per_node if self.devices is None else given_devices(self.devices)


Numbers = dict[str, Fact]


def numbers_of(cluster: Cluster, count: ModelCount, work: Workload) -> tuple[Numbers, dict[str, str]]:
    """Returns a cluster's numbers by name, and the layouts that they are of."""
    found = fit(count, cluster.chip, nodes=cluster.nodes, context=work.context, devices=cluster.devices)
    numbers: Numbers = {"memory": found.available, "most_sequences": found.sequences}
    answer = {None: "unknown", True: "yes", False: "no"}[found.fits]
    layouts = {"fits": answer}
    for name, plan in (("serving", _serving), ("training", _training)):
        if name == "training" and work.batch is None:
            continue
        more, chosen = plan(cluster, count, work)
        numbers |= more
        layouts |= chosen
    return numbers, layouts


def model_numbers(count: ModelCount, context: int) -> Numbers:
    """Returns what follows from the model alone."""
    how = "counted on the meta device"
    return {
        "parameters": counted(count.values[0], "values", how),
        "parameters_without_mtp": counted(count.values[1], "values", how),
        "weights": counted(count.bytes, "B", f"tensors with weights={count.weights}"),
        "cache_per_token": counted(
            count.cache(context) / context, "B", f"cache_spec() of all layers at {context} tokens"
        ),
        "training_flops_per_token": counted(
            count.training((context + 1) / 2).main,
            "FLOP",
            f"training_flops of a sequence of {context} tokens, without MTP",
        ),
    }


def _inputs(cluster: Cluster, count: ModelCount) -> tuple[Fact, ...]:
    """Returns the facts that times rest on."""
    per_node = cluster.per_node
    devices = int(per_node.value or 1) * cluster.nodes
    memory = (cluster.chip.memory, cluster.machine.facts["reserve"], per_node)
    return (*memory, *cluster.machine.needed(count.formats, forms(count), devices, cluster.nodes))


def forms(count: ModelCount) -> set[str]:
    """Returns the number formats that a forward pass multiplies in."""
    every: list[Weights] = [count.head]
    for layer in set(count.layers):
        every += [layer.attention, layer.mlp, *([layer.expert] if layer.expert else [])]
    return {count.wide, *(form for part in every for form in part.flops)}


def _unknown(names: tuple[str, ...], why: str) -> Numbers:
    return {name: Fact("unknown", why) for name in names}


SERVING = (
    "ttft", "prefill_tokens_per_s", "tpot", "sequences", "decode_tokens_per_s", "requests_per_s", "prefill_share",
    "cost_per_hour", "cost_per_million_new_tokens",
)  # fmt: skip
TRAINING = ("step_seconds", "training_tokens_per_s", "mfu", "training_memory_per_device")


def _serving(cluster: Cluster, count: ModelCount, work: Workload) -> tuple[Numbers, dict[str, str]]:
    inputs = _inputs(cluster, count)
    missing = next((fact for fact in inputs if fact.value is None), None)
    if missing is not None:
        return _unknown(SERVING, missing.source), {}
    nodes, devices = cluster.nodes, int(cluster.per_node.known)
    prompts = best_prefill(count, cluster.machine, nodes, devices, work.context, work.ttft)
    tokens = best_decode(count, cluster.machine, nodes, devices, work.context, work.new_tokens, work.tpot)
    if prompts is None or tokens is None:
        return _unknown(SERVING, "the model and one sequence fit no layout of these devices"), {}

    def of(unit: str, how: str, value: float, *more: Fact) -> Fact:
        return derive(unit, how, lambda *_: value, *inputs, *more)

    each = 1 / prompts.prompts_per_s + work.new_tokens / tokens.tokens_per_s  # seconds of all devices for a request
    share = 1 / prompts.prompts_per_s / each
    numbers = {
        "ttft": of("s", "roofline of a prompt", prompts.ttft),
        "prefill_tokens_per_s": of("tokens/s", "all devices prefill", prompts.prompts_per_s * work.context),
        "tpot": of("s", "roofline of a decoding step", tokens.tpot),
        "sequences": of("sequences", "under way while decoding", tokens.sequences),
        "decode_tokens_per_s": of("tokens/s", "all devices decode", tokens.tokens_per_s),
        "requests_per_s": of("1/s", "prompts and their answers share the devices", 1 / each),
        "prefill_share": of("share", "share of the devices for prompts, if prefill and decoding are apart", share),
    }
    rented = devices * nodes
    numbers["cost_per_hour"] = derive(
        f"{cluster.price.unit}", "price x devices", lambda price, _: price * rented, cluster.price, cluster.per_node
    )
    numbers["cost_per_million_new_tokens"] = derive(
        f"{cluster.price.unit}", "prompts included", lambda price, second: price * rented / HOUR * second
        * MILLION / work.new_tokens, cluster.price, of("s", "devices per request", each),
    )  # fmt: skip
    return numbers, {"prefill_layout": str(prompts.layout), "decode_layout": str(tokens.layout)}


def _training(cluster: Cluster, count: ModelCount, work: Workload) -> tuple[Numbers, dict[str, str]]:
    batch = work.batch
    assert batch is not None
    if count.weights != "none":
        return _unknown(TRAINING, f"a model with weights={count.weights} is not trained"), {}
    inputs = _inputs(cluster, count)
    missing = next((fact for fact in inputs if fact.value is None), None)
    if missing is not None:
        return _unknown(TRAINING, missing.source), {}
    nodes, devices = cluster.nodes, int(cluster.per_node.known)
    best = best_training(count, cluster.machine, nodes, devices, batch, work.sequence)
    if best is None:
        return _unknown(TRAINING, "weights, gradients and optimizer fit no layout of these devices"), {}
    peak = (getattr(cluster.chip, count.wide), inputs)
    numbers = {
        "step_seconds": derive("s", "roofline of a step", lambda *_: best.seconds, *inputs),
        "training_tokens_per_s": derive("tokens/s", "batch by seconds", lambda *_: batch / best.seconds, *inputs),
        "mfu": derive(
            "share", "needed FLOPs by those of the peak",
            lambda top, *_: best.flops / best.seconds / (top * 1e12 * devices * nodes), peak[0], *inputs,
        ),
        "training_memory_per_device": derive("B", "state and kept activations", lambda *_: best.memory, *inputs),
    }  # fmt: skip
    return numbers, {"training_layout": str(best.layout)}
