"""Measurement of variants and peers."""
