"""What the package does in Rust."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, final

from matplotlib.axes import Axes

__all__ = [
    "Campaign",
    "Comparison",
    "Curve",
    "Flow",
    "Link",
    "Measurement",
    "Record",
    "Records",
    "Source",
    "StudyOutcome",
    "StudyRun",
    "Table",
    "Transfer",
    "build",
    "found",
    "has_plan",
    "limited",
    "numbered",
    "run_batch",
    "side",
    "studies",
    "text_of",
]

_Watch = Callable[[int, int], object]

def build() -> str:
    """Return what tells this build of the package from any other."""

def run_batch(batch: bytes) -> bytes:
    """Run plans that a `batch` wrote, and return what `accept` of the same object takes."""

def found(name: str, text: str, among_others: bool) -> tuple[list[Record], list[str]]:
    """Return the records in a text, and what measurements among them do not show."""

def has_plan(record: Record) -> bool:
    """Return whether a record is of a run of a scenario."""

def limited(records: Sequence[Record], limit: Source) -> Records:
    """Return records beside what a scenario of one cell, or a measured link, allows."""

def numbered(records: Sequence[Record]) -> Records:
    """Return records with numbers in the place of the seeds that measurements have not."""

def side(
    own: str | PathLike[str], other: str | PathLike[str] | None
) -> tuple[Records, str, list[str]]:
    """Return the records at a place, its name, and what measurements among them do not show."""

def studies() -> list[str]:
    """Return the names of the studies that come with the package."""

def text_of(file: str | PathLike[str]) -> str:
    """Return the text of a file of records."""

@final
class Source:
    """A scenario, read but not resolved."""

    name: str
    """What errors call it."""
    toml: str
    """Its text."""

    @staticmethod
    def file(path: str | PathLike[str]) -> Source: ...
    @staticmethod
    def text(text: str, directory: str | PathLike[str]) -> Source: ...
    @staticmethod
    def named(name: str, text: str) -> Source: ...
    @staticmethod
    def dict(table: Mapping[str, Any], directory: str | PathLike[str]) -> Source: ...

@final
class Campaign:
    """All runs of a scenario, and what there is of their records."""

    failures: list[str]
    """Why some runs have no record, or some records are not kept."""

    def __new__(
        cls,
        source: Source,
        *,
        set: Sequence[str | tuple[str, object]],  # noqa: A002
        vary: Sequence[str | tuple[str, object]],
        seeds: int | None,
        out: str | PathLike[str] | None,
        series: bool,
        whole: bool,
    ) -> Campaign: ...
    def __len__(self) -> int: ...
    def left(self) -> list[int]: ...
    def weights(self, places: Sequence[int]) -> list[int]: ...
    def run(self, jobs: int | None = None, watch: _Watch | None = None) -> None: ...
    def batch(self, places: Sequence[int]) -> bytes: ...
    def accept(self, answer: bytes) -> None: ...
    def fail(self, places: Sequence[int], why: str) -> None: ...
    def records(self) -> Records: ...
    def write_tables(self, confidence: float) -> None: ...

@final
class Comparison:
    """What a comparison found."""

    def __new__(
        cls,
        first: Sequence[Record],
        second: Sequence[Record],
        names: tuple[str, str],
        confidence: float,
    ) -> Comparison: ...
    def to_json(self) -> str: ...
    def shown(self, columns: int) -> str: ...
    def table(self) -> Table: ...

@final
class Records:
    """Records in the order of their plans."""

    def __new__(cls, records: Sequence[Record]) -> Records: ...
    def __len__(self) -> int: ...
    def at(self, place: int) -> Record | None: ...
    def runs(self) -> Table: ...
    def cells(self, confidence: float) -> Table: ...
    def samples(self) -> Table: ...
    def shown(self, columns: int) -> str: ...
    def to_json(self) -> str: ...

@final
class StudyRun:
    """The runs of a study in virtual time, and what there is of them."""

    failures: list[str]
    """Why some runs have no record, or some records are not kept."""

    def __new__(
        cls,
        name: str,
        *,
        quick: bool,
        seeds: int | None,
        cells: Sequence[str],
        out: str | PathLike[str] | None,
    ) -> StudyRun: ...
    def __len__(self) -> int: ...
    def left(self) -> list[int]: ...
    def weights(self, places: Sequence[int]) -> list[int]: ...
    def run(self, jobs: int | None = None, watch: _Watch | None = None) -> None: ...
    def batch(self, places: Sequence[int]) -> bytes: ...
    def accept(self, answer: bytes) -> None: ...
    def fail(self, places: Sequence[int], why: str) -> None: ...
    def records(self) -> Records: ...
    def outcome(self) -> StudyOutcome: ...

@final
class StudyOutcome:
    """What came of a study."""

    def to_json(self) -> str: ...
    def shown(self, columns: int) -> str: ...
    def records(self) -> Records: ...

@final
class Measurement:
    """What one program measured once."""

    program: str
    warnings: list[str]
    record: Record
    link_json: str | None
    link_toml: str | None

    def __new__(cls, name: str, text: str) -> Measurement: ...

@final
class Record:
    """What one run measured."""

    title: str
    """The title of the scenario."""
    cell: dict[str, str]
    """Where the run stands on each axis that varies: axis to label."""
    seed: int
    """The seed of every random draw in the run."""
    valid: bool
    """Whether its figures may be believed."""
    faults: list[str]
    """One sentence for each thing that went wrong; empty in a valid run."""
    plan: dict[str, Any] | None
    """The plan, every default visible; None in the records of a sweep, which does not hold it."""
    environment: dict[str, Any]
    """What ran it, when, and how long that took: all in which two runs of one plan may differ."""
    transfers: list[Transfer]
    """What each transfer achieved, in the order of their names."""
    links: list[Link]
    """What each direction of each link did."""
    curves: list[Curve]
    """What was sampled over time; empty in the records of a sweep, which does not hold it."""

    @staticmethod
    def from_json(text: str) -> Record:
        """Read a record as `to_json` and the program write it."""

    def transfer(self, name: str) -> Transfer:
        """Return the transfer called `name`."""

    def table(self) -> Table:
        """Return one row for each transfer."""

    def samples(self) -> Table:
        """Return one row for each sample of each curve."""

    def to_json(self) -> str:
        """Return the record on one line, as `midhop sim run --json` prints it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as dictionaries and lists."""

    def plot(self, quantity: str = "goodput", *, ax: Axes | None = None) -> Axes:
        """Draw a quantity over time with matplotlib, and return the axes."""

@final
class Transfer:
    """One transfer of a run: all its flows together."""

    name: str
    """Its name in the scenario."""
    complete: bool
    """Whether everything asked for arrived before the run's end."""
    bytes: int
    """Payload that arrived."""
    time_s: float
    """From the first SYN to the last byte."""
    goodput_mbit_per_s: float
    """Payload over that time, all flows together."""
    efficiency: float | None
    """The shortest time that physics allows over the time it took; None without a limit."""
    limit_goodput_mbit_per_s: float | None
    """The largest goodput that the path allows."""
    limit_time_s: float | None
    """The shortest time that the path allows."""
    retransmissions: int
    """Segments that its sender sent again. Behind a proxy: on its own leg only."""
    flows: list[Flow]
    """One for each connection."""

@final
class Flow:
    """One TCP connection, as its ends saw it."""

    id: int
    """Its number in its transfer, from 0."""
    start_s: float
    """When its SYN left, after the run's start."""
    end_s: float
    """When its last byte arrived, after the run's start."""
    bytes: int
    """Payload that arrived."""
    goodput_mbit_per_s: float
    """Payload over time."""
    retransmissions: int
    """Segments that its sender sent again."""
    rtt_min_s: float | None
    """Smallest round trip that its sender saw."""
    congestion: str
    """Its sender's congestion control."""
    error: str | None
    """What ended it early, if something did."""

@final
class Link:
    """One direction of a link over a whole run."""

    name: str
    """Its name in the scenario."""
    direction: str
    """`down`, towards the first node of `between`, or `up`."""
    packets_in: int
    """Packets handed to it."""
    bytes_in: int
    """Bytes handed to it."""
    packets_out: int
    """Packets that came out."""
    bytes_out: int
    """Bytes that came out."""
    drops: dict[str, int]
    """Packets that did not come out, by cause."""
    marks: int
    """Packets that AQM marked instead of dropping them."""
    queue_bytes_max: int
    """Largest queue seen."""

@final
class Curve:
    """One quantity over time."""

    quantity: str
    """What was sampled: `goodput`, `cwnd`, `rtt`, `queue`, …"""
    place: str
    """Where: a transfer's name, a link's, or a proxy leg's."""
    flow: int | None
    """The flow it belongs to; None where it is of all flows together."""
    unit: str
    """Unit of the values."""
    time_s: list[float]
    """When, after the run's start."""
    value: list[float]
    """What."""

    def __len__(self) -> int: ...

@final
class Table:
    """A table: columns with names, which carry the units.

    Whatever knows the Arrow PyCapsule interface takes it without a copy: `polars.DataFrame(table)`,
    `pyarrow.table(table)`, `pandas.DataFrame.from_arrow(table)`, and DuckDB by the name of the
    variable that holds it, as in `duckdb.sql("FROM table")`.
    """

    column_names: list[str]
    """The names of the columns."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table as an Arrow stream of one batch."""

    def __len__(self) -> int: ...
    def column(self, name: str) -> list[Any]:
        """Return the values of a column; what is not known is None."""

    def to_csv(self) -> str:
        """Return the table as CSV, with a header."""

    def to_parquet(self) -> bytes:
        """Return the table as the bytes of a Parquet file."""
