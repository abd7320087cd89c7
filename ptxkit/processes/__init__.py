"""Processes that execute functions for this one, keep Ctrl-C away from their start, and end with it."""
