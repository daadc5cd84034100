"""Software engineering: repositories with a fault, repaired in a sandbox and judged by hidden tests."""
