"""A step as it was traced, before a compiler has seen it: its operations and FLOPs."""
