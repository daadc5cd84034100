"""Console scripts of core; modules here import nothing heavy at the top."""
