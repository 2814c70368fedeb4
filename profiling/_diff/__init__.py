"""What two steps move, hold and wait for otherwise."""
