"""The journal: nothing that reached it is lost, whatever happens to the process, the file or the disk."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import DataError, SurroundingsError
from tasks.ledger import journal_writer
from tasks.ledger.batch import Batch, Span
from tasks.ledger.frames import checksum, completion_frame, decode_completion
from tasks.ledger.journal import Journal
from tasks.ledger.journal_folder import disk_bytes, sweep_journals
from tasks.rows.records import Completion, as_ids

BATCH = Batch(3, 30, 40, "f" * 64, (Span("s", 1, 10, 0),))


def answer(number: int, ids: int = 5) -> Completion:
    """Return a made-up finished row."""
    return Completion(
        f"s:{number}#t0~s0", as_ids(range(1, 4)), as_ids(range(ids)), "stop", 4, facts={"rid": "r"}
    )


def same(one: Completion, other: Completion) -> bool:
    """Say whether two completions hold the same."""
    names = ("row_id", "finish_reason", "matched_stop", "code", "code_offset", "detail", "facts")
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("input_ids", "output_ids")
    )


def part_of(folder: Path) -> Path:
    """Return the only journal file of a folder."""
    (path,) = folder.glob("*.journal")
    return path


def test_rows_come_back(tmp_path: Path) -> None:
    """What was appended is read back bit for bit, before and after closing, in any order."""
    rows = [answer(number, number) for number in range(20)]
    unsent = Completion(
        "s:x#t0~s0", as_ids([7]), as_ids([]), "unsent", None, "prompt_too_long", 3, "too long"
    )
    with Journal.open(tmp_path, "job", BATCH, "run") as journal:
        for row in [*rows, unsent]:
            journal.append(row)
        assert same(journal.get("s:7#t0~s0"), rows[7])
    with Journal.open(tmp_path, "job", BATCH, "run") as journal:
        assert set(journal.done) == {row.row_id for row in [*rows, unsent]}
        found = journal.completions([row.row_id for row in [unsent, *reversed(rows)]])
        assert all(map(same, found, [unsent, *reversed(rows)]))
        with pytest.raises(KeyError):
            journal.get("s:99#t0~s0")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=50),
    st.lists(st.integers(0, 2**31 - 1), max_size=50),
    st.none() | st.integers(0, 2**31 - 1),
    st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), max_size=5
    ),
)
def test_any_completion_survives(
    inputs: list[int], outputs: list[int], stop: int | None, facts: dict[str, object]
) -> None:
    """Frame and back is the identity for any ids and any facts that JSON can say."""
    row = Completion("s:1#t0~s0", as_ids(inputs), as_ids(outputs), "stop", stop, facts=facts)
    assert same(decode_completion(completion_frame(row)[8:]), row)


def test_the_first_reply_wins(tmp_path: Path) -> None:
    """A row that is already there is kept, within a part and over parts."""
    with Journal.open(tmp_path, "job", BATCH, "one") as journal:
        journal.append(answer(1, 5))
        journal.append(answer(1, 6))
    with Journal.open(tmp_path, "job", BATCH, "two") as journal:
        journal.append(answer(1, 7))
        journal.append(answer(2, 8))
    with Journal.open(tmp_path, "job", BATCH, "three") as journal:
        assert journal.get("s:1#t0~s0").output_ids.size == 5
        assert journal.get("s:2#t0~s0").output_ids.size == 8


def test_of_two_parts_that_hold_a_row_the_earlier_wins(tmp_path: Path) -> None:
    """Two owners that did not know of each other made one row: the part that is read first counts."""
    for run, ids in (("a", 5), ("b", 6)):
        with Journal.open(tmp_path / run, "job", BATCH, run) as journal:
            journal.append(answer(1, ids))
    part_of(tmp_path / "b").rename(tmp_path / "a" / "b-0.journal")
    with Journal.open(tmp_path / "a", "job", BATCH, "c") as journal:
        assert journal.get("s:1#t0~s0").output_ids.size == 5


def test_attempts_count_across_runs(tmp_path: Path) -> None:
    """Failed attempts of a row add up over restarts."""
    for run, expected in (("one", 1), ("two", 2), ("three", 3)):
        with Journal.open(tmp_path, "job", BATCH, run) as journal:
            assert journal.note_attempt("s:1#t0~s0", "crash", True) == expected
            assert journal.attempts == {"s:1#t0~s0": expected}


def test_torn_at_every_byte(tmp_path: Path) -> None:
    """Wherever a crash cut the file, every row whose frame is whole is there, and no other."""
    with Journal.open(tmp_path, "job", BATCH, "run") as journal:
        for number in range(3):
            journal.append(answer(number, 3))
    whole = part_of(tmp_path).read_bytes()
    frames = [len(completion_frame(answer(number, 3))) for number in range(3)]
    start = len(whole) - sum(frames)
    for length in range(len(whole) + 1):
        folder = tmp_path / f"cut-{length}"
        folder.mkdir()
        (folder / "old-0.journal").write_bytes(whole[:length])
        expected = sum(length >= start + sum(frames[: number + 1]) for number in range(3))
        with Journal.open(folder, "job", BATCH, "new") as journal:
            assert len(journal.done) == expected, length
            for number in range(expected):
                assert same(journal.get(f"s:{number}#t0~s0"), answer(number, 3))
            journal.append(answer(9))
        with Journal.open(folder, "job", BATCH, "newer") as journal:
            assert len(journal.done) == expected + 1
            journal.remove()
        assert not folder.exists()


def test_a_flipped_byte_anywhere(tmp_path: Path) -> None:
    """No flipped byte is ever taken for a row: frames before it count, it and those behind are made again."""
    with Journal.open(tmp_path, "job", BATCH, "run") as journal:
        for number in range(2):
            journal.append(answer(number, 2))
    whole = part_of(tmp_path).read_bytes()
    part_of(tmp_path).unlink()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 0x40
        tmp_path.mkdir(exist_ok=True)
        (tmp_path / "old-0.journal").write_bytes(broken)
        with Journal.open(tmp_path, "job", BATCH, "new") as journal:
            assert not journal.set_aside
            for row_id in journal.done:
                assert same(journal.get(row_id), answer(int(row_id[2]), 2))
            journal.remove()


@pytest.mark.parametrize(
    ("job", "batch"),
    [
        ("other", BATCH),
        ("job", Batch(4, 30, 40, "f" * 64, BATCH.spans)),
        ("job", Batch(3, 30, 40, "0" * 64, BATCH.spans)),
    ],
    ids=["job", "batch", "fingerprint"],
)
def test_foreign_journals_are_set_aside(
    tmp_path: Path, job: str, batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows of another job, batch or prompts are never used and never deleted."""
    with Journal.open(tmp_path, job, batch, "old") as journal:
        journal.append(answer(1))
    with Journal.open(tmp_path, "job", BATCH, "new") as journal:
        assert dict(journal.done) == {}
        (aside,) = journal.set_aside
        journal.remove()
    assert aside.exists()
    assert "set aside, not used" in caplog.text


def test_bytes_that_change_later_are_noticed(tmp_path: Path) -> None:
    """A row whose bytes were changed after opening is refused, naming the file."""
    with Journal.open(tmp_path, "job", BATCH, "run") as journal:
        journal.append(answer(1))
        journal.flush()
        path = part_of(tmp_path)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"run-0\.journal: row s:1#t0~s0: its bytes changed"):
            journal.get("s:1#t0~s0")


@pytest.mark.process
def test_one_owner_at_a_time(tmp_path: Path) -> None:
    """A second process, or a second opening in this one, is refused; after closing it may come."""
    child = f"""
        from pathlib import Path
        from tasks.ledger.journal import Journal
        from tasks.ledger.batch import Batch
        Journal.open(Path({str(tmp_path)!r}), "job", Batch(3, 30, 40, "f" * 64, ()), "child").close()
    """
    command = [sys.executable, "-c", textwrap.dedent(child)]
    with Journal.open(tmp_path, "job", BATCH, "run"):
        with pytest.raises(SurroundingsError, match="only process on this batch"):
            Journal.open(tmp_path, "job", BATCH, "second")
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "only process on this batch" in refused.stderr
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.process
def test_kill_loses_only_what_was_not_written(tmp_path: Path) -> None:
    """A process is killed while it appends: every row that it saw on disk is there, and none is damaged."""
    child = f"""
        import sys
        from pathlib import Path
        from tasks.rows.records import Completion, as_ids
        from tasks.ledger.journal import Journal
        from tasks.ledger.batch import Batch
        journal = Journal.open(Path({str(tmp_path)!r}), "job", Batch(3, 30, 40, "f" * 64, ()), sys.argv[1])
        number = int(sys.argv[2])
        while True:
            ids = as_ids([1, 2, 3]), as_ids(range(5))
            journal.append(Completion(f"s:{{number}}#t0~s0", *ids, "stop", 4, facts={{"rid": "r"}}))
            number += 1
            if number % 50 == 0:
                journal.flush()
                print(number, flush=True)
    """
    promised = 0
    for trial in range(5):
        command = [sys.executable, "-c", textwrap.dedent(child), f"run-{trial}", str(promised)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(1 + trial):
                promised = int(process.stdout.readline())
            time.sleep(0.003 * trial)  # other places in the loop, not a synchronisation
            process.send_signal(signal.SIGKILL)
        with Journal.open(tmp_path, "job", BATCH, "check") as journal:
            missing = [n for n in range(promised) if f"s:{n}#t0~s0" not in journal.done]
            assert missing == []
            for row_id in journal.done:
                assert same(journal.get(row_id), answer(int(row_id[2:].split("#")[0])))


@pytest.mark.process
def test_full_disk_stops_cleanly_and_resumes(tmp_path: Path) -> None:
    """When the disk refuses, the error says what to do; what was written before is there afterwards."""
    child = f"""
        import resource, signal
        from pathlib import Path
        from tasks.rows.records import Completion, as_ids
        from tasks.errors import SurroundingsError
        from tasks.ledger.journal import Journal
        from tasks.ledger.batch import Batch
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journal = Journal.open(Path({str(tmp_path)!r}), "job", Batch(3, 30, 40, "f" * 64, ()), "run")
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        kept = 0
        try:
            for number in range(10_000):
                ids = as_ids([1, 2, 3]), as_ids(range(5))
                journal.append(Completion(f"s:{{number}}#t0~s0", *ids, "stop", 4, facts={{"rid": "r"}}))
                journal.flush()
                kept += 1
        except SurroundingsError as error:
            print(kept, error)
        try:
            journal.close()
        except SurroundingsError:
            print("closed")
    """
    command = [sys.executable, "-c", textwrap.dedent(child)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, last = done.stdout.splitlines()
    kept = int(first.split()[0])
    assert kept > 10
    assert "run-0.journal: File too large" in first
    assert last == "closed"
    with Journal.open(tmp_path, "job", BATCH, "later") as journal:
        assert len(journal.done) == kept
        journal.append(answer(kept))


def test_syncs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand rows in a burst cost a handful of fdatasync calls, not a thousand."""
    calls: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(
        journal_writer.os, "fdatasync", lambda descriptor: calls.append(1) or real(descriptor)
    )
    with Journal.open(tmp_path, "job", BATCH, "run") as journal:
        for number in range(1000):
            journal.append(answer(number))
    assert 1 <= len(calls) <= 10


def test_rows_reach_the_file_without_being_asked(tmp_path: Path) -> None:
    """Appended rows are written within moments although nobody flushes."""
    with Journal.open(tmp_path, "job", BATCH, "run") as journal:
        journal.append(answer(1, 1000))
        deadline = time.monotonic() + 5
        while part_of(tmp_path).stat().st_size < 4000 and time.monotonic() < deadline:
            time.sleep(0.001)  # polling another thread's work
        assert part_of(tmp_path).stat().st_size > 4000


def test_many_journals_share_one_thread(tmp_path: Path) -> None:
    """Fifty open batches do not cost fifty threads, and none loses a row."""
    import threading

    before = threading.active_count()
    journals = [
        Journal.open(tmp_path / str(index), "job", Batch(index, 0, 1, "f", ()), "run") for index in range(50)
    ]
    for number in range(20):
        for journal in journals:
            journal.append(answer(number))
    assert threading.active_count() <= before + 1
    for journal in journals:
        journal.close()
    for index in range(50):
        with Journal.open(tmp_path / str(index), "job", Batch(index, 0, 1, "f", ()), "again") as journal:
            assert len(journal.done) == 20
            journal.remove()


def test_another_purpose_is_another_journal(tmp_path: Path) -> None:
    """What was made for one reason is not taken for another; all of it goes when the batch is committed."""
    with Journal.open(tmp_path / "j", "job", BATCH, "one", "again: poison") as journal:
        journal.append(answer(1))
    with Journal.open(tmp_path / "j", "job", BATCH, "two", "30 ids more") as journal:
        assert dict(journal.done) == {}
        assert not journal.set_aside
        journal.append(answer(2))
    with Journal.open(tmp_path / "j", "job", BATCH, "three", "again: poison") as journal:
        assert list(journal.done) == [answer(1).row_id]
        journal.remove()
    assert not (tmp_path / "j").exists()


def test_journals_of_committed_generations_are_swept(tmp_path: Path) -> None:
    """A crash between receipt and removal leaves a journal: it goes; those of later generations stay."""
    for name, purpose in (("000003", ""), ("000003.g1", "again"), ("000003.g2", "again"), ("000009", "")):
        Journal.open(tmp_path / name, "job", BATCH, "run", purpose).close()
    (tmp_path / "home").write_text("x")
    batches = [BATCH] * 4
    with Journal.open(tmp_path / "000003.g1", "job", BATCH, "busy", "again"):
        assert sweep_journals(tmp_path, "job", batches, {3: 1}) == 1  # the other one is open
    assert sweep_journals(tmp_path, "job", batches, {3: 1}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000003.g2", "000009", "home"]
    assert sweep_journals(tmp_path / "none", "job", batches, {3: 1}) == 0


@pytest.mark.parametrize("size", [0, 1, 5119, 5120, 5121, 10_240, 20_001])
def test_the_checksum_of_a_frame_is_its_crc32(size: int) -> None:
    """Taken piece by piece it is what the format says, so that journals of earlier versions are read."""
    data = bytes(range(256)) * (size // 256 + 1)
    assert checksum(data[:size]) == zlib.crc32(data[:size])
    assert checksum(data[3:size], zlib.crc32(data[:3])) == zlib.crc32(data[: max(size, 3)])


def test_journals_are_measured_while_others_remove_theirs(tmp_path: Path) -> None:
    """A folder that vanishes between two looks counts nothing and stops nothing."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "a.journal").write_bytes(b"12345")
    over = threading.Event()

    def come_and_go(name: str) -> None:
        while not over.is_set():
            (tmp_path / name).mkdir()
            (tmp_path / name / "part").touch()
            (tmp_path / name / "part").unlink()
            (tmp_path / name).rmdir()

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(come_and_go, f"batch{number}") for number in range(2)]
        try:
            assert {disk_bytes(tmp_path) for _ in range(3000)} == {5}
        finally:
            over.set()
        for other in others:
            other.result()
    assert disk_bytes(tmp_path / "absent") == 0
