"""`rawseq show`: rows of a folder and of S3, by page, by code, id by id, and where ids differ."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from deployments.cli.cli import cli
from deployments.cli.console import print_ids, print_sequence
from deployments.local.seaweed import start_seaweed
from tasks.errors import JobError
from tasks.job.spec import StoreSpec
from tasks.rows.records import Segment
from tasks.store.opening import open_store
from tasks.tokenizer.vocabulary import Vocabulary
from tests.support.readable import SPLIT_ROW, readable_store

Show = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Vocabulary]:
    """The readable dataset in a folder."""
    store, vocabulary = readable_store(tmp_path_factory.mktemp("made"))
    return store.uri, vocabulary


@pytest.fixture(scope="module")
def on_s3(made: tuple[str, Vocabulary], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same dataset on a real S3 server, which the AWS variables name."""
    with start_seaweed(tmp_path_factory.mktemp("seaweed")) as server, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in server.environment().items():
            patch.setenv(name, value)
        uri = f"s3://{server.bucket}/copy"
        folder, copy = open_store(StoreSpec(uri=made[0])), open_store(StoreSpec(uri=uri))
        for info in folder.list(""):
            copy.put(info.key, folder.get(info.key))
        copy.close()
        yield uri


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Run the verb with `--json` and return its objects."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        assert cli.main(["show", *arguments, "--json"], standalone_mode=False) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_s3_shows_what_the_folder_does(made: tuple[str, Vocabulary], on_s3: str, show: Show) -> None:
    """All accepted rows, in source order, with ids, text and segments."""
    rows = show(made[0], "--n", "99")
    assert rows == show(on_s3, "--n", "99")
    assert rows[-1] == {"summary": {"rows": 9}}
    assert [row["row_id"] for row in rows[:7]] == [*(f"sums:r{n}#t0~s0" for n in range(6)), SPLIT_ROW]
    for row in rows[:-1]:
        assert row["text"] == made[1].decode(row["input_ids"])
        assert row["segments"][-1]["stop"] == len(row["input_ids"])


def test_pages_tile_the_rows(made: tuple[str, Vocabulary], show: Show) -> None:
    """`--skip` and `--n` go through all rows once, over the borders of batches, and end empty."""
    everything = [row["row_id"] for row in show(made[0], "--n", "99")[:-1]]
    pages = [show(made[0], "--n", "2", "--skip", str(skip))[:-1] for skip in range(0, 12, 2)]
    assert [row["row_id"] for page in pages for row in page] == everything
    assert pages[-1] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["--n", "2"], "rows 1 to 2; on: --skip 2", id="first"),
        pytest.param(["--n", "5", "--skip", "5"], "rows 6 to 9", id="last"),
        pytest.param(["--skip", "9"], "no more rows", id="behind"),
        pytest.param(["--rejected", "nan"], "no rows", id="none"),
    ],
)
def test_a_page_says_where_the_next_begins(
    made: tuple[str, Vocabulary], capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    """On stderr, for a person; an empty page says that it is one."""
    assert cli.main(["show", made[0], *arguments], standalone_mode=False) == 0
    assert capsys.readouterr().err.splitlines()[-1] == expected


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        pytest.param(["--rejected"], ["repetition", "repetition", "after_end"], id="all"),
        pytest.param(["--rejected", "after_end"], ["after_end"], id="one-code"),
        pytest.param(["--rejected", "repetition", "--skip", "1"], ["repetition"], id="paged"),
        pytest.param(["--rejected", "nan"], [], id="none-of-it"),
    ],
)
def test_rejected_rows_by_code(
    made: tuple[str, Vocabulary], show: Show, arguments: list[str], codes: list[str]
) -> None:
    """With offset and detail of why."""
    rows = show(made[0], *arguments)[:-1]
    assert [row["verdict"] for row in rows] == codes
    assert all((row["verdict_offset"], row["detail"]) == (30, "no <b>end</b>") for row in rows)


def test_rejected_in_front_of_the_store(made: tuple[str, Vocabulary], show: Show) -> None:
    """`show --rejected STORE` takes STORE for a store; a code alone asks for one."""
    assert show("--rejected", made[0]) == show(made[0], "--rejected")
    assert show("--rejected", "after_end", made[0]) == show(made[0], "--rejected", "after_end")
    with pytest.raises(click.UsageError, match="Missing argument 'STORE'"):
        cli.main(["show", "--rejected", "after_end"], standalone_mode=False)


def test_diff_shows_where_text_would_have_lied(made: tuple[str, Vocabulary], show: Show) -> None:
    """The row that spells a token in two differs from its own text there and nowhere else; others do not."""
    split, summary = show(made[0], "--row", SPLIT_ROW, "--diff")
    (part,) = split["differences"]
    assert split["same"] is False
    assert (len(part["ids"]), len(part["other_ids"])) == (2, 1)
    assert made[1].decode(part["ids"]) == made[1].decode(part["other_ids"])
    assert summary == {"summary": {"rows": 1}}
    same, _ = show(made[0], "--row", "sums:r0#t0~s0", "--diff")
    assert (same["same"], same["differences"]) == (True, [])


def test_diff_of_two_rows(made: tuple[str, Vocabulary], show: Show) -> None:
    """Applied to the first, the differences give the second, in the order in which they were named."""
    names = ("sums:r4#t0~s0", "sums:r1#t0~s0")
    rows = {row["row_id"]: row["input_ids"] for row in show(made[0], "--n", "99")[:-1]}
    found, _ = show(made[0], "--row", names[0], "--row", names[1], "--diff")
    assert (found["row_id"], found["against"]) == names
    ids = list(rows[names[0]])
    for part in reversed(found["differences"]):
        assert ids[part["start"] : part["start"] + len(part["ids"])] == part["ids"]
        ids[part["start"] : part["start"] + len(part["ids"])] = part["other_ids"]
    assert ids == rows[names[1]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["--rejected", "nonsense"], "--rejected: expected a code (complete,", id="code"),
        pytest.param(["--row", "sums:r0#t0~s0", "--row", "x"], "--row x: no such row in", id="row"),
        pytest.param(
            ["--diff", "--row", "a", "--row", "b", "--row", "c"],
            "at most two --row, got 3",
            id="rows",
        ),
    ],
)
def test_what_cannot_be_shown_is_named(
    made: tuple[str, Vocabulary], arguments: list[str], expected: str
) -> None:
    """One line that names the option."""
    with pytest.raises(JobError) as error:
        cli.main(["show", made[0], *arguments], standalone_mode=False)
    assert expected in str(error.value)


def test_a_person_sees_ids_beside_text(
    made: tuple[str, Vocabulary], capsys: pytest.CaptureFixture[str]
) -> None:
    """`--ids` names every id; `--diff` prints both spellings; nothing is padded into a pipe."""
    assert cli.main(["show", made[0], "--row", SPLIT_ROW, "--ids"], standalone_mode=False) == 0
    out = capsys.readouterr().out
    assert "2037 <|im_user|>" in out
    assert max(map(len, out.splitlines())) < 500
    assert cli.main(["show", made[0], "--row", SPLIT_ROW, "--diff"], standalone_mode=False) == 0
    out = capsys.readouterr().out
    assert "differs in 1 place\n" in out
    assert "- at 24: 279 ' l'  752 'ight'" in out
    assert "+ at 24: 712 ' light'" in out


def test_control_tokens_stand_out_on_a_terminal(made: tuple[str, Vocabulary], tmp_path: Path) -> None:
    """A control token inside a segment is reversed, the words beside it are not."""
    vocabulary = made[1]
    ids = vocabulary.dialect.encode("<|im_user|>hello")
    segments = [Segment("prompt", 0, len(ids))]
    for number, printed in enumerate((print_sequence, print_ids)):
        with (tmp_path / f"{number}.txt").open("w") as file:
            console = Console(file=file, force_terminal=True, width=80, color_system="standard")
            if printed is print_ids:
                print_ids(console, ids, segments, vocabulary)
            else:
                print_sequence(console, ids, segments, vocabulary.decode, tuple(vocabulary.control_ids))
        text = (tmp_path / f"{number}.txt").read_text()
        reversed_at = text.index("<|im_user|>")
        assert ";7" in text[:reversed_at].rpartition("\x1b[")[2]
