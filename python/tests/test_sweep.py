from __future__ import annotations

from pathlib import Path

import midhop
import pytest
from conftest import QUICK, Program, but_environment

VARY = {"links.link.loss": [0, 0.01, 0.02], "links.link.delay": ["10 ms", "50 ms"]}


def test_a_sweep_writes_what_the_program_writes(program: Program, tmp_path: Path) -> None:
    theirs = program(
        *("sim", "sweep", QUICK, "--out", tmp_path / "theirs", "--seeds", 2, "--json"),
        *("--vary", "links.link.loss=0,0.01,0.02", "--vary", "links.link.delay=10 ms,50 ms"),
    )
    assert theirs.returncode == 0, theirs.stderr
    ours = midhop.sweep(QUICK, vary=VARY, seeds=2, out=tmp_path / "ours")
    assert len(ours) == 12
    assert but_environment(ours.to_json()) == but_environment(theirs.stdout)
    for table in ("runs.csv", "cells.csv", "runs.parquet", "cells.parquet"):
        assert (tmp_path / "ours" / table).read_bytes() == (
            tmp_path / "theirs" / table
        ).read_bytes()
    lines = [(tmp_path / of / "records.jsonl").read_text() for of in ("ours", "theirs")]
    assert sorted(but_environment(lines[0])) == sorted(but_environment(lines[1]))


def test_a_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = midhop.sweep(QUICK, vary={"links.link.loss": [0, 0.01]}, out=tmp_path)
    more = midhop.sweep(QUICK, vary=VARY, out=tmp_path, progress=lambda *told: seen.append(told))
    assert seen[0][1] == 6
    assert min(done for done, _ in seen) == 2
    assert (len(first), len(more)) == (2, 6)
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 6
    with pytest.raises(midhop.Error, match="has records already"):
        midhop.sweep(QUICK, out=tmp_path, resume=False)


def test_cells_are_chosen_by_their_labels() -> None:
    records = midhop.sweep(QUICK, vary=VARY)
    chosen = records.at({"links.link.loss": "0.01"})
    assert [record.cell["links.link.delay"] for record in chosen] == ["10 ms", "50 ms"]
    assert len(records.where(nothing="1")) == 0


def test_what_a_sweep_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(midhop.Error, match="no engine is called `dask`") as caught:
        midhop.sweep(QUICK, engine="dask")
    assert caught.value.code == 64
    with pytest.raises(midhop.Error, match="`jobs` must be at least 1"):
        midhop.sweep(QUICK, jobs=0)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(midhop.Error, match="no records can be written to") as caught:
        midhop.sweep(QUICK, out=file)
    assert caught.value.causes and caught.value.hint
    with pytest.raises(midhop.Error, match="a confidence of 95"):
        midhop.sweep(QUICK, out=tmp_path / "out", confidence=95)


def test_a_value_with_a_comma_is_one_value() -> None:
    with pytest.raises(midhop.Error, match="a, b"):
        midhop.sweep(QUICK, vary={"links.link.delay": ["a, b"]})
