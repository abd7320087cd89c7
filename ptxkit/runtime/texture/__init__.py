"""Textures and surfaces as arguments of kernels, for every device."""
