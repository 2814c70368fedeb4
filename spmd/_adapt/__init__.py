"""Layers of models that are computed in another way, so that they split."""
