"""arcforge hw."""
