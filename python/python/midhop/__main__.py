"""What `midhop sim sweep --engine` starts: a sweep on a cluster, in the program's words."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from midhop._errors import Error
from midhop._records import Records
from midhop._run import sweep

FAILED = 1
USAGE = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sweep, print its table or its records, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m midhop", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("sweep", help="run a sweep on a cluster")
    command.add_argument("file")
    command.add_argument("--engine", required=True)
    command.add_argument("--out", required=True)
    command.add_argument("--set", action="append", default=[])
    command.add_argument("--vary", action="append", default=[])
    command.add_argument("--seeds", type=int)
    command.add_argument("--jobs", type=int)
    command.add_argument("--confidence", type=float, default=0.95)
    command.add_argument("--series", action="store_true")
    command.add_argument("--json", action="store_true")
    command.add_argument("--columns", type=int, default=120)
    given = parser.parse_args(arguments)
    code = 0
    try:
        records = sweep(
            given.file,
            vary=given.vary,
            seeds=given.seeds,
            set=given.set,
            jobs=given.jobs,
            engine=given.engine,
            out=given.out,
            series=given.series,
            confidence=given.confidence,
        )
    except Error as error:
        tell(error)
        if error.records is None:
            return error.code
        records, code = error.records, FAILED
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from what is there", file=sys.stderr)
        return FAILED
    print(f"wrote runs and cells as CSV and Parquet to {given.out}", file=sys.stderr)
    return max(code, shown(records, given.json, given.columns))


def tell(error: Error) -> None:
    """Print an error as the program does."""
    print(f"error: {error}", file=sys.stderr)
    for cause in error.causes:
        print(f"  because: {cause}", file=sys.stderr)
    if error.hint is not None:
        print(f"hint: {error.hint}", file=sys.stderr)


def shown(records: Records, json: bool, columns: int) -> int:
    """Print records; what is not valid makes the command fail."""
    code = 0
    for record in records:
        for fault in record.faults:
            cell = ", ".join(f"{axis}={label}" for axis, label in record.cell.items())
            print(f"invalid: {cell or record.title}, seed {record.seed}: {fault}", file=sys.stderr)
            code = FAILED
    try:
        print(records.to_json() if json else records.to_text(columns).rstrip() + "\n", end="")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has gone away, which is no error; nor is it when Python flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    sys.exit(main())
