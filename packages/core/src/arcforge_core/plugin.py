"""Core as a plugin of itself: one plain component of every kind that its commands need."""

from __future__ import annotations

from arcforge_core.plugins.table import hooks

COMPONENTS = {
    "attention": {
        "reference": ("model.reference_attention:ReferenceAttention", "configs:ReferenceAttentionConfig",
            "Naive MLA or GQA, the reference"),
        "pattern": ("model.pattern:Pattern", "configs:PatternConfig",
            "Layers of several variants, by a pattern of letters"),
    },
    "optimizer": {
        "torch_adamw": ("train.optimizer:torch_adamw", "configs:TorchAdamWConfig",
            "torch.optim.AdamW, decay on matrices only"),
    },
    "schedule": {
        "constant": ("train.optimizer:constant_schedule", "configs:ConstantScheduleConfig",
            "Linear warm-up, then constant"),
    },
    "logger": {
        "tensorboard": ("train.loggers:tensorboard", "configs:TensorBoardLoggerConfig",
            "Event files in the run's folder"),
        "csv": ("train.loggers:csv", "configs:CsvLoggerConfig", "One table of all scalars, held-out ones included"),
        "wandb": ("train.loggers:wandb", "configs:WandbLoggerConfig", "Weights & Biases (extra)"),
        "mlflow": ("train.loggers:mlflow", "configs:MlflowLoggerConfig", "MLflow (extra)"),
    },
    "hardware": {
        "torch_cpu": ("ops.hardware:TorchCpu", "configs:TorchCpuConfig", "CPU through torch's own operators"),
        "auto": ("ops.hardware:auto_hardware", "configs:AutoHardwareConfig",
            "The one accelerator that is there, else the CPU"),
    },
    "report": {
        "data": ("train.report.page:write_report", "configs:TrainReportConfig", "Of a run of arcforge-train"),
        "pairs": ("train.reward.page:write_report", "configs:RewardReportConfig",
            "Of a run of arcforge-train stage=reward"),
    },
    "engine": {
        "simple": ("generation.engine:SimpleEngine", "configs:SimpleEngineConfig",
            "Static-batch generation in this process"),
    },
    "environment": {
        "copy": ("episodes.copy:CopyEnvironment", "configs:CopyConfig", "Say a random word again"),
        "conversations": ("episodes.conversations:ConversationEnvironment", "configs:ConversationEnvironmentConfig",
            "Conversation records with checkers; calls get the recorded results"),
    },
    "reward": {
        "exact": ("checkers:ExactChecker", "configs:ExactCheckerConfig", "The answer is one text"),
        "number": ("checkers:NumberChecker", "configs:NumberCheckerConfig", "The last number of the answer"),
    },
    "chat_template": {
        "glm5": ("chat.glm5:Glm5Template", "configs:Glm5TemplateConfig", "GLM-5's format, with every token's author"),
        "jinja": ("chat.jinja:JinjaTemplate", "configs:JinjaTemplateConfig",
            "Any Jinja template: ChatML, Llama, a tokenizer's"),
    },
    "parser": {
        "glm": ("chat.glm_parser:GlmParser", "configs:GlmParserConfig", "Calls of GLM-4.7 and GLM-5, typed by schema"),
        "hermes": ("chat.json_parsers:HermesParser", "configs:HermesParserConfig",
            "Calls as JSON between tags: Hermes, Qwen"),
        "llama": ("chat.json_parsers:LlamaParser", "configs:LlamaParserConfig", "Calls as the whole answer: Llama 3"),
    },
    "data": {
        "stdlib": ("data.sources.text:StdlibSource", "configs:StdlibDataConfig",
            "Source and reference text of the running Python"),
        "files": ("data.sources.text:FilesSource", "configs:FilesDataConfig",
            "Files and folders: text, code, jsonl, parquet"),
        "hub": ("data.sources.text:HubSource", "configs:HubDataConfig", "A data set of the `datasets` library (extra)"),
        "conversations": ("data.conversations.source:ConversationsSource", "configs:ConversationsDataConfig",
            "Chats, thoughts and tool calls, with masks"),
        "retrieval": ("data.sources.retrieval:RetrievalSource", "configs:RetrievalDataConfig",
            "Generated episodes: needles, questions, answers"),
        "mixture": ("data.sources.text:MixtureSource", "configs:MixtureDataConfig", "Several sources with weights"),
    },
    "suite": {
        "language_model": ("eval.run:measure_language_model", "configs:LanguageModelSuiteConfig",
            "Held-out bits per byte, functions that parse"),
        "long_context": ("eval.long_context.command:measure_long_context", "configs:LongContextSuiteConfig",
            "Retrieval and aggregation at growing lengths"),
        "conversations": ("eval.conversations.command:measure_conversations", "configs:ConversationsSuiteConfig",
            "Held-out conversations, played and checked"),
        "mtp_acceptance": ("eval.mtp_acceptance:measure_mtp_acceptance", "configs:MtpAcceptanceSuiteConfig",
            "Drafts of the MTP module that are accepted"),
    },
}  # fmt: skip
"""Kind -> name -> target, schema and summary; import strings are relative to the package."""

JOBS = {
    "train": ("train.run:train", "config.schema:TrainConfig", "arcforge-train"),
    "reward": ("train.reward.run:train", "config.reward:RewardTrainConfig", "arcforge-train stage=reward"),
    "eval": ("eval.run:evaluate", "config.schema:EvalConfig", "arcforge-eval"),
    "data": ("data.command:build", "configs:DataCommandConfig", "arcforge-data"),
    "convert": ("checkpoint.convert:run", "configs:ConvertConfig", "arcforge-convert"),
    "pipeline": ("pipeline.run:run_pipeline", "configs:PipelineConfig", "arcforge-pipeline"),
}
"""Name -> function, schema and script."""

arcforge_plugin_api, arcforge_config_sources, arcforge_register_components = hooks("arcforge_core", COMPONENTS, JOBS)
