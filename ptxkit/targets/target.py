"""The GPU targets that ptxkit supports, the features of each, and the messages for missing features.

A *requirement* is a feature name (``"wgmma"``) or a target (``"sm_80"``, ``"sm_90a"``). :mod:`ptxkit.targets.features` has the
rules that say which target has which feature, :mod:`ptxkit.targets.sm` what an SM of a target holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ptxkit.errors import UsageError
from ptxkit.targets.features import FEATURES
from ptxkit.targets.sm import SM_LIMITS, SmLimits

# PTX ISA, ".target": architectures of one family, in order; 107 as NVRTC 13.5 treats it.
_FAMILIES = ((100, 103, 107), (110,), (120, 121))

_PLAIN = tuple(SM_LIMITS)
_WITH_A = (90, 100, 103, 107, 110, 120, 121)
_WITH_F = (100, 103, 107, 110, 120, 121)

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
            UsageError: no such target; the message names similar ones.
        """
        if isinstance(text, Target):
            return text
        if not isinstance(text, str):
            raise UsageError(f"a target is a name such as 'sm_90a', not {text!r}")
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
    def limits(self) -> SmLimits:
        """The limits of an SM, a CTA and a cluster of this target.

        Raises:
            UsageError: the target is older than every target that ptxkit knows (PTX may say ``.target sm_70``).
        """
        found = SM_LIMITS.get(self.cc)
        if found is None:
            raise UsageError(f"the limits of {self} are not known; targets are {', '.join(TARGETS)}")
        return found

    @cached_property
    def features(self) -> frozenset[str]:
        """Names out of :data:`FEATURES` that this target has."""
        return frozenset(name for name, feature in FEATURES.items() if self.satisfies(feature.rule))

    def satisfies(self, rule: Iterable[str]) -> bool:
        """Whether any token of a rule (see :mod:`ptxkit.targets.features`) applies to this target."""
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


def target_that_runs(name: str) -> Target:
    """The target whose limits apply to code built for ``name``: that target, or for PTX of an older architecture (``sm_70``)
    the oldest target that ptxkit knows, because it runs such PTX.

    Raises:
        UsageError: there is no such target.
    """
    return next(iter(TARGETS.values())) if is_older_than_all(name) else Target.parse(name)


def is_older_than_all(name: str) -> bool:
    """Whether ``name`` (``sm_70``) is an architecture before the oldest target that ptxkit knows."""
    match = re.fullmatch(r"sm_(\d{1,9})", name)
    return match is not None and int(match[1]) < next(iter(TARGETS.values())).cc


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
    """A rule in words: ``"sm_80 or newer"``, ``"sm_90a"``, ``"sm_120a or sm_121a, or an f form of these"``.

    Of a family the ``a`` forms of all its architectures are named.
    """
    rule = tuple(rule)
    words: list[str] = []
    for token in rule:
        if token.endswith("f"):
            words += [t.name for t in TARGETS.values() if t.suffix == "a" and t.satisfies((token,))]
        else:
            words.append(token if token.endswith("a") else f"{token} or newer")
    form = ", or an f form of these" if any(token.endswith("f") for token in rule) else ""
    return _either(list(dict.fromkeys(words))) + form


def needed_target(rule: Iterable[str]) -> Target:
    """The target to suggest to whoever needs a rule: the first that :func:`needs` names."""
    token = next(iter(rule))
    return TARGETS[f"{token[:-1]}a" if token.endswith("f") else token]


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

    digits = re.sub(r"\D", "", text)[:9]  # int() refuses thousands of digits
    near = get_close_matches(f"sm_{text.strip().lower().removeprefix('sm_')}", TARGETS, n=3, cutoff=0.6)
    if digits and not near:
        near = sorted(TARGETS, key=lambda name: (abs(TARGETS[name].cc - int(digits)), name))[:3]
    return f"did you mean {_either(near)}?" if near else f"targets are {', '.join(TARGETS)}"


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
