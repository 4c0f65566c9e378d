# SPDX-License-Identifier: Apache-2.0
"""The command line: a list of commands, one parser, and one place where known errors become sentences.

A command is a module here with a docstring (its help), `add_arguments(parser)` and `run(arguments)`, which
returns the exit code. It imports what it needs inside `run`, so that `feedrate --help` stays quick.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any, NoReturn

from feedrate.cli.output import check_targets, ended_like_an_interrupt, show
from feedrate.errors import FeedrateError

GROUPS = {
    "train faster": ("run",),
    "find out": ("doctor", "watch", "plan", "estimate", "speedtest", "bench"),
    "make": ("pack", "index", "append", "split", "add-column", "unpack"),
    "look": ("demo", "ls", "verify"),
    "node": ("stage", "scratch"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)

# An interrupted one is typed again, and goes on where it was.
RESUMABLE = ("pack", "index", "append", "stage")

# A scheduler's SIGTERM lets these clean up, as Ctrl-C does; the others answer signals themselves.
_WRITING = (*RESUMABLE, "unpack", "split", "add-column", "scratch")

# Modules that are loaded make objects that stay. Looking through them after every 700, as Python does, takes
# a tenth of the time until a command begins. A command that only packs makes 35,000.
_OBJECTS_PER_COLLECTION = 50_000

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
EXIT_INTERRUPTED = 130  # what a shell reports for a process that ended by SIGINT
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Ended(BaseException):
    """A signal asks for the end; not SystemExit, which a map may raise, and which is then its failure."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Known errors are printed, others are bugs and propagate."""
    if argv is None:  # who calls this from a program of their own keeps their settings
        gc.set_threshold(_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        show(make_parser().format_help())
        return EXIT_USAGE
    if words[0] == "help":
        words = [*words[1:], "--help"]
    arguments = make_parser([name for name in COMMANDS if name in words[:1]] or COMMANDS).parse_args(words)
    if argv is None and getattr(arguments, "map", None) is not None:
        ended = go_apart(arguments.map)
        if ended is not None:
            return ended
    # Pillow's (large images, odd metadata): what matters of them ends in a command's report.
    warnings.filterwarnings("ignore", module="PIL")
    try:
        check_targets(arguments)
        cleans_up = argv is None and words[0] in _WRITING
        with ended_like_an_interrupt(_Ended) if cleans_up else contextlib.nullcontext():
            exit_code: int = arguments.run(arguments)
    except FeedrateError as error:
        say_error(error.message, error.hint)
        return error.exit_code
    except MemoryError as error:
        say_error(str(error) or "out of memory", "fewer --workers need less, where the command has them")
        return EXIT_FAILED
    except (KeyboardInterrupt, _Ended) as error:
        say_error("interrupted", "run the same command again to go on" if words[0] in RESUMABLE else None)
        return error.args[0] if isinstance(error, _Ended) else EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (`| head`) has seen enough; Python would complain again while flushing.
        sys.stdout = None
        return EXIT_OK
    finally:
        if argv is None:
            gc.freeze()  # the process ends: it need not look for garbage among all that it leaves behind
    return exit_code


def say_error(message: str, hint: str | None = None) -> None:
    """Say what happened and what to type. Further lines are indented: what strangers named begins none."""
    said = {"error": message, "hint": hint}
    words = [f"{name}: {text}".replace("\n", "\n  ") for name, text in said.items() if text]
    show("\n\n".join(words) + "\n", sys.stderr)


def make_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of some commands: to parse a line that begins with one, the others are not needed."""
    parser = MainParser(
        prog="feedrate",
        description="Finds out why training waits for its data, and feeds it faster.",
    )
    parser.add_argument(
        "--version", action=ShowVersion, nargs=0, help="show program's version number and exit"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in names:
        module = find_command(name)
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(name, help=text.splitlines()[0], description=text)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


class ShowVersion(argparse.Action):
    """As argparse's own, but what knows the version is imported only when somebody asks: it takes a while."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"feedrate {version('feedrate')}\n")
        parser.exit()


def find_command(name: str) -> ModuleType:
    return importlib.import_module(f"feedrate.cli.{name.replace('-', '_')}")


# Commands and options of earlier versions, and what to type today; an entry stays for one version.
GONE_COMMANDS: dict[str, str] = {
    "fidelity": "compare samples of a pack with Pillow's pixels: feedrate verify PACK --pixels 200",
    "merge": "add one pack to another: feedrate append OTHER_PACK PACK",
    "bench kernel": "decoder against decoder is a script of the repository: python benchmarks/decoders.py",
    "quality": "read what packing found out: feedrate ls PACK --quality, with pictures --html PAGE",
    "warm": "load a pack into memory: feedrate stage PACK --warm",
}

GONE_OPTIONS: dict[tuple[str, str], str] = {
    ("index", "--to"): "name the folder in the second word: feedrate index PATH TARGET",
    ("pack", "--html"): "look at the pack: feedrate ls PACK --html PAGE",
    ("stage", "--to"): "name the folder as elsewhere: feedrate stage SOURCE --scratch DIR",
    ("stage", "--nodes"): "start it on each node of the job: srun --ntasks-per-node=1 feedrate stage SOURCE",
    ("bench machine", "--compare"): "lay its files side by side: feedrate bench machine --json PATH",
    ("bench machine", "--markdown"): "share what --json writes: feedrate bench machine --json PATH",
    ("speedtest", "--seconds"): "leave it out, or see fewer steps: feedrate speedtest --quick",
    ("watch", "--"): "start it by itself, and watch it: python train.py & feedrate watch $!",
    ("plan", "--machines"): "plan for each kind of node: feedrate plan DATASET --what-if cores=64 gpu=4xA100",
}


class Help(argparse.HelpFormatter):
    """Wraps a description at the terminal's width, but for its examples, which are indented: to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from feedrate.report.lines import wrap

        def fill(paragraph: str) -> str:
            if paragraph.startswith(" "):
                return paragraph
            return "\n".join(wrap(paragraph.replace("\n", " "), width, indent, indent))

        return "\n\n".join(map(fill, text.split("\n\n")))


class Parser(argparse.ArgumentParser):
    """Says `error:` and `hint:` as the rest of feedrate does, and guesses what a mistyped word meant."""

    _typed: Sequence[str] = ()
    scattered = ""  # the argument whose words options may keep apart, or take (`displaced`)
    late = ""  # the argument of one word that may stand behind options, or nowhere

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=Help)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._typed = list(sys.argv[1:] if args is None else args)
        if self._subparsers is not None and not self._typed:
            show(self.format_help())
            raise SystemExit(EXIT_USAGE)
        found, rest = super().parse_known_args(args, namespace)
        if self.scattered:
            unknown = [word for word in rest if word.startswith("-")]
            words = [*getattr(found, self.scattered), *rest, *getattr(found, "displaced", [])]
            setattr(found, self.scattered, sorted(words, key=self._typed.index))
            rest = unknown
        if self.late and getattr(found, self.late) is None and rest and not rest[0].startswith("-"):
            setattr(found, self.late, rest[0])
            rest = rest[1:]
        return found, rest

    def error(self, message: str) -> NoReturn:
        known = self._known_words()
        # The words that argparse complains about are those of its message that were typed, and mean nothing.
        said = {word.strip("'\",()") for word in message.split()}
        wrong = [word.split("=")[0] for word in self._typed if word in said and word not in known]
        first = self._typed[0] if self._typed and self._subparsers is not None else ""
        hint = f"see '{self.prog}{f' {first}' if first in known and first[:1] != '-' else ''} --help'"
        is_no_command = bool(first) and "invalid choice" in message
        is_unknown = is_no_command or message.startswith("unrecognized")
        words = f"{self.prog} {first}".partition(" ")[2].strip()
        # argparse leaves out of its message the "--" that stood before a command.
        options = [word.split("=")[0] for word in self._typed]
        line = f"{self.prog} {' '.join(options)} ".partition(" ")[2]
        gone_options = [
            (command, option)
            for command, option in GONE_OPTIONS
            if option in options and line.startswith(f"{command} ")
        ]
        if is_no_command and words in GONE_COMMANDS:
            message, hint = f"'feedrate {words}' is gone", GONE_COMMANDS[words]
        elif is_unknown and gone_options:
            message = f"'feedrate {' '.join(gone_options[0])}' is gone"
            hint = GONE_OPTIONS[gone_options[0]]
        elif is_unknown and first.startswith("-"):
            message = f"{first} stands before the command"
            hint = f"options come after it: {self.prog} COMMAND ... {first}"
        elif is_unknown:
            import difflib

            near = [match for word in wrong for match in difflib.get_close_matches(word, known, n=1)]
            hint = f"did you mean '{near[0]}'?" if near else hint
            message = f"there is no '{self.prog} {wrong[0]}'" if is_no_command and wrong else message
            # An unknown option takes no value, so that its value displaces a word that was meant.
            options = [word for word in wrong if word.startswith("-")]
            message = f"unknown option: {', '.join(options)}" if options else message
        say_error(message, hint)
        raise SystemExit(EXIT_USAGE)

    def _known_words(self) -> list[str]:
        words: list[str] = []
        for action in self._actions:
            words += action.option_strings
            if isinstance(action.choices, dict):  # the commands, each with a parser of its own
                for name, command in action.choices.items():
                    words += [name, *command._known_words()]
        return words


class MainParser(Parser):
    """The parser of `feedrate` itself, whose help lists the commands by what they are for."""

    def format_help(self) -> str:
        from feedrate.report.lines import wrap

        lines = [self.format_usage().rstrip(), "", self.description or ""]
        for group, names in GROUPS.items():
            lines += ["", f"{group}:"]
            for name in names:
                text = (find_command(name).__doc__ or "").strip().splitlines()[0]
                lines += wrap(f"{name:<12}{text}", 80, " " * 4, " " * 16)
        lines += ["", "Options and examples of a command: feedrate help COMMAND"]
        return "\n".join(lines) + "\n"


def go_apart(function: str) -> int | None:
    """Go on in a new process, where this returns None; in the old one return its exit code when it has ended.

    For a command that calls the user's code: code that ends a process on the spot (`os._exit`, a crash of
    compiled code) leaves nothing that could say so. To be called before there are threads.
    """
    living, alive = os.pipe()  # the new process reads from it, and finds its end when the old one is gone
    done, telling = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)  # signals come once, from the old process, not again from the terminal
        os.close(alive)
        os.close(done)
        threading.Thread(target=_end_with_parent, args=(living,), daemon=True).start()
        atexit.register(os.write, telling, b".")
        return None
    os.close(living)
    os.close(telling)
    sent: list[int] = []
    _forward_signals(child, sent)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with open(done, "rb") as end:
        is_well = end.read() == b"."
    os.close(alive)
    if is_well:
        return code
    if -code in sent:
        return 128 - code
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    say_error(
        f"{function} seems to have ended the process that packs, {how}",
        "try it on one sample in Python first; the same command goes on where this one ended",
    )
    return EXIT_FAILED


def _forward_signals(child: int, sent: list[int]) -> None:
    def forward(number: int, _: FrameType | None) -> None:
        sent.append(number)
        os.kill(child, number)

    def stop(number: int, _: FrameType | None) -> None:
        os.kill(child, number)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.signal(signal.SIGTSTP, stop)


def _end_with_parent(living: int) -> None:
    os.read(living, 1)
    os._exit(1)
