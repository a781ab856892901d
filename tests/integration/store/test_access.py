"""Users, tokens and certificates."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import subprocess
from typing import Any

import grpc
import pytest

from scheduler.domain.errors import StoreUnavailable
from scheduler.pb import etcdmin_pb2 as pb
from scheduler.store.cache import Cache
from scheduler.store.etcd import Etcd, TlsFiles
from scheduler.store.keys import FENCES
from scheduler.store.kv import Put, StoreRefused
from scheduler.store.lease import Lease
from scheduler.store.store import Store
from tests.support import servers
from tests.support.records import COUNTER, add_one, set_to

PASSWORD = "secret"  # noqa: S105 - of an etcd that lives for one test

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")


async def enable_auth(address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
    """Make root (password "secret") and guest (password "guest", no rights), and require users."""
    channel = grpc.aio.secure_channel(address, credentials) if credentials else grpc.aio.insecure_channel(address)

    async def call(name: str, first: str = "", second: str = "") -> None:
        # These requests have two strings in fields 1 and 2, as an AuthenticateRequest does.
        message = pb.AuthenticateRequest(name=first, password=second)
        rpc: Any = channel.unary_unary(f"/etcdserverpb.Auth/{name}", pb.AuthenticateRequest.SerializeToString)
        await rpc(message, timeout=5)

    await call("UserAdd", "root", PASSWORD)
    await call("UserAdd", "guest", "guest")
    await call("RoleAdd", "root")
    await call("UserGrantRole", "root", "root")
    await call("AuthEnable")
    await channel.close()


async def test_components_F8_a_user_signs_in_first_and_again_when_the_token_has_expired(tmp_path: pathlib.Path) -> None:
    """Tokens live for a second, and a restart forgets them: reads, writes, watch and lease go on all the same."""
    with servers.running(servers.etcd(tmp_path, "--auth-token-ttl", "1")) as server:
        await enable_auth(server.address)
        client = Etcd([server.address], user="root", password=PASSWORD)
        cache = Cache(client, [FENCES])
        await cache.start()
        await cache.ready(20)
        store = Store(client)
        for count in (1, 2):
            token = client._endpoints._token
            assert await store.transact([COUNTER], add_one) == count
            # etcd lets a token live on while it is used: only an idle client finds it expired.
            await asyncio.sleep(2.5)
            assert (await client.get("/a"))[0] is None
            assert client._endpoints._token != token
        lease = Lease(client, 5)
        await lease.start()
        server.kill()
        server.start()
        await eventually_counts(store, 3)
        assert lease.valid()
        await cache.wait_revision(store.last_revision, 20)
        await lease.close()
        await cache.close()
        await client.close()


async def eventually_counts(store: Store, expected: int) -> None:
    """Count up once etcd is back."""
    async with asyncio.timeout(20):
        while True:
            try:
                assert await store.transact([COUNTER], add_one) >= expected
            except StoreUnavailable:
                continue
            return


async def test_components_F8_many_calls_at_once_sign_in_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty calls without a token cause one sign-in."""
    with servers.running(servers.etcd(tmp_path)) as server:
        await enable_auth(server.address)
        client = Etcd([server.address], user="root", password=PASSWORD)
        sign_in, calls = client._endpoints._sign_in, 0

        async def count(timeout_seconds: float) -> str:
            nonlocal calls
            calls += 1
            return await sign_in(timeout_seconds)

        monkeypatch.setattr(client._endpoints, "_sign_in", count)
        await asyncio.gather(*(client.get(f"/{n}") for n in range(50)))
        assert calls == 1
        await client.close()


@pytest.mark.parametrize(
    ("user", "password", "text"),
    [("root", "wrong", "authentication failed"), ("guest", "guest", "permission denied"), ("", "", "user name")],
)
async def test_components_F8_wrong_users_are_told_so(
    tmp_path: pathlib.Path, user: str, password: str, text: str
) -> None:
    """A wrong password, a user without rights, no user at all: refused at once, in reads, writes and watches."""
    with servers.running(servers.etcd(tmp_path)) as server:
        await enable_auth(server.address)
        client = Etcd([server.address], user=user, password=password)
        with pytest.raises(StoreRefused, match=text):
            await client.get("/a")
        with pytest.raises(StoreRefused, match=text):
            await client.txn((), [Put("/a", b"")])
        async with asyncio.timeout(10):
            with pytest.raises(StoreRefused):
                await anext(client.watch(["/a"], 1))
        await client.close()


async def test_components_F8_a_user_is_no_harm_where_etcd_asks_for_none(
    etcd_server: servers.Server, etcd_prefix: str
) -> None:
    """Credentials are configured, authentication is off: the calls go through without."""
    client = Etcd([etcd_server.address], prefix=etcd_prefix, user="root", password=PASSWORD)
    await client.txn((), [Put("/a", b"")])
    assert (await client.get("/a"))[0]
    await client.close()


def make_certificates(folder: pathlib.Path) -> TlsFiles:
    """Make a CA, a server certificate for 127.0.0.1, and a client certificate for the user root."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test-ca")
    for name, common_name in (("server", "127.0.0.1"), ("client", "root")):
        openssl("req", *key[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={common_name}")
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "1", "-out", f"{name}.pem", "-extfile", f"{name}.ext",
        )  # fmt: skip
    return TlsFiles(*(str(folder / name) for name in ("ca.pem", "client.pem", "client.key")))


def tls_etcd(folder: pathlib.Path, files: pathlib.Path, *extra: str) -> servers.Server:
    """Describe an etcd that speaks TLS to its clients."""
    server = servers.etcd(
        folder, "--cert-file", str(files / "server.pem"), "--key-file", str(files / "server.key"), *extra
    )
    server.command = [part.replace(f"http://{server.address}", f"https://{server.address}") for part in server.command]
    return server


@needs_openssl
async def test_components_F8_TLS_with_a_client_certificate_is_the_user(tmp_path: pathlib.Path) -> None:
    """The certificate's CN is the etcd user: all works with no password; without certificate or CA nothing does."""
    tls = make_certificates(tmp_path)
    server = tls_etcd(tmp_path / "etcd", tmp_path, "--client-cert-auth", "--trusted-ca-file", tls.ca)
    with servers.running(server):
        await enable_auth(server.address, tls.credentials())
        client = Etcd([server.address], tls=tls)
        store = Store(client)
        cache = Cache(client, [FENCES])
        await cache.start()
        await cache.ready(20)
        await store.transact([COUNTER], set_to(1))
        await cache.wait_revision(store.last_revision, 20)
        await cache.close()
        await client.close()
        wrong: dict[str, Any]
        for wrong in ({"tls": TlsFiles(tls.ca)}, {"tls": None}):
            stranger = Etcd([server.address], timeout_seconds=0.5, **wrong)
            with pytest.raises(StoreUnavailable):
                await stranger.get("/a")
            await stranger.close()


@needs_openssl
async def test_components_F8_TLS_with_a_password(tmp_path: pathlib.Path) -> None:
    """Only the server has a certificate; the user signs in by password."""
    tls = TlsFiles(make_certificates(tmp_path).ca)
    server = tls_etcd(tmp_path / "etcd", tmp_path)
    with servers.running(server):
        await enable_auth(server.address, tls.credentials())
        client = Etcd([f"https://{server.address}"], tls=tls, user="root", password=PASSWORD)
        await client.txn((), [Put("/a", b"1")])
        assert (await client.get("/a"))[0]
        await client.close()
