"""arcforge serving."""
