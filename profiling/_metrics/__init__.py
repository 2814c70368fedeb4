"""What a training loop does, step by step, while it runs."""
