"""Bulk and tensor copies (TMA): instructions, tensor maps, and the boxes that they describe."""
