"""The instructions that a warp executes itself. Each module registers its forms in :mod:`ptxkit.emulator.simt.table`."""
