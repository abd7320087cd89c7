"""Tensor maps: their description and the rules they obey, the same for every device."""
