"""What the tests share: the program `midhop`, scenarios, and how records are compared."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = ROOT / "scenarios" / "quick.toml"

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def program() -> Program:
    """Run the program `midhop` that MIDHOP names, built from the same sources."""
    path = os.environ.get("MIDHOP")
    if path is None:
        pytest.skip("MIDHOP names no program to compare with")

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [path, *map(str, arguments)], capture_output=True, text=True, check=False
        )

    return run


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Three nodes of one processor each, which this process has joined."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    nodes = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make batches of a few runs, so that short sweeps have many."""
    from midhop import _ray

    monkeypatch.setattr(_ray, "BATCH_S", 0.05)


def but_environment(lines: str) -> list[str]:
    """Return records without the part in which two runs of one plan may differ."""
    cut = [
        re.sub(r'"environment":\{.*?\},"validity"', '"validity"', it) for it in lines.splitlines()
    ]
    assert all('"environment"' not in line for line in cut)
    return cut


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """Let no test be skipped where MIDHOP_SKIPS=refuse."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("MIDHOP_SKIPS") == "refuse":
        report.outcome = "failed"
