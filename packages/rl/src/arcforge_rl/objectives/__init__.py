"""Objectives that no unit test decides, as environments: tasks from generators, checked by rules."""
