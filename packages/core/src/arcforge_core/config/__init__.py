"""Configuration: dataclass schemas (torch-free) and their composition."""
