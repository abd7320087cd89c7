"""The catalogue: one description for each kernel in cu/ and ptx/, with the same name."""
