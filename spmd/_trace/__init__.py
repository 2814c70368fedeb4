"""A step as a program, traced without its data and without running it."""
