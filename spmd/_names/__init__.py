"""What tensors are called: containers taken apart, and patterns over names."""
