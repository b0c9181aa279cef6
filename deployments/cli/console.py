"""What a person sees on a terminal: a bar that moves, tables, sequences with coloured segments."""

import os
import re
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment as Piece
from rich.table import Table
from rich.text import Text

from tasks.report.summary import verdict_rows
from tasks.rows.records import Segment
from tasks.run.progress import Progress as Counters
from tasks.tokenizer.vocabulary import Vocabulary

REFRESH_SECONDS = 0.2

UNCUT_COLUMNS = 1_000_000
"""For files and pipes: programs read lines whole."""

TABLE_COLUMNS = 120
"""Most columns of a table in a file or pipe, which nobody's terminal has cut: its cells are folded."""

INDENT = " " * 11
"""Text of a segment stands under the name of it."""

SEGMENT_STYLES = {
    "prompt": "bright_black",
    "opener": "bold magenta",
    "reasoning": "cyan",
    "closer": "bold magenta",
    "content": "green",
    "tool_calls": "yellow",
    "end": "bold magenta",
    "unknown": "red",
}


CONTROL_STYLE = "bold reverse"
"""Of control tokens inside a segment: what a message must never contain as text."""


_UNSHOWN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What a terminal acts upon: control characters but tab and line feed, marks that turn the direction of text
(bidi), and halves of surrogate pairs, which no stream can encode."""


def escaped(text: str) -> str:
    """Return text from outside as a terminal may be given it: `\\x1b` for an escape character."""
    return _UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)


class Terminal(Console):
    """A console that shows text as it is: no markup is read, and what would act on a terminal is escaped."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, **options: Any) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """See `rich.console.Console.render_str`, which would drop some control characters without a word."""
        return super().render_str(escaped(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Piece]:
        """See `rich.console.Console.render`; styles and cursor moves of its own are no text."""
        if isinstance(renderable, Table):
            options = options or self.options
            if not self.is_terminal and options.max_width == UNCUT_COLUMNS:
                options = options.update(max_width=TABLE_COLUMNS)
            for column in renderable.columns:
                column.overflow = "fold"  # a name that is cut tells nothing
        for piece in super().render(renderable, options):
            yield piece if piece.control else Piece(escaped(piece.text), piece.style, piece.control)


def output() -> Terminal:
    """Return the console of what a verb reports; lines and tables are cut at the width of a terminal only."""
    console = Terminal()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        return Terminal(width=UNCUT_COLUMNS)
    return console


@contextmanager
def moving_bar(console: Console, counters: Callable[[], Counters | None]) -> Iterator[None]:
    """Show a bar of finished rows while the body runs.

    Args:
        console: where; nothing is shown when it is no terminal.
        counters: returns the run's counters, None while there is no run yet.
    """
    if not console.is_terminal:
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
    )
    stop = threading.Event()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, text="")

        def refresh() -> None:
            while not stop.wait(REFRESH_SECONDS):
                state = counters()
                if state is not None:
                    bar.update(task, description="rows", completed=state.share, text=bar_text(state))

        thread = threading.Thread(target=refresh, name="rawseq-bar", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def bar_text(state: Counters) -> str:
    """Return the words beside the bar."""
    left = state.estimate_seconds
    return (
        f"{state.rows_finished}/{state.rows_total} rows · "
        f"{state.batches_committed}/{state.batches} batches · "
        f"{state.tokens_per_second:,.0f} tokens/s" + (f" · {left:.0f} s to go" if left is not None else "")
    )


def verdict_table(by_verdict: Mapping[str, int]) -> Table:
    """Return the closing table of rows by verdict."""
    table = Table("verdict", "kind", "rows", "share", title="rows by verdict", title_justify="left")
    for row in verdict_rows(by_verdict):
        table.add_row(row["verdict"], row["kind"], f"{row['rows']:,}", row["share"])
    return table


def print_sequence(
    console: Console,
    ids: Sequence[int],
    segments: Sequence[Segment],
    decode: Callable[[Sequence[int]], str],
    controls: Sequence[str] = (),
) -> None:
    """Print a sequence, segment by segment: its name and range, its first and last ids, its text.

    Args:
        console: where.
        ids: prompt and output.
        segments: of it.
        decode: ids to text.
        controls: texts of control tokens: they stand out.
    """
    for part in segments:
        if part.start == part.stop:
            continue
        inside = [int(i) for i in ids[part.start : part.stop]]
        shown = inside if len(inside) <= 8 else [*inside[:4], "…", *inside[-3:]]
        console.print(Text(_head(part) + "  ids " + " ".join(map(str, shown)), style="dim"), soft_wrap=True)
        text = Text(escaped(decode(inside)), style=SEGMENT_STYLES[part.kind])
        text.highlight_words([word for word in controls if word in text.plain], CONTROL_STYLE)
        _print_indented(console, text)


def _print_indented(console: Console, text: Text) -> None:
    if console.is_terminal:  # which may wrap it, indented
        console.print(Padding(text, (0, 0, 0, len(INDENT))))
    else:
        console.print(Text(textwrap.indent(text.plain, INDENT, lambda line: True)), soft_wrap=True)


def _head(part: Segment) -> str:
    return f"{part.kind:>10} [{part.start}, {part.stop})"


def print_ids(
    console: Console, ids: Sequence[int], segments: Sequence[Segment], vocabulary: Vocabulary
) -> None:
    """Print a sequence segment by segment, every id with what it spells."""
    control = set(vocabulary.control_ids.values())
    for part in segments:
        if part.start == part.stop:
            continue
        console.print(Text(_head(part), style="dim"), soft_wrap=True)
        pieces = []
        for id in ids[part.start : part.stop]:
            style = CONTROL_STYLE if id in control else SEGMENT_STYLES[part.kind]
            pieces.append(Text.assemble((f"{id} ", "dim"), (escaped(vocabulary.name_of(id)), style)))
        line = Text("  ").join(pieces)
        _print_indented(console, line)


def print_difference(console: Console, found: Mapping[str, Any]) -> None:
    """Print where the ids of a row and of something else differ.

    Args:
        console: where.
        found: `row_id`, `against`, `same` and `differences` of `show --diff --json`.
    """
    count = len(found["differences"])
    verdict = "the same ids" if found["same"] else f"differs in {count} place{'s' * (count != 1)}"
    head = f"{found['row_id']}  against {found['against']}: {verdict}"
    console.print(Text(head, style="bold"), soft_wrap=True)
    for part in found["differences"]:
        for sign, style, prefix in (("-", "red", ""), ("+", "green", "other_")):
            pieces = zip(part[f"{prefix}ids"], part[f"{prefix}text"], strict=True)
            words = "  ".join(f"{id} {text}" for id, text in pieces) or "nothing"
            console.print(Text(f"  {sign} at {part[f'{prefix}start']}: {words}", style=style), soft_wrap=True)
    console.print()


def checks_table(title: str, checks: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of checks: name, passed, what was expected, what came."""
    table = Table("check", "passed", "expected", "got", title=title, title_justify="left")
    for check in checks:
        passed = check["passed"]
        mark = (
            Text("-", "dim") if passed is None else Text("yes", "green") if passed else Text("NO", "bold red")
        )
        words = (str(check.get(key, "")) for key in ("expected", "got"))
        table.add_row(str(check["name"]), mark, *(Text(escaped(part)) for part in words))
    return table
