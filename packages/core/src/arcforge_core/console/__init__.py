"""Console output of a running command: progress, lines, figures."""
