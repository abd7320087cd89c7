"""``ptxkit new --expression``: writes the kernel, the description and the test of a formula such as ``gelu(x + bias) * y``."""
