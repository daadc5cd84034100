"""Ops: the unit of hardware extension. References live here, fast kernels in hardware packages."""

from arcforge_core.ops.binding import Fused, bind_ops, op
from arcforge_core.ops.dispatch import Binder, Ops, default_ops

__all__ = ["Binder", "Fused", "Ops", "bind_ops", "default_ops", "op"]
