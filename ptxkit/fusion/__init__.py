"""``ptxkit fuse``: which operations of a graph should share a launch, what that saves, and what it costs.

======================== ==========================================================================================
:mod:`.graph`            tensors, operations, and the graph that they form
:mod:`.kinds`            the kinds of operations: shapes of their results, flops, bytes
:mod:`.layout`           where the elements of views lie in memory
:mod:`.read`             graphs from JSON and Python files
:mod:`.torch_graph`      graphs captured from torch modules by ``torch.export``
:mod:`.models`           graphs of language models, by their dimensions
:mod:`.machine`          what the prediction needs to know of a GPU
:mod:`.cost`             the predicted time of a launch
:mod:`.rules`            whether two neighbouring operations can share a launch, and the reason
:mod:`.placement`        whether the operations of a launch need the same elements at the same place
:mod:`.groups`           which groups of operations are best merged
:mod:`.score`            the weighted score of a group
:mod:`.patterns`         exact matching of a group with the formula of a kernel
:mod:`.kernels`          the formulas of the bundled kernels
:mod:`.offers`           the bundled kernel that computes a group, or the formula that writes one
:mod:`.analysis`         the report as values
:mod:`.model_validation` predicted speed-ups of the bundled kernels compared with measured ones
======================== ==========================================================================================
"""

from ptxkit.fusion.analysis import Candidate, Report, analyse
from ptxkit.fusion.graph import Graph, GraphBuilder, Operation
from ptxkit.fusion.machine import Machine, machine_for
from ptxkit.fusion.models import model_graph
from ptxkit.fusion.read import read_graph
from ptxkit.fusion.tensors import Tensor

__all__ = [
    "Candidate",
    "Graph",
    "GraphBuilder",
    "Machine",
    "Operation",
    "Report",
    "Tensor",
    "analyse",
    "machine_for",
    "model_graph",
    "read_graph",
]
