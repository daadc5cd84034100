"""``arcforge-pipeline``: jobs run in order, each starting from the results of earlier ones."""
