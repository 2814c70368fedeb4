"""Mixtures of experts: how their weights are held, and where tokens meet them."""
