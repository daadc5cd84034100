"""Families of tasks: each draws an instruction, files, rules of the verdict, a solution and cheats from a seed."""
