"""Layers that hold several weights in one, with the parts held apart."""
