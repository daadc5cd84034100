"""``environment=terminal``: tasks for a shell, as Harbor task folders or from template families."""
