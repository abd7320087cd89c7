"""The GPU targets ptxkit knows, the features each has, and what to say when one is missing.

A *requirement* is a feature name (``"wgmma"``) or a target (``"sm_80"``, ``"sm_90a"``). What a target has is written once, in
:data:`FEATURES`, as a rule of three kinds of token, after the PTX ISA's "Target ISA Notes" and ``.target`` sections:

``sm_80``    that architecture and every later one, whatever the suffix;
``sm_90a``   that architecture-specific target alone: ``a`` code runs nowhere else;
``sm_100f``  the family: the ``f`` and ``a`` forms of that architecture and of the later ones of its family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ptxkit.errors import UsageError

# PTX ISA, ".target": architectures of one family, in order; 107 as NVRTC 13.5 treats it.
_FAMILIES = ((100, 103, 107), (110,), (120, 121))

_PLAIN = (75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)
_WITH_A = (90, 100, 103, 107, 110, 120, 121)
_WITH_F = (100, 103, 107, 110, 120, 121)


@dataclass(frozen=True)
class Feature:
    """One thing a kernel can require.

    Attributes:
        description: a few words, for listings.
        rule: the targets that have it, as tokens (see the module's docstring); several are alternatives.
    """

    description: str
    rule: tuple[str, ...]


def _feature(description: str, rule: str) -> Feature:
    return Feature(description, tuple(rule.split()))


_BLACKWELL = "sm_100f sm_110f sm_120f"
_DATACENTER = "sm_100f sm_110f"

FEATURES: dict[str, Feature] = {
    "mma.f16": _feature("mma.sync on f16, accumulating in f16 or f32", "sm_75"),
    "mma.int8": _feature("mma.sync on s8 and u8", "sm_75"),
    "mma.bf16": _feature("mma.sync on bf16", "sm_80"),
    "mma.tf32": _feature("mma.sync on tf32", "sm_80"),
    "mma.f64": _feature("mma.sync on f64", "sm_80"),
    "mma.sp": _feature("mma.sp: 2:4 structured sparsity", "sm_80"),
    "mma.fp8": _feature("mma.sync on e4m3 and e5m2", "sm_89"),
    "mma.block_scale": _feature("mma.sync with block scaling: mxf8f6f4, mxf4, nvf4", "sm_120f"),
    "ldmatrix": _feature("ldmatrix and movmatrix", "sm_75"),
    "stmatrix": _feature("stmatrix", "sm_90"),
    "bf16": _feature("bf16 fma, conversion, min and max", "sm_80"),
    "bf16.add": _feature("bf16 add, sub and mul", "sm_90"),
    "cp.async": _feature("cp.async: copies from global to shared memory without registers", "sm_80"),
    "mbarrier": _feature("mbarrier objects in shared memory", "sm_80"),
    "mbarrier.try_wait": _feature("mbarrier.try_wait, expect_tx and complete_tx", "sm_90"),
    "redux": _feature("redux.sync on integers", "sm_80"),
    "redux.f32": _feature("redux.sync min and max on f32", "sm_100f"),
    "cache_hint": _feature("createpolicy, L2 cache hints, discard and applypriority", "sm_80"),
    "fp8": _feature("cvt to and from e4m3x2 and e5m2x2", "sm_89"),
    "fp4": _feature("cvt to and from e2m1x2, e2m3x2, e3m2x2 and ue8m0x2", _BLACKWELL),
    "tma": _feature("cp.async.bulk and cp.async.bulk.tensor", "sm_90"),
    "tensormap.replace": _feature("changing a tensor map on the device", f"sm_90a {_BLACKWELL}"),
    "clusters": _feature("thread block clusters and barrier.cluster", "sm_90"),
    "dsmem": _feature("distributed shared memory: mapa, ld and st.shared::cluster", "sm_90"),
    "st.async": _feature("st.async and red.async", "sm_90"),
    "elect": _feature("elect.sync", "sm_90"),
    "griddepcontrol": _feature("programmatic dependent launch", "sm_90"),
    "multimem": _feature("multimem loads and reductions over several GPUs", "sm_90"),
    "wgmma": _feature("warpgroup matrix multiply", "sm_90a"),
    "setmaxnreg": _feature("moving registers between warpgroups", f"sm_90a {_BLACKWELL}"),
    "f32x2": _feature("add, mul and fma on f32x2", "sm_100"),
    "ld.256": _feature("256-bit loads and stores of global memory", "sm_100"),
    "tcgen05": _feature("fifth-generation tensor cores and tensor memory", _DATACENTER),
    "clusterlaunchcontrol": _feature("clusterlaunchcontrol: work stealing between clusters", "sm_100"),
}
"""Feature name -> what it is and which targets have it."""

_NAME = re.compile(r"(?:sm_|compute_|lto_)?(\d+)([af]?)")


@dataclass(frozen=True)
class Target:
    """One GPU target.

    Attributes:
        name: ``"sm_90a"``.
        cc: compute capability times ten: 90.
        suffix: ``""``, ``"a"`` (architecture-specific) or ``"f"`` (family-specific).
    """

    name: str
    cc: int
    suffix: str = ""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, text: str | Target) -> Target:
        """The target called ``sm_90a``, ``compute_90a`` or ``90a``.

        Raises:
            UsageError: there is no such target; the message names the nearest.
        """
        if isinstance(text, Target):
            return text
        match = _NAME.fullmatch(text.strip().lower().replace(".", ""))
        if match and (found := TARGETS.get(f"sm_{match[1]}{match[2]}")):
            return found
        raise UsageError(f"there is no target {text!r}; {_nearest(text)}")

    @property
    def has_a_form(self) -> bool:
        """Whether an architecture-specific form exists (``sm_90a``)."""
        return f"sm_{self.cc}a" in TARGETS

    @property
    def order(self) -> tuple[int, int]:
        """Sorting key: by architecture, then plain, f, a."""
        return self.cc, ("", "f", "a").index(self.suffix)

    @property
    def shared_bytes_per_cta(self) -> int:
        """The most shared memory that a CTA may ask for (CUDA C++ Programming Guide, "Compute Capabilities")."""
        other = {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 107: 327, 120: 99, 121: 99}
        return other.get(self.cc, 227) * 1024

    @property
    def ctas_per_cluster(self) -> int:
        """The most CTAs of a cluster: 8 on every GPU that has clusters. Where a launch may ask for more, 16, if a GPC has so
        many SMs (Hopper and Blackwell Tuning Guides, "Thread Block Clusters")."""
        return 16 if self.cc in (90, 100, 103) else 8

    @cached_property
    def features(self) -> frozenset[str]:
        """Names out of :data:`FEATURES` that this target has."""
        return frozenset(name for name, feature in FEATURES.items() if self.satisfies(feature.rule))

    def satisfies(self, rule: Iterable[str]) -> bool:
        """Whether any token of a rule (see the module's docstring) holds here."""
        return any(self._token_holds(token) for token in rule)

    def accepts(self, built_for: Target) -> bool:
        """Whether PTX whose ``.target`` is ``built_for`` may be assembled for this target (PTX ISA, ".target").

        Unlike a requirement, family-specific PTX may go to the plain form of an architecture of its family.
        """
        if built_for.suffix == "f":
            return self._follows(built_for.cc)
        return self._token_holds(built_for.name)

    def _follows(self, cc: int) -> bool:
        """Whether this architecture is ``cc`` or a later one of the same family."""
        return self.cc >= cc and any(cc in family and self.cc in family for family in _FAMILIES)

    def _token_holds(self, token: str) -> bool:
        if token.endswith("a"):
            return self.name == token
        if token.endswith("f"):
            return bool(self.suffix) and self._follows(int(token[3:-1]))
        return self.cc >= int(token[3:])


TARGETS: dict[str, Target] = {
    target.name: target
    for target in sorted(
        (
            Target(f"sm_{cc}{suffix}", cc, suffix)
            for suffix, capabilities in (("", _PLAIN), ("f", _WITH_F), ("a", _WITH_A))
            for cc in capabilities
        ),
        key=lambda target: target.order,
    )
}
"""Every target by name, oldest first; of one architecture the plain one first."""


def rule_of(requirement: str) -> tuple[str, ...]:
    """The rule of a requirement: a feature's, or the target itself.

    Raises:
        UsageError: it is neither; the message names the nearest.
    """
    if feature := FEATURES.get(requirement):
        return feature.rule
    if requirement in TARGETS:
        return (requirement,)
    from difflib import get_close_matches

    near = get_close_matches(requirement, [*FEATURES, *TARGETS], n=3, cutoff=0.5)
    hint = f"; did you mean {_either(near)}?" if near else f"; features are {', '.join(FEATURES)}"
    raise UsageError(f"unknown requirement {requirement!r}{hint}")


def needs(rule: Iterable[str]) -> str:
    """A rule in words: ``"sm_80 or newer"``, ``"sm_90a"``, ``"sm_100a or sm_100f"``.

    Several alternatives of one generation are shortened to the first family: the others follow from it.
    """
    words: list[str] = []
    for token in rule:
        if token.endswith("f"):
            if not any(word.startswith("sm_1") for word in words):
                words += [f"{token[:-1]}a", token]
        elif token.endswith("a"):
            words.append(token)
        else:
            words.append(f"{token} or newer")
    return _either(words)


def missing(requires: Iterable[str], target: Target) -> str | None:
    """Why ``target`` does not satisfy all of ``requires``, or None when it does.

    The reason names the first requirement that fails and targets that have it:
    ``"wgmma needs sm_90a; the target is sm_100a"``.

    Raises:
        UsageError: a requirement is neither a feature nor a target.
    """
    for requirement in requires:
        rule = rule_of(requirement)
        if not target.satisfies(rule):
            what = f"{requirement} needs" if requirement in FEATURES else "needs"
            return f"{what} {needs(rule)}; the target is {target}"
    return None


def lowest_target(requires: Iterable[str], default: str = "sm_90a") -> Target:
    """``default`` when it satisfies ``requires``, else the oldest newer target that does, else the oldest of all.

    Among the forms of one architecture the ``a`` form wins, because it has every feature.

    Raises:
        UsageError: no target has them all, or a requirement is unknown.
    """
    requires = tuple(requires)
    start = Target.parse(default)
    if missing(requires, start) is None:
        return start
    by_age = sorted(TARGETS.values(), key=lambda t: (t.cc, -t.order[1]))
    candidates = [t for t in by_age if missing(requires, t) is None]
    if not candidates:
        raise UsageError(f"no target has all of {', '.join(requires)}")
    return next((t for t in candidates if t.cc >= start.cc), candidates[0])


def _nearest(text: str) -> str:
    from difflib import get_close_matches

    digits = re.sub(r"\D", "", text)
    near = get_close_matches(f"sm_{text.strip().lower().removeprefix('sm_')}", TARGETS, n=3, cutoff=0.6)
    if digits and not near:
        near = sorted(TARGETS, key=lambda name: (abs(TARGETS[name].cc - int(digits)), name))[:3]
    return f"did you mean {_either(near)}?" if near else f"targets are {', '.join(TARGETS)}"


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
