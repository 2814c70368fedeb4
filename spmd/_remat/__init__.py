"""Values that are computed again in the backward pass instead of kept."""
