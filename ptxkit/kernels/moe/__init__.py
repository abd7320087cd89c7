"""Mixture of experts on quantized tokens and weights."""
