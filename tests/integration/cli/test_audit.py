"""`fleetbeat audit` on a real etcd."""

from __future__ import annotations

import json

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.store.etcd import Etcd
from scheduler.store.keys import LEDGERS
from scheduler.store.kv import Put
from scheduler.store.store import Store
from tests.integration.cli.test_backup import fleetbeat
from tests.support.legacy import spec_json, whole_json
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


async def test_F86_audit_shows_records_that_are_not_ours(etcd_server: Server, etcd_prefix: str) -> None:
    """What is about to be taken over, and what cannot be, by key and field; nothing is changed."""
    etcd = Etcd([etcd_server.address], prefix=etcd_prefix)
    await etcd.txn(
        (),
        [
            Put("/workloads/good", whole_json("good")),
            Put("/workloads/bad", whole_json("bad", type="lambda")),
            Put("/workloads-spec/two", spec_json("two")),
            Put("/workloads-spec/torn", b"{"),
        ],
    )
    done = fleetbeat(etcd_server, etcd_prefix, "audit", "--release", "--output", "json")
    assert done.returncode == 0, done.stderr
    told = {f["holder"]: (f["what"], f["why"]) for f in json.loads(done.stdout)["findings"]}
    assert told.keys() == {"good", "bad", "two", "torn"}
    assert told["bad"][0] == "record /workloads/bad"
    assert "type" in told["bad"][1]
    assert told["torn"][0] == "record /workloads-spec/torn"
    assert told["good"][1] == told["two"][1] == "is about to be taken over"
    assert len((await etcd.scan("/workloads"))[0]) == 4
    await etcd.close()
