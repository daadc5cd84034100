"""Schemas of rl's commands and components; imports nothing heavy."""

from arcforge_core.moved import forward

__getattr__ = forward(__name__, "commands")
