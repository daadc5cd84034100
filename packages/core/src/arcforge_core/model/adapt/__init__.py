"""In-place changes of weights: LoRA adapters, quantised linears."""
