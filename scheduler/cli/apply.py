"""`fleetbeat apply`: check everything, send it, follow it."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Iterator, Sequence

import click

from scheduler.cli import show
from scheduler.cli.adhoc import AdHoc, adhoc_options, document_of
from scheduler.cli.check import check
from scheduler.cli.connect import Front, UnreachableError
from scheduler.cli.documents import MAX_BYTES, Document, Mistake, read_documents
from scheduler.cli.follow import Followed, Outcome, Report, exit_code, follow
from scheduler.cli.manifest import Manifest, dump, request_of
from scheduler.cli.options import CommandError, Options, asynchronous, common_options
from scheduler.cli.sizes import timeout_option
from scheduler.cli.yaml_text import yaml_text
from scheduler.pb import control_pb2

_MAX_MISTAKES = 50


@click.command()
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="A YAML file of one or more workloads; - reads stdin. Repeatable.",
)
@adhoc_options
@click.option("--detach", is_flag=True, help="Send only; do not wait until the workloads run.")
@timeout_option
@click.option("--dry-run", is_flag=True, help="Check only; nothing is sent, and no front is needed.")
@common_options
@click.pass_obj
def apply(options: Options, *, files: Sequence[str], adhoc: AdHoc, detach: bool, seconds: float, dry_run: bool) -> int:
    """Create or change workloads and follow them until they run.

    Everything is checked before anything is sent. Ctrl-C stops the following, not the workloads.
    The image "host" runs the command as a process on a node that allows it.

    \b
    Examples:
      fleetbeat apply -f web.yaml -f db.yaml
      fleetbeat apply -f - --detach < web.yaml
      fleetbeat apply --image nginx:1.27 --id web --cpu 250m --memory 64Mi --port 8080:80
      fleetbeat apply --image host --id job -- sh -c 'date; sleep 600'

    Exit codes: 0 all run, 1 error, 2 no node was found for any of them.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    manifests = _checked(_read(files, adhoc))
    if dry_run:
        _write_checked(options, manifests)
        show.say(f"{len(manifests)} workload(s) are correct; nothing was sent")
        return 0
    return _send(options, manifests, 0.0 if detach else seconds)


def _read(files: Sequence[str], adhoc: AdHoc) -> tuple[list[Document], list[Mistake]]:
    if bool(files) == adhoc.is_given:
        raise click.UsageError("give either -f FILE or --image IMAGE [-- COMMAND…]")
    if adhoc.is_given:
        return [document_of(adhoc)], []
    documents: list[Document] = []
    mistakes: list[Mistake] = []
    for name in files:
        found, wrong = read_documents("stdin" if name == "-" else name, _content(name))
        documents += found
        mistakes += wrong
    if not documents and not mistakes:
        raise CommandError(f"{', '.join(files)}: there is no workload in it")
    return documents, mistakes


def _content(name: str) -> bytes:
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == "-" else pathlib.Path(name).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise CommandError(f"{name}: is larger than {MAX_BYTES} bytes")
    return content


def _checked(read: tuple[list[Document], list[Mistake]]) -> list[Manifest]:
    documents, mistakes = read
    manifests: list[Manifest] = []
    first: dict[str, Document] = {}
    for document in documents:
        manifest, wrong = check(document)
        mistakes += wrong
        if manifest is None:
            continue
        before = first.setdefault(manifest.id, document)
        if before is not document:
            where = f"{before.source}:{before.line_of(('id',))}"
            mistakes.append(document.mistake(("id",), f'"{manifest.id}" stands twice, first in {where}'))
        manifests.append(manifest)
    if mistakes:
        lines = [str(m) for m in mistakes[:_MAX_MISTAKES]]
        more = [f"… and {len(mistakes) - len(lines)} more"] if len(mistakes) > len(lines) else []
        raise CommandError("nothing was sent:\n" + "\n".join(lines + more))
    return manifests


def _write_checked(options: Options, manifests: Sequence[Manifest]) -> None:
    """Write what would be sent; as YAML so that it can be applied."""
    if options.output == "yaml":
        click.echo(yaml_text(*map(dump, manifests)), nl=False)
        return
    rows = [(m.id, m.type, m.desired_state) for m in manifests]
    data = {"workloads": [dump(m) for m in manifests]}
    show.write(options.output, data, show.Table(("ID", "TYPE", "DESIRED"), rows))


@asynchronous
async def _send(options: Options, manifests: Sequence[Manifest], seconds: float) -> int:
    items: list[Followed] = []
    async with Front(options) as front:
        try:
            with _live() as report:
                for manifest in manifests:
                    items.append(await _apply_one(front, manifest))
                    report(items)
                if seconds:
                    await follow(front, items, seconds, report)
        except BaseException:
            _leave(items, manifests)
            raise
    for item in items:
        unplaced = item.reason and not item.node_id
        item.outcome = item.outcome or (Outcome.PENDING if unplaced else Outcome.STORED)
    _write(options, items)
    return exit_code(items)


async def _apply_one(front: Front, manifest: Manifest) -> Followed:
    """Send one workload. A refusal concerns this one only; a front that is away concerns all."""
    item = Followed(manifest.id, manifest.desired_state)
    try:
        response = await front.write(front.control.ApplyWorkload, request_of(manifest))
    except UnreachableError:
        raise
    except CommandError as error:
        item.status, item.reason, item.outcome = "Refused", error.message, Outcome.ERROR
        return item
    return _taken(item, response)


def _taken(item: Followed, response: control_pb2.ApplyWorkloadResponse) -> Followed:
    item.revision_id, item.node_id, item.status = response.revision_id, response.assigned_node_id, response.status
    item.reason = response.pending_reason
    if not response.success:
        code = control_pb2.FailureReason.Name(response.failure_reason) if response.failure_reason else ""
        item.status, item.outcome = "Refused", Outcome.ERROR
        item.reason = response.error_message + (f" ({code})" if code else "")
    return item


def _leave(items: Sequence[Followed], manifests: Sequence[Manifest]) -> None:
    """Say what was sent and what was not, when the command ends early."""
    going = [item.workload_id for item in items if item.outcome is None]
    unsent = [m.id for m in manifests[len(items) :]]
    if going:
        show.say(f"{', '.join(going)}: goes on without this command; see `fleetbeat workload show ID`")
    if unsent:
        show.say(f"{', '.join(unsent)}: not known to be sent")


def _write(options: Options, items: Sequence[Followed]) -> None:
    data = {
        "workloads": [
            {
                "workload_id": i.workload_id,
                "outcome": i.outcome.value if i.outcome else "",
                "status": i.status,
                "assigned_node_id": i.node_id,
                "revision_id": i.revision_id,
                "reason": i.reason,
            }
            for i in items
        ]
    }
    rows = [(i.workload_id, i.status, i.node_id, i.revision_id, i.reason) for i in items]
    show.write(options.output, data, show.Table(("ID", "STATUS", "NODE", "REVISION", "REASON"), rows))
    for item in items:
        if item.outcome is Outcome.ERROR and item.node_id:
            show.say(f"{item.workload_id}: see `fleetbeat workload logs {item.workload_id}`")


@contextlib.contextmanager
def _live() -> Iterator[Report]:
    """Show progress on stderr: on a terminal one line a workload that is kept current, else each change once."""
    changes = _Changes()
    if not sys.stderr.isatty():
        yield changes
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    seen: Sequence[Followed] = ()
    with Live(console=Console(stderr=True), refresh_per_second=8, transient=True) as live:

        def report(items: Sequence[Followed]) -> None:
            nonlocal seen
            seen = items
            lines = [Text(show.printable(i.line()), style=show.colour_of(i.status)) for i in items]
            live.update(Text("\n").join(lines))

        yield report
    changes([item for item in seen if item.outcome is not Outcome.DONE])


class _Changes:
    """Says each change of a workload once."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def __call__(self, items: Sequence[Followed]) -> None:
        for item in items:
            line = item.line()
            if self._said.get(item.workload_id) != line:
                self._said[item.workload_id] = line
                show.say(line)
