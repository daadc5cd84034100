"""Presets and primary configurations of core, found by Hydra as a package."""
