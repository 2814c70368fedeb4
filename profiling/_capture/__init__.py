"""Record live steps as a profile, from inside or from another process."""
