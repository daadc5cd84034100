"""Enflame's GCUs. Nothing here has run on one."""
