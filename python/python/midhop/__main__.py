"""What `--engine` of the program starts: a sweep or a study on a cluster, in the program's words.

A sweep is shown here. Of a study the records are kept, and the program, which waits, shows it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from midhop._errors import Error
from midhop._records import Records
from midhop._run import sweep
from midhop._study import run as run_study

FAILED = 1
USAGE = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for on a cluster, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m midhop", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    command = commands.add_parser("sweep", help="run a sweep, and show it")
    command.add_argument("file")
    command.add_argument("--set", action="append", default=[])
    command.add_argument("--vary", action="append", default=[])
    command.add_argument("--confidence", type=float, default=0.95)
    command.add_argument("--series", action="store_true")
    command.add_argument("--json", action="store_true")
    command.add_argument("--columns", type=int, default=120)
    study = commands.add_parser("study", help="run a study in virtual time, and keep its records")
    study.add_argument("name")
    study.add_argument("--quick", action="store_true")
    study.add_argument("--cell", action="append", default=[])
    for either in (command, study):
        either.add_argument("--engine", required=True)
        either.add_argument("--out", required=True)
        either.add_argument("--seeds", type=int)
        either.add_argument("--jobs", type=int)
    given = parser.parse_args(arguments)
    try:
        return swept(given) if given.command == "sweep" else studied(given)
    except Error as error:
        tell(error)
        return error.code
    except KeyboardInterrupt:
        # Of a study the program says how it goes on.
        if given.command == "sweep":
            print("interrupted: the same command goes on from what is there", file=sys.stderr)
        return FAILED


def swept(given: argparse.Namespace) -> int:
    """Run a sweep, print its table or its records, and return the exit code."""
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
        if error.records is None:
            raise
        tell(error)
        records, code = error.records, FAILED
    print(f"wrote runs and cells as CSV and Parquet to {given.out}", file=sys.stderr)
    return max(code, shown(records, given.json, given.columns))


def studied(given: argparse.Namespace) -> int:
    """Run a study, keep its records, and return the exit code: 0 where it came to its end."""
    ran = run_study(
        given.name,
        given.quick,
        given.seeds,
        given.cell,
        given.out,
        given.jobs,
        given.engine,
        None,
    )
    for failure in ran.failures:
        print(f"error: {failure}", file=sys.stderr)
    return 0


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
