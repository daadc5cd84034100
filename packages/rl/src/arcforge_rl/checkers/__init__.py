"""Checkers that run programs or ask the maker of a puzzle."""
