"""How memory instructions reach memory: bounds and alignment, element indices, traffic, and the access itself."""
