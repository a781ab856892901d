"""Certificates for tests, made by openssl: a CA, and what it signs."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import time

import grpc
import pytest

from scheduler.tls.credentials import channel_credentials
from scheduler.tls.files import TlsFiles, read_client_set

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")
EXPIRED = ("20200101000000Z", "20200102000000Z")
LOCAL = "IP:127.0.0.1,DNS:localhost"


class Authority:
    """A CA with a folder for its own files."""

    def __init__(self, folder: pathlib.Path, name: str = "test-ca") -> None:
        """Make the CA."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._number = 0
        self._run("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "ca.key")
        self._run("req", "-x509", "-key", "ca.key", "-out", "ca.pem", "-subj", f"/CN={name}", "-days", "2")

    def issue(
        self,
        folder: pathlib.Path,
        common_name: str,
        *,
        names: str = LOCAL,
        expired: bool = False,
        uses: str = "",
        dates: tuple[str, str] = ("", ""),
    ) -> TlsFiles:
        """Sign a certificate of a new key, and put it with its key and the CA into a folder, file by file."""
        made = self.sign(common_name, names=names, uses=uses, dates=EXPIRED if expired else dates)
        folder.mkdir(parents=True, exist_ok=True)
        target = files_in(folder)
        for source, path in ((made.ca, target.ca), (made.cert, target.cert), (made.key, target.key)):
            spare = f"{path}.new"
            shutil.copy(source, spare)
            os.replace(spare, path)  # noqa: PTH105
        return target

    def sign(
        self, common_name: str, *, names: str = LOCAL, uses: str = "", dates: tuple[str, str] = ("", "")
    ) -> TlsFiles:
        """Sign a certificate of a new key, for a day unless told otherwise; return the files in the CA's folder."""
        self._number += 1
        stem = f"c{self._number}"
        (self.folder / f"{stem}.ext").write_text(
            f"subjectAltName={names}\nextendedKeyUsage={uses or 'serverAuth,clientAuth'}\nbasicConstraints=CA:FALSE\n"
        )
        (self.folder / "index.txt").touch()
        (self.folder / "ca.cnf").write_text(
            "[ca]\ndefault_ca=own\n[own]\ndatabase=index.txt\nnew_certs_dir=.\nserial=serial\nrand_serial=yes\n"
            "default_md=sha256\npolicy=any\nunique_subject=no\nemail_in_dn=no\n[any]\ncommonName=supplied\n"
        )
        begin, end = dates
        life = ("-startdate", begin, "-enddate", end) if begin else ("-days", "1")
        self._run("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", f"{stem}.key")
        self._run("req", "-new", "-key", f"{stem}.key", "-out", f"{stem}.csr", "-subj", f"/CN={common_name}")
        self._run(
            "ca", "-batch", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key", "-in", f"{stem}.csr",
            "-out", f"{stem}.pem", "-notext", "-extfile", f"{stem}.ext", *life,
        )  # fmt: skip
        return TlsFiles(str(self.ca), str(self.folder / f"{stem}.pem"), str(self.folder / f"{stem}.key"))

    def _run(self, *args: str) -> None:
        done = subprocess.run(["openssl", *args], cwd=self.folder, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def dated(seconds_from_now: float) -> str:
    """Return a time as openssl takes it."""
    return time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + seconds_from_now))


def files_in(folder: pathlib.Path) -> TlsFiles:
    """Return the paths in a folder."""
    return TlsFiles(str(folder / "ca.pem"), str(folder / "tls.crt"), str(folder / "tls.key"))


def credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Return a client's credentials."""
    return channel_credentials(read_client_set(files))
