"""Textures and surfaces: the objects that kernels take, and the instructions that read, write and query them."""
