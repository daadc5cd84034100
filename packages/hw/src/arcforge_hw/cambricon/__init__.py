"""Cambricon's MLUs. Nothing here has run on one."""
