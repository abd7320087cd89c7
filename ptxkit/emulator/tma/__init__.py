"""Bulk and tensor copies: the TMA unit, its tensor maps, and the boxes they cut."""
