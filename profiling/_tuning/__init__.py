"""Search compiler flags for a program by compiling it."""
