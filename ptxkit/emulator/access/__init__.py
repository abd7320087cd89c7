"""Memory accesses by state space: checks of bounds and alignment, element indices, traffic, and the access itself."""
