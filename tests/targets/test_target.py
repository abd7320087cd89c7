import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.targets import (
    FEATURES,
    TARGETS,
    Target,
    lowest_target,
    missing,
    needed_target,
    needs,
    rule_of,
    target_that_runs,
)

targets = st.sampled_from(sorted(TARGETS.values(), key=lambda t: t.order))


@pytest.mark.parametrize("text", ["sm_90a", "90a", "compute_90a", " SM_90A ", "9.0a"])
def test_parse_takes_every_usual_spelling(text):
    assert Target.parse(text) is TARGETS["sm_90a"]


@pytest.mark.parametrize(
    "text, near", [("sm_9a", "sm_90a"), ("sm_95", "sm_90"), ("sm_86a", "sm_86"), ("hopper", "sm_75")]
)
def test_an_unknown_target_names_the_nearest(text, near):
    with pytest.raises(UsageError, match=near):
        Target.parse(text)


def test_a_name_with_thousands_of_digits_is_an_unknown_target():
    name = "sm_" + "9" * 5000
    for read in (Target.parse, target_that_runs):
        with pytest.raises(UsageError, match="there is no target"):
            read(name)


def test_the_table_has_every_architecture_and_suffix():
    by_suffix = {s: [t.cc for t in TARGETS.values() if t.suffix == s] for s in ("", "a", "f")}
    assert by_suffix[""] == [75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121]
    assert by_suffix["a"] == [90, 100, 103, 107, 110, 120, 121]
    assert by_suffix["f"] == [100, 103, 107, 110, 120, 121]


@pytest.mark.parametrize(
    "target, has, lacks",
    [
        ("sm_75", {"mma.f16", "ldmatrix"}, {"cp.async", "mma.bf16"}),
        ("sm_80", {"cp.async", "mbarrier", "redux", "mma.sp"}, {"tma", "fp8"}),
        ("sm_89", {"fp8", "mma.fp8"}, {"clusters", "mbarrier.try_wait"}),
        ("sm_90", {"tma", "clusters", "dsmem", "elect"}, {"wgmma", "setmaxnreg"}),
        ("sm_90a", {"wgmma", "setmaxnreg", "tensormap.replace"}, {"tcgen05", "f32x2"}),
        ("sm_100", {"f32x2", "ld.256"}, {"wgmma", "tcgen05", "setmaxnreg"}),
        ("sm_100a", {"tcgen05", "setmaxnreg", "redux.f32"}, {"wgmma", "mma.block_scale"}),
        ("sm_103f", {"tcgen05", "fp4"}, {"wgmma"}),
        ("sm_120a", {"mma.block_scale", "setmaxnreg"}, {"tcgen05", "wgmma", "redux.f32"}),
    ],
)
def test_features_of_a_target(target, has, lacks):
    assert has <= TARGETS[target].features
    assert not lacks & TARGETS[target].features


@given(targets)
def test_a_form_has_all_that_the_plain_form_has(target):
    if target.suffix:
        assert TARGETS[f"sm_{target.cc}"].features <= target.features


@given(targets, targets)
def test_plain_features_last(older, newer):
    if older.suffix == "" and newer.cc >= older.cc:
        assert older.features <= newer.features


@given(targets, targets)
def test_accepts_follows_the_suffix(wanted, built):
    if built.suffix == "a":
        assert wanted.accepts(built) == (wanted == built)
    elif built.suffix == "":
        assert wanted.accepts(built) == (wanted.cc >= built.cc)
    elif wanted.accepts(built):
        assert wanted.cc >= built.cc


def test_family_code_runs_in_its_family_alone():
    accepted = {t.name for t in TARGETS.values() if t.accepts(TARGETS["sm_100f"])}
    assert accepted == {f"sm_{cc}{s}" for cc in (100, 103, 107) for s in ("", "a", "f")}


TENSOR = "sm_100a, sm_103a, sm_107a or sm_110a, or an f form of these"


@pytest.mark.parametrize(
    "requires, target, reason",
    [
        (["tcgen05"], "sm_90a", f"tcgen05 needs {TENSOR}; the target is sm_90a"),
        (["sm_80", "wgmma"], "sm_90", "wgmma needs sm_90a; the target is sm_90"),
        (["sm_80"], "sm_75", "needs sm_80 or newer; the target is sm_75"),
        (["sm_90a"], "sm_100a", "needs sm_90a; the target is sm_100a"),
        (["mma.block_scale"], "sm_80", "mma.block_scale needs sm_120a or sm_121a, or an f form of these; the target is sm_80"),
        (["cp.async", "tma"], "sm_90", None),
        ([], "sm_75", None),
    ],
)
def test_missing_says_what_has_it(requires, target, reason):
    assert missing(requires, TARGETS[target]) == reason


def test_an_unknown_requirement_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown requirement 'wgma'; did you mean wgmma"):
        missing(["wgma"], TARGETS["sm_90a"])


@pytest.mark.parametrize(
    "requires, lowest",
    [([], "sm_90a"), (["sm_80"], "sm_90a"), (["wgmma"], "sm_90a"), (["tcgen05"], "sm_100a"), (["sm_100f"], "sm_100a"),
     (["sm_120a"], "sm_120a"), (["mma.block_scale"], "sm_120a")],
)  # fmt: skip
def test_lowest_target(requires, lowest):
    assert lowest_target(requires).name == lowest


def test_lowest_target_of_the_impossible():
    with pytest.raises(UsageError, match="no target has all of wgmma, tcgen05"):
        lowest_target(["wgmma", "tcgen05"])


@given(st.lists(st.sampled_from([*FEATURES, *TARGETS]), max_size=3))
def test_the_lowest_target_satisfies_what_it_was_asked(requires):
    try:
        found = lowest_target(requires)
    except UsageError:
        assert all(missing(requires, target) for target in TARGETS.values())
    else:
        assert missing(requires, found) is None


@given(st.sampled_from([*FEATURES, *TARGETS]))
def test_needs_names_every_architecture_specific_target_that_has_it(requirement):
    rule = rule_of(requirement)
    text = needs(rule)
    assert "newer" in text or set(re.findall(r"sm_\w+", text)) == {
        t.name for t in TARGETS.values() if t.suffix == "a" and t.satisfies(rule)
    } | {token for token in rule if not token.endswith("f")}
    assert needed_target(rule).satisfies(rule)


@given(st.sampled_from([*FEATURES, *TARGETS]))
def test_needs_names_a_target_that_has_it(requirement):
    rule = rule_of(requirement)
    named = [word.strip(",") for word in needs(rule).split() if word.startswith("sm_")]
    assert named
    assert all(TARGETS[name].satisfies(rule) for name in named)
