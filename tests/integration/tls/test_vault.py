"""F78: certificates from Vault, and what becomes of the files.

No Vault runs here: a small HTTP server speaks the three calls that are used, and signs with a
real CA. What a real Vault refuses by policies and roles is not shown by these tests.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from scheduler.front.certificates import fitting_names, wanted
from scheduler.settings import Settings
from scheduler.tls.files import BadFiles, FollowedFiles, TlsSet, read_set
from scheduler.tls.renewal import Renewal, is_fit, renew_at, write_set
from scheduler.tls.vault import Issued, Vault, VaultFailed, Wanted, issue
from tests.support.certificates import Authority, dated, files_in, needs_openssl
from tests.support.fake_vault import SECRET_ID, TOKEN, FakeVault, vault_of

pytestmark = needs_openssl
WANTED = Wanted("persys-scheduler", 86_400, ("persys-scheduler", "localhost"), ("127.0.0.1", "::1"))
WRONG = "hvs.wrong"
NAMES = frozenset({"persys-scheduler"})


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Iterator[FakeVault]:
    """A server that answers as Vault does."""
    with vault_of(Authority(tmp_path / "ca")) as vault:
        yield vault


def vault_at(fake: FakeVault) -> Vault:
    """Return how to sign in to it by token."""
    return Vault(fake.address, "pki", "persys-scheduler", token=TOKEN)


def renewal_to(fake: FakeVault, folder: pathlib.Path, *, least_seconds: float = 30.0) -> Renewal:
    """Return the renewal of the files in a folder."""
    folder.mkdir(exist_ok=True)
    return Renewal(
        files_in(folder), NAMES, lambda: issue(vault_at(fake), WANTED), retry_seconds=60, least_seconds=least_seconds
    )


def shown(text: str) -> Issued:
    """Return an issued set of a certificate authority's files."""
    return Issued(text, text, text)


@pytest.mark.parametrize("by_token", [True, False])
def test_F78_a_certificate_is_issued_by_token_and_by_approle(fake: FakeVault, by_token: bool) -> None:
    """Sign in, then one issue call that names everything the certificate is to say."""
    vault = vault_at(fake) if by_token else replace(vault_at(fake), token="", role_id="role", secret_id=SECRET_ID)
    issued = issue(vault, WANTED)
    assert issued.ca == fake.ca.ca.read_text(), "issuing_ca and ca_chain, each once"
    assert "PRIVATE KEY" in issued.key
    assert [path for path, _ in fake.asked] == [
        "/v1/auth/token/lookup-self" if by_token else "/v1/auth/approle/login",
        "/v1/pki/issue/persys-scheduler",
    ]
    assert fake.issued == [
        {
            "common_name": "persys-scheduler",
            "ttl": "86400s",
            "alt_names": "persys-scheduler,localhost",
            "ip_sans": "127.0.0.1,::1",
        }
    ]


def test_F78_no_secret_stands_in_an_error(fake: FakeVault) -> None:
    """Wrong token, wrong secret id, a Vault that repeats them, one that is away, one that sends elsewhere."""
    good = vault_at(fake)
    by_role = replace(good, token="", role_id="role", secret_id=SECRET_ID)
    fake.refuse = "sealed"
    _fails(good, "answers 503 to auth/token/lookup-self: sealed ***")
    _fails(by_role, "answers 503 to auth/approle/login: sealed ***")
    fake.refuse = ""
    _fails(replace(good, token=WRONG), "answers 403 to auth/token/lookup-self: permission denied")
    _fails(replace(by_role, secret_id=WRONG), "invalid secret id")
    _fails(replace(good, pki_role="other"), "answers 404 to pki/issue/other: no reason given")
    fake.redirect_to = "http://127.0.0.1:1"
    _fails(good, "answers 307")
    _fails(replace(good, address="http://127.0.0.1:1"), "cannot be reached")
    assert TOKEN not in repr(good)
    assert SECRET_ID not in repr(by_role)


def _fails(vault: Vault, why: str) -> None:
    with pytest.raises(VaultFailed) as caught:
        issue(vault, WANTED)
    assert why in str(caught.value)
    for secret in (TOKEN, SECRET_ID, WRONG):
        assert secret not in str(caught.value)


def test_F78_the_set_is_written_whole_with_the_key_for_its_owner_only(fake: FakeVault, tmp_path: pathlib.Path) -> None:
    """Files that lay there are replaced; key 0600, the others 0644; no more than two sets are kept."""
    files = fake.ca.issue(tmp_path / "tls", "by-hand")
    for _ in range(4):
        write_set(files, issue(vault_at(fake), WANTED))
        assert read_set(files).names[0] == "persys-scheduler"
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (files.ca, files.cert, files.key)]  # noqa: PTH116
    assert modes == [0o644, 0o644, 0o600]
    kept = [path for path in (tmp_path / "tls").iterdir() if path.is_dir() and not path.is_symlink()]
    assert len(kept) == 2


def test_F78_what_is_no_set_is_not_written(fake: FakeVault, tmp_path: pathlib.Path) -> None:
    """The files stay, and nothing is left behind."""
    files = fake.ca.issue(tmp_path / "tls", "by-hand")
    before = sorted((tmp_path / "tls").iterdir())
    with pytest.raises(BadFiles):
        write_set(files, shown("nonsense"))
    assert read_set(files).names[0] == "by-hand"
    assert sorted((tmp_path / "tls").iterdir()) == before


def test_F78_a_reader_never_sees_a_certificate_beside_the_key_of_another(
    fake: FakeVault, tmp_path: pathlib.Path
) -> None:
    """Sets are swapped while somebody reads them without a pause: whatever is read is one whole set.

    Two swaps lie a tick of the kernel's clock apart, for the times of files are no finer.
    """
    sets = [issue(vault_at(fake), replace(WANTED, common_name=name)) for name in ("a", "b")]
    files = files_in(tmp_path / "tls")
    (tmp_path / "tls").mkdir()
    write_set(files, sets[0])
    told: list[bool] = []
    followed = FollowedFiles(files, on_reload=told.append)
    done = threading.Event()

    def swap() -> None:
        for number in range(60):
            write_set(files, sets[number % 2])
            time.sleep(0.011)
        done.set()

    writer = threading.Thread(target=swap)
    writer.start()
    pairs = {sets[0].cert.encode(): sets[0].key.encode(), sets[1].cert.encode(): sets[1].key.encode()}
    while not done.is_set():
        found = followed.current()
        assert pairs[found.cert] == found.key
    writer.join()
    assert followed.current().cert == sets[1].cert.encode()
    assert True in told


def test_F78_a_certificate_that_fits_is_used_as_it_is(fake: FakeVault, tmp_path: pathlib.Path) -> None:
    """Vault is not asked; the next look is at four fifths of its life, an hour away at most."""
    fake.ca.issue(tmp_path / "tls", "other", names="DNS:persys-scheduler")
    assert renewal_to(fake, tmp_path / "tls").turn() == 3600
    assert fake.asked == []


@pytest.mark.parametrize("why", ["none", "other name", "expired", "old"])
def test_F78_a_certificate_is_issued_when_none_fits_or_it_is_old(
    fake: FakeVault, tmp_path: pathlib.Path, why: str
) -> None:
    """None, one of another name, one that is over, one whose life is nine tenths over."""
    if why != "none":
        fake.ca.issue(
            tmp_path / "tls",
            "other" if why == "other name" else "persys-scheduler",
            expired=why == "expired",
            dates=(dated(-9 * 3600), dated(3600)) if why == "old" else ("", ""),
        )
    good: list[bool] = []
    renewal = renewal_to(fake, tmp_path / "tls")
    renewal.on_issue = good.append
    assert renewal.turn() == 3600
    assert len(fake.issued) == 1
    assert good == [True]
    assert renewal.turn() == 3600
    assert len(fake.issued) == 1, "the second look finds a good one"


def test_F78_renewal_comes_at_four_fifths_of_the_life_and_never_sooner_than_thirty_seconds(
    fake: FakeVault, tmp_path: pathlib.Path
) -> None:
    """1,000 s: in some 800 s; 20 s: in 30 s; 100 years: no overflow, a look an hour."""
    for life, least, most in ((1_000, 700, 800), (20, 30, 30), (100 * 365 * 86_400, 3600, 3600)):
        fake.dates = (dated(0), dated(life))
        folder = tmp_path / str(life)
        assert least <= renewal_to(fake, folder).turn() <= most
    found = TlsSet(b"", b"", b"", not_before=1_000, not_after=2_000, names=("a",))
    assert renew_at(found) == 1_800
    assert is_fit(found, frozenset({"a"}), 1_999)
    assert not is_fit(found, frozenset({"a"}), 2_000)
    assert not is_fit(found, frozenset({"a"}), 999)
    assert not is_fit(found, frozenset({"b"}), 1_500)


def test_F78_while_vault_is_away_the_files_stay_and_it_is_tried_again(fake: FakeVault, tmp_path: pathlib.Path) -> None:
    """Files put there by hand are used, whatever their name; each failure is told, without the token."""
    files = fake.ca.issue(tmp_path / "tls", "by-hand")
    fake.refuse = "sealed"
    renewal = renewal_to(fake, tmp_path / "tls")
    with capture_logs() as logs:
        assert asyncio.run(renewal.open(asyncio.Event())) == 60, "the retry interval"
    assert read_set(files).names[0] == "by-hand"
    assert "sealed ***" in str(logs)
    assert TOKEN not in str(logs)
    fake.refuse = ""
    renewal.turn()
    assert read_set(files).names[0] == "persys-scheduler"


def test_F78_a_defect_ends_no_renewal(tmp_path: pathlib.Path) -> None:
    """It is told with its traceback, counted as a failure, and tried again like one."""

    def broken() -> Issued:
        raise RuntimeError("a defect")

    told: list[bool] = []
    renewal = Renewal(files_in(tmp_path), NAMES, broken, retry_seconds=7)
    renewal.on_issue = told.append
    with capture_logs() as logs:
        assert renewal.turn() == 7
    assert told == [False]
    assert logs[0]["exc_info"] is True


async def test_F78_without_files_and_vault_a_start_waits_until_it_is_stopped(
    fake: FakeVault, tmp_path: pathlib.Path
) -> None:
    """There is nothing to serve with."""
    fake.refuse = "sealed"
    stop = asyncio.Event()
    opening = asyncio.create_task(renewal_to(fake, tmp_path / "tls").open(stop))
    while not fake.asked:
        await asyncio.sleep(0.01)
    assert not opening.done()
    stop.set()
    await asyncio.wait_for(opening, 5)


def test_F78_of_many_who_share_a_folder_one_issues(fake: FakeVault, tmp_path: pathlib.Path) -> None:
    """Eight turns at once, four times over: one certificate."""
    renewals = [renewal_to(fake, tmp_path / "tls") for _ in range(8)]
    for _ in range(4):
        turns = [threading.Thread(target=renewal.turn) for renewal in renewals]
        for turn in turns:
            turn.start()
        for turn in turns:
            turn.join()
    assert len(fake.issued) == 1


async def test_F78_it_goes_on_renewing(fake: FakeVault, tmp_path: pathlib.Path) -> None:
    """With a life of two seconds and no least pause, one certificate follows another."""
    fake.dates = (dated(-8), dated(2))
    renewal = renewal_to(fake, tmp_path / "tls", least_seconds=0.05)
    running = asyncio.create_task(renewal.run(0.0))
    begun = time.monotonic()
    while len(fake.issued) < 3:
        assert time.monotonic() < begun + 20
        fake.dates = (dated(-8), dated(2))
        await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_F78_the_names_asked_for_are_those_by_which_a_front_is_dialled() -> None:
    """Service, host and their names in the domain, localhost, the bind host, the external and all own addresses."""
    settings = Settings(
        vault_service_domain="example.org", external_ip="192.0.2.7", grpc_addr="front.example.org", tls="off"
    )
    asked = wanted(settings)
    assert asked.common_name == "persys-scheduler"
    assert {"persys-scheduler", "localhost", "persys-scheduler.example.org", "front.example.org"} <= set(
        asked.dns_names
    )
    assert {"127.0.0.1", "::1", "192.0.2.7"} <= set(asked.addresses)
    assert fitting_names(settings) == {"persys-scheduler", "persys-scheduler.example.org", "front.example.org"}
    everywhere = wanted(Settings(grpc_addr="0.0.0.0", tls="off"))  # noqa: S104 - that is what is tested
    assert "0.0.0.0" not in (*everywhere.dns_names, *everywhere.addresses)  # noqa: S104
