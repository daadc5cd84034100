"""From documents to packed token batches."""
