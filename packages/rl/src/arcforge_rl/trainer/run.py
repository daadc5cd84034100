"""The work of ``arcforge-rl``: what reinforcement learning adds to a training `Session`."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import OmegaConf

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained, open_checkpoint
from arcforge_core.console.progress import working
from arcforge_core.console.result import Result
from arcforge_core.contracts.algorithm import Algorithm
from arcforge_core.contracts.environment import FAILURES, Environment
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.episodes.agent import build_dialogue
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.files.rundir import write_json
from arcforge_core.generation.engine import build_engine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.processor import allowed_cores
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.adapter import put_on
from arcforge_core.train.callbacks.console import ConsoleProgress
from arcforge_core.train.callbacks.metrics import METRICS_FILE, MetricsWriter
from arcforge_core.train.prepare import DTYPES, compute_dtype, freeze
from arcforge_core.train.session import Hooks, Parts, Session
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.collection import AsynchronousConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.environments.mixture import build_with
from arcforge_rl.environments.unjudged import Unjudged
from arcforge_rl.rewards.anchors import check_unseen, prompts_of
from arcforge_rl.rewards.hybrid import opponents_of
from arcforge_rl.rollouts.gaps import curriculum_of
from arcforge_rl.rollouts.others import Others
from arcforge_rl.rollouts.sampler import Sampler, build_environment
from arcforge_rl.rollouts.source import Source
from arcforge_rl.rollouts.tasks import (
    agents_of_trainer,
    check_judges,
    connect_judges,
    plays_apart,
    training_environment,
)
from arcforge_rl.trainer.anchors import build_anchors
from arcforge_rl.trainer.build import build_algorithm, decouple, drops_equal
from arcforge_rl.trainer.callbacks import EVALUATIONS_FILE, HELDOUT_FILE, LABELS_FILE, Evaluations, RolloutWriter
from arcforge_rl.trainer.critic import build_critic
from arcforge_rl.trainer.dashboard import Dashboard
from arcforge_rl.trainer.figures import ALL
from arcforge_rl.trainer.gold import GoldWatch
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.monitor import WARNINGS_FILE, Monitoring
from arcforge_rl.trainer.report.page import write_report
from arcforge_rl.trainer.roles import roles_of
from arcforge_rl.trainer.teachers import build_teachers, check_prompts

SHOWN = {
    "reward": "reward {:.3f}",
    "groups": "groups {:.0f}",
    "length": "length {:.0f}",
    "logprob_gap": "gap {:.1e}",
    "entropy": "entropy {:.3f}",
    **{f"failed_{kind}": f"failed: {{:.0f}} {kind}" for kind in FAILURES},
}
"""Columns of ``metrics.csv`` that the console shows."""


def run(config: RlConfig) -> Result:
    """Trains a policy as configured and writes the run's folder; see `Session`.

    Raises:
        ConfigError, CheckpointError: before any work starts.
        NonFiniteError, ArcforgeError: a loss, a gradient or the engine went wrong; the last checkpoint is kept.
    """
    algorithm = build_algorithm(config)
    config = with_shared_cores(config, allowed_cores())
    with Session(config) as session:
        if session.restored is not None:
            init = begun_with(session.run_dir, config.init)
        else:  # resolved: when the run is resumed, a link may lead to the run itself
            init = str(find_checkpoint(str(config.init), "init").resolve())
        session.config = config = with_resolved(replace(config, init=init))
        training = PolicyTraining(config, algorithm)
        try:
            return session.run(training)
        finally:
            training.close()


def with_resolved(config: RlConfig) -> RlConfig:
    """Returns the configuration with the folders of critic, reward model and agents: when it is resumed, or an
    orchestrator starts again, ``outputs/latest`` is the run itself."""

    def resolved(named: str | None, field: str) -> str | None:
        return None if named is None else str(find_checkpoint(named, field).resolve())

    critic = replace(config.critic, init=resolved(config.critic.init, "critic.init"))
    checkpoint = resolved(config.reward_model.checkpoint, "reward_model.checkpoint")
    reward_model = replace(config.reward_model, checkpoint=checkpoint)
    agents = {
        name: replace(agent, init=resolved(agent.init, f"agents.{name}.init")) for name, agent in config.agents.items()
    }
    return replace(config, critic=critic, reward_model=reward_model, agents=agents)


def with_shared_cores(config: RlConfig, cores: int) -> RlConfig:
    """Returns the configuration with half of the cores for each of trainer and engine if both compute together, unless
    `trainer.threads` says otherwise: threads beyond the cores would wait for each other in every product."""
    if not isinstance(config.collection, AsynchronousConfig) or config.trainer.threads is not None:
        return config
    return replace(config, trainer=replace(config.trainer, threads=max(1, cores // 2)))


class PolicyTraining(Hooks):
    """Runs that learn from their own rollouts."""

    # fields without which the earlier steps would mean something else
    fixed: tuple[str, ...] = (
        "adapter.", "algorithm.name", "anchor.batch", "anchor.files", "critic.model", "curriculum.", "environment.",
        "optimizer.name", "reward_model.", "rollout.", "seed",
    )  # fmt: skip
    tables: tuple[str, ...] = (METRICS_FILE, EVALUATIONS_FILE, HELDOUT_FILE, LABELS_FILE, WARNINGS_FILE)

    def __init__(self, config: RlConfig, algorithm: Algorithm) -> None:
        self.config, self.algorithm = config, algorithm

    def close(self) -> None:
        """Ends source and engine, if they were built and have something to end: rollouts, a connection, a file."""
        if not hasattr(self, "module"):
            return
        self.module.source.stop()
        if hasattr(self, "evaluations"):
            self.evaluations.close()
        closing: list[Any] = [self.module.engine, self.module.sampler.evaluator, self.module.sampler.others]
        for each in closing:
            if hasattr(each, "close"):
                each.close()

    def build(self, session: Session) -> Parts:
        """Builds policy, engine and environment. A step samples for itself, so that no rollout precedes its weights."""
        self.module, self.tokenizer = build(self.config, self.algorithm, session.hardware)
        for role in roles_of(self.module):
            session.console.print(role.line)
        return Parts(self.module, self.tokenizer, itertools.count())

    def callbacks(self, session: Session) -> list[L.Callback]:
        """Returns metrics, rollouts, evaluations and progress; the engine gets the weights that the fit starts from."""
        self.module.begin(session.run_dir, None if session.restored is None else session.restored.extra)
        run_dir, console = session.run_dir, session.console
        live = console.is_terminal
        self.evaluations = Evaluations(run_dir, None if live else console)
        check_alone(self.config)
        if not session.first:
            return [self.evaluations]
        monitoring, metrics = Monitoring(run_dir, METRICS_FILE, console), MetricsWriter(run_dir)
        writers = [monitoring, metrics, RolloutWriter(run_dir, self.tokenizer)]
        gold = GoldWatch(run_dir, self.evaluations, monitoring, self.tokenizer, self.config.monitor.canaries)
        if live:
            return [*writers, self.evaluations, gold, Dashboard(console, self.evaluations, monitoring)]
        return [*writers, ConsoleProgress(console, metrics, SHOWN, pause=0.0), self.evaluations, gold]

    def finish(self, session: Session) -> None:
        """Ends the collection of rollouts, and evaluates, unless the last step did."""
        self.module.source.stop()
        if self.evaluations.asked_step != self.module.progress.step:
            self.module.catch_up()
            self.evaluations.evaluate(session.trainer, self.module)
        self.evaluations.settle(session.trainer, self.module)

    def report(self, session: Session, status: str) -> dict[str, float | str]:
        """Writes ``summary.json`` and the report."""
        figures = summarise(self.module, self.evaluations)
        write_json(session.run_dir / "summary.json", {"status": status, **figures})
        Result(session.run_dir, figures).show(
            f"{self.config.algorithm.name} on {self.config.environment.name}: {status}"
        )
        with working("writing the report"):
            page = write_report(session.run_dir)
        session.console.print(f"report {os.path.relpath(page)}")
        return {**figures}


def check_alone(config: RlConfig) -> None:
    """Refuses options that one of several processes would follow alone.

    Raises:
        ConfigError: alarms end the run, or canaries are played.
    """
    monitor = config.monitor
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return
    if monitor.action != "warn":
        raise ConfigError("monitor.action", monitor.action, "must be warn in several processes")
    if monitor.canaries is not None:
        raise ConfigError("monitor.canaries", monitor.canaries, "must be null in several processes")


def summarise(module: PolicyModule, evaluations: Evaluations) -> dict[str, float]:
    """Returns the final figures: progress, the last step, and pass@k and maj@k before and after training."""
    progress = module.progress
    figures: dict[str, float] = {"steps": progress.step, "tokens": progress.tokens, "seconds": progress.seconds}
    if module.record is not None:
        last = module.record.figures
        figures |= {f"last_{name}": last[name] for name in ("reward", "length") if name in last}
    for when, found in (("before", evaluations.first), ("after", evaluations.last)):
        for domain, of in (found or {}).items():
            place = "" if domain == ALL else f"_{domain}"
            figures |= {
                f"{name}{place}_{when}": value for name, value in of.items() if name.startswith(("pass@", "maj@"))
            }
    return figures


def begun_with(run_dir: Path, named: str | None) -> str:
    """Returns the checkpoint that a run started from, as its ``config.yaml`` names it.

    Raises:
        ConfigError: another one is named; the run's own do not count, because ``outputs/latest`` is the run now.
        CheckpointError: the run's configuration cannot be read.
    """
    try:
        saved: Any = OmegaConf.load(run_dir / "config.yaml")
        begun = str(saved["init"])
    except Exception as error:  # YAML's own errors have no base in common
        raise CheckpointError(f"cannot read how {os.path.relpath(run_dir)} was configured: {error}") from error
    if named is not None:
        found = find_checkpoint(named).resolve()
        if str(found) != begun and run_dir.resolve() not in found.parents:
            raise ConfigError("init", named, f"this run began with {begun}: leave init out to resume it")
    return begun


def unjudged(config: RlConfig, environment: Environment) -> Environment:
    """Returns the training environment of an objective in which no reward counts: its verifiers do not run.

    Raises:
        ConfigError: the curriculum needs pass rates, or a reward is configured.
    """
    for field, value in (("reward_model.checkpoint", config.reward_model.checkpoint), ("rewards", config.rewards)):
        if value is not None:
            raise ConfigError(field, value, f"must be null: no reward counts in algorithm={config.algorithm.name}")
    bounds = (config.curriculum.low, config.curriculum.high)
    if bounds != (0.0, 1.0):
        accepted = f"needs pass rates, and no reward counts in algorithm={config.algorithm.name}"
        raise ConfigError("curriculum.low", bounds[0], accepted)
    found: Environment = Unjudged(environment)
    return found


def check_compares(config: RlConfig, environment: Environment) -> None:
    """Refuses an environment that compares the rollouts of a group where rollouts are judged one by one, or alone.

    Raises:
        ConfigError: they are.
    """
    if not getattr(environment, "compares", False):
        return
    name, because = config.environment.name, "its rewards compare the rollouts of a group"
    if config.rollout.group_size == 1:
        raise ConfigError("rollout.group_size", 1, f"must be at least 2 with environment={name}: {because}")
    if config.collection.name != "sync" or config.harness is not None:
        raise ConfigError("environment", name, f"needs collection=sync and no harness: {because}")


def heldout_environment(config: RlConfig) -> Environment:
    """Returns the environment of the held-out tasks.

    Raises:
        ConfigError: `evaluation.environment` is unknown, or does not have an option.
    """
    evaluation = config.evaluation
    if evaluation.environment is None:
        return build_environment(config.environment, "heldout")
    return build_with(evaluation.environment, evaluation.options, "heldout", "evaluation.options")


def check_agents(config: RlConfig, environment: Environment, heldout: Environment) -> None:
    """Checks that the configured agents are those that the environments of training and evaluation need.

    Raises:
        ConfigError: one is missing, or would be used by nobody.
    """
    needed = set(getattr(environment, "agents", ())) | set(getattr(heldout, "agents", ()))
    name = config.environment.name
    if config.evaluation.environment is not None:
        name += f" with evaluation.environment={config.evaluation.environment}"
    for missing in sorted(needed - set(config.agents)):
        accepted = f"environment={name} needs {missing}: +agents.{missing}.url=URL, or an engine"
        raise ConfigError("agents", sorted(config.agents), accepted)
    seeing = {name for one in (environment, heldout) for name in getattr(one, "seeing", ())}
    for blind in sorted(agent for agent in seeing if config.agents[agent].url is None):
        accepted = f"environment={name} shows pictures to {blind}, which no engine sees: name url, a server"
        raise ConfigError(f"agents.{blind}.engine", config.agents[blind].engine, accepted)
    for unused in sorted(set(config.agents) - needed):
        raise ConfigError("agents", unused, f"environment={name} asks {', '.join(sorted(needed)) or 'no other agent'}")


def build(config: RlConfig, algorithm: Algorithm, hardware: Hardware) -> tuple[PolicyModule, Tokenizer]:
    """Loads the policy, the engine's copy of it, and the algorithm's reference or teachers.

    Raises:
        ConfigError: parts that do not go together, or an environment that cannot work here.
        CheckpointError: a checkpoint cannot be read, or has no tokenizer.
    """
    L.seed_everything(config.seed, verbose=False)
    folder = find_checkpoint(str(config.init), "init")
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"init={config.init}: {folder} has no tokenizer.json")
    tokenizer = Tokenizer.load(folder)
    dialogue = build_dialogue(tokenizer, config.rollout.thinking)
    heldout, apart = heldout_environment(config), plays_apart(config)
    training = training_environment(config, None if apart else Ops(hardware, config.trainer.deterministic))
    check_agents(config, training, heldout)
    opponents = opponents_of(training)
    known = prompts_of(heldout, config.evaluation.tasks) if config.anchor.weight or opponents else {}
    for name, prompts in opponents.items():
        check_unseen(prompts, known, f"component.{name}.options.opponents", "expert-written replies")
    check_judges(config, training)
    tasks = training
    if "teacher" in algorithm.needs:
        check_prompts(config.teachers, tasks)
    decouple(algorithm, config, training)
    if not getattr(algorithm, "counts_rewards", True):
        training = unjudged(config, training)
    check_compares(config, training)
    dtype = compute_dtype(config, hardware)
    sampled_in = dtype if config.rollout.precision is None else DTYPES[config.rollout.precision]

    def load(kept: torch.dtype = torch.float32, folder: Path = folder, dtype: torch.dtype = dtype) -> CausalLM:
        model = load_pretrained(folder, kept, Ops(hardware, config.trainer.deterministic))
        model = model.to(hardware.identity.device)
        model.set_compute_dtype(dtype)
        return model

    model = load().train()
    if config.adapter.name == "none":
        freeze(model, config.trainer.trainable)
    else:
        # no loss here trains the MTP module
        targets = [rf"^(?!mtp\.).*(?:{each})" for each in config.adapter.targets]
        put_on(model, replace(config.adapter, targets=targets), open_checkpoint(folder))
    if config.trainer.freeze_indexer:
        for name, parameter in model.named_parameters():
            if ".indexer." in name:
                parameter.requires_grad_(False)
    model.activation_checkpointing = config.trainer.activation_checkpointing
    # the engine's copy is kept in the dtype that it computes in: no call casts a weight
    if config.trainer.replay_routing == "engine" and hasattr(config.engine, "record_experts"):
        engine_config = replace(config.engine, record_experts=True)  # type: ignore[call-arg]  # it has the field
        config = replace(config, engine=engine_config)
    engine = build_engine(config.engine, load(sampled_in, dtype=sampled_in).requires_grad_(False))
    evaluator = None
    if config.evaluation.engine == "own" and config.evaluation.tasks:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ConfigError("evaluation.engine", "own", "must be shared in several processes")
        evaluator = build_engine(config.engine, load(sampled_in, dtype=sampled_in).requires_grad_(False))
    curriculum = curriculum_of(config, tasks)
    positions = model.config.max_position_embeddings
    drop_equal, named = drops_equal(config, algorithm), getattr(training, "verifiers", {})
    if (by := config.rollout.thin_by) is not None and named and by not in named:
        raise ConfigError("rollout.thin_by", by, f"must be a metric of the environment: {', '.join(named)}")
    sampler = Sampler(config, engine, dialogue, positions, training, heldout, curriculum, drop_equal)
    agents_here = agents_of_trainer(config, heldout)
    sampler.others = Others(agents_here, tokenizer, positions, hardware, config.trainer.deterministic)
    if not apart:
        connect_judges(training, sampler.others)
    sampler.evaluator = evaluator
    if config.harness is not None:
        url, key = config.engine.url, os.environ.get("ARCFORGE_ENGINE_KEY")  # type: ignore[attr-defined]  # checked
        agents = AgentRollouts(config.harness, url, key, sampler.counts)
        sampler.roll_out, sampler.open_player = agents.play_step, agents.open
    reference = load().requires_grad_(False) if "reference" in algorithm.needs else None
    teachers = None
    if "teacher" in algorithm.needs:
        temperature = config.rollout.temperature
        top_k = getattr(config.algorithm, "top_k", 0)
        shares = config.trainer.share_prefixes
        teachers = build_teachers(
            config.teachers, tokenizer, model, temperature, lambda of: load(folder=of), top_k, shares
        )
    elif config.teachers:
        raise ConfigError("teachers", sorted(config.teachers), f"algorithm={config.algorithm.name} asks no teacher")
    source: Source = registry().get("collection", config.collection.name).load()(config.collection, sampler)
    critic = None
    if "values" in algorithm.needs:
        critic = build_critic(config.critic, model, str(config.init), tokenizer)
    elif config.critic.model != "shared":
        raise ConfigError("critic.model", config.critic.model, f"algorithm={config.algorithm.name} has no critic")
    anchors = build_anchors(config.anchor, dialogue, model, known, config.seed, config.trainer.micro_batch_tokens)
    module = PolicyModule(model, config, algorithm, sampler, source, reference, teachers, critic, anchors)
    return module, tokenizer
