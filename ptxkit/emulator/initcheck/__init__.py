"""Finds uses of values that were never initialised: registers, local, shared and global memory."""
