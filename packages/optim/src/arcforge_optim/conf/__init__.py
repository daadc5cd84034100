"""YAML presets of this package."""
