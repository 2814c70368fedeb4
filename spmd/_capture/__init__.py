"""Record one step of training: what it reads and writes, and what it must not do."""
