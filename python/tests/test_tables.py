"""Tables in the libraries that take them, each as it takes what is Arrow."""

from __future__ import annotations

import io

import midhop
import pytest
from conftest import QUICK

LOSSES = [0.0, 0.01, 0.02]


@pytest.fixture(scope="module")
def records() -> midhop.Records:
    return midhop.sweep(QUICK, vary={"links.link.loss": LOSSES}, seeds=4)


def test_a_table_has_columns(records: midhop.Records) -> None:
    runs = records.runs()
    assert len(runs) == 12
    assert {"seed", "transfer", "goodput_mbit_per_s", "cell.links.link.loss"} <= set(
        runs.column_names
    )
    assert runs.column("seed") == [1, 2, 3, 4] * 3
    assert runs.to_csv().splitlines()[0] == ",".join(runs.column_names)
    cells = records.cells(confidence=0.9)
    assert cells.column("cell.links.link.loss") == LOSSES
    assert cells.column("confidence") == [0.9] * 3
    with pytest.raises(midhop.Error, match="no column is called `sead`"):
        runs.column("sead")


def test_pyarrow_takes_a_table_without_a_copy(records: midhop.Records) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    runs = records.runs()
    first, second = pyarrow.table(runs), pyarrow.table(runs)
    for name in runs.column_names:
        assert first[name].to_pylist() == runs.column(name)
    # Both look at the same memory, which is the table's own.
    at = [table["time_s"].chunk(0).buffers()[1].address for table in (first, second)]
    assert at[0] == at[1]
    # It outlives the table that it came from.
    values = runs.column("time_s")
    del runs, second
    assert first["time_s"].to_pylist() == values


def test_the_types_are_those_of_the_parquet_file(records: midhop.Records) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    runs = records.runs()
    written = parquet.read_table(io.BytesIO(runs.to_parquet()))
    assert written.equals(pyarrow.table(runs))


def test_polars_takes_a_table(records: midhop.Records) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(records.runs())
    means = frame.group_by("cell.links.link.loss", maintain_order=True).agg(
        polars.col("goodput_mbit_per_s").mean()
    )
    expected = records.cells().column("goodput_mbit_per_s.mean")
    assert means["goodput_mbit_per_s"].to_list() == pytest.approx(expected)


def test_pandas_takes_a_table(records: midhop.Records) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame.from_arrow(records.runs())
    means = frame.groupby("cell.links.link.loss")["goodput_mbit_per_s"].mean()
    expected = records.cells().column("goodput_mbit_per_s.mean")
    assert list(means) == pytest.approx(expected)


def test_duckdb_takes_a_table(records: midhop.Records) -> None:
    duckdb = pytest.importorskip("duckdb")
    runs = records.runs()
    assert len(runs) == 12
    query = (
        'SELECT avg(goodput_mbit_per_s) FROM runs GROUP BY "cell.links.link.loss" '
        'ORDER BY "cell.links.link.loss"'
    )
    means = [row[0] for row in duckdb.sql(query).fetchall()]
    assert means == pytest.approx(records.cells().column("goodput_mbit_per_s.mean"))


def test_curves_are_a_table_too() -> None:
    records = midhop.run(QUICK, seeds=2)
    samples = records.samples()
    curves = [curve for record in records for curve in record.curves]
    assert len(samples) == sum(len(curve) for curve in curves)
    assert samples.column("value") == [value for curve in curves for value in curve.value]
    assert records[0].samples().column("seed") == [1] * len(records[0].samples())
