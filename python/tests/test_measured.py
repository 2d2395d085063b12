"""What was measured without a scenario: by `midhop meter`, and by iperf3."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from pathlib import Path

import midhop
import pytest
from conftest import ROOT, Program

LINK = ROOT / "scenarios" / "measured" / "link.json"
IPERF3 = ROOT / "scenarios" / "measured" / "iperf3.json"
TWIN = ROOT / "scenarios" / "measured" / "twin.toml"
MORE = ROOT / "crates" / "experiment" / "tests" / "experiment" / "iperf3"


def test_a_measured_link_is_typed(program: Program) -> None:
    found = midhop.measured(LINK)
    assert (found.program, found.name) == ("midhop meter link", str(LINK))
    link = found.link
    assert link is not None
    keys = json.loads(LINK.read_text())
    shown = dataclasses.asdict(link)
    toml = shown.pop("toml")
    assert found.to_dict() == keys
    # One key is younger than this measurement.
    for way in ("down", "up"):
        assert shown[way].pop("tcp_retransmissions") is None
    assert shown == keys
    assert "[legs.satellite]" in toml and "[links.satellite]" in toml
    # The types have just the keys that the program publishes.
    schema = json.loads(program("schema", "meter-link").stdout)
    own = {field.name for field in dataclasses.fields(midhop.LinkReport)} - {"toml"}
    assert own == set(schema["properties"])
    way = {field.name for field in dataclasses.fields(midhop.LinkDirection)}
    assert way == set(schema["$defs"]["LinkDirection"]["properties"])
    assert {it.name for it in found.record.transfers} >= {"down", "up"}
    assert midhop.measured(keys).record == midhop.measured(LINK.read_text()).record == found.record
    again = pickle.loads(pickle.dumps(found))
    assert again.record == found.record and again.link == link


def test_iperf3_meets_a_limit_as_in_the_programs_report(program: Program, tmp_path: Path) -> None:
    twin = tmp_path / "twin.toml"
    twin.write_text(TWIN.read_text().replace("seeds = 5", "seeds = 1"))
    found = midhop.measured(IPERF3)
    assert found.program == "iperf3" and found.link is None
    for limit in (LINK, twin):
        theirs = program("report", IPERF3, "--limit", limit, "--csv")
        assert theirs.returncode == 0, theirs.stderr
        ours = found.records().limited(limit)
        assert ours[0].transfers[0].limit_goodput_mbit_per_s
        efficiency = ours.runs().column("efficiency")[0]
        assert str(efficiency)[:6] in theirs.stdout
    by_link = found.records().limited(midhop.measured(LINK))
    assert by_link == found.records().limited(json.loads(LINK.read_text()))
    assert found.record.transfers[0].limit_time_s is None
    table = program("report", IPERF3, "--limit", LINK).stdout
    assert re.sub(r"\s+", " ", by_link.to_text()) == re.sub(r"\s+", " ", table)


def test_measurements_and_runs_are_read_together(program: Program, tmp_path: Path) -> None:
    run = program("sim", "run", TWIN, "--out", tmp_path / "run")
    assert run.returncode == 0, run.stderr
    (tmp_path / "run" / "other.json").write_text('{"a": 1}')
    both = midhop.read(tmp_path / "run", IPERF3, IPERF3, MORE / "udp_down.json")
    runners = [record.environment["runner"] for record in both]
    assert runners.count("iperf3") == 3
    assert [record.seed for record in both if record.title == both[-2].title][:2] == [1, 2]
    assert len(both.runs()) == sum(len(record.transfers) for record in both)
    sampled = midhop.measured(MORE / "tcp_up.json").record
    assert sampled.curves and len(sampled.samples()) > 0


def test_what_cannot_be_used_is_refused_as_the_program_refuses_it(
    program: Program, tmp_path: Path
) -> None:
    texts = {
        "cut.json": IPERF3.read_text()[:500],
        "text.json": "[ ID] Interval           Transfer     Bitrate\niperf Done.\n",
        "other.json": '{"a": 1}',
        "stream.json": '{"event": "start", "data": {}}',
        "refused.json": (MORE / "refused.json").read_text(),
        "sender.json": (MORE / "server_down.json").read_text(),
        "damaged.json": LINK.read_text().replace('"pings":', '"pings":"x","pungs":'),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        theirs = program("report", tmp_path / name)
        assert theirs.returncode == 64, name
        for read in (midhop.measured, midhop.read):
            with pytest.raises(midhop.Error) as caught:
                read(tmp_path / name)
            assert theirs.stderr == f"error: {caught.value}\nhint: {caught.value.hint}\n"
    theirs = program("report", IPERF3, "--limit", IPERF3)
    with pytest.raises(midhop.Error) as caught:
        midhop.measured(IPERF3).records().limited(IPERF3)
    assert theirs.stderr == f"error: {caught.value}\nhint: {caught.value.hint}\n"
    theirs = program("report", tmp_path / "absent.json")
    with pytest.raises(midhop.Error) as caught:
        midhop.measured(tmp_path / "absent.json")
    assert theirs.stderr == f"error: {caught.value}\nhint: {caught.value.hint}\n"
    record = midhop.run(TWIN)[0].to_json()
    with pytest.raises(midhop.Error, match="<text> is the record of a run"):
        midhop.measured(record)
    with pytest.raises(midhop.Error, match="<text> has 2 of them"):
        midhop.measured(LINK.read_text() + LINK.read_text())
    with pytest.raises(midhop.Error, match="the dictionary is no JSON"):
        midhop.measured({"pings": {1, 2}})
