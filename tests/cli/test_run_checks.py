"""``ptxkit run --initcheck`` and ``--trap``."""

from __future__ import annotations

from click.testing import CliRunner

from ptxkit.cli.run import command


def run(*options):
    from ptxkit.errors import PtxkitError

    result = CliRunner().invoke(command, list(options), standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, (PtxkitError, SystemExit)):
        raise result.exception
    return result


def test_an_unknown_trap_is_refused():
    result = run("saxpy", "--device", "emulator", "--trap", "nan,infinity")
    assert "--trap takes div0, nan, inf, separated by commas; it cannot be 'infinity'" in str(result.exception)


def test_a_kernel_that_is_right_passes_both():
    result = run("saxpy", "256", "--device", "emulator", "--initcheck", "--trap", "div0,nan,inf")
    assert result.exception is None and "verified" in result.output
