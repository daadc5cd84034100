"""What happens around training steps: metrics, evaluation, checkpoints, progress, stopping."""
