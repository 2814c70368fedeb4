"""Meshes of devices, and specs that say how a tensor is split over one."""
