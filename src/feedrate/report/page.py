# SPDX-License-Identifier: Apache-2.0
"""The frame of every page that a command writes with `--html`, and the one door to it (`show`).

A page is one file that needs no network, no script and no other file. Its policy forbids the browser to fetch
or run anything at all; pictures stand in it as data: URIs. What is not feedrate's own text goes through
`show`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedrate.errors import clean
from feedrate.report.doctor_style import STYLE

if TYPE_CHECKING:
    from feedrate.machine.results import Machine


def show(text: str) -> str:
    """Return text for HTML, without anything that a browser or a terminal would obey: the pages' door."""
    from html import escape  # it brings a table of all HTML entities, which a command without a page need not

    return escape(clean(text))


def show_sentence(text: str) -> str:
    return show(text[:1].upper() + text[1:])


def draw_section(title: str, body: str) -> str:
    """Return a section, or nothing where there is nothing to show."""
    return f"\n<section>\n<h2>{show(title)}</h2>\n{body}\n</section>" if body else ""


def draw_frame(
    title: str,
    body: str,
    *,
    heading: str,
    lead: str,
    verdict: str,
    tone: str = "",
    style: str = "",
    machine: Machine | None = None,
) -> str:
    """Return a whole page.

    Args:
        title: of the browser's window.
        body: HTML; and so is `lead`, the line below the heading.
        verdict: one sentence; `tone` is the class of its colour: good, or none for bad.
        style: rules beside those that all pages have.
        machine: where the command ran, for the foot of the page.
    """
    foot = "" if machine is None else f'<p class="soft"><small>{show(describe_machine(machine))}</small></p>'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{show(title)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
<h1>{show(heading)}</h1>
<p class="soft">{lead}</p>
<p class="{f"verdict {tone}".rstrip()}">{show(verdict)}</p>
{body}
{foot}
</body>
</html>
"""


def describe_machine(machine: Machine) -> str:
    """Return the line at the foot of a page: what was typed, and where."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    command = " ".join(("feedrate", *machine.command_line))
    return f"{command} | {machine.cpu_model}, Python {machine.python}, {versions}"
