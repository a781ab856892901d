"""Embedded clusters: one for all tests that do not break it, and new ones for those that do."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.support.embedded import Embedded


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A running cluster of two shards and three agents; tests use ids of their own and leave it as they found it."""
    cluster = Embedded(tmp_path_factory.mktemp("cluster"))
    try:
        with cluster.explaining():
            cluster.start()
        yield cluster
    finally:
        cluster.end_everything()


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[Embedded]:
    """A cluster that the test may break and end."""
    cluster = Embedded(tmp_path)
    try:
        yield cluster
    finally:
        cluster.end_everything()
