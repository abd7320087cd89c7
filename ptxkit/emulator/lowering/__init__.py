"""Lowering: divides a PTX function into basic blocks and generates a Python function for the instructions of each."""
