from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import midhop
import pytest
from conftest import QUICK, Program, but_environment

LOSSY = {"links.link.loss": 0.01}


def test_a_record_is_the_programs_byte_for_byte(program: Program) -> None:
    # Loss, so that chance has a part, and an axis from outside.
    theirs = program(
        *("sim", "run", QUICK, "--json", "--seeds", 3, "--set", "links.link.loss=0.01"),
        *("--set", "duration=20 s"),
    )
    assert theirs.returncode == 0, theirs.stderr
    ours = midhop.run(QUICK, seeds=3, set={**LOSSY, "duration": "20 s"})
    assert len(ours) == 3
    assert but_environment(ours.to_json()) == but_environment(theirs.stdout)
    assert ours.to_json() == "".join(record.to_json() + "\n" for record in ours)
    assert str(ours).strip() == midhop.Records(list(ours)).to_text().strip()


def test_the_same_call_gives_the_same_record_whatever_it_is_given_as() -> None:
    text = QUICK.read_text()
    ways = [QUICK, str(QUICK), text, tomllib.loads(text)]
    first, *others = (but_environment(midhop.run(way, set=LOSSY).to_json()) for way in ways)
    assert all(other == first for other in others)
    assert but_environment(midhop.run(QUICK, seed=2, set=LOSSY).to_json()) != first


def test_records_are_objects() -> None:
    record = midhop.run(QUICK)[0]
    transfer = record.transfer("file")
    assert transfer.complete
    assert transfer.bytes == 500_000
    assert transfer.goodput_mbit_per_s == pytest.approx(8 * 0.5 / transfer.time_s)
    assert transfer.efficiency is not None and 0 < transfer.efficiency <= 1
    assert transfer.flows[0].congestion == "cubic"
    assert record.valid and not record.faults
    assert {link.direction for link in record.links} == {"down", "up"}
    assert record.plan is not None and record.plan["title"] == record.title
    goodput = next(curve for curve in record.curves if curve.quantity == "goodput")
    assert len(goodput.time_s) == len(goodput.value) == len(goodput) > 0
    table = record.to_dict()
    assert json.loads(record.to_json()) == table
    numbers = table["transfers"][0]
    assert (numbers["took_s"], numbers["bytes"]) == (transfer.time_s, transfer.bytes)
    assert numbers["goodput_bit_per_s"] == round(transfer.goodput_mbit_per_s * 1e6)
    assert isinstance(record.environment["took_s"], float)
    flow = transfer.flows[0]
    assert flow.rtt_min_s is not None and flow.rtt_min_s >= 0.02
    assert numbers["flows"][0]["rtt_min_s"] == flow.rtt_min_s
    for copy in (pickle.loads(pickle.dumps(record)), midhop.Record.from_json(record.to_json())):
        assert copy == record
    with pytest.raises(midhop.Error, match="no transfer is called `page`") as caught:
        record.transfer("page")
    assert caught.value.hint == "there are file"


def test_records_are_a_sequence() -> None:
    records = midhop.run(QUICK, seeds=3)
    assert [record.seed for record in records] == [1, 2, 3]
    assert records[-1] == records[2]
    assert [record.seed for record in records[1:]] == [2, 3]
    with pytest.raises(IndexError):
        records[3]
    assert pickle.loads(pickle.dumps(records)) == records


@pytest.mark.parametrize(
    ("broken", "changes"),
    [
        ('title = "t"\nduratoin = "1 s"\n', []),
        ("title = \n", []),
        (QUICK.read_text().replace("20 Mbit/s", "20 Mbps"), []),
        (QUICK.read_text().replace('to = "client"', 'to = "cleint"'), []),
        (QUICK.read_text(), ["links.lnk.loss=0.1"]),
        (QUICK.read_text(), ["links.link.loss"]),
        (QUICK.read_text(), ["seeds=0"]),
        (QUICK.read_text(), ["transfers.file.congestion=hyblla"]),
    ],
)
def test_errors_are_the_programs(
    program: Program, tmp_path: Path, broken: str, changes: list[str]
) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(broken)
    options = [option for change in changes for option in ("--set", change)]
    theirs = program("sim", "run", file, *options)
    assert theirs.returncode == 64
    with pytest.raises(midhop.Error) as caught:
        midhop.run(file, set=changes)
    error = caught.value
    hint = "" if error.hint is None else f"hint: {error.hint}\n"
    assert theirs.stderr == f"error: {error}\n{hint}"
    assert error.code == 64
    # The same of a text, which has a name of its own.
    with pytest.raises(midhop.Error) as of_text:
        midhop.run(broken, set=changes)
    assert str(of_text.value) == str(error).replace(str(file), "<text>")
    assert of_text.value.hint == error.hint


def test_errors_of_a_dictionary_name_the_key_and_give_the_hint() -> None:
    table = tomllib.loads(QUICK.read_text())
    table["links"]["link"]["dealy"] = table["links"]["link"].pop("delay")
    with pytest.raises(midhop.Error, match=r"links\.link\.dealy: unknown key") as caught:
        midhop.run(table)
    assert caught.value.hint is not None and "did you mean `delay`?" in caught.value.hint
    assert any(note.startswith("hint: ") for note in caught.value.__notes__)
    for value, named in [(None, "NoneType"), (object(), "object"), (1 << 70, "too large")]:
        with pytest.raises(midhop.Error, match=f"links.link.loss.*{named}"):
            midhop.run({**table, "links": {"link": {"loss": value}}})
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), midhop.Error)


def test_a_file_that_is_not_there_is_refused_as_the_program_does(program: Program) -> None:
    theirs = program("sim", "run", "absent.toml")
    with pytest.raises(midhop.Error) as caught:
        midhop.run("absent.toml")
    assert theirs.stderr == f"error: {caught.value}\nhint: {caught.value.hint}\n"


def test_a_recorded_delay_lies_beside_the_scenario(tmp_path: Path) -> None:
    text = QUICK.read_text()
    inline = {"links.link.delay": {"trace": [["0 s", "20 ms"], ["500 ms", "60 ms"]]}}
    expected = midhop.run(text, set=inline).to_json()
    own = tmp_path / "own.toml"
    own.write_text(text)
    recorded = {"links.link.delay": {"csv_file": "pass.csv"}}
    (tmp_path / "pass.csv").write_text("time_s,rtt_ms\n7,40\n7.5,120\n")
    assert but_environment(midhop.run(own, set=recorded).to_json()) == but_environment(expected)
    (tmp_path / "pass.csv").write_text("time_s,rtt_ms\n7,40\n6,120\n")
    with pytest.raises(midhop.Error, match=r"pass\.csv, line 3: each sample must be later"):
        midhop.run(own, set=recorded)


def test_the_interpreter_is_released_while_it_runs() -> None:
    # Another thread of Python's gets on while one call runs, however long that is.
    beats = []
    ended = threading.Event()

    def beat() -> None:
        while not ended.is_set():
            beats.append(len(beats))
            time.sleep(0.001)

    other = threading.Thread(target=beat)
    seen: list[tuple[int, int]] = []
    other.start()
    midhop.run(
        QUICK,
        seeds=20,
        set={"transfers.file.bytes": "20 MB", "duration": "60 s"},
        jobs=1,
        progress=lambda done, whole: seen.append((done, len(beats))),
    )
    ended.set()
    other.join()
    assert seen[-1][0] == 20
    assert seen[-1][1] > seen[0][1]


def test_what_progress_raises_ends_the_run() -> None:
    class Enough(Exception):
        pass

    def enough(done: int, whole: int) -> None:
        assert whole == 400
        if done:
            raise Enough

    with pytest.raises(Enough):
        midhop.run(QUICK, seeds=400, jobs=1, progress=enough)


def test_ctrl_c_ends_a_sweep_and_the_same_call_goes_on(tmp_path: Path) -> None:
    # Whoever started the tests in the background may have them ignore the signal.
    call = f"""
import midhop, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
def tell(done, whole):
    print(done, whole, file=sys.stderr, flush=True)
records = midhop.sweep({str(QUICK)!r}, seeds=60, jobs=1, out={str(tmp_path)!r}, progress=tell,
    set={{"transfers.file.bytes": "20 MB", "duration": "60 s"}})
print(len(records))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", call], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if int(line.split()[0]) > 0:
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode != 0
    assert output == ""
    assert "KeyboardInterrupt" in errors
    assert f"hint: the same call goes on from {tmp_path}" in errors
    there = len((tmp_path / "records.jsonl").read_text().splitlines())
    assert 0 < there < 60
    assert (tmp_path / "runs.csv").read_text().count("\n") == there + 1
    again = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert again.stdout == "60\n"
    assert again.stderr.splitlines()[0] == f"{there} 60"
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 60
