"""Data: sources -> tokenizer -> memory-mapped shards -> packed micro-batches."""
