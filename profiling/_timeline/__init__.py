"""Replay a schedule on compute and wires: what each thing costs, and what is hidden."""
