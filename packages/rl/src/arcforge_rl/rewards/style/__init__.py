"""How near a text is to texts that people wrote: features, reference texts, distance, discriminator."""
