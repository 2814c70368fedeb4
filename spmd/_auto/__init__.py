"""A plan for a Hugging Face model, made from its config."""
