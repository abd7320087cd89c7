"""Pipelines: copies that overlap with computation."""
