"""Studies on clusters of Ray's: the figures and records of this machine, whatever dies."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import midhop
import pytest
from conftest import QUICK, Program, but_environment

pytest.importorskip("ray")

from midhop import _native, _ray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("small_batches")]

RUNS = 80


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study of two scenarios whose cells have the same axes."""
    place = tmp_path_factory.mktemp("studies") / "two-ways"
    place.mkdir()
    figures = ""
    for name, delay in (("near", "10 ms"), ("far", "60 ms")):
        text = QUICK.read_text().replace('delay = "10 ms"', f'delay = "{delay}"')
        head = "seeds = 20\n" + text
        vary = '\n[vary]\n"links.link.loss" = [0.01, 0.02]\n'
        (place / f"{name}.toml").write_text(head + vary)
        figures += f'[[figures]]\nname = "{name}"\nshows = "goodput"\n'
        figures += f'scenario = "{name}"\nmetric = "goodput"\n'
    head = 'title = "Two ways"\nsource = "this test"\nscenarios = ["near", "far"]\n'
    (place / "study.toml").write_text(head + figures)
    return place


@pytest.fixture(scope="module")
def here(study: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[midhop.Study, Path]:
    """Return the study as this machine runs it, and where its records are."""
    out = tmp_path_factory.mktemp("here")
    return midhop.study(study, out=out), out / "two-ways"


def figures(text: str) -> dict[str, Any]:
    """Return a study's JSON without the time that it took."""
    whole: dict[str, Any] = json.loads(text)
    assert whole.pop("took_s") >= 0
    return whole


def kept(place: Path) -> dict[str, str]:
    """Return the text of each record's file but for its environment."""
    cut = re.compile(r'^  "environment": \{.*?^  \},\n', re.M | re.S)
    texts = {file.name: cut.subn("", file.read_text()) for file in place.glob("*.json")}
    assert all(found == 1 for _, found in texts.values())
    return {name: text for name, (text, _) in texts.items()}


def test_a_cluster_makes_the_same_study(
    cluster: Any, study: Path, here: tuple[midhop.Study, Path], tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    there = midhop.study(
        study, engine="ray", out=tmp_path, progress=lambda *told: seen.append(told)
    )
    assert seen[-1] == (RUNS, RUNS)
    assert figures(there.to_json()) == figures(here[0].to_json())
    assert there.to_text() == here[0].to_text()
    ours, theirs = (it.records.to_json() for it in (there, here[0]))
    assert but_environment(ours) == but_environment(theirs)
    assert kept(tmp_path / "two-ways") == kept(here[1])
    # Nothing is kept without a directory, and the figures that need curves are there all the same.
    alone = midhop.study(study, engine="ray", cells=["near:links.link.loss=0.01"])
    assert len(alone.records) == 20
    near = [it for it in there.figure("near") if it["cell"]["links.link.loss"] == "0.01"]
    assert alone.figure("near")[0]["values"] == near[0]["values"]


def test_a_cluster_plays_a_recording_that_only_the_driver_has(cluster: Any) -> None:
    cells = ["page:link=second,begins=1-s,setup=cubic"]
    there, here = (
        midhop.study("starlink-as-measured", seeds=2, cells=cells, engine=engine)
        for engine in ("ray", None)
    )
    assert figures(there.to_json()) == figures(here.to_json())


def test_a_cluster_goes_on_where_this_machine_was(
    cluster: Any, study: Path, here: tuple[midhop.Study, Path], tmp_path: Path
) -> None:
    midhop.study(study, cells=["near"], out=tmp_path)
    seen: list[int] = []
    there = midhop.study(
        study, engine="ray", out=tmp_path, progress=lambda done, whole: seen.append(done)
    )
    assert min(seen) > RUNS // 2
    assert figures(there.to_json()) == figures(here[0].to_json())
    assert kept(tmp_path / "two-ways") == kept(here[1])


def test_a_worker_that_dies_costs_its_batch_only(
    cluster: Any,
    study: Path,
    here: tuple[midhop.Study, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    died = tmp_path / "died"

    def deadly(batch: bytes) -> tuple[bytes, float]:
        import json
        import os

        from midhop._ray import run_here

        runs = [run for cell in json.loads(batch)["cells"] for run in cell["runs"]]
        if any(number == 47 for number, _ in runs) and not died.exists():
            died.touch()
            os._exit(1)
        return run_here(batch)

    lost: list[int] = []
    whole_lost = _ray.Driver._lost

    def note(self: _ray.Driver, places: list[int], error: Exception) -> None:
        lost.extend(places)
        whole_lost(self, places, error)

    monkeypatch.setattr(_ray, "run_here", deadly)
    monkeypatch.setattr(_ray.Driver, "_lost", note)
    there = midhop.study(study, engine="ray", out=tmp_path / "out")
    assert 47 in lost and len(lost) < RUNS
    assert figures(there.to_json()) == figures(here[0].to_json())
    assert kept(tmp_path / "out" / "two-ways") == kept(here[1])


def test_a_run_that_always_kills_is_named_and_the_rest_is_there(
    cluster: Any, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(batch: bytes) -> tuple[bytes, float]:
        import json
        import os

        from midhop._ray import run_here

        runs = [run for cell in json.loads(batch)["cells"] for run in cell["runs"]]
        if any(number == 3 for number, _ in runs):
            os._exit(1)
        return run_here(batch)

    monkeypatch.setattr(_ray, "run_here", deadly)
    with pytest.raises(midhop.Error, match="1 runs failed") as caught:
        midhop.study(study, engine="ray", seeds=4)
    assert "3 workers died of it" in caught.value.causes[0]
    assert caught.value.records is not None and len(caught.value.records) == 15


def test_a_batch_keeps_scenarios_apart(study: Path) -> None:
    run = _native.StudyRun(str(study), quick=False, seeds=None, cells=[], out=None)
    assert (len(run), run.left()) == (RUNS, list(range(RUNS)))
    # The last cell of one scenario, and the first of the other, in one batch.
    cells = json.loads(run.batch([39, 40, 59, 60]))["cells"]
    delays = [cell["plan"]["links"][0]["down"]["delay"] for cell in cells]
    assert len(cells) == 3 and delays[0] != delays[1]
    between = json.loads(run.batch([0, 40, 1]))["cells"]
    assert len(between) == 3
    run.accept(_native.run_batch(run.batch(list(range(RUNS)))))
    assert not run.left() and not run.failures
    assert len(run.records()) == RUNS


def test_the_program_runs_a_study_on_a_cluster(
    cluster: Any,
    program: Program,
    study: Path,
    here: tuple[midhop.Study, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    binaries = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    call = ("reproduce", study, "--in", "sim", "--out", tmp_path / "out")
    engine = ("--engine", cluster.address)
    ran = program(*call, *engine, "--json")
    assert ran.returncode == 0, ran.stderr
    ours, theirs = figures(ran.stdout), figures(here[0].to_json())
    assert ours == theirs
    assert "two-ways: 80 runs" in ran.stderr.replace(str(study), "two-ways").replace(
        f" on {cluster.address}", ""
    )
    assert kept(tmp_path / "out" / "two-ways") == kept(here[1])
    assert (tmp_path / "out" / "report" / "index.html").exists()
    # What is there is not run again, and nobody needs the cluster for it.
    again = program(*call, *engine)
    assert again.returncode == 0, again.stderr
    assert "80 of them there already" in again.stderr and "80 runs in" in again.stdout
    # What is refused there is one error, and nothing is shown.
    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "1")
    nowhere = ("--engine", "ray://127.0.0.1:1")
    wrong = program("reproduce", study, "--in", "sim", "--out", tmp_path / "x", *nowhere)
    assert wrong.returncode == 1 and wrong.stdout == ""
    assert wrong.stderr.count("error: ") == 1 and "no cluster of Ray's answers" in wrong.stderr
    lab = program("reproduce", study, "--in", "both", "--out", tmp_path / "x", *engine)
    assert lab.returncode == 64 and "--engine is for virtual time" in lab.stderr
    assert "hint: add `--in sim`" in lab.stderr
