"""Every collective of a module: its devices and bytes, what it moves, and why."""
