"""Batches on their way to the devices: rows, padding, loaders, hosts."""
