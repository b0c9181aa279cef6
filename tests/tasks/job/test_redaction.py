"""Redaction: no secret is left of any text in which one can stand, and what is none stays as it was."""

import base64
import importlib
import json
import logging
import shlex
from collections.abc import Callable
from urllib.parse import quote

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.job.redaction import RedactedRecord, note_secret, redact, secrets_in, shown_command

NAMES = (
    *("api_key", "api-key", "apikey", "admin_api_key", "hf_token", "password", "db-passwd", "client_secret"),
    *("secret_access_key", "aws_session_token", "ssl_keyfile_password", "private_key"),
)
VARIABLES = (
    "OPENAI_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "GITHUB_TOKEN",
    "PGPASSWORD",
    "MY_API_KEY_2",
)

words = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789_-.~+/=", min_size=8, max_size=40).map(
    "Zq{}Zq".format
)
"""A secret as it stands without quotes; with its ends it is no chance when it is found."""

visible = st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp"))
phrases = st.text(visible, min_size=8, max_size=40).map("Zq{}Zq".format)
"""A secret that may hold anything but control characters: where something quotes it."""

PLAIN: dict[str, Callable[[str, str], str]] = {
    "flag": lambda name, key: f"python -m sglang.launch_server --{name} {key} --port 30000",
    "flag=": lambda name, key: f"python -m sglang.launch_server --{name}={key} --port 30000",
    "list": lambda name, key: repr(["sglang", f"--{name}", key, "--port", "30000"]),
    "list=": lambda name, key: repr(["sglang", f"--{name}={key}", "--port", "30000"]),
    "keyword": lambda name, key: f"ServerArgs(x=1, {name.replace('-', '_')}='{key}', port=30000)",
    "bare": lambda name, key: f"x=1 {name}={key} port=30000",
    "yaml": lambda name, key: f"model: m\n{name}: {key}\nport: 30000",
    "yaml-block": lambda name, key: f"{name}: |\n  {key}\nport: 30000",
    "json": lambda name, key: json.dumps({"x": 1, name: key, "port": 30000}),
    "compact": lambda name, key: json.dumps({"x": 1, name: key, "port": 30000}, separators=(",", ":")),
    "nested": lambda name, key: json.dumps({"said": json.dumps({name: key}), "port": 30000}),
    "repr": lambda name, key: repr({name: key, "port": 30000}),
    "pairs": lambda name, key: repr([(name, key), ("port", "30000")]),
    "cut": lambda name, key: f'port 30000 {{"{name}": "{key}',
}
"""How a name and its value stand together; each says also that the port is 30000."""

HEADERS: dict[str, Callable[[str], str]] = {
    "bearer": lambda key: f"port 30000 Bearer {key}",
    "authorization": lambda key: f"port 30000\nAuthorization: Bearer {key}\n",
    "basic": lambda key: f"port 30000 authorization: Basic {base64.b64encode(key.encode()).decode()}",
    "dict": lambda key: repr({"Authorization": f"Bearer {key}", "port": 30000}),
    "raw": lambda key: repr((b"Authorization", f"Bearer {key}".encode(), "30000")),
    "x-api-key": lambda key: f"port 30000\nX-API-Key: {key}",
    "userinfo": lambda key: f"http://user:{key}@host:30000/v1",
    "no-user": lambda key: f"redis://:{key}@host:30000/v1",
    "s3": lambda key: f"s3://AKIA:{key}@bucket/30000",
    "query": lambda key: f"http://host:30000/v1?key={key}&x=1",
    "signed": lambda key: f"s3://bucket/30000?X-Amz-Credential=a&X-Amz-Signature={key}",
    "path-query": lambda key: f"port 30000 GET /v1/loads?token={key}",
    "pem": lambda key: f"30000 -----BEGIN RSA PRIVATE KEY-----\n{key}\n{key}\n-----END RSA PRIVATE KEY-----",
}


def found(key: str, text: str) -> bool:
    """Whether a secret, or the half of it that could be told from chance, is in a text."""
    spelled = (key, json.dumps(key)[1:-1], base64.b64encode(key.encode()).decode())
    return any(spelling in text or spelling[:8] in text or spelling[-8:] in text for spelling in spelled)


@pytest.mark.parametrize("place", PLAIN)
@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(NAMES), key=words)
def test_a_value_with_the_name_of_a_secret_is_hidden(place: str, name: str, key: str) -> None:
    """In every spelling of flags, keywords, YAML, JSON; what stands beside it stays."""
    told = redact(PLAIN[place](name, key))
    assert not found(key, told), told
    assert "30000" in told


@pytest.mark.parametrize("place", HEADERS)
@settings(max_examples=25, deadline=None)
@given(key=words)
def test_headers_and_addresses_are_hidden(place: str, key: str) -> None:
    """Whatever the scheme; in user info with slashes too, and in every query."""
    told = redact(HEADERS[place](key))
    assert not found(key, told), told
    assert "30000" in told


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(VARIABLES), key=words)
def test_lines_of_an_environment_are_hidden(name: str, key: str) -> None:
    """As `env` and a `.env` file show them."""
    told = redact(f"PATH=/bin\n{name}={key}\nexport {name}={key}\nPORT=30000")
    assert not found(key, told), told
    assert "PORT=30000" in told


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(NAMES), key=phrases, joined=st.booleans())
def test_a_command_line_is_shown_without_its_secrets(name: str, key: str, joined: bool) -> None:
    """A shell's quoting of any value, and that text once more as text from outside."""
    words = [f"--{name}={key}"] if joined else [f"--{name}", key]
    command = shown_command(["python", *words, "--port", "30000"])
    assert not found(key, command), command
    assert command.endswith("--port 30000")
    assert not found(key, redact(shlex.join(["python", *words, "--port", "30000"])))


@settings(max_examples=50, deadline=None)
@given(key=phrases, before=st.text(max_size=20), after=st.text(max_size=20))
def test_what_the_process_knows_is_hidden_anywhere(key: str, before: str, after: str) -> None:
    """A key that a job names is hidden in any context: plain, in JSON, in an address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.job.redaction._noted", set())
        _known_anywhere(key, before, after)


def _known_anywhere(key: str, before: str, after: str) -> None:
    note_secret(key)
    for spelling in (key, json.dumps(key)[1:-1], quote(key, "")):
        told = redact(f"{before} wrong key {spelling} given {after}")
        assert spelling not in told.replace("***", "\0")


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(NAMES), key=words)
def test_secrets_of_a_configuration_are_read(name: str, key: str) -> None:
    """A server's `--config` file: its keys are hidden in its log whatever stands before them."""
    assert key in secrets_in(f"port: 1\n{yaml.safe_dump({name: key})}")


EVIDENCE = (
    "http://127.0.0.1:30000: row b000001-r12#s3: HTTP 400: expected 12 ids, got 13",
    "--max-total-tokens 5 --tokenizer-path org/model --chat-template /a/b@c/t.jinja",
    "eos_token='</s>' EOS_TOKEN=2 pad_token_id=0 skip_tokenizer_init=True api_key=None",
    '{"output_ids": [1, 2, 3], "meta_info": {"id": "7f3c", "completion_tokens": 3, "api_key": null}}',
    "servers.api_key_env: expected the key in $OPENAI_API_KEY, it is not set here",
    "store.credentials_block: block 'aws-credentials/x': expected an existing block",
    "s3://bucket/team@lab/p.jsonl:17: expected one JSON object a line",
    "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, an AWS profile",
    "connect to [::1]:30000 http://[::1]:30000/a@b user@host /home/me@work/x",
    "the API key is missing or wrong, a bearer token was expected",
)


@pytest.mark.parametrize("text", EVIDENCE)
def test_evidence_stays(text: str) -> None:
    """Ids, rids, paths, counts, names of variables are no secrets."""
    assert redact(text) == text


def test_a_log_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the arguments of a line nor in a traceback: flows log so from their import on."""
    importlib.import_module("flows")
    assert logging.getLogRecordFactory() is RedactedRecord
    try:
        raise ValueError("--api-key Zq12345678")
    except ValueError:
        logging.getLogger("x").exception("was %s", "HF_TOKEN=Zq12345678")
    assert "ValueError: --api-key ***" in caplog.text
    assert "was HF_TOKEN=***" in caplog.text
    assert "Zq12345678" not in caplog.text


def test_a_long_body_costs_little() -> None:
    """No pattern is worse than linear: megabytes without a space take a moment."""
    text = "a_-." * 250_000
    assert redact(text) == text
    assert redact(redact("api_key=abcdefgh")) == redact("api_key=abcdefgh") == "api_key=***"
