"""Failed requests in words."""

from __future__ import annotations

import socket
import ssl

import pytest

from ptxkit.cluster.reasons import reason, without_tls


class CommClosedError(OSError):
    """As Dask's."""


def caused(error, cause):
    error.__cause__ = cause
    return error


def refused_certificate(code, message):
    error = ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED")
    error.verify_code, error.verify_message = code, message
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
        (
            refused_certificate(10, "certificate has expired"),
            "its certificate has expired by the clock of this machine; see `ptxkit cluster keys`",
        ),
        (refused_certificate(18, "self-signed"), "its certificate is not signed by the given keys (self-signed)"),
        (ValueError(""), "no answer"),
        (caused(TimeoutError("x"), socket.gaierror(-2, "Name or service not known")), "the name of its host is not known"),
        (caused(RuntimeError("Nanny failed to start."), ValueError("too many slots")), "too many slots"),
    ],
)
def test_reason(error, text):
    assert reason(error) == text


def test_a_scheduler_with_tls_ends_connections_without_it():
    ended = reason(ConnectionResetError(104, "x"))
    assert "--tls" in without_tls("tcp://127.0.0.1:1", ended)
    assert without_tls("tls://127.0.0.1:1", ended) == ""
    assert without_tls("tcp://127.0.0.1:1", reason(ConnectionRefusedError(111, "x"))) == ""
