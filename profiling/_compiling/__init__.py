"""Compile for devices that are not here, in a process of its own; keep what came."""
