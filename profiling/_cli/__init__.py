"""The command `spmd` and its subcommands."""
