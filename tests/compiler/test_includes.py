from pathlib import Path

import pytest

from ptxkit.compiler import toolkit
from ptxkit.compiler.includes import closure


@pytest.fixture
def tree(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_h", ".h")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def names(found, root):
    return [str(Path(path).relative_to(root)) for path in found.headers]


@pytest.mark.parametrize(
    "directive",
    ['#include "a.h"', "#include <a.h>", '#  include\t"a.h"', '  #include/* why */"a.h"', '/* x */ #include "a.h" // y',
     '#inc\\\nlude "a.h"', '%:include "a.h"', "#if 0\n#include <a.h>\n#endif", "#if __has_include(<a.h>)\n#endif",
     '#define WHICH "a.h"\n#include WHICH', "#include WHICH\n#define WHICH <a.h>", "#include_next <a.h>",
     "#define IN(header) <header.h>\n#include IN(a)"],
)  # fmt: skip
def test_every_way_to_include(tree, directive):
    root = tree(a_h="#pragma once\n")
    found = closure(directive + "\n", str(root), [str(root)])
    assert names(found, root) == ["a.h"]
    assert not found.unresolved


def test_includes_are_followed_and_cycles_end(tree):
    root = tree(a_h='#include "sub/b.h"\n', sub__b_h='#include "c.h"\n#include <a.h>\n', sub__c_h="")
    assert names(closure('#include "a.h"\n', str(root), [str(root)]), root) == ["a.h", "sub/b.h", "sub/c.h"]


def test_a_quoted_name_looks_beside_its_file_first_and_an_angled_one_does_not(tree):
    root = tree(one__a_h="", two__a_h="")
    search = [str(root / "two")]
    assert names(closure('#include "a.h"\n', str(root / "one"), search), root) == ["one/a.h"]
    assert names(closure("#include <a.h>\n", str(root / "one"), search), root) == ["two/a.h"]


def test_places_looked_at_in_vain_are_remembered(tree):
    root = tree(two__a_h="")
    found = closure("#include <a.h>\n", str(root), [str(root / "one"), str(root / "two")])
    assert found.absent == {str(root / "one/a.h")}


def test_a_macro_that_cannot_be_followed_is_said(tree):
    root = tree(toolkit__t_h="#include OTHER\n")
    assert closure("#include UNKNOWN\n", str(root), []).unresolved == {"UNKNOWN"}
    search = [str(root / "toolkit")]
    assert not closure("#include <t.h>\n", str(root), search, trusted=search).unresolved


def test_a_macro_may_come_from_an_option(tree):
    root = tree(a_h="")
    assert names(closure("#include CONFIG\n", str(root), [str(root)], '#define CONFIG "a.h"\n'), root) == ["a.h"]


@pytest.mark.parametrize("header", ["cuda_fp16.h", "cuda/std/cstdint", "mma.h"])
def test_the_toolkits_own_headers_can_be_followed(header):
    search = [str(tool.path) for tool in toolkit.headers()]
    found = closure(f"#include <{header}>\n", "/nowhere", search, trusted=search)
    assert len(found.headers) > 5
    assert not found.unresolved
