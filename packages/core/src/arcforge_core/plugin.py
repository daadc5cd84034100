"""Core as a plugin of itself: one plain component of every kind that its commands need."""

from __future__ import annotations

from arcforge_core.hookspecs import PLUGIN_API, hookimpl
from arcforge_core.registry import Registrar


@hookimpl
def arcforge_plugin_api() -> int:
    """Returns the API number this plugin was written for."""
    return PLUGIN_API


@hookimpl
def arcforge_config_sources() -> list[str]:
    """Returns where core's YAML presets are."""
    return ["pkg://arcforge_core.conf"]


@hookimpl
def arcforge_register_components(registry: Registrar) -> None:
    """Registers core's components."""
    registry.add(
        "attention", "reference", "arcforge_core.model.reference_attention:ReferenceAttention",
        schema="arcforge_core.configs:ReferenceAttentionConfig", summary="Naive MLA or GQA, the yardstick of others",
    )  # fmt: skip
    registry.add(
        "attention", "pattern", "arcforge_core.model.pattern:Pattern",
        schema="arcforge_core.configs:PatternConfig", summary="Layers of several variants, by a pattern of letters",
    )  # fmt: skip
    registry.add(
        "optimizer", "torch_adamw", "arcforge_core.train.optimizer:torch_adamw",
        schema="arcforge_core.configs:TorchAdamWConfig", summary="torch.optim.AdamW, decay on matrices only",
    )  # fmt: skip
    registry.add(
        "schedule", "constant", "arcforge_core.train.optimizer:constant_schedule",
        schema="arcforge_core.configs:ConstantScheduleConfig", summary="Linear warm-up, then constant",
    )  # fmt: skip
    registry.add(
        "hardware", "torch_cpu", "arcforge_core.ops.hardware:TorchCpu",
        schema="arcforge_core.configs:TorchCpuConfig", summary="CPU through torch's own operators",
    )  # fmt: skip
    registry.add(
        "hardware", "auto", "arcforge_core.ops.hardware:auto_hardware",
        schema="arcforge_core.configs:AutoHardwareConfig", summary="The one accelerator that is there, else the CPU",
    )  # fmt: skip
    registry.add(
        "procedure", "one_run", "arcforge_core.train.run:train",
        schema="arcforge_core.configs:OneRunConfig", summary="One training run from the configuration",
    )  # fmt: skip
    registry.add(
        "report", "data", "arcforge_core.train.report:write_report",
        schema="arcforge_core.configs:TrainReportConfig", summary="Of a run of arcforge-train",
    )  # fmt: skip
    registry.add(
        "engine", "simple", "arcforge_core.model.engine:SimpleEngine",
        schema="arcforge_core.configs:SimpleEngineConfig", summary="Static-batch generation in this process",
    )  # fmt: skip
    registry.add(
        "environment", "copy", "arcforge_core.environments.copy:CopyEnvironment",
        schema="arcforge_core.configs:CopyConfig", summary="Say a random word again",
    )  # fmt: skip
    registry.add(
        "checker", "exact", "arcforge_core.checkers:ExactChecker",
        schema="arcforge_core.configs:ExactCheckerConfig", summary="The answer is one text",
    )  # fmt: skip
    registry.add(
        "checker", "number", "arcforge_core.checkers:NumberChecker",
        schema="arcforge_core.configs:NumberCheckerConfig", summary="The last number of the answer",
    )  # fmt: skip
    registry.add(
        "chat_template", "glm5", "arcforge_core.chat.glm5:Glm5Template",
        schema="arcforge_core.configs:Glm5TemplateConfig", summary="GLM-5's format, with every token's author",
    )  # fmt: skip
    registry.add(
        "chat_template", "jinja", "arcforge_core.chat.jinja:JinjaTemplate",
        schema="arcforge_core.configs:JinjaTemplateConfig", summary="Any Jinja template: ChatML, Llama, a tokenizer's",
    )  # fmt: skip
    registry.add(
        "parser", "glm", "arcforge_core.chat.glm_parser:GlmParser",
        schema="arcforge_core.configs:GlmParserConfig", summary="Calls of GLM-4.7 and GLM-5, typed by schema",
    )  # fmt: skip
    registry.add(
        "parser", "hermes", "arcforge_core.chat.json_parsers:HermesParser",
        schema="arcforge_core.configs:HermesParserConfig", summary="Calls as JSON between tags: Hermes, Qwen",
    )  # fmt: skip
    registry.add(
        "parser", "llama", "arcforge_core.chat.json_parsers:LlamaParser",
        schema="arcforge_core.configs:LlamaParserConfig", summary="Calls as the whole answer: Llama 3",
    )  # fmt: skip
    registry.add(
        "data", "stdlib", "arcforge_core.data.sources:StdlibSource",
        schema="arcforge_core.configs:StdlibDataConfig", summary="Source and reference text of the running Python",
    )  # fmt: skip
    registry.add(
        "data", "files", "arcforge_core.data.sources:FilesSource",
        schema="arcforge_core.configs:FilesDataConfig", summary="Files and folders: text, code, jsonl, parquet",
    )  # fmt: skip
    registry.add(
        "data", "hub", "arcforge_core.data.sources:HubSource",
        schema="arcforge_core.configs:HubDataConfig", summary="A data set of the `datasets` library (extra)",
    )  # fmt: skip
    registry.add(
        "data", "conversations", "arcforge_core.data.conversations.source:ConversationsSource",
        schema="arcforge_core.configs:ConversationsDataConfig", summary="Chats, thoughts and tool calls, with masks",
    )  # fmt: skip
    registry.add(
        "data", "retrieval", "arcforge_core.data.retrieval:RetrievalSource",
        schema="arcforge_core.configs:RetrievalDataConfig", summary="Generated episodes: needles, questions, answers",
    )  # fmt: skip
    registry.add(
        "data", "mixture", "arcforge_core.data.sources:MixtureSource",
        schema="arcforge_core.configs:MixtureDataConfig", summary="Several sources with weights",
    )  # fmt: skip
    registry.add(
        "suite", "language_model", "arcforge_core.eval.run:measure_language_model",
        schema="arcforge_core.configs:LanguageModelSuiteConfig", summary="Held-out bits per byte, functions that parse",
    )  # fmt: skip
    registry.add(
        "suite", "long_context", "arcforge_core.eval.long_context.command:measure_long_context",
        schema="arcforge_core.configs:LongContextSuiteConfig", summary="Retrieval and aggregation at growing lengths",
    )  # fmt: skip
    registry.add(
        "suite", "conversations", "arcforge_core.eval.conversations.command:measure_conversations",
        schema="arcforge_core.configs:ConversationsSuiteConfig", summary="Held-out conversations, played and checked",
    )  # fmt: skip
    registry.add(
        "toolbox", "recorded", "arcforge_core.eval.conversations.recorded:RecordedToolbox",
        schema="arcforge_core.configs:RecordedToolboxConfig", summary="Results as the record has them; runs nothing",
    )  # fmt: skip
    registry.add(
        "suite", "mtp_acceptance", "arcforge_core.eval.mtp_acceptance:measure_mtp_acceptance",
        schema="arcforge_core.configs:MtpAcceptanceSuiteConfig", summary="Drafts of the MTP module that are accepted",
    )  # fmt: skip
    registry.add_command("arcforge-train", "arcforge_core.config.schema:TrainConfig")
    registry.add_command("arcforge-eval", "arcforge_core.config.schema:EvalConfig")
    registry.add_command("arcforge-data", "arcforge_core.configs:DataCommandConfig")
    registry.add_command("arcforge-pipeline", "arcforge_core.configs:PipelineConfig")
