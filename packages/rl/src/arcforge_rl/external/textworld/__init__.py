"""Text adventures that TextWorld generates."""
