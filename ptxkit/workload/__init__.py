"""Kernel descriptions: their parts, and how a variant is resolved, built, executed and verified."""
