"""Kernels that reduce rows: normalization, softmax, and their gradients."""
