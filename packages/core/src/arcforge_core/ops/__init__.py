"""Ops: the unit of hardware extension. References live here, fast kernels in hardware packages."""

from arcforge_core.ops.dispatch import Binder, Ops, default_ops

__all__ = ["Binder", "Ops", "default_ops"]
