"""`report.html`: one page that loads nothing. User text reaches it through autoescaping only (pure)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tasks.report import drawing
from tasks.report.measured import LENGTHS, Measured, Shown
from tasks.report.numbers import answer_share, answer_warning, coverage, ids_to_cover, paces, quantiles
from tasks.report.retokenized import Retokenized
from tasks.report.summary import verdict_rows
from tasks.report.templates import template
from tasks.rows.records import Segment

TOP: Final = 10

Decode = Callable[[Sequence[int]], str]


def report_page(
    index: Mapping[str, Any],
    measured: Measured,
    sampled: int,
    retokenized: Retokenized,
    decode: Decode,
) -> str:
    """Return the page.

    Args:
        index: `dataset.json`.
        measured: what was counted over the sampled batches.
        sampled: how many batches were sampled.
        retokenized: what text would have done.
        decode: ids to text with control tokens visible.
    """
    return template("report.html.jinja").render(
        index=index,
        measured=measured,
        sampled=sampled,
        retokenized=retokenized,
        changed=[(row, decode(row.before), decode(row.after)) for row in retokenized.first],
        verdicts=verdict_rows(index["rows"]["by_verdict"]),
        prefixes=_prefixes(measured, decode),
        shown=[(row, _parts(row, decode)) for row in measured.shown],
        rejected=[(row, _parts(row, decode)) for rows in measured.rejected.values() for row in rows],
        colors=drawing.COLORS,
        plots={
            "lengths": drawing.draw_lengths(measured) if measured.rows else "",
            "coverage": drawing.draw_coverage(measured),
            "time": drawing.draw_time(measured),
        },
        **_figures(measured),
    )


def _figures(measured: Measured) -> dict[str, Any]:
    """Return the numbers that are derived from what was counted."""
    supervised, curve = measured.supervised, coverage(measured.frequencies)
    return {
        "kinds": [kind for kind in drawing.COLORS if supervised[kind]],
        "supervised": supervised,
        "supervised_total": sum(supervised.values()),
        "answer_share": answer_share(supervised),
        "warning": answer_warning(supervised),
        "lengths": [
            *((kind, *quantiles(measured.lengths[kind])) for kind in LENGTHS),
            ("whole answer", *quantiles(+measured.answers[0])),
            ("whole answer, rejected rows included", *quantiles(measured.answers[1])),
        ],
        "paces": paces(measured.timed, measured.versions),
        "covered": ids_to_cover(curve),
        "distinct": curve.size,
    }


def _prefixes(measured: Measured, decode: Decode) -> list[tuple[str, str, int]]:
    """Return (ids, text, rows) of the commonest beginnings that come more than once."""
    found = []
    for data, rows in measured.prefixes.most_common(TOP):
        ids = np.frombuffer(data, np.int32).tolist()
        if rows > 1:
            found.append((" ".join(map(str, ids)), decode(ids), rows))
    return found


def _parts(row: Shown, decode: Decode) -> list[tuple[Segment, str, str]]:
    """Return (segment, ids, text) of every segment that is not empty."""
    parts = []
    for segment in row.segments:
        ids = row.ids[segment.start : segment.stop].tolist()
        if ids:
            parts.append((segment, " ".join(map(str, ids)), decode(ids)))
    return parts
