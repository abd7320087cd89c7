"""``python -m ptxkit``."""

from ptxkit.cli import main

main()
