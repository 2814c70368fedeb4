"""Equal layers whose tensors are held as one: [layers, ...]."""
