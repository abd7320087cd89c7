"""Why a request to a cluster failed, in words: without addresses, objects and class names of Dask."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from collections.abc import Iterator

CLOSED = "the connection was closed"
LATE = "no answer in time"
TRANSIENT = frozenset((CLOSED, LATE, *(os.strerror(code).lower() for code in (
    errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT
))))  # fmt: skip
"""Reasons for which a scheduler does not answer that may pass: it, or its machine, is starting."""
_OBJECT = re.compile(r"<[^<>]*>")
_ADDRESS = re.compile(r"\b(?:tcp|tls|ws|wss|inproc)://\S+")
_DATES = {9: "is not valid yet", 10: "has expired"}  # codes of OpenSSL (X509_V_ERR_CERT_NOT_YET_VALID, _HAS_EXPIRED)


def reason(error: BaseException) -> str:
    """The reason of an exception of Dask, of its connections, or of the operating system.

    An exception of Dask often has the one of the connection as its cause; the last of them that says something is stated.
    """
    for one in reversed(list(_causes(error))):
        if isinstance(one, ssl.SSLCertVerificationError) and one.verify_code in _DATES:
            return f"its certificate {_DATES[one.verify_code]} by the clock of this machine; see `ptxkit cluster keys`"
        if isinstance(one, ssl.SSLCertVerificationError):
            return f"its certificate is not signed by the given keys ({one.verify_message})"
        if isinstance(one, ssl.SSLError):
            why = getattr(one, "reason", None) or "the other side ended it"
            return f"no encrypted connection ({why}); does it use TLS, with the same keys?"
        if isinstance(one, socket.gaierror):
            return "the name of its host is not known"
        if isinstance(one, OSError) and one.errno is not None and one.errno > 0:
            return os.strerror(one.errno).lower()
        if type(one) is TimeoutError or type(one).__name__ == "TimeoutError":
            return LATE
        if "CommClosed" in type(one).__name__:
            return CLOSED
    texts = [_plain(str(one)) for one in _causes(error)]
    return next((text for text in reversed(texts) if text), "no answer")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, from the outermost to the innermost."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _plain(text: str) -> str:
    """The first line of a text, without objects and internal addresses."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return re.sub(r"\s{2,}", " ", _ADDRESS.sub("its address", _OBJECT.sub("", first))).strip(" :;,")


def first_line(error: BaseException) -> str:
    """The first line of the text of an exception."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(" ,:")


def without_tls(address: str, why: str) -> str:
    """Words to add where a connection without TLS was ended by the other side."""
    ended = why in (os.strerror(errno.ECONNRESET).lower(), CLOSED)
    return "; if it uses TLS, give tls:// and --tls DIRECTORY" if address.startswith("tcp://") and ended else ""
