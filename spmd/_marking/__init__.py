"""Say how one tensor is split, and keep what was said with it."""
