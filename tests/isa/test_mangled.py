import pytest

from ptxkit.isa.mangled import base_name, spellings


@pytest.mark.parametrize(
    "mangled, name",
    [
        ("_Z1fPf", "f"),
        ("_ZN2ns4copyEPf", "copy"),
        ("_Z6l2normILi256EfEvPT0_", "l2norm"),
        ("_ZN12_GLOBAL__N_11kEPf", "k"),
        ("_ZL5localv", "local"),
        ("plain", "plain"),
        ("_Zebra", "_Zebra"),
    ],
)
def test_base_name(mangled, name):
    assert base_name(mangled) == name


@pytest.mark.parametrize(
    "mangled, names",
    [
        ("_Z1fPf", {"f"}),
        ("_ZN3lib2v24blurEPf", {"blur", "lib::blur", "v2::blur", "lib::v2::blur"}),
        ("_ZN36_INTERNAL_00000000_6_k04_cu_cc0ff1bf3lib5totalE", {"total", "lib::total"}),
        (
            "_ZN36_INTERNAL_00000000_6_k04_cu_cc0ff1bf38_GLOBAL__N__00000000_6_k04_cu_cc0ff1bf1WE",
            {"W", "(anonymous namespace)::W"},
        ),
    ],
)
def test_spellings(mangled, names):
    assert set(spellings(mangled)) == names
