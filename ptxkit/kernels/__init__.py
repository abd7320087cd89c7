"""The catalogue: one description for each kernel in cu/ and ptx/, under the same name; nothing else."""
