"""Counters of a launch: counted during the execution, and added up for the launch and for each source line."""
