"""Environments: tasks and verifiers."""
