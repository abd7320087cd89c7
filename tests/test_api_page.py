"""docs/api.md has the docstrings of every public name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import ptxkit

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("write_api", ROOT / "scripts" / "write_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script):
    written = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert written == script.page(), "run: python scripts/write_api.py"


def test_the_table_of_variables_is_up_to_date(script):
    written = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert written == script.environment_page(written), "run: python scripts/write_api.py"


def test_every_public_name_is_on_it_and_has_a_docstring(script):
    page = script.page()
    for name in ptxkit._HOMES:
        part = re.search(rf"^### ptxkit\.{name}\n\n```python\n.*?```\n\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
        assert part and part[1].strip(), name
    for name in ("errors.MemoryFault", "errors.UsageError", "testing.assert_sass"):
        assert f"### ptxkit.{name}\n" in page


def test_docstrings_become_markdown(script):
    def example():
        """Do :func:`ptxkit.cdiv`'s work::

            cdiv(1, 2)

        Args:
            a: one
                and more.

        Raises:
            UsageError: never.
        """

    text = script.text_of(example)
    assert text == (
        "Do `cdiv`'s work:\n```\ncdiv(1, 2)\n```\n\n**Args**\n\n- a: one\n  and more.\n\n**Raises**\n\n- UsageError: never."
    )
