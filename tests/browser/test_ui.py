"""Start, fail, retry, copy and cancel a run, as a person does it in Prefect's UI."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deployments.local.presets import STANDIN_MODEL
from deployments.local.seaweed import start_seaweed
from deployments.standin.launch import Standin, start_standin
from tasks.job.spec import JobSpec
from tests.browser.conftest import Shot, Up, until
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.jobs import opened, write_prompts

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.timeout(1800)
RECORDS, BATCH = 40, 5
EACH_ONCE = {f"{batch:06d}": 1 for batch in range(RECORDS // BATCH)}
ROWS = 53
"""Every third of the 40 records has two turns."""

SLOWLY = "slow_reply=10"
"""Rows take ten seconds each, so that a person, or a busy machine's browser, comes in time to cut in."""

PROBE = 6
"""Generations of the check before the first row."""


def job_over(standin: Standin, folder: Path, **servers: Any) -> dict[str, Any]:
    """Return a job of 8 batches whose servers are given up after three seconds."""
    return {
        "name": folder.name.replace("_", "-").lower(),
        "model": {"tokenizer": str(STANDIN_MODEL)},
        "prompts": {"sources": [str(write_prompts(folder / "prompts.jsonl", RECORDS))]},
        "servers": {"urls": [standin.url], "ready_timeout_seconds": 3, **servers},
        "sampling": {"max_new_tokens": 256},
        "policy": {"accepted_floor": 0.5},
        "batch": {"rows": BATCH, "in_flight": 4, "journal_dir": str(folder / "journals")},
        "store": {"uri": str(folder / "out")},
    }


def standin_on(folder: Path, *argv: str, port: int | None = None) -> Standin:
    """Start a stand-in whose rows depend on prompt and seed only."""
    return start_standin(["--enable-deterministic-inference", *argv], folder / "standin.log", port=port)


def asked(standin: Standin) -> int:
    """Return how many generations the server began, its probe's among them."""
    with urllib.request.urlopen(f"{standin.url}/standin/counters", timeout=30) as answer:
        return int(json.loads(answer.read())["generations_started"])


def switch(standin: Standin, **faults: Any) -> None:
    """Switch faults of a running server on (an argument, True) or off (None)."""
    body, kind = json.dumps(faults).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{standin.url}/standin/faults", body, kind)
    urllib.request.urlopen(request, timeout=30).close()


PRESS_SECONDS = 15.0
"""How long a press of Submit may take to make a run before it is repeated."""


def submit(page: "Page", up: Up, name: str = "", shot: Shot | None = None) -> str:
    """Press Submit on the run form that is open, a picture of it kept; return the id of the run."""
    before = up.runs()
    page.get_by_label("Tokenizer").wait_for()
    if shot is not None:
        shot(page, name)
    button = page.get_by_role("button", name="Submit")
    button.click()
    pressed = time.monotonic()

    def begun() -> bool:
        nonlocal pressed
        if up.runs() - before:
            return True
        # The form of a copied run loses a press that comes while it still fills itself in; one that was taken
        # leaves the form, and its button with it.
        if time.monotonic() - pressed > PRESS_SECONDS and button.is_visible():
            button.click()
            pressed = time.monotonic()
        return False

    until(begun, lambda: f"expected a new run, found none: {page.inner_text('body')[-2000:]}")
    (run_id,) = up.runs() - before
    return run_id


def choose(page: "Page", item: str) -> None:
    """Choose an item of a run page's menu."""
    page.locator("button:has(svg.lucide-ellipsis-vertical)").first.click()
    page.get_by_role("menuitem", name=item).click()


def text_of(page: "Page", tab: str, expected: str) -> str:
    """Open a tab, wait for a text on it, return all of the page's text."""
    page.get_by_role("tab", name=tab).click()
    page.get_by_text(re.compile(expected)).first.wait_for()
    return page.inner_text("body")


def test_the_form_shows_every_field_in_order(up: Up, page: "Page", shot: Shot) -> None:
    """Sections and fields of JobSpec in their order, each with its description, filled with the demo."""
    page.goto(up.addresses["form"])
    page.get_by_label("Tokenizer").wait_for()
    text = page.inner_text("body")
    shot(page, "form")
    place = 0
    for name, section in JobSpec.model_fields.items():
        place = text.find(str(section.description), place)
        assert place >= 0, name
        inside = section.annotation
        for field in getattr(inside, "model_fields", {}).values():
            place = text.find(str(field.description), place)
            assert place >= 0, (name, field.description)
    assert page.get_by_label("Tokenizer").input_value() == str(STANDIN_MODEL)
    assert "canonical" in text


@pytest.mark.parametrize(
    ("label", "value", "refusal"),
    [
        pytest.param("Rows (Optional)", "0", "greater than or equal to 1", id="below-its-bound"),
        pytest.param("Accepted Floor (Optional)", "1.5", "less than or equal to 1", id="above-its-bound"),
    ],
)
def test_a_number_out_of_bounds_is_refused_in_the_form(
    up: Up, page: "Page", shot: Shot, label: str, value: str, refusal: str
) -> None:
    """The field itself says what is wrong, and no run is made."""
    runs = up.runs()
    page.goto(up.addresses["form"])
    field = page.get_by_label(label)
    field.fill(value)
    page.get_by_role("button", name="Submit").click()
    assert refusal in field.evaluate("field => field.validationMessage")
    shot(page, f"refused-{label.split()[0].lower()}")
    assert page.url == up.addresses["form"]
    assert up.runs() == runs


def test_a_name_that_is_none_is_refused_before_the_run(up: Up, page: "Page", shot: Shot) -> None:
    """What a form field cannot know (a pattern) the server refuses; the page says which field."""
    runs = up.runs()
    page.goto(up.addresses["form"])
    page.get_by_label("Name", exact=True).last.fill("Not A Name")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text(re.compile("field 'job.name'.*does not match")).first.wait_for()
    shot(page, "refused-name")
    assert up.runs() == runs


def test_retry_makes_only_what_is_missing(up: Up, page: "Page", shot: Shot, tmp_path: Path) -> None:
    """The server dies mid-run: Failed, some batches committed. Retry: only the others, and the UI says so.

    Then `Copy to new run` with the same parameters finds everything done.
    """
    standin = standin_on(tmp_path, "--fault", SLOWLY)
    page.goto(up.preset(job_over(standin, tmp_path)))
    run_id = submit(page, up)
    until(
        lambda: len(list((tmp_path / "out").rglob("receipts/*.json"))) > 0,
        lambda: f"expected a receipt, got {up.run(run_id)['state']}",
    )
    standin.kill()
    failed = up.wait(run_id, "Failed")
    assert standin.url in failed["state"]["message"]
    committed = {path.name: path for path in (tmp_path / "out").rglob("receipts/*.json")}
    assert 0 < len(committed) < RECORDS // BATCH
    kept = sum(json.loads(path.read_bytes())["rows"]["total"] for path in committed.values())
    page.goto(up.page_of(run_id))
    assert standin.url in text_of(page, "Details", "State Message")
    shot(page, "failed")

    again = standin_on(tmp_path, port=int(standin.url.rpartition(":")[2]))
    try:
        choose(page, "Retry")
        page.get_by_role("alertdialog").get_by_role("button", name="Retry").click()
        done = up.wait(run_id, "Completed", "Failed", count=2)
        assert done["state"]["name"] == "Completed", done["state"]
        until(lambda: up.commits(run_id) == EACH_ONCE, lambda: str(up.commits(run_id)))
        assert asked(again) <= ROWS - kept + PROBE
        told = f"8 batches planned, {len(committed)} committed, {8 - len(committed)} to do"
        until(lambda: told in up.log(run_id), lambda: up.log(run_id))
        page.reload()
        text_of(page, "Logs", "batches planned")
        shot(page, "retried")
        text_of(page, "Details", f"{len(committed)} of 8 batches were committed before")
        text_of(page, "Artifacts", "verdicts")
        shot(page, "retried-artifacts")

        before = asked(again)
        choose(page, "Copy to new run")
        copy = up.wait(submit(page, up), "Completed", "Failed")
        assert copy["parameters"] == done["parameters"]
        assert "8 of 8 batches were committed before" in copy["state"]["message"]
        assert asked(again) == before
    finally:
        again.end()
    assert len(list((tmp_path / "out").rglob("receipts/*.json"))) == RECORDS // BATCH


def test_cancel_stops_and_a_later_run_resumes(up: Up, page: "Page", shot: Shot, tmp_path: Path) -> None:
    """Cancelled from the UI mid-run: it ends as Cancelled, and a new run makes the rest."""
    standin = standin_on(tmp_path, "--fault", SLOWLY)
    try:
        page.goto(up.preset(job_over(standin, tmp_path)))
        run_id = submit(page, up)
        until(
            lambda: len(list((tmp_path / "out").rglob("receipts/*.json"))) > 0,
            lambda: f"expected a receipt, got {up.run(run_id)['state']}",
        )
        switch(standin, hang=True)  # so that nothing can end before the person at the browser is there
        page.goto(up.page_of(run_id))
        choose(page, "Cancel")
        page.get_by_role("alertdialog").get_by_role("button", name="Cancel Flow Run").click()
        up.wait(run_id, "Cancelled")
        page.reload()
        until(lambda: "Cancelled" in page.inner_text("body"), lambda: page.inner_text("body"))
        shot(page, "cancelled")
        committed = len(list((tmp_path / "out").rglob("receipts/*.json")))
        assert committed < RECORDS // BATCH
        switch(standin, hang=None, slow_reply=None)
        page.goto(up.addresses["form"])
        done = up.wait(submit(page, up), "Completed", "Failed")
        assert up.run(run_id)["state"]["name"] == "Cancelled"
        assert "of 8 batches were committed before" in done["state"]["message"]
    finally:
        standin.end()
    assert opened(tmp_path / "out").get("dataset.json")


def save_keys(up: Up, credentials: dict[str, str]) -> None:
    """Put S3 keys into a Secret block of the stack."""
    save = "import sys; from prefect.blocks.system import Secret; Secret(value=sys.argv[1]).save('s3')"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    subprocess.run(
        [sys.executable, "-c", save, json.dumps(credentials)],
        env=env | {"PREFECT_API_URL": up.addresses["api"]},
        check=True,
        timeout=240,
    )


def test_the_link_of_failed_batches_opens_a_filled_form(
    up: Up, page: "Page", shot: Shot, tmp_path: Path
) -> None:
    """The table of failed batches, its link, the form of retry-batches with them, Submit: all is made."""
    refused = Fault("error", path="receipts/000003", times=10**6, code="InternalError", status=500)
    standin = standin_on(tmp_path)
    with (
        start_seaweed(tmp_path / "s3", bucket="rawseq") as seaweed,
        FaultProxy(seaweed.port, refused) as proxy,
    ):
        try:
            save_keys(up, seaweed.credentials)
            store = {"uri": "s3://rawseq/out", "credentials_block": "s3", "region": "us-east-1"}
            store |= {"endpoint_url": proxy.url, "deadline_seconds": 3}
            page.goto(up.preset(job_over(standin, tmp_path) | {"store": store}))
            run_id = submit(page, up)
            failed = up.wait(run_id, "Failed", "Completed")
            assert "1 of 8 batches are not committed: 3" in failed["state"]["message"]
            page.goto(up.page_of(run_id))
            page.get_by_role("tab", name="Artifacts").click()
            page.get_by_text(re.compile("^failed-")).first.click()
            page.get_by_text("1 batches failed.").first.wait_for()
            shown = page.inner_text("body")
            assert "receipts/000003" in shown
            assert "rawseq retry s3://rawseq/out/" in shown
            shot(page, "failed-batches")
            link = page.get_by_role("link", name="retry-batches with these batches")
            page.goto(str(link.get_attribute("href")))
            again = submit(page, up, "retry-filled", shot)
            refused.times = 0
            done = up.wait(again, "Completed", "Failed")
        finally:
            standin.end()
    assert done["parameters"]["batches"] == [3]
    assert done["state"]["name"] == "Completed", done["state"]
