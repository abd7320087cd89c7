"""Addresses and keys: nothing leaves the machine without TLS unless the user asks for it."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from ptxkit.cluster.connection import connected
from ptxkit.cluster.security import FILES, endpoint, is_loopback, key_files, write_keys
from ptxkit.errors import UnavailableError, UsageError


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("127.0.0.1:5", "tcp://127.0.0.1:5"),
        ("localhost", "tcp://localhost:8786"),
        ("tcp://[::1]:99", "tcp://[::1]:99"),
    ],
)
def test_this_machine_needs_no_tls(address, meant):
    assert endpoint(address).address == meant


@pytest.mark.parametrize(
    "address", ["node1:8786", "tcp://10.0.0.1", "tcp://[fe80::1]:8786", "0.0.0.0:1", "localhost.evil"]
)
def test_another_machine_without_tls_is_refused(address):
    with pytest.raises(UsageError, match="--insecure"):
        endpoint(address)
    assert endpoint(address, insecure=True).keys is None


@pytest.mark.parametrize("address", ["", "a:b", "tcp://", "http://node1:1", "a:99999", "tcp://a/b:1", "user@node1:3"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UsageError, match="address"):
        endpoint(address, insecure=True)


@pytest.mark.parametrize("host", ["127.9.9.9", "::1", "localhost"])
def test_loopback(host):
    assert is_loopback(host)


def test_tls_needs_keys():
    with pytest.raises(UsageError, match="--tls DIRECTORY"):
        endpoint("tls://node1")


def keys(folder):
    for name in FILES.values():
        (folder / name).touch(0o600)


def test_keys_make_an_address_encrypted(tmp_path):
    keys(tmp_path)
    assert endpoint("node1", str(tmp_path)).address == "tls://node1:8786"
    with pytest.raises(UsageError, match="not for tcp://node1"):
        endpoint("tcp://node1", str(tmp_path))


def test_a_missing_key_is_named(tmp_path):
    keys(tmp_path)
    (tmp_path / "cert.pem").unlink()
    with pytest.raises(UsageError, match=r"cert\.pem: No such file"):
        key_files(str(tmp_path))


def test_a_key_that_others_may_read_is_refused(tmp_path):
    keys(tmp_path)
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        key_files(str(tmp_path))


def test_written_keys_are_private_and_never_replaced(tmp_path):
    pytest.importorskip("distributed", reason="clusters need Dask")
    pytest.importorskip("cryptography", reason="it makes the keys")
    found = write_keys(str(tmp_path / "keys"))
    assert "PRIVATE KEY" in Path(found["key"]).read_text()
    assert key_files(str(tmp_path / "keys")) == found
    with pytest.raises(UsageError, match=r"ca\.pem exists"):
        write_keys(str(tmp_path / "keys"))


def test_a_misspelt_local_is_said():
    with pytest.raises(UsageError, match="locl is not 'local', but is taken for another machine"):
        endpoint("locl")


@pytest.mark.parametrize(("name", "said"), [("", "give its name"), ("file", "is no directory")])
def test_keys_need_a_directory(tmp_path, monkeypatch, name, said):
    pytest.importorskip("distributed", reason="clusters need Dask")
    pytest.importorskip("cryptography", reason="it makes the keys")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=said):
        write_keys(name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_server_of_another_protocol_is_no_scheduler():
    """The text of HTTP, read as the length of a message, is more memory than there is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            peer, _ = server.accept()
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnavailableError, match="no Dask scheduler"), connected(f"127.0.0.1:{port}", None, False):
            pass
        thread.join()
