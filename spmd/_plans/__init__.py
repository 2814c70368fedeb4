"""Plans for whole models: their rules, what they come to, and carrying them out."""
