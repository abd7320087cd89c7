"""Attention: softmax(scale q k^T) v."""
