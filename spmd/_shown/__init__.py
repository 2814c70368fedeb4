"""How tensors are split, shown to people: a table, and drawings."""
