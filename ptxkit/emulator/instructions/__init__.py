"""Instructions other than TMA and tensor cores. Each module registers its forms in :mod:`ptxkit.emulator.simt.table`."""
