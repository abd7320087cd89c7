"""Failed requests in words."""

from __future__ import annotations

import ssl

import pytest

from ptxkit.cluster.reasons import reason


class CommClosedError(OSError):
    """As Dask's."""


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "x"), "connection refused"),
        (caused(OSError("Timed out trying to connect to tls://127.0.0.1:41 after 5 s"), TimeoutError()), "no answer in time"),
        (caused(OSError("in <TLSConnector object at 0x7f>"), ConnectionResetError(104, "y")), "connection reset by peer"),
        (CommClosedError("in <TLS (closed) Worker->Scheduler>: Stream is closed"), "the connection was closed"),
        (RuntimeError("<Client: 'tls://127.0.0.1:1'> tls://127.0.0.1:44703 is in use\nTraceback"), "its address is in use"),
        (
            ssl.SSLError(1, "WRONG_VERSION_NUMBER"),
            "no encrypted connection (the other side ended it); does it use TLS, with the same keys?",
        ),
        (ValueError(""), "no answer"),
    ],
)
def test_reason(error, text):
    assert reason(error) == text
