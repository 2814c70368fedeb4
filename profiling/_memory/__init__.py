"""What a device holds during a step, from the compiler or estimated."""
