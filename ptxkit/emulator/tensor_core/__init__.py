"""Tensor cores: fragments, their loads and stores, and the matrix instructions."""
