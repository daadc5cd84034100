"""The state of a run's rollouts as JSON and as a page: progress, queue, staleness, failures by kind, task services."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

from arcforge_core.contracts.serving_engine import EngineStats
from arcforge_core.report.html import card, decimals, percent, table
from arcforge_core.report.page import Page, Section
from arcforge_rl.orchestrator.collector import Collector
from arcforge_rl.orchestrator.concurrency import cache_use
from arcforge_rl.orchestrator.group import MemberState


def status_of(collector: Collector, stats: EngineStats) -> dict[str, Any]:
    """Returns the state now; called on the collector's loop."""
    scheduler = collector.scheduler
    counts, ages = scheduler.counts, Counter[int]()
    for group in [*scheduler.active.values(), *scheduler.ready.values()]:
        for member in group.members:
            if member.state in (MemberState.RUNNING, MemberState.DONE):
                ages[max(0, scheduler.taken - member.oldest)] += 1
    failures = {name.removeprefix("failed_"): count for name, count in counts.items() if name.startswith("failed_")}
    dropped = {name.removeprefix("dropped_"): count for name, count in counts.items() if name.startswith("dropped_")}
    ratios = collector.services.ratios()
    return {
        "paused": collector.paused,
        "processes": {} if collector.watch is None else collector.watch.heartbeats.show(),
        "progress": {
            "batches": scheduler.taken,
            "trained": scheduler.trained,
            "weights": scheduler.version,
            "rollouts": collector.ledger.progress(),
        },
        "queue": {
            "running": scheduler.running,
            "limit": scheduler.limit,
            "waiting": scheduler.waiting,
            "groups_running": len(scheduler.active),
            "groups_ready": len(scheduler.ready),
            "threshold": collector.rules.threshold,
        },
        "staleness": {str(age): ages[age] for age in sorted(ages)},
        "failures": failures,
        "dropped": dropped,
        "retried": counts["retried"],
        "yielded": counts["yielded"],
        "services": {
            service.name or service.config.environment: {
                "ratio": ratios[name] / sum(ratios.values()),
                "running": service.running,
                "groups": service.counts["groups"],
                "teaches": service.progress,
                "reward": service.rewards / service.counts["groups"] if service.counts["groups"] else None,
                "failed": service.counts["failed"],
            }
            for name, service in collector.services.by_name.items()
        },
        "engine": {
            "running": stats.running,
            "waiting": stats.waiting,
            "cache_use": cache_use(stats),
            "preemptions": stats.preemptions,
            "weights": stats.weight_version,
        },
    }


def page_of(name: str, status: dict[str, Any]) -> Page:
    """Returns the page of a state."""
    progress, queue, engine = status["progress"], status["queue"], status["engine"]
    cards = [
        card("steps trained", f"{progress['trained']}"),
        card("rollouts running", f"{queue['running']} of {queue['limit']}"),
        card("groups ready", f"{queue['groups_ready']} of {queue['threshold']}"),
        card("engine's cache in use", percent(engine["cache_use"])),
    ]
    services = [
        (escape(name), percent(one["ratio"]), one["running"], one["groups"], percent(one["teaches"]),
         "" if one["reward"] is None else decimals(one["reward"]), one["failed"])
        for name, one in status["services"].items()
    ]  # fmt: skip
    processes = [
        (escape(name), "alive" if one["alive"] else "dead", f"{one['heard']:g} s ago", one["deaths"],
         escape(one["problem"]))
        for name, one in status["processes"].items()
    ]  # fmt: skip
    heads = ("service", "share", "running", "groups", "teach", "reward", "failed")
    sections = [
        Section("", "\n".join(cards), headline=True),
        Section("Progress", table(("state", "rollouts"), list(progress["rollouts"].items()))),
        Section("Queue", table(("queue", "number"), [(escape(what), value) for what, value in queue.items()])),
        Section("Staleness", table(("steps", "rollouts"), list(status["staleness"].items()))),
        Section("Failures", table(("kind", "rollouts"), [(escape(kind), n) for kind, n in status["failures"].items()])),
        Section(
            "Groups left out", table(("reason", "groups"), [(escape(why), n) for why, n in status["dropped"].items()])
        ),
        Section("Task services", table(heads, services)),
        Section("Processes", table(("process", "state", "heard", "deaths", "problem"), processes)),
        Section("Engine", table(("engine", "value"), [(what, f"{value:.4g}") for what, value in engine.items()])),
    ]
    state = "paused" if status["paused"] else "running"
    return Page("rollouts of a run", name, sections, state, footer="The same as JSON: /status")
