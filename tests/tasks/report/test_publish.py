"""Index, card and page of a dataset say what lies in its files, load nothing and run nothing."""

import html
import html.parser
import json
import shutil
from pathlib import Path
from typing import Any

import attrs
import datasets
import pytest
import yaml

from tasks.dataset.stored import job_record
from tasks.job.spec import StoreSpec
from tasks.ledger.ledger import Ledger
from tasks.ledger.noted_servers import note_server
from tasks.report.code_version import code_version
from tasks.report.publish import Published, publish_dataset, publish_store
from tasks.report.summary import Summary
from tasks.store.contract import ObjectStore, sha256_hex
from tasks.store.opening import open_store
from tasks.tokenizer.vocabulary import Vocabulary
from tests.support.readable import SCRIPT, SPLIT_ROW, readable_store


@attrs.frozen
class Made:
    """A published dataset and what publishing said."""

    store: ObjectStore
    vocabulary: Vocabulary
    summary: Summary
    published: Published

    def text(self, key: str) -> str:
        """One of its objects."""
        return self.store.get(key).decode()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Three committed batches of five, a server that was noted twice, and a shard that no receipt lists."""
    store, vocabulary = readable_store(tmp_path_factory.mktemp("made"), planned=5)
    for _ in range(2):
        note_server(store, "http://127.0.0.1:30000", {"version": "0.5.23", "flags": {"tp_size": 1}})
    orphan = next(iter(store.list("shards/"))).key
    store.put("shards/orphan.parquet", store.get(orphan))
    return Made(store, vocabulary, *publish_store(store))


@pytest.mark.process
def test_the_index_lists_every_shard_and_where_it_came_from(made: Made) -> None:
    """Shards with the sha256 of their bytes, totals of the receipts, provenance; partial and said so."""
    index = json.loads(made.text("dataset.json"))
    assert [shard["batch"] for shard in index["shards"]] == [0, 1, 2]
    for shard in index["shards"]:
        assert sha256_hex(made.store.get(shard["key"])) == shard["sha256"]
    assert (index["rows"]["accepted"], index["rows"]["rejected"]) == (9, 3)
    assert (index["complete"], index["batches"]) == (False, {"total": 5, "committed": 3})
    told = index["provenance"]
    assert told["servers"] == [
        {"url": "http://127.0.0.1:30000", "version": "0.5.23", "flags": {"tp_size": 1}}
    ]
    assert told["tokenizer"]["template_sha256"] == made.vocabulary.describe()["template_sha256"]
    assert told["model"].keys() == {"tokenizer", "revision"}
    assert told["sampling"] == {"top_p": 0.9}
    assert told["rawseq"]
    assert told["rawseq_commit"] == code_version().commit


def test_the_card_loads_accepted_rows_once(made: Made, tmp_path: Path) -> None:
    """Its metadata is YAML that `datasets` follows: no orphan, no rejected row."""
    front = made.text("README.md").split("---\n")[1]
    assert yaml.safe_load(front)["size_categories"] == ["n<1K"]
    rows = datasets.load_dataset(made.store.uri, split="train", cache_dir=str(tmp_path))
    assert len(rows) == 9
    assert len(set(rows["row_id"])) == 9
    assert "1 of 9 outputs" in made.text("README.md")


def test_page_card_and_index_say_that_no_model_was_asked(made: Made) -> None:
    """In the words of `verify`; and nothing that publishing did not read is called whole or trainable."""
    index = json.loads(made.text("dataset.json"))
    assert (index["scored"]["rows"], index["scored"]["of"]) == (0, 9)
    for key in ("README.md", "report.html"):
        text = html.unescape(" ".join(made.text(key).split()))
        assert f"Every row was checked when it was made; {index['scored']['sentence']}." in text
        assert "whole and can be trained on" not in text
        assert "trainable" not in text


class Page(html.parser.HTMLParser):
    """Collects tags, attributes that load, and cells of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what would load something."""
        self.tags.add(tag)
        self._cell = tag in ("td", "th")
        if tag == "tr":
            self.rows.append([])
        elif self._cell:
            self.rows[-1].append("")
        self.loads += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        """Add to the open cell."""
        if self._cell:
            self.rows[-1][-1] += data.strip()

    def handle_endtag(self, tag: str) -> None:
        """Close a cell."""
        self._cell = self._cell and tag not in ("td", "th")


def test_the_page_is_self_contained_and_escapes_user_text(made: Made) -> None:
    """No script, nothing to load, and a prompt's markup is text."""
    text = made.text("report.html")
    page = Page(text)
    assert not page.tags & {"script", "img", "link", "iframe", "object"}
    assert page.loads == []
    assert "@import" not in text
    assert "&lt;script&gt;alert(" in text
    assert SCRIPT not in text
    assert "no &lt;b&gt;end&lt;/b&gt;" in text
    assert text.count("<svg") == 3


def test_the_page_counts_by_source(made: Made) -> None:
    """Rows, cuts, rejects, ids and supervised ids by segment of each source; they add up to the totals."""
    rows = {row[0]: row for row in Page(made.text("report.html")).rows if row and row[0] in ("sums", "talk")}
    assert rows["sums"][1:5] == ["6", "6", "0", "0"]
    assert rows["talk"][1:5] == ["6", "3", "1", "3"]
    for place, total in ((5, made.summary.tokens["prompt"]), (6, made.summary.tokens["output"])):
        assert sum(int(row[place]) for row in rows.values()) == total
    for row in rows.values():
        assert sum(map(int, row[7:])) == int(row[6])


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param("<b>Not complete.</b> 2 of 5 batches are not committed", id="partial"),
        pytest.param("only 17.3% of the supervised ids are &lt;/think&gt;", id="warning"),
        pytest.param("cut_in_content", id="verdict"),
        pytest.param("http://127.0.0.1:30001", id="server"),
        pytest.param("talk:bad9#t0~s0 · repetition", id="rejected"),
        pytest.param("Commonest beginnings", id="prefixes"),
        pytest.param("whole answer, rejected rows included", id="lengths of all that came"),
        pytest.param("ids cover 90.0%", id="coverage"),
        pytest.param("the same batches, whole", id="whole"),
    ],
)
def test_the_page_says(made: Made, expected: str) -> None:
    """Each of the page's findings is there."""
    assert expected in made.text("report.html")


def test_text_would_have_changed_a_row(made: Made) -> None:
    """The row that spells a token in two is found, with both spellings, in what publishing prints too."""
    found = made.published.retokenized
    assert (found.rows, found.changed) == (9, 1)
    first = found.first[0]
    assert first.row_id == SPLIT_ROW
    assert first.before != first.after
    assert made.vocabulary.decode(first.before[:2]) == made.vocabulary.decode(first.after[:1])
    assert "changed the ids of 1 of 9 outputs (11.11%)" in "\n".join(made.published.lines())


def copied(made: Made, folder: Path) -> tuple[ObjectStore, dict[str, Any]]:
    """Return a copy of the dataset and what `publish_dataset` takes of it."""
    shutil.copytree(made.store.uri, folder / "copy")
    store = open_store(StoreSpec(uri=str(folder / "copy")))
    receipts = Ledger(store, made.summary.job_id).receipts()
    return store, {"job": job_record(store), "summary": made.summary, "receipts": receipts}


@pytest.mark.process
def test_a_large_dataset_is_sampled_and_says_so(made: Made, tmp_path: Path) -> None:
    """With room for one batch, one is read; the totals stay those of all."""
    store, rest = copied(made, tmp_path)
    published = publish_dataset(store, made.vocabulary, **rest, most_bytes=1)
    page = store.get("report.html").decode()
    assert published.sampled == 1
    assert "a fixed random sample of 1 of them</b> (4 rows)" in page
    assert "<b>9</b>rows accepted" in page
    assert publish_dataset(store, made.vocabulary, **rest, most_bytes=1) == published


@pytest.mark.process
def test_a_damaged_shard_is_named(made: Made, tmp_path: Path) -> None:
    """Publishing at a run's end does not fail for it: the page and the output name the file."""
    store, rest = copied(made, tmp_path)
    key = rest["receipts"][0].shard.key
    store.put(key, b"x" + store.get(key)[1:])
    published = publish_dataset(store, made.vocabulary, **rest)
    assert [key in line and "expected sha256" in line for line in published.unreadable] == [True]
    assert "1 files could not be read" in store.get("report.html").decode()


@pytest.mark.process
def test_a_job_without_receipts(made: Made, tmp_path: Path) -> None:
    """Nothing committed yet: all three are written and say so."""
    store, _ = copied(made, tmp_path)
    for info in list(store.list("receipts/")):
        store.delete(info.key)
    summary, published = publish_store(store)
    assert (summary.batches_committed, published.sampled) == (0, 0)
    assert "no accepted output" in published.retokenized.sentence()
    assert "0 of 5" in store.get("report.html").decode()
