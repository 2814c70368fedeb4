"""Compile a recorded step once, and run the compiled graph at each call."""
