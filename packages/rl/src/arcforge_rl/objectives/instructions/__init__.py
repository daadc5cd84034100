"""Instruction following: kinds of constraints that a program can check, and their composition."""
