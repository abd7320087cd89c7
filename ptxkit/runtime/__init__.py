"""Devices, buffers and launches, the same on a GPU and in the emulator."""
