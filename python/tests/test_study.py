from __future__ import annotations

import json
from pathlib import Path

import midhop
import pytest
from conftest import Program

STUDY = "geo-onoff"
CELL = "related"
RECORDED = "page:link=second,begins=1-s,setup=cubic"


def test_a_study_is_the_programs(program: Program, tmp_path: Path) -> None:
    theirs = program("reproduce", STUDY, "--in", "sim", "--quick", "--cell", CELL, "--json")
    study = midhop.study(STUDY, quick=True, cells=[CELL], out=tmp_path)
    expected, ours = json.loads(theirs.stdout), json.loads(study.to_json())
    for value in (expected, ours):
        assert value.pop("took_s") >= 0
    assert ours == expected
    assert study.title and study.source and study.claims
    assert len(study.records) == ours["runs"] > 0
    name = study.figures[0]["figure"]
    assert study.figure(name)
    # What is there is not run again.
    seen: list[tuple[int, int]] = []
    midhop.study(
        STUDY, quick=True, cells=[CELL], out=tmp_path, progress=lambda *it: seen.append(it)
    )
    assert seen == [(ours["runs"], ours["runs"])]


def test_a_recorded_link_comes_with_its_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its files are in the package: here is none of them.
    monkeypatch.chdir(tmp_path)
    study = midhop.study("starlink-as-measured", seeds=1, cells=[RECORDED])
    assert len(study.records) == 1
    (time_s,) = study.figure("page-time")[0]["values"]
    assert 1 < time_s < 3


def test_what_is_no_study_is_refused(program: Program) -> None:
    assert STUDY in midhop.studies()
    theirs = program("reproduce", "geo-onof", "--in", "sim")
    with pytest.raises(midhop.Error) as caught:
        midhop.study("geo-onof")
    assert theirs.stderr == f"error: {caught.value}\nhint: {caught.value.hint}\n"
    with pytest.raises(midhop.Error, match="has no scenario nothing"):
        midhop.study(STUDY, cells=["nothing"])
