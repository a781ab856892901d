"""F77: which role each method asks for, and what names of certificates mean."""

from __future__ import annotations

import re

import pytest

from scheduler.front import control, fleet, sandboxes
from scheduler.front.authorization import ACCESS, Access, Names, Role, check_access
from scheduler.front.errors import Forbidden
from scheduler.pb import control_pb2 as pb
from scheduler.tls.credentials import names_of

NAMES = Names(["operator", "*.gateways.test"], "{node_id}.node.fleetbeat")
SERVICES = (control.SERVICE, fleet.SERVICE, sandboxes.SERVICE)


def test_F77_every_method_of_every_service_is_in_the_table() -> None:
    """A new method that nobody gave a role is refused to all; here it is told before that."""
    assert set(ACCESS) == {f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods}


def test_F77_what_a_node_may_call_is_bound_to_the_node_wherever_the_request_names_one() -> None:
    """Every request of a node's method with the field node_id is held to the certificate."""
    for service in SERVICES:
        for method in service.methods:
            access = ACCESS[f"/{service.full_name}/{method.name}"]
            if access.role is Role.NODE:
                has_field = "node_id" in method.input_type.fields_by_name
                assert access.node_field == ("node_id" if has_field else ""), method.full_name


@pytest.mark.parametrize(
    ("names", "is_operator", "nodes"),
    [
        ((), False, ()),
        (("operator",), True, ()),
        (("operators",), False, ()),
        (("a.gateways.test",), True, ()),
        (("a.b.gateways.test",), False, ()),
        (("gateways.test",), False, ()),
        (("n-1.node.fleetbeat",), False, ("n-1",)),
        (("rack.7.node.fleetbeat",), False, ("rack.7",)),
        ((".node.fleetbeat",), False, ()),
        (("*.node.fleetbeat",), False, ()),
        (("n-1.node.fleetbeat.evil",), False, ()),
        (("node.fleetbeat",), False, ()),
        (("n-1",), False, ()),
        (("operator", "n-1.node.fleetbeat"), True, ("n-1",)),
    ],
)
def test_F77_names_mean_operators_and_nodes_exactly(
    names: tuple[str, ...], is_operator: bool, nodes: tuple[str, ...]
) -> None:
    """Whole names only; a star stands for one label of an operator's."""
    assert NAMES.is_operator(names) is is_operator
    assert NAMES.nodes(names) == nodes


def test_F77_the_form_of_a_nodes_name_may_begin_with_text_or_have_it_around() -> None:
    """The id is what stands in its place."""
    assert Names([], "system:node:{node_id}").nodes(["system:node:n-1"]) == ("n-1",)
    assert Names([], "spiffe://x/{node_id}/agent").nodes(["spiffe://x/n-1/agent"]) == ("n-1",)
    assert Names([], "ab{node_id}ba").nodes(["aba"]) == (), "beginning and end must not overlap"


def test_F77_a_method_in_no_table_is_refused_to_everybody() -> None:
    """Also to operators."""
    with pytest.raises(Forbidden, match="nobody"):
        check_access(None, ("operator",), NAMES, object())


def test_F77_a_certificate_of_several_nodes_speaks_for_each_of_them_and_no_other() -> None:
    """As one of a host that runs several agents may be."""
    access = Access(Role.NODE, "node_id")
    names = ("n-1.node.fleetbeat", "n-2.node.fleetbeat")
    for node_id in ("n-1", "n-2"):
        check_access(access, names, NAMES, pb.HeartbeatRequest(node_id=node_id))
    for node_id in ("n-3", "", "N-1", " n-1"):
        with pytest.raises(Forbidden, match=re.escape("node_id: ")):
            check_access(access, names, NAMES, pb.HeartbeatRequest(node_id=node_id))


def test_F77_names_come_from_the_common_name_and_the_dns_names() -> None:
    """Each once; addresses are no names."""
    context = {"x509_common_name": [b"a"], "peer_dns": [b"a", b"b"], "x509_subject_alternative_name": [b"10.0.0.1"]}
    assert names_of(context) == ("a", "b")
    assert names_of({}) == ()
