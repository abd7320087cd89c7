"""How variants and peers are measured."""
