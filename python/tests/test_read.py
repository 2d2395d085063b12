from __future__ import annotations

from pathlib import Path

import midhop
import pytest
from conftest import QUICK, Program, but_environment


def test_what_the_program_has_written_is_read(program: Program, tmp_path: Path) -> None:
    run = program("sim", "run", QUICK, "--seeds", 3, "--out", tmp_path / "run", "--json")
    assert run.returncode == 0, run.stderr
    records = midhop.read(tmp_path / "run")
    assert but_environment(records.to_json()) == but_environment(run.stdout)
    sweep = ("sim", "sweep", QUICK, "--out", tmp_path / "sweep", "--seeds", 2)
    assert program(*sweep, "--vary", "links.link.loss=0,0.01").returncode == 0
    both = midhop.read(tmp_path / "run", tmp_path / "sweep" / "records.jsonl")
    assert len(both) == 7
    # Runs that are there twice count once.
    assert len(midhop.read(tmp_path / "run", tmp_path / "run")) == 3


def test_a_line_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    midhop.sweep(QUICK, seeds=2, jobs=1, out=tmp_path)
    lines = tmp_path / "records.jsonl"
    lines.write_text(lines.read_text()[:-100])
    assert [record.seed for record in midhop.read(tmp_path)] == [1]
    assert len(midhop.sweep(QUICK, seeds=2, out=tmp_path)) == 2


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(midhop.Error, match="has no records") as caught:
        midhop.read(tmp_path)
    assert caught.value.hint
    with pytest.raises(midhop.Error, match=r"cannot read .*absent"):
        midhop.read(tmp_path / "absent")
    record = midhop.run(QUICK)[0].to_json()
    with pytest.raises(midhop.Error, match="has version 1, this release reads version 2") as older:
        midhop.Record.from_json(record.replace('"schema":2', '"schema":1', 1))
    assert older.value.hint and older.value.hint.startswith("run the scenario again")
    (tmp_path / "1.json").write_text("{}")
    with pytest.raises(midhop.Error, match="not a record"):
        midhop.read(tmp_path / "1.json")
    # In a directory JSON of other kinds is passed over, as the program's `report` does.
    with pytest.raises(midhop.Error, match="has no records"):
        midhop.read(tmp_path)
