import pytest

from ptxkit.isa.mangled import base_name


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
