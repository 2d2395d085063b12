"""The one exception of the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midhop._records import Records


class Error(Exception):
    """What went wrong, why, and what would do.

    The message is the program's, word for word. A traceback shows causes and hint below it.
    """

    hint: str | None
    """What would do about it."""
    causes: tuple[str, ...]
    """Why, the nearest cause first."""
    code: int
    """The program's exit code: 1 it failed, 64 a file or an argument is wrong."""
    records: Records | None
    """The records that there are nevertheless, where some runs of a sweep have failed."""

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        causes: Sequence[str] = (),
        code: int = 1,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.causes = tuple(causes)
        self.code = code
        self.records = None
        for cause in self.causes:
            self.add_note(f"because: {cause}")
        if hint is not None:
            self.add_note(f"hint: {hint}")

    def __reduce__(self) -> tuple[type[Error], tuple[str, str | None, tuple[str, ...], int]]:
        return type(self), (str(self), self.hint, self.causes, self.code)
