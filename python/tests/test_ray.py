"""Sweeps on clusters of Ray's: three nodes on this machine, one of which dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import midhop
import pytest
from conftest import QUICK, Program, but_environment

pytest.importorskip("ray")

from midhop import _native, _ray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("small_batches")]

VARY = {"links.link.loss": [0.01, 0.02, 0.03]}
SEEDS = 100


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The records as this machine makes them without a cluster."""
    return but_environment(midhop.sweep(QUICK, vary=VARY, seeds=SEEDS).to_json())


def test_a_cluster_makes_the_same_records(
    cluster: Any, expected: list[str], tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    records = midhop.sweep(
        QUICK,
        vary=VARY,
        seeds=SEEDS,
        engine="ray",
        out=tmp_path / "ray",
        progress=lambda *told: seen.append(told),
    )
    assert but_environment(records.to_json()) == expected
    assert seen[-1] == (300, 300)
    midhop.sweep(QUICK, vary=VARY, seeds=SEEDS, out=tmp_path / "here")
    for table in ("runs.csv", "cells.csv", "runs.parquet", "cells.parquet"):
        ours, theirs = (tmp_path / of / table for of in ("ray", "here"))
        assert ours.read_bytes() == theirs.read_bytes()
    lines = [(tmp_path / of / "records.jsonl").read_text() for of in ("ray", "here")]
    assert sorted(but_environment(lines[0])) == sorted(but_environment(lines[1]))


def test_curves_come_along_where_they_are_kept(cluster: Any, tmp_path: Path) -> None:
    midhop.sweep(QUICK, vary=VARY, engine="ray", series=True, out=tmp_path / "ray")
    midhop.sweep(QUICK, vary=VARY, series=True, out=tmp_path / "here")
    lines = [(tmp_path / of / "records.jsonl").read_text() for of in ("ray", "here")]
    assert sorted(but_environment(lines[0])) == sorted(but_environment(lines[1]))
    assert midhop.Record.from_json(lines[0].splitlines()[0]).curves


def test_a_cluster_goes_on_where_this_machine_was(
    cluster: Any, expected: list[str], tmp_path: Path
) -> None:
    midhop.sweep(QUICK, vary={"links.link.loss": [0.02]}, seeds=SEEDS, out=tmp_path)
    seen: list[int] = []
    records = midhop.sweep(
        *(QUICK,),
        vary=VARY,
        seeds=SEEDS,
        engine="ray",
        out=tmp_path,
        progress=lambda done, whole: seen.append(done),
    )
    assert min(seen) > SEEDS
    assert but_environment(records.to_json()) == expected
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 300


def test_a_run_that_kills_its_worker_fails_alone(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(batch: bytes) -> tuple[bytes, float]:
        import json
        import os

        from midhop._ray import run_here

        runs = [run for cell in json.loads(batch)["cells"] for run in cell["runs"]]
        if any(number == 7 for number, _ in runs):
            os._exit(1)
        return run_here(batch)

    monkeypatch.setattr(_ray, "run_here", deadly)
    with pytest.raises(midhop.Error, match="1 of 30 runs failed") as caught:
        midhop.sweep(QUICK, vary=VARY, seeds=10, engine="ray")
    assert "3 workers died of it" in caught.value.causes[0]
    assert caught.value.records is not None
    assert len(caught.value.records) == 29


def test_what_a_worker_refuses_is_raised(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(batch: bytes) -> tuple[bytes, float]:
        from midhop._ray import run_here

        return run_here(batch.replace(b'"build":"', b'"build":"0'))

    monkeypatch.setattr(_ray, "run_here", other)
    with pytest.raises(midhop.Error, match="the driver has another build") as caught:
        midhop.sweep(QUICK, engine="ray")
    assert caught.value.hint == "install the same wheel of midhop on every node"


def test_the_program_runs_a_sweep_on_a_cluster(
    cluster: Any,
    program: Program,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    ran = program(
        *("sim", "sweep", QUICK, "--engine", cluster.address, "--out", tmp_path, "--json"),
        *("--vary", "links.link.loss=0.01,0.02,0.03", "--seeds", SEEDS),
    )
    assert ran.returncode == 0, ran.stderr
    assert but_environment(ran.stdout) == expected
    assert "wrote runs and cells as CSV and Parquet" in ran.stderr
    # Where the first python3 has no Ray, that is said.
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(bare))
    ran = program("sim", "sweep", QUICK, "--engine", "ray", "--out", tmp_path)
    assert ran.returncode == 1
    assert "error: python3 cannot run things on a cluster" in ran.stderr
    assert "hint: pip install 'midhop[ray]'" in ran.stderr


def test_a_node_that_dies_costs_its_batch_only(
    cluster: Any, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    # The victim holds the first batch that it gets, and all others wait for that: there is one
    # to lose.
    node_id, held = victim.node_id, tmp_path / "held"

    def holding(batch: bytes) -> tuple[bytes, float]:
        import time

        import ray
        from midhop._ray import run_here

        if ray.get_runtime_context().get_node_id() == node_id:
            held.write_bytes(batch)
            time.sleep(60)
        for _ in range(600):
            if held.exists():
                break
            time.sleep(0.1)
        return run_here(batch)

    killed = threading.Event()

    def kill(done: int, whole: int) -> None:
        if held.exists() and not killed.is_set():
            cluster.remove_node(victim, allow_graceful=False)
            killed.set()

    lost: list[int] = []
    whole_lost = _ray.Driver._lost

    def note(self: _ray.Driver, places: list[int], error: Exception) -> None:
        lost.extend(places)
        whole_lost(self, places, error)

    monkeypatch.setattr(_ray, "run_here", holding)
    monkeypatch.setattr(_ray.Driver, "_lost", note)
    records = midhop.sweep(
        QUICK, vary=VARY, seeds=SEEDS, engine="ray", out=tmp_path / "out", progress=kill
    )
    assert killed.is_set(), "the victim got no batch before the sweep was over"
    assert 0 < len(lost) < 300
    assert but_environment(records.to_json()) == expected
    assert len((tmp_path / "out" / "records.jsonl").read_text().splitlines()) == 300


def test_a_batch_has_each_cells_plan_once() -> None:
    campaign = _native.Campaign(
        _native.Source.file(QUICK),
        set=[],
        vary=[("links.link.loss", [0.01, 0.02])],
        seeds=50,
        out=None,
        series=False,
        whole=False,
    )
    one, all_ = campaign.batch([0]), campaign.batch(list(range(100)))
    assert len(all_) < 2 * len(one) + 100 * 16
    campaign.accept(_native.run_batch(all_))
    assert not campaign.left()


def test_no_cluster_where_one_is_named_is_an_error_with_a_hint(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "midhop", "sweep", str(QUICK), "--engine", "ray://127.0.0.1:1"]
    environment = {**os.environ, "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "1"}
    ran = subprocess.run(
        [*call, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.returncode == 1
    assert "error: no cluster of Ray's answers at ray://127.0.0.1:1" in ran.stderr
    assert "hint: " in ran.stderr
