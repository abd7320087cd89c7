"""``python -m ptxkit``."""

from ptxkit.start import main

main()
