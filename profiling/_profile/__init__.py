"""What a run really did, read from a profile of its devices and its host."""
