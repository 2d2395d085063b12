"""Two sets of records side by side, as the program's `compare` has them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import midhop
import pytest
from conftest import QUICK, ROOT, Program

IPERF3 = ROOT / "scenarios" / "measured" / "iperf3.json"
TWIN = ROOT / "scenarios" / "measured" / "twin.toml"
LOSS = {"links.link.loss": [0.001, 0.02]}


def side(congestion: str, out: Path) -> midhop.Records:
    congestions = {"transfers.file.congestion": congestion}
    return midhop.sweep(QUICK, vary=LOSS, seeds=3, set=congestions, out=out)


def test_a_comparison_is_the_programs(program: Program, tmp_path: Path) -> None:
    places = [tmp_path / congestion for congestion in ("cubic", "hybla")]
    records = [side(place.name, place) for place in places]
    for level in (0.95, 0.9):
        given = ("compare", *places, "--confidence", level)
        theirs = program(*given, "--json")
        assert theirs.returncode == 0, theirs.stderr
        for first, second in (places, map(str, places), records, (records[0], places[1])):
            ours = midhop.compare(first, second, confidence=level)
            assert ours.to_json() + "\n" == theirs.stdout
        ours = midhop.compare(*places, confidence=level)
        assert ours.table().to_csv() == program(*given, "--csv").stdout
        # Into a pipe the program takes as many columns as the table needs.
        assert ours.to_text(1000) == str(program(*given).stdout)
    assert str(midhop.compare(*records)).startswith("A: 6 records, in the simulator\nB: 6 records")


def test_a_comparison_is_typed(program: Program, tmp_path: Path) -> None:
    cubic, hybla = side("cubic", tmp_path / "cubic"), side("hybla", tmp_path / "hybla")
    found = midhop.compare(cubic, hybla)
    keys = json.loads(found.to_json())
    for name, value in keys.items():
        own = getattr(found, name)
        if name == "lines":
            own = [dataclasses.asdict(line) for line in own]
        elif name == "summary":
            own = dataclasses.asdict(own)
        assert json.loads(json.dumps(own)) == value, name
    # The types have just the keys that the program publishes.
    schema = json.loads(program("schema", "compare").stdout)
    assert set(keys) == set(schema["properties"])
    for name, type_ in (
        ("Line", midhop.ComparisonLine),
        ("Contrast", midhop.Contrast),
        ("Agreement", midhop.Agreement),
    ):
        fields = {field.name for field in dataclasses.fields(type_)}
        assert fields == set(schema["$defs"][name]["properties"]), name
    (lossy,) = [it for it in found.lines if it.cell["links.link.loss"] == "0.02"]
    assert lossy == found.line("file", **{"links.link.loss": 0.02})
    assert lossy.goodput_bit_per_s.runs == (3, 3)
    ratio, interval = lossy.goodput_bit_per_s.ratio, lossy.goodput_bit_per_s.interval
    assert ratio is not None and interval is not None and interval[0] < ratio < interval[1]
    assert lossy.goodput_bit_per_s.real == (not interval[0] <= 1 <= interval[1])
    table = found.table()
    assert len(table) == len(found.lines) == 2
    assert table.column("cell.links.link.loss") == [0.001, 0.02]
    assert table.column("goodput_mbit_per_s.ratio")[1] == ratio
    # Of each side and itself nothing differs.
    same = midhop.compare(cubic, cubic).summary
    assert same is not None and (same.lines, same.median, same.real) == (2, 1.0, 0)


def test_measurements_are_compared_too(program: Program, tmp_path: Path) -> None:
    twin = midhop.run(TWIN)
    ours = midhop.compare(midhop.measured(IPERF3), twin)
    lines = tmp_path / "twin.jsonl"
    lines.write_text(twin.to_json())
    theirs = program("compare", IPERF3, lines, "--json")
    assert ours.to_json() + "\n" == theirs.stdout
    assert ours.places == (["iperf3"], ["sim"])
    assert ours.to_json() == midhop.compare(IPERF3, lines).to_json()
    assert len(midhop.compare(twin[0], twin[1]).lines) == 1


def test_what_lies_in_the_other_side_is_no_part_of_it(program: Program, tmp_path: Path) -> None:
    side("cubic", tmp_path)
    side("hybla", tmp_path / "lab")
    for places in ((tmp_path, tmp_path / "lab"), (tmp_path / "lab", tmp_path)):
        theirs = program("compare", *places, "--json")
        assert midhop.compare(*places).to_json() + "\n" == theirs.stdout
        assert json.loads(theirs.stdout)["lines"][0]["goodput_bit_per_s"]["runs"] == [3, 3]


def test_what_cannot_be_compared_is_refused(program: Program, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"a": 1}')
    for place in (tmp_path, tmp_path / "absent", tmp_path / "other.json"):
        theirs = program("compare", place, IPERF3)
        with pytest.raises(midhop.Error) as caught:
            midhop.compare(place, IPERF3)
        assert theirs.returncode == caught.value.code == 64
        assert theirs.stderr == f"error: {caught.value}\nhint: {caught.value.hint}\n"
    with pytest.raises(midhop.Error, match="no records found"):
        midhop.compare([], IPERF3)
    with pytest.raises(midhop.Error, match="a confidence of 95"):
        midhop.compare(IPERF3, IPERF3, confidence=95)
    same = midhop.compare(IPERF3, IPERF3)
    with pytest.raises(midhop.Error, match="0 lines match") as none:
        same.line("nothing")
    assert none.value.hint
