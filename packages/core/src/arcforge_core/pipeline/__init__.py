"""``arcforge-pipeline``: training stages one after another, each from the weights of the one before."""
