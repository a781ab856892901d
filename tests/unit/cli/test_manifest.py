# ruff: noqa: RUF001 - messages have en dashes
"""Manifests: each mistake with its line, and the way to the wire and back."""

from __future__ import annotations

import pytest
import yaml

from scheduler.cli.check import check
from scheduler.cli.documents import Document, read_documents
from scheduler.cli.manifest import Manifest, dump, manifest_of, request_of

WEB = """\
id: web
container:
  image: nginx:1.27
"""


def mistakes_in(text: str) -> list[str]:
    """Return everything that is said of a file named web.yaml."""
    documents, mistakes = read_documents("web.yaml", text.encode())
    for document in documents:
        mistakes += check(document)[1]
    return [str(m) for m in mistakes]


def manifest_in(text: str) -> Manifest:
    """Return the one correct workload of a text."""
    assert mistakes_in(text) == []
    manifest, _ = check(read_documents("web.yaml", text.encode())[0][0])
    assert manifest is not None
    return manifest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # The document
        ("- id: web\n", "1: a workload must be a mapping"),
        ("just text\n", "1: a workload must be a mapping"),
        ("id: web\n", "1: one of container, compose, vm is required"),
        ("id: web\ncontainer:\n", "1: one of container, compose, vm is required"),
        (WEB + "vm: {vcpus: 1, memory_mb: 1}\n", "4: vm: stands beside container"),
        (WEB + "name: x\n", "4: name: is not a known field; known: id, type"),
        (WEB + "desired: Running\n", "4: desired: is not a known field; did you mean desired_state?"),
        ("id: web\nid: db\ncontainer: {image: x}\n", "2: id: stands twice, first in line 1"),
        # id
        ("container: {image: x}\n", "1: id: is required"),
        ("id:\ncontainer: {image: x}\n", "1: id: must be text, in quotes if need be, not nothing"),
        ("id: ' '\ncontainer: {image: x}\n", "1: id: must not be blank"),
        ("id: a/b\ncontainer: {image: x}\n", "1: id: 'a/b' must consist of"),
        ("id: -a\ncontainer: {image: x}\n", "1: id: '-a' must consist of"),
        (f"id: {'a' * 129}\ncontainer: {{image: x}}\n", "1: id: has 129 characters, at most 128"),
        ("id: 5\ncontainer: {image: x}\n", "1: id: must be text, in quotes if need be, not 5"),
        # type, desired_state
        (WEB + "type: pod\n", '4: type: "pod" must be one of container, compose, vm'),
        (WEB + "type: vm\n", '4: type: "vm" does not fit: the workload is a container'),
        (WEB + "desired_state: Up\n", '4: desired_state: "Up" must be Running or Stopped'),
        (WEB + "desired_state: true\n", "4: desired_state: true must be Running or Stopped"),
        (WEB + "desired_state: Deleted\n", "4: desired_state: Deleted cannot be applied; use `fleetbeat workload"),
        # resources
        (WEB + "resources: 5\n", "4: resources: must be a mapping, not 5"),
        (WEB + "resources:\n  cpu_millicores: 100m\n", '5: resources.cpu_millicores: "100m" is not a whole number'),
        (WEB + "resources: {memory_mb: -1}\n", "4: resources.memory_mb: -1 is not an amount of memory; allowed 0–"),
        (WEB + "resources: {disk_gb: 1.5}\n", "4: resources.disk_gb: 1.5 is not a whole number"),
        (WEB + f"resources: {{disk_gb: {'9' * 40}}}\n", "is not an amount of disk; allowed 0–"),
        (WEB + "resources: {cpu: 5}\n", "4: resources.cpu: is not a known field; did you mean"),
        # container
        ("id: web\ncontainer: [x]\n", "2: container: must be a mapping, not a list"),
        ("id: web\ncontainer: {}\n", "2: container.image: is required"),
        ("id: web\ncontainer: {image: ''}\n", '2: container.image: "" must be an image name without blanks'),
        ("id: web\ncontainer: {image: a b}\n", '2: container.image: "a b" must be an image name'),
        ("id: web\ncontainer: {image: '!'}\n", "2: container.image: '!' must be an image name"),
        ("id: web\ncontainer: {image: host}\n", "2: container.command: must name the program to run when the image"),
        (WEB + "  comand: [x]\n", "4: container.comand: is not a known field; did you mean command?"),
        (WEB + "  command: {a: b}\n", "4: container.command: must be a list, not a mapping"),
        (
            WEB + '  command: "sh -c \'x"\n',
            "4: container.command: cannot be split into arguments (No closing quotation)",
        ),
        (WEB + "  command:\n    - sh\n    - [x]\n", "6: container.command[1]: must be text"),
        (WEB + "  env: [A=1]\n", "4: container.env: must be a mapping, not a list"),
        (WEB + "  env:\n    A: 1\n    B:\n", "6: container.env.B: must be text, in quotes if need be, not nothing"),
        (WEB + "  env:\n    A: 1\n    9B: x\n", '6: container.env.9B: "9B" must be a name of letters'),
        (WEB + "  env:\n    A: {b: c}\n", "5: container.env.A: must be text, in quotes if need be, not a mapping"),
        (WEB + '  env: {A: "\\0"}\n', "4: container.env.A: has a character that is not allowed"),
        (WEB + '  env: {A: "\\ud800"}\n', "has a character that is not allowed"),
        (WEB + "  privileged: yes\n", '4: container.privileged: must be true or false, not "yes"'),
        (WEB + "  restart_policy: sometimes\n", '4: container.restart_policy: "sometimes" must be no or always'),
        # ports
        (WEB + "  ports: 80\n", "4: container.ports: must be a list, not 80"),
        (WEB + "  ports:\n    - 8080:80\n", '5: container.ports[0]: must be a mapping, not "8080:80"'),
        (
            WEB + "  ports:\n    - container_port: 80\n      host_port: 70000\n",
            "6: container.ports[0].host_port: 70000 is not a port; allowed 1–65535",
        ),
        (WEB + "  ports: [{host_port: 0, container_port: 1}]\n", "4: container.ports[0].host_port: 0 is not a port"),
        (WEB + "  ports:\n    - host_port: 80\n", "5: container.ports[0].container_port: is required"),
        (
            WEB + "  ports: [{container_port: '80'}]\n",
            '4: container.ports[0].container_port: "80" is not a whole number',
        ),
        (WEB + "  ports: [{container_port: true}]\n", "container_port: true is not a whole number"),
        (WEB + "  ports: [{container_port: 80, protocol: http}]\n", '"http" must be tcp or udp or sctp'),
        (
            WEB + "  ports:\n  - {host_port: 8, container_port: 1}\n  - {host_port: 8, container_port: 2}\n",
            "4: container.ports: host_port '8/tcp' is given twice",
        ),
        # volumes
        (
            WEB + "  volumes: [{host_path: /a, container_path: b}]\n",
            '4: container.volumes[0].container_path: "b" must be',
        ),
        (
            WEB + "  volumes: [{host_path: /a/../b, container_path: /b}]\n",
            '4: container.volumes[0].host_path: "/a/../b"',
        ),
        (WEB + "  volumes: [{host_path: /a}]\n", "4: container.volumes[0].container_path: is required"),
        (
            WEB + "  managed_volumes: [{name: d, driver: zfs}]\n",
            '4: container.managed_volumes[0].driver: "zfs" must be',
        ),
        (WEB + "  managed_volumes:\n    - size_gb: 1\n", "5: container.managed_volumes[0].name: is required"),
        # compose
        ("id: web\ncompose: {}\n", "2: compose.inline_yaml: must not be blank"),
        ("id: web\ncompose: {source_type: git}\n", "2: compose.git_repo: must not be blank"),
        ("id: web\ncompose:\n  inline_yaml: |\n    services: [\n", "3: compose.inline_yaml: is not YAML"),
        ("id: web\ncompose:\n  inline_yaml: 'a: b'\n", "3: compose.inline_yaml: services: must be a mapping"),
        # vm
        ("id: web\nvm: {memory_mb: 5}\n", "2: vm.vcpus: is required"),
        ("id: web\nvm: {vcpus: 0, memory_mb: 5}\n", "2: vm.vcpus: 0 is not a number of CPUs; allowed 1–1024"),
        ("id: web\nvm: {vcpus: 1, memory_mb: 5}\n", "2: vm.os_image: must not be blank when there are no disks"),
        ("id: web\nvm:\n  vcpus: 1\n  memory_mb: 5\n  disks: [{sizegb: 1}]\n", "5: vm.disks[0].sizegb: is not a known"),
        (
            "id: web\nvm:\n  vcpus: 1\n  memory_mb: 5\n  os_image: x\n  networks:\n    - static_ip: somewhere\n",
            "7: vm.networks[0].static_ip: 'somewhere' must be an IP address",
        ),
        ("id: web\nvm: {vcpus: 1, memory_mb: 5, os_image: x, cloud_init: x}\n", "2: vm.cloud_init: must be a mapping"),
        # metadata
        (WEB + "metadata: x\n", '4: metadata: must be a mapping, not "x"'),
        (WEB + "metadata:\n  a: b\n  retry_terminal: x\n", "6: metadata.retry_terminal: is kept by the system"),
        (WEB + "metadata:\n  a: [b]\n", "5: metadata.a: must be text, in quotes if need be, not a list"),
    ],
)
def test_each_mistake_is_told_with_line_and_field(text: str, said: str) -> None:
    """The first thing told of each broken manifest names file, line, field and what is allowed."""
    told = "\n".join(mistakes_in(text))
    assert told.startswith("web.yaml:")
    assert (f"web.yaml:{said}" if said[0].isdigit() and ":" in said[:3] else said) in told


def test_all_mistakes_of_all_documents_are_told_at_once() -> None:
    """A person corrects a file once, not once a mistake."""
    text = WEB + "  comand: x\n  ports: [{container_port: 0}]\n---\nid: a b\nvm: {vcpus: 0, memory_mb: 0}\n"
    assert [m.split(": ")[0].removeprefix("web.yaml:") for m in mistakes_in(text)] == ["4", "5", "7", "8", "8"]


def test_a_whole_container_goes_to_the_wire_under_the_same_names() -> None:
    """Every field of the manifest is the wire's."""
    manifest = manifest_in("""
id: web
desired_state: stopped
resources: {cpu_millicores: 250, memory_mb: 64, disk_gb: 1}
container:
  image: nginx:1.27
  command: sh -c 'echo "a b"'
  env: {PORT: 8080}
  volumes: [{host_path: /srv, container_path: /data, read_only: true}]
  ports: [{host_port: 8080, container_port: 80}, {container_port: 53, protocol: UDP}]
  restart_policy: Always
  privileged: true
  managed_volumes: [{name: d, size_gb: 5, mount_path: /d, retain_policy: retain}]
metadata: {team: a}
""")
    request = request_of(manifest)
    spec = request.spec
    assert (request.workload_id, request.desired_state, spec.type) == ("web", "Stopped", "container")
    assert (spec.resources.cpu_millicores, spec.resources.memory_mb, spec.resources.disk_gb) == (250, 64, 1)
    assert list(spec.container.command) == ["sh", "-c", 'echo "a b"']
    assert dict(spec.container.env) == {"PORT": "8080"}
    assert [(p.host_port, p.container_port, p.protocol) for p in spec.container.ports] == [
        (8080, 80, "tcp"),
        (0, 53, "udp"),
    ]
    assert spec.container.restart_policy == "always"
    assert spec.container.managed_volumes[0].retain_policy == "Retain"
    assert dict(spec.metadata) == {"team": "a"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (WEB, "container"),
        (WEB + "type: docker-container\n", "container"),
        ("id: a\ncompose:\n  inline_yaml: |\n    services: {a: {image: x}}\n", "compose"),
        ("id: a\nvm: {vcpus: 1, memory_mb: 512, os_image: x}\n", "vm"),
    ],
)
def test_the_type_may_be_left_out(text: str, kind: str) -> None:
    """It follows from what the workload is made of."""
    manifest = manifest_in(text)
    assert manifest.type == kind
    assert request_of(manifest).spec.WhichOneof("workload") == kind


def test_a_dump_of_what_was_sent_can_be_applied_again() -> None:
    """Manifest, wire, manifest, YAML, manifest: nothing is lost or added."""
    manifest = manifest_in(WEB + "  env: {A: '', B: 'no', C: '007', D: 'null'}\n  command: ['1', '~', '']\n")
    back = manifest_of(request_of(manifest))
    assert back == manifest
    assert manifest_in(yaml.safe_dump(dump(back))) == manifest


def test_a_document_without_lines_is_told_without() -> None:
    """Options of the command line have no lines."""
    _, mistakes = check(Document("command line", {"id": "a b", "container": {"image": "x"}}))
    assert str(mistakes[0]).startswith("command line: id: 'a b' must consist of")
