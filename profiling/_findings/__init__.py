"""What in a step's sharding costs, why, and what removes it; proven by compiling."""
