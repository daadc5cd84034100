"""Files on disk: caches, atomic replacement, checksums, run directories."""
