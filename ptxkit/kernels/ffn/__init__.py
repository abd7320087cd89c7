"""Linear layers with layer normalization."""
