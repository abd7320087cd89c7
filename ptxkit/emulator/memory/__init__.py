"""Memory: allocations, address patterns, the layout of variables, sectors and bank conflicts."""
