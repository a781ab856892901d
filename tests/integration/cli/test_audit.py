"""`fleetbeat audit` on a real etcd."""

from __future__ import annotations

import json

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.store.etcd import Etcd
from scheduler.store.keys import LEDGERS
from scheduler.store.store import Store
from tests.integration.cli.test_backup import fleetbeat
from tests.support.placement import put, records
from tests.support.servers import Server


async def test_scenario_O9_audit_shows_what_is_charged_to_a_node_that_is_gone_and_releases_it(
    etcd_server: Server, etcd_prefix: str
) -> None:
    """Shown first, and nothing is changed; released when told so; then there is nothing to show."""
    etcd = Etcd([etcd_server.address], prefix=etcd_prefix)
    await put(Store(etcd), LEDGERS, "n-1", Ledger(node_id="n-1", commitments={"web": Commitment(epoch=2)}))
    told = []
    for words in ((), ("--release",), ()):
        done = fleetbeat(etcd_server, etcd_prefix, "audit", *words, "--output", "json")
        assert done.returncode == 0, done.stderr
        told.append([(f["node_id"], f["holder"], f["released"]) for f in json.loads(done.stdout)["findings"]])
    assert told == [[("n-1", "web", "no")], [("n-1", "web", "yes")], []]
    assert await records(etcd, LEDGERS) == {}
    await etcd.close()
