"""The orchestrator as a process of its own, which the trainer starts, watches and starts again."""
