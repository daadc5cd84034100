"""Measures models: bits per byte, compressors of the same bytes, Python functions that parse."""
