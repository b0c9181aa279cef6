"""What surrounds a command: proxy variables, and what Prefect takes as a parameter."""

import os
from urllib.request import proxy_bypass_environment

import pytest

from deployments.cli.flow import MOST_JOB_BYTES, check_size
from deployments.cli.main import exempt_loopback
from tasks.errors import JobError
from tasks.job.spec import JobSpec, StoreSpec
from tasks.store.s3_client import make_client

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, None, id="no proxy"),
        pytest.param({"HTTP_PROXY": PROXY}, "localhost,127.0.0.1,::1", id="no exemption"),
        pytest.param(
            {"https_proxy": PROXY, "NO_PROXY": "a.example, localhost"},
            "a.example,localhost,127.0.0.1,::1",
            id="one of its own",
        ),
        pytest.param({"ALL_PROXY": PROXY, "no_proxy": "::1"}, "::1,localhost,127.0.0.1", id="for all"),
    ],
)
def test_this_machine_needs_no_proxy(given: dict[str, str], expected: str | None) -> None:
    """Whatever the shell says of proxies: Prefect and the store of this machine are reached directly."""
    environment = dict(given)
    exempt_loopback(environment)
    assert environment.get("NO_PROXY") == expected
    assert environment.get("HTTP_PROXY") == given.get("HTTP_PROXY")


@pytest.mark.parametrize("said", ["far.example", "*"])
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_hosts_that_are_exempt_stay_so(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients read the lower spelling first: it must not hide the upper one's hosts."""
    for other in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(other, "")
        monkeypatch.delenv(other)
    monkeypatch.setenv("http_proxy", PROXY)
    monkeypatch.setenv(name, said)
    exempt_loopback(os.environ)
    assert proxy_bypass_environment("far.example")
    assert proxy_bypass_environment("127.0.0.1")


@pytest.mark.parametrize(
    ("endpoint", "direct"),
    [("http://127.0.0.1:1", True), ("http://localhost:1", True), ("https://s3.example", False)],
)
def test_a_store_on_this_machine_needs_none(
    endpoint: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker too, whose environment is not ours."""
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    spec = StoreSpec(uri="s3://bucket/x", endpoint_url=endpoint, region="us-east-1")
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = make_client(spec, keys, None)
    assert (client.meta.config.proxies == {}) is direct


def test_a_job_that_prefect_would_not_take_is_told_before_it_runs() -> None:
    """4,000 sources with long names: what is too large, and the way out; a little less passes."""

    def job(sources: int) -> JobSpec:
        names = [f"/data/{'a-rather-long-folder/' * 6}{number:06d}.jsonl" for number in range(sources)]
        return JobSpec.model_validate(
            {
                "name": "t",
                "model": {"tokenizer": "t"},
                "prompts": {"sources": names},
                "servers": {"urls": ["http://127.0.0.1:1"]},
                "store": {"uri": "/out"},
            }
        )

    check_size(job(1000))
    with pytest.raises(JobError, match=f"at most {MOST_JOB_BYTES} bytes.*folders or globs"):
        check_size(job(4000))
