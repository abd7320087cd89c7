"""The public grid of shapes: sizes of published models, random sizes and awkward sizes, for ``ptxkit bench shapes``."""
