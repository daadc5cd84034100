"""arcforge attention."""
