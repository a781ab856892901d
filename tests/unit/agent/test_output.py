"""The kept output of a process: bounded, and read while it is written and cut."""

from __future__ import annotations

import asyncio
import pathlib

from agent.process.output import CHUNK_BYTES, Output
from tests.support.waiting import eventually


async def tail(output: Output, most: int) -> bytes:
    """Return the last bytes of the output."""
    return b"".join([data async for data in output.tail(most, follow=False)])


async def test_output_is_bounded_and_keeps_its_end(tmp_path: pathlib.Path) -> None:
    """However much is written, at most the bound and its half stay, and the end is whole."""
    path = tmp_path / "w.log"
    output = Output(path, 10_000)
    written = b""
    for number in range(2000):
        line = f"line {number}\n".encode()
        written += line
        with path.open("ab") as file:
            file.write(line)
        await output.cut()
        assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 15_100
    kept = await tail(output, 1_000_000)
    assert written.endswith(kept)
    assert len(kept) >= 5_000
    assert await tail(output, 100) == written[-100:]


async def test_there_may_be_no_output_yet(tmp_path: pathlib.Path) -> None:
    """A workload that has not been started has none, which is no error."""
    assert await tail(Output(tmp_path / "w.log", 1000), 100) == b""


async def test_chunks_are_bounded(tmp_path: pathlib.Path) -> None:
    """No message is larger than a chunk."""
    path = tmp_path / "w.log"
    path.write_bytes(b"x" * (3 * CHUNK_BYTES + 1))
    sizes = [len(data) async for data in Output(path, 10**7).tail(10**6, follow=False)]
    assert sizes == [CHUNK_BYTES] * 3 + [1]


async def test_a_follower_sees_everything_once_across_cuts_and_ends_with_the_workload(tmp_path: pathlib.Path) -> None:
    """A cut moves what was written; the follower goes on where it was."""
    path = tmp_path / "w.log"
    path.write_bytes(b"old ")
    output = Output(path, 4096)
    over = asyncio.Event()
    seen = b""

    async def follow() -> None:
        nonlocal seen
        async for data in output.tail(4, follow=True, ended=over.is_set):
            seen += data

    follower = asyncio.create_task(follow())
    written = b"old "
    await eventually(lambda: seen == written)
    for number in range(12):
        part = f"{number:04d}".encode() * 256
        written += part
        with path.open("ab") as file:
            file.write(part)
        await eventually(lambda: len(seen) >= len(written))  # noqa: B023 - awaited in this round
        await output.cut()
    over.set()
    await asyncio.wait_for(follower, 5)
    assert seen == written


async def test_output_of_an_earlier_agent_is_read_on(tmp_path: pathlib.Path) -> None:
    """Both files, in their order."""
    (tmp_path / "w.log.1").write_bytes(b"first ")
    (tmp_path / "w.log").write_bytes(b"second")
    assert await tail(Output(tmp_path / "w.log", 1000), 9) == b"st second"
