"""Sweeps on many workers, through Dask.distributed: docs/cluster.md.

Dask carries tasks and results, starts and restarts worker processes, encrypts connections and limits what runs at a time.
Modules of this package import it inside functions, since it is optional (``pip install 'ptxkit[cluster]'``).
"""
