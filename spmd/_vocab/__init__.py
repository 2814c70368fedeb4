"""Embedding and loss on a table that stays split."""
