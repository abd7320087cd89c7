"""A peer that is the fastest of several kernels of ptxkit, like a library that selects one of its kernels."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from ptxkit.bench.peers.base import Peer, PeerCall
from ptxkit.errors import FaultError, PtxkitError, UnavailableError
from ptxkit.kernels.gemm.product import gemm_of
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.workload import execute, registry
from ptxkit.workload.ahead import compile_ahead
from ptxkit.workload.launch import array_spec
from ptxkit.workload.resolve import resolve, unavailable
from ptxkit.workload.variant import Variant
from ptxkit.workload.workload import Workload

SAMPLES = 5  # timed launches of each, from which the fastest is chosen

Candidate = tuple[Workload, Variant]


class Alternatives(Peer):
    """Selects a kernel by timing all of them, once per workload."""

    keeps_code = True

    def __init__(self) -> None:
        super().__init__()
        self._chosen: dict[Workload, Candidate] = {}

    @abstractmethod
    def candidates(self, workload: Workload) -> Iterable[Candidate]:
        """Kernels that compute the same from the same inputs, regardless of their requirements."""

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        return next(iter(self.candidates(workload)), None) is not None

    def prepare(self, workload: Workload, inputs: Mapping[str, Any]) -> PeerCall:
        """See :meth:`Peer.prepare`."""
        device = self.enter(inputs)
        if workload not in self._chosen:
            self._chosen[workload] = self._fastest(workload, inputs)
        prepared = _prepared(self._chosen[workload], device, inputs)
        build = prepared.build
        outputs = {name: prepared.case.array(name) for name in prepared.case.output_specs}
        note = f"{build.workload.name}:{build.variant.name} {build.tile}".rstrip()
        return PeerCall(launch=prepared.launch, outputs=outputs, note=note, launches=len(prepared.launches))

    def _fastest(self, workload: Workload, inputs: Mapping[str, Any]) -> Candidate:
        device = self.device
        usable = [
            (other, variant)
            for other, variant in self.candidates(workload)
            if unavailable(variant, device.target, other) is None
        ]
        resolved = []
        for other, variant in usable:
            with contextlib.suppress(PtxkitError):
                resolved.append(resolve(other, variant, device=device))
        compile_ahead(resolved)
        times: list[tuple[float, Candidate]] = []
        reason = f"none of its kernels is for {device.target}"
        for candidate in usable:
            try:
                prepared = _prepared(candidate, device, inputs)
                times.append((median(device.measure(prepared.launch, SAMPLES).times_us), candidate))
            except FaultError:
                raise
            except PtxkitError as error:
                reason = str(error)
        if not times:
            raise UnavailableError(f"{self.name}: {reason}")
        return min(times, key=lambda timed: timed[0])[1]


def same_product(workload: Workload, kernel: str, **options: Any) -> Workload | None:
    """The workload of ``kernel`` for the same matrix product with the same types, or None."""
    gemm = gemm_of(workload)
    if gemm is None or gemm.beta:
        return None
    cls = registry.get(kernel)
    shared: dict[str, Any] = {
        name: workload.options.get(name) for name in ("dtype", "alpha", "layout") if name in cls.option_types()
    }
    mine = {name: value for name, value in shared.items() if value is not None}
    try:
        other = cls.make([gemm.m, gemm.n, gemm.k], {**mine, **options})
    except PtxkitError:  # sizes or options that the kernel does not support
        return None
    same = gemm_of(other) == gemm and _element(other) == _element(workload)
    return other if same else None


def variants_of(workload: Workload | None) -> Iterator[Candidate]:
    """All variants of a kernel; none without a workload."""
    if workload is not None:
        yield from ((workload, variant) for variant in workload.variants().values())


def last_steps_of(workload: Workload | None, count: int) -> Iterator[Candidate]:
    """The last ``count`` optimization steps of a kernel, one of which is its fastest; a variant of another name is no step.

    Steps for other sizes, to which the description objects at these, are left out.
    """
    steps = [(other, variant) for other, variant in variants_of(workload) if variant.name.startswith("step")]
    yield from [(other, step) for other, step in steps if step.slower is None or step.slower(other) is None][-count:]


def _element(workload: Workload) -> Any:
    gemm = gemm_of(workload)
    declared = workload.outputs().get(gemm.c) if gemm else None
    return array_spec(declared)[1] if declared else None


def _prepared(candidate: Candidate, device: Any, inputs: Mapping[str, Any]) -> execute.Prepared:
    workload, variant = candidate
    case = execute.Case(workload, device, inputs=inputs)
    case.use({name: value for name, value in inputs.items() if isinstance(value, DeviceArray)})
    return execute.prepare(case, variant)
