# SPDX-License-Identifier: Apache-2.0
"""What the user may say about a source: which table labels it, and which columns become fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import UsageError
from feedrate.format.fields import Field, Kind

NO_SEPARATOR = "none"
REJECT = "reject"
NO_CLASS = "none"


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A further column of the table that becomes a field: `mask:mask=mask_file`, `breed:label`."""

    name: str
    kind: Kind
    column: str
    form: str = ""  # "label": words become classes; "labels": a cell may hold several

    def __post_init__(self) -> None:
        # Field knows which names are possible.
        Field(self.name, self.kind, dtype="float64" if self.kind is Kind.NUMBER else None)
        if self.name in ("image", "label"):
            raise UsageError(
                f"--field cannot make '{self.name}' again", hint="use --path-column or --label-column for it"
            )

    @classmethod
    def parse(cls, text: str) -> FieldSpec:
        """Read `NAME:KIND` or `NAME:KIND=COLUMN`; without COLUMN it is called like the field."""
        head, _, column = text.partition("=")
        name, colon, kind = head.partition(":")
        if colon and kind in ("label", "labels"):
            return cls(name, Kind.NUMBER if kind == "label" else Kind.ARRAY, column or name, kind)
        if not colon or kind not in list(Kind):
            kinds = ", ".join([*Kind, "label", "labels"])
            raise UsageError(
                f"'{text}' is not a field", hint=f"write it like mask:mask=mask_file; kinds: {kinds}"
            )
        return cls(name, Kind(kind), column or name)

    def __str__(self) -> str:
        return f"{self.name}:{self.form or self.kind}={self.column}"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to read a source, beside what looking at it says."""

    labels: Path | None = None  # a .csv, .tsv, .jsonl or .parquet table
    path_column: str | None = None  # None: guessed
    label_column: str | None = None  # or several, with commas between them, or '*': all others
    label_separator: str | None = None  # between the classes of a sample that may have several, or "none"
    fields: tuple[FieldSpec, ...] = ()
    # The class of rows without a label, or "reject"; None: few are rejected. Where labels are separated:
    # "none" (of the classes), which few are without a word.
    empty_label: str | None = None

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.fields]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice:
            raise UsageError(f"field '{twice}' is given twice")
        if self.label_separator == "":
            raise UsageError("an empty --label-separator separates nothing", hint="such as '|' or ';' or ' '")

    @property
    def separates(self) -> bool:
        """Return whether a cell may hold several classes, as text."""
        return self.label_separator not in (None, NO_SEPARATOR)

    @property
    def empty(self) -> str | None:
        """Return what stands for a cell without a label; None: the row is left out."""
        if self.separates and self.empty_label in (None, NO_CLASS):
            return ""
        return None if self.empty_label == REJECT else self.empty_label
