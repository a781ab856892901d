"""Certificate files: what is read, what is refused, and what a change of them does."""

from __future__ import annotations

import os
import pathlib
import shutil
import time

import pytest

from scheduler.tls.files import BadFiles, FollowedFiles, TlsFiles, read_client_set, read_set
from tests.support.certificates import Authority, files_in, needs_openssl

pytestmark = needs_openssl


@pytest.fixture
def ca(tmp_path: pathlib.Path) -> Authority:
    """A CA."""
    return Authority(tmp_path / "ca")


def test_F77_a_set_of_files_tells_its_names_and_when_it_expires(ca: Authority, tmp_path: pathlib.Path) -> None:
    """Common name and DNS names, each once; a day from now; and its repr shows none of the key."""
    found = read_set(ca.issue(tmp_path / "tls", "front", names="DNS:front,DNS:front.local,IP:10.0.0.1"))
    assert found.names == ("front", "front.local")
    assert 86_000 < found.not_after - time.time() <= 86_400
    assert found.not_before <= time.time()
    assert "PRIVATE" not in repr(found)


def test_F77_a_bad_set_is_refused_and_the_file_named(ca: Authority, tmp_path: pathlib.Path) -> None:
    """A missing file, text, a cut-off one, the key of another certificate, a CA that is none, an encrypted key."""
    good = ca.issue(tmp_path / "tls", "front")
    other = ca.issue(tmp_path / "other", "other")
    text = tmp_path / "text"
    text.write_text("hello")
    cut = tmp_path / "cut"
    cut.write_bytes(pathlib.Path(good.cert).read_bytes()[:-60])
    client_only = ca.issue(tmp_path / "client", "c", uses="clientAuth")
    locked = tmp_path / "locked"
    os.system(f"openssl ec -in {good.key} -aes128 -passout pass:secret -out {locked} 2>/dev/null")  # noqa: S605
    for files, named, why in (
        (TlsFiles(str(tmp_path / "none"), good.cert, good.key), "none", "cannot be read"),
        (TlsFiles(str(text), good.cert, good.key), "text", "holds no PEM certificate of a CA"),
        (TlsFiles(good.cert, good.cert, good.key), "tls.crt", "holds no certificate of a CA"),
        (TlsFiles(good.ca, str(text), good.key), "text", "holds no PEM certificate"),
        (TlsFiles(good.ca, str(cut), good.key), "cut", "holds no PEM certificate"),
        (TlsFiles(good.ca, good.cert, other.key), "tls.key", "does not belong to"),
        (TlsFiles(good.ca, good.cert, str(text)), "text", "does not belong to"),
        (TlsFiles(good.ca, good.cert, str(locked)), "locked", "is encrypted"),
        (client_only, "tls.crt", "cannot be used"),
    ):
        with pytest.raises(BadFiles, match=why) as caught:
            read_set(files)
        assert named in str(caught.value)
    assert read_client_set(client_only).names == ("c", "localhost"), "good enough for one who only calls"


def test_F77_replaced_files_are_in_force_with_the_next_look(ca: Authority, tmp_path: pathlib.Path) -> None:
    """Each change is told once; without one the very same set is returned."""
    told: list[bool] = []
    followed = FollowedFiles(ca.issue(tmp_path / "tls", "one"), on_reload=told.append)
    first = followed.current()
    assert followed.current() is first
    ca.issue(tmp_path / "tls", "two")
    assert followed.current().names[0] == "two"
    assert followed.current() is followed.current()
    assert told == [True]


def test_F77_while_files_are_replaced_one_by_one_the_old_set_stays(ca: Authority, tmp_path: pathlib.Path) -> None:
    """New certificate, old key: the old set is in force and it is told; once the key is there, the new one."""
    told: list[bool] = []
    files = ca.issue(tmp_path / "tls", "one")
    followed = FollowedFiles(files, on_reload=told.append)
    new = ca.issue(tmp_path / "new", "two")
    shutil.copy(new.cert, files.cert)
    assert followed.current().names[0] == "one"
    assert followed.current().names[0] == "one"
    assert told == [False], "a bad set is told of once, not at every handshake"
    shutil.copy(new.key, files.key)
    assert followed.current().names[0] == "two"
    assert told == [False, True]


def test_F77_an_expired_or_vanished_set_does_not_replace_a_good_one(ca: Authority, tmp_path: pathlib.Path) -> None:
    """Expired, then gone, then good again."""
    files = ca.issue(tmp_path / "tls", "one")
    followed = FollowedFiles(files)
    ca.issue(tmp_path / "tls", "old", expired=True)
    assert followed.current().names[0] == "one"
    pathlib.Path(files.cert).unlink()
    assert followed.current().names[0] == "one"
    ca.issue(tmp_path / "tls", "three")
    assert followed.current().names[0] == "three"


def test_F77_a_set_behind_a_link_follows_the_link(ca: Authority, tmp_path: pathlib.Path) -> None:
    """Secrets that an orchestrator mounts change by one link to a folder; all three files change at once."""
    ca.issue(tmp_path / "v1", "one")
    ca.issue(tmp_path / "v2", "two")
    (tmp_path / "now").symlink_to("v1")
    followed = FollowedFiles(files_in(tmp_path / "now"))
    assert followed.current().names[0] == "one"
    (tmp_path / "next").symlink_to("v2")
    os.replace(tmp_path / "next", tmp_path / "now")  # noqa: PTH105
    assert followed.current().names[0] == "two"
