"""Logs: one line an event, in the form that is set, also for libraries that use the standard module."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from scheduler.telemetry.logs import set_up_logs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Give the root logger and structlog back as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """Return the JSON lines on stderr; nothing goes to stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_json_lines_carry_component_level_logger_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours and those of libraries alike."""
    set_up_logs("info", "json", component="front")
    structlog.get_logger("scheduler.x").info("it happened", node="n1")
    logging.getLogger("library").warning("so %s", "it goes")
    ours, theirs = lines(capsys)
    assert (ours["event"], ours["node"], ours["component"], ours["level"], ours["logger"]) == (
        "it happened", "n1", "front", "info", "scheduler.x",
    )  # fmt: skip
    assert (theirs["event"], theirs["component"], theirs["level"]) == ("so it goes", "front", "warning")
    assert ours["timestamp"].endswith("Z")


def test_a_thing_has_one_name_on_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the writer of a line calls it; what a line says itself counts more than what is around it."""
    set_up_logs("info", "json")
    with structlog.contextvars.bound_contextvars(workload_id="web", node_id="n1", cycle=7):
        structlog.get_logger("a").info("around")
        structlog.get_logger("a").info("itself", workload="db", node_id="n2")
        logging.getLogger("library").info("theirs")
    around, itself, theirs = lines(capsys)
    assert (around["workload_id"], around["node"], around["cycle"]) == ("web", "n1", 7)
    assert (itself["workload_id"], itself["node"]) == ("db", "n2")
    assert (theirs["workload_id"], theirs["node"]) == ("web", "n1")
    assert not {"workload", "node_id"} & {*around, *itself, *theirs}


def test_below_the_level_nothing_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """And chatty libraries only from warning on."""
    set_up_logs("info", "json")
    structlog.get_logger("a").debug("no")
    logging.getLogger("asyncio").info("no")
    structlog.get_logger("a").info("yes")
    assert [line["event"] for line in lines(capsys)] == ["yes"]


def test_a_traceback_is_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One event stays one line."""
    set_up_logs("info", "json")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        structlog.get_logger("a").exception("failed")
    (line,) = lines(capsys)
    assert "ZeroDivisionError: division" in line["exception"]


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """No JSON, the event and its values in plain sight, no colours where nobody looks."""
    set_up_logs("info", "text", component="front")
    structlog.get_logger("a").info("it happened", node="n1")
    line = capsys.readouterr().err
    assert "it happened" in line
    assert "node=n1" in line
    assert "\x1b" not in line
