# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and readers of values that argparse can complain about."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from feedrate.errors import UsageError
from feedrate.units import parse_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from feedrate.packing.options import Engine

    Options = TypeVar("Options", bound=DataclassInstance)

T = TypeVar("T")
DEFAULT_MODEL = "resnet50"


def read_options(kind: type[Options], arguments: argparse.Namespace, **others: Any) -> Options:
    """Return options of a class from the arguments that are named as its fields are; `others` come first."""
    named = {one.name for one in dataclasses.fields(kind)} & vars(arguments).keys()
    return kind(**({name: getattr(arguments, name) for name in named} | others))


def read_command(words: Sequence[str], ours: str) -> list[str]:
    """Return the user's command without the `--` in front of it; `ours`: "feedrate doctor".

    Raises:
        UsageError: an option of ours stands where the command should be.
    """
    command = list(words[1:] if words[:1] == ["--"] else words)
    if command and command[0].startswith("-"):
        raise UsageError(
            f"'{command[0]}' is not a command", hint=f"options first, then: {ours} -- python train.py ..."
        )
    return command


def add_workers(parser: argparse.ArgumentParser) -> None:
    text = "processes to use (default: the cores this process may use)"
    parser.add_argument("--workers", type=positive, metavar="N", help=text)


def add_entries(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument(
        "--entries", type=reader(_read_entries), metavar="auto|gpu|BYTES",
        help="how far apart the places are where a decoder can enter a JPEG: every 1,000 bytes (auto, the "
        f"default), every 150 (gpu: 3 %% of the data, for decoding on a GPU), or a number{more}",
    )  # fmt: skip


def _read_entries(text: str) -> int:
    from feedrate.format.fields import parse_entries  # with numpy, which --help need not load

    return parse_entries(text)


def add_allow_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-address", action="append", default=[], metavar="ADDRESS", dest="allow_addresses",
        help="let a pack that somebody else may have made name files there (s3://bucket); can be repeated",
    )  # fmt: skip


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add how fast the device trains, by one of two names."""
    group = parser.add_mutually_exclusive_group()
    text = f"resnet18, resnet50, densenet121, vit_b_16 (default: {DEFAULT_MODEL})"
    group.add_argument("--model", metavar="NAME", help=text)
    text = "in place of a model: images per second that one GPU trains on, from batches that are there"
    group.add_argument("--model-rate", type=between(0.001, 1e7), metavar="N", help=text)


def choose_model(arguments: argparse.Namespace) -> tuple[str, float | None]:
    """Return the model's name, empty where its rate was given, and the rate.

    Raises:
        UsageError: the model is not known.
    """
    from feedrate.model.gpus import check_model

    if arguments.model_rate is not None:
        return "", arguments.model_rate
    try:
        return check_model(arguments.model or DEFAULT_MODEL), None
    except UsageError as error:
        raise UsageError(
            error.message,
            hint=f"{error.hint}; of another model give what it trains: --model-rate IMAGES_PER_S",
        ) from None


def add_looking(parser: argparse.ArgumentParser) -> None:
    text = "time to look at the dataset (default: 10)"
    parser.add_argument("--seconds", type=between(0.5, 3600), default=10.0, metavar="S", help=text)


def positive(text: str) -> int:
    return whole_number(text, least=1)


def quality(text: str) -> int:
    number = positive(text)
    if number > 100:
        raise argparse.ArgumentTypeError(f"must be at most 100, got {number}")
    return number


def whole_number(text: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number


def whole_between(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers within limits."""

    def read(text: str) -> int:
        number = whole_number(text, least=-(10**9))
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:,} to {most:,}, got {_shorten(text)}")
        return number

    return read


def between(least: float, most: float) -> Callable[[str], float]:
    """Return a reader of numbers within limits."""

    def read(text: str) -> float:
        found = number(text)
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:,.0f}, got {_shorten(text)}")
        return found

    return read


def _shorten(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:12]}... ({len(text):,} characters)"


def share(text: str) -> float:
    """Return 0.05 for `5%` and for `0.05`."""
    digits, percent, rest = text.strip().partition("%")
    try:
        found = float(digits) / (100 if percent else 1)
    except ValueError:
        found = -1.0
    if rest or not 0.0 <= found <= 1.0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share between 0 and 1: write 5% or 0.05")
    return found


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None


def reader(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make a parser of ours speak to argparse, so that a wrong value is wrong usage: exit code 2."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            hint = f"; {error.hint}" if error.hint else ""
            raise argparse.ArgumentTypeError(f"{error}{hint}") from error

    return read


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that pack: on which machines."""
    title = "on many machines, which must all see SOURCE and PACK under these paths"
    add = parser.add_argument_group(title).add_argument
    add("--executor", default="local", metavar="WHERE", help="local (default), slurm, or dask://HOST:PORT")
    add("--partition", metavar="NAME", help="of Slurm (default: Slurm's)")
    add("--time", type=positive, metavar="MINUTES",
        help="limit of a Slurm job; the rest is begun anew (default: 60)")  # fmt: skip
    add("--memory", type=reader(parse_bytes), metavar="SIZE", help="of a Slurm job")
    add("--array-size", type=positive, metavar="N",
        help="Slurm jobs at a time (default: 16); each uses --workers (1)")  # fmt: skip


def read_engine(arguments: argparse.Namespace) -> Engine:
    from feedrate.packing.options import Engine

    return Engine(
        arguments.executor, arguments.partition, arguments.time, arguments.memory, arguments.array_size
    )
