"""Payloads, replies and errors of SGLang, by tables (bodies as in SGLang 0.5.23)."""

import json
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import RowError, ServerError, SurroundingsError
from tasks.fleet.window import Window, on_busy, on_loads, open_window
from tasks.rows.records import Request
from tasks.sglang.gates import parse_version, refusals, same_model, warnings
from tasks.sglang.idlist import split_ids
from tasks.sglang.info import Loads, ServerInfo, read_info, read_loads
from tasks.sglang.outcomes import AttemptError, error_message
from tasks.sglang.protocol import EXTRA_BYTES, SAMPLING_DEFAULTS, Sent, build_payload, read_reply

ROW = Request("s:1#t0~s0", np.array([5, 6, 7], np.int32), 8, seed=11)
RID = "0123456789abcdef0123456789abcdef"
SENT = Sent("http://127.0.0.1:1", "0.5.23", RID, 0.5, 1.0)


def _reply(ids: Any, finish: Any, /, **meta: Any) -> bytes:
    info = {"id": RID, "finish_reason": finish, "prompt_tokens": 3, "completion_tokens": 2} | meta
    return json.dumps({"text": "", "output_ids": ids, "meta_info": info}, separators=(",", ":")).encode()


STOP = {"type": "stop", "matched": 9}


def test_payload_has_every_sampling_key_and_the_row_wins() -> None:
    """Defaults under the job's sampling under the row's own; the cap, the seed and a fresh rid."""
    row = Request("r", np.array([1, 2], np.int32), 7, seed=3, sampling={"temperature": 0.1})
    body = json.loads(build_payload(row, {"temperature": 0.9, "top_p": 0.5}, RID, 10, "0.5.23"))
    assert body["input_ids"] == [1, 2]
    assert (body["rid"], body["stream"]) == (RID, False)
    expected = SAMPLING_DEFAULTS | {
        "temperature": 0.1,
        "top_p": 0.5,
        "max_new_tokens": 7,
        "sampling_seed": 3,
    }
    assert body["sampling_params"] == expected


@pytest.mark.parametrize(
    ("version", "known"), [("0.5.2", False), ("0.5.3", True), ("0.5.23", True), ("", True)]
)
def test_the_seed_goes_only_to_versions_that_know_it(version: str, known: bool) -> None:
    """An unknown sampling key is a 500 before 0.5.23 and a 400 since."""
    body = json.loads(build_payload(ROW, {}, RID, 100, version))
    assert ("sampling_seed" in body["sampling_params"]) is known


@pytest.mark.parametrize("ids", [[5, 100], [100]], ids=["last", "only"])
def test_an_id_outside_the_vocabulary_is_not_sent(ids: list[int]) -> None:
    """One such id kills a server from 0.5.21 on."""
    row = Request("r", np.array(ids, np.int32), 7, seed=3)
    with pytest.raises(RowError) as caught:
        build_payload(row, {}, RID, 100)
    assert (caught.value.code, caught.value.offset) == ("bad_record", len(ids) - 1)


@pytest.mark.parametrize(
    ("finish", "reason", "matched"),
    [
        pytest.param(STOP, "stop", 9, id="end id"),
        pytest.param({"type": "length", "length": 2}, "length", None, id="length"),
        pytest.param({"type": "stop", "matched": "NaN happened"}, "stop", None, id="nan"),
        pytest.param({"type": "stop", "matched": "###"}, "stop", None, id="stop string"),
    ],
)
def test_a_reply_is_kept_verbatim(finish: dict[str, Any], reason: str, matched: int | None) -> None:
    """Ids as int32, finish and counts as served, unknown keys under `extras`."""
    done = read_reply(ROW, 200, _reply([8, 9], finish, num_retractions=1, spec_accept=0.5), SENT)
    assert done.output_ids.dtype == np.int32
    assert done.output_ids.tolist() == [8, 9]
    assert (done.finish_reason, done.matched_stop) == (reason, matched)
    assert done.facts["finish_reason"] == finish
    assert done.facts["extras"] == {"spec_accept": 0.5}
    assert (done.facts["rid"], done.facts["server"], done.facts["num_retractions"]) == (RID, SENT.url, 1)


def test_retractions_are_counted_under_their_older_name() -> None:
    """SGLang 0.5.9 says `total_retractions`."""
    done = read_reply(ROW, 200, _reply([8, 9], STOP, total_retractions=2), SENT)
    assert (done.facts["num_retractions"], done.facts["extras"]) == (2, {})


def test_extras_are_bounded() -> None:
    """A reply with megabytes of unknown keys leaves at most `EXTRA_BYTES` of them."""
    done = read_reply(
        ROW, 200, _reply([8, 9], STOP, hidden_states=[[1.0] * 999], big=[0.5] * 9999, small=1), SENT
    )
    assert done.facts["extras"] == {"small": 1}
    assert len(json.dumps(done.facts["extras"])) < EXTRA_BYTES


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50), st.text(max_size=30), st.booleans())
def test_the_cut_out_list_equals_the_parsed_one(ids: list[int], text: str, spaced: bool) -> None:
    """Whatever the text beside it holds, ids read by numpy are those that JSON holds."""
    quoted = text + '"output_ids":[1,2]' + text
    body = json.dumps(
        {"text": quoted, "output_ids": ids, "meta_info": {}}, separators=None if spaced else (",", ":")
    ).encode()
    rest, cut = split_ids(body)
    assert (spaced and cut is None) or (cut is not None and cut.tolist() == ids)
    assert json.loads(rest)["text"] == quoted


@pytest.mark.parametrize(
    "text",
    ["", "1,,2", ",1", "1,", "1 2", "-1", "1.5", "1,null", "[1]", '1,"2"', "1e3", "1]", "1"],
)
def test_an_unusual_list_is_left_to_the_json_parser(text: str) -> None:
    """Empty, torn, signed, nested, quoted: only plain lists of digits are read by numpy."""
    body = b'{"output_ids":[' + text.encode() + (b"" if text == "1" else b'],"meta_info":{}}')
    rest, cut = split_ids(body)
    if text == "1]":
        assert cut is not None
    else:
        assert (rest, cut) == (body, None)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        pytest.param(_reply([8], {"type": "abort", "message": "Aborted"}), "aborted", id="abort"),
        pytest.param(_reply([], {"type": "abort", "message": "Abort in queue"}), "aborted", id="queue abort"),
        pytest.param(_reply([8], {"type": "abort", "status_code": 503}), "aborted", id="abort 503"),
        pytest.param(_reply([8], None), "aborted", id="no finish"),
        pytest.param(_reply([], STOP), "no_output", id="empty ids"),
        pytest.param(_reply(None, STOP), "no_output", id="no ids (0.4.x)"),
        pytest.param(_reply([8, "9"], STOP), "malformed", id="text among ids"),
        pytest.param(_reply([8, 1.5], STOP), "malformed", id="float among ids"),
        pytest.param(_reply([8, None], STOP), "malformed", id="null among ids"),
        pytest.param(_reply([[8], [9, 9]], STOP), "malformed", id="nested ids"),
        pytest.param(_reply([8, -1], STOP), "malformed", id="negative id"),
        pytest.param(_reply([8, 2**31], STOP), "malformed", id="id beyond int32"),
        pytest.param(_reply([8, 2**64], STOP), "malformed", id="id beyond int64"),
        pytest.param(_reply([8, 9], {"type": "stop", "matched": 2**31}), "malformed", id="matched too wide"),
        pytest.param(_reply([8, 9], STOP, cached_tokens=2**31), "malformed", id="cached_tokens too wide"),
        pytest.param(_reply([8, 9], STOP, prompt_tokens=2**63), "malformed", id="prompt_tokens too wide"),
        pytest.param(_reply([8, 9], STOP, total_retractions=2**40), "malformed", id="retractions too wide"),
        pytest.param(_reply([8, 9], STOP, id="other"), "malformed", id="another request's reply"),
        pytest.param(b'{"output_ids": [8', "malformed", id="cut JSON"),
        pytest.param(b"<html>", "cut", id="HTML"),
        pytest.param(b"[]", "malformed", id="array"),
        pytest.param(b'{"output_ids": [8]}', "malformed", id="no meta_info"),
        pytest.param(b"", "malformed", id="empty"),
    ],
)
def test_a_reply_that_another_attempt_can_mend(body: bytes, outcome: str) -> None:
    """Partials of aborted requests, missing ids and broken bodies are never kept."""
    with pytest.raises(AttemptError) as caught:
        read_reply(ROW, 200, body, SENT)
    assert caught.value.outcome == outcome
    assert caught.value.retry
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("told", ["low", None, [1], True], ids=str)
def test_log_probabilities_that_are_no_numbers_cost_only_themselves(told: Any) -> None:
    """What a server tells beside the ids is noted as a fault; the row and the dispatch go on."""
    body = _reply([8, 9], STOP, output_token_logprobs=[[-1.0, 8, None], [told, 9, None]])
    kept = read_reply(attrs.evolve(ROW, logprobs=True), 200, body, SENT)
    assert kept.output_ids.tolist() == [8, 9]
    assert "logprobs" not in kept.facts
    assert "logprobs_fault" in kept.facts


TOO_LONG = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
TOO_MANY = "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested…"
AT_BOUND = "Input length (4090 tokens) exceeds the maximum allowed length (4090 tokens). Use a shorter input…"


@pytest.mark.parametrize(
    ("status", "body", "kind", "detail"),
    [
        pytest.param(400, {"error": {"message": TOO_LONG}}, RowError, "prompt_too_long", id="long"),
        pytest.param(400, {"error": {"message": AT_BOUND}}, RowError, "prompt_too_long", id="at the bound"),
        pytest.param(400, {"error": {"message": TOO_MANY}}, RowError, "prompt_too_long", id="prompt and cap"),
        pytest.param(400, {"error": "unknown field `seed`"}, RowError, "poison", id="error is a string"),
        pytest.param(
            400, {"object": "error", "message": "1 validation error"}, RowError, "poison", id="object"
        ),
        pytest.param(
            400, {"error": {"message": "input_ids cannot be empty."}}, RowError, "poison", id="nested"
        ),
        pytest.param(422, "Failed to deserialize", RowError, "poison", id="422 text"),
        pytest.param(
            400,
            {"error": {"message": f"Duplicate request ID detected: {RID}"}},
            AttemptError,
            "duplicate_rid",
            id="duplicate rid",
        ),
        pytest.param(401, {"error": "Unauthorized"}, SurroundingsError, "", id="no key"),
        pytest.param(403, {"error": "Forbidden"}, SurroundingsError, "", id="wrong key"),
        pytest.param(404, {"detail": "Not Found"}, SurroundingsError, "", id="not SGLang"),
        pytest.param(307, "", SurroundingsError, "", id="redirect"),
        pytest.param(408, "", AttemptError, "busy", id="408"),
        pytest.param(429, "", AttemptError, "busy", id="429"),
        pytest.param(
            503,
            {"object": "error", "message": "The request queue is full.", "code": 503},
            AttemptError,
            "busy",
            id="queue full",
        ),
        pytest.param(500, "Internal Server Error", AttemptError, "failed", id="500 text"),
        pytest.param(
            500, {"message": "Out of memory even after retracting"}, AttemptError, "failed", id="oom"
        ),
        pytest.param(502, "<html>", AttemptError, "cut", id="proxy"),
    ],
)
def test_who_acts_on_an_error(status: int, body: Any, kind: type[Exception], detail: str) -> None:
    """Each status and body shape is one error class: the row's, the server's, or a person's."""
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    with pytest.raises(kind) as caught:
        read_reply(ROW, status, raw, SENT)
    told = caught.value
    assert detail == (getattr(told, "code", "") or getattr(told, "outcome", ""))
    assert (getattr(told, "outcome", "") == "busy") is (isinstance(told, ServerError) and not told.counts)


def test_an_error_that_echoes_the_prompt_is_cut() -> None:
    """SGLang's 400 can echo a megabyte of input."""
    assert len(error_message(b'{"message": "' + b"1, " * 10**6 + b'"}')) < 600
    assert len(error_message(json.dumps({"message": "x" * 5000}).encode())) < 600


TAIL_VERSIONS = ("0.5.1", "0.5.3.post3", "0.5.4.post1")
RIGHT_VERSIONS = ("0.5.0rc2", "0.5.0", "0.5.4.post3", "0.5.5", "0.5.23")


def _info(**fields: Any) -> ServerInfo:
    flags = {key: fields.pop(key) for key in list(fields) if key not in ServerInfo.__slots__}
    return ServerInfo("http://x:1", **({"version": "0.5.23"} | fields), flags=flags)


@pytest.mark.parametrize(
    ("info", "word"),
    [
        *[pytest.param(_info(version=v), "prompt ids before", id=v) for v in TAIL_VERSIONS],
        *[pytest.param(_info(version=v), "no output_ids", id=v) for v in ("0.4.6.post5", "0.4.10.post2")],
        *[pytest.param(_info(version=v), "", id=v) for v in RIGHT_VERSIONS],
        pytest.param(_info(version="0.5.3", skip_tokenizer_init=True), "", id="0.5.3 with ids only"),
        pytest.param(_info(allow_auto_truncate=True), "--allow-auto-truncate", id="truncates"),
        pytest.param(_info(watermark_enforce_all=True), "watermark", id="watermark"),
        pytest.param(_info(watermark_default_enabled=True), "watermark", id="watermark by default"),
        pytest.param(
            _info(speculative_algorithm="EAGLE3", speculative_accept_threshold_acc=0.9),
            "below 1.0",
            id="lossy speculation",
        ),
        pytest.param(
            _info(speculative_algorithm="EAGLE3", speculative_accept_threshold_acc=1.0), "", id="exact"
        ),
        pytest.param(_info(speculative_accept_threshold_acc=0.9), "", id="no speculation"),
        pytest.param(_info(gateway=True, workers=("http://a",)), "http://a", id="gateway"),
        pytest.param(_info(enable_deterministic_inference=True), "min_p", id="min_p kills"),
    ],
)
def test_servers_that_may_not_make_token_data(info: ServerInfo, word: str) -> None:
    """Versions and flags that change tokens are refused with the flag's name; others pass."""
    found = refusals(info, {"min_p": 0.1})
    assert bool(found) is bool(word)
    assert word in " ".join(found)


def test_warnings_name_the_difference() -> None:
    """Another tokenizer name, preferred sampling and quantization are told, not refused."""
    info = _info(
        tokenizer_path="org/Other",
        quantization="fp8",
        preferred_sampling_params="{}",
        enable_strict_thinking=True,
        lora_paths=["a"],
    )
    told = " ".join(warnings(info, "org/Model"))
    words = ("org/Other", "fp8", "--preferred-sampling-params", "--enable-strict-thinking", "LoRA")
    assert all(word in told for word in words)
    assert warnings(_info(model_path="/cache/models--org--Model/snapshots/ab12"), "org/Model") == []


def test_versions_are_ordered() -> None:
    """Release candidates before releases before posts; text that is no version is unknown."""
    texts = ["0.4.10.post2", "0.5.0rc2", "0.5.0", "0.5.4", "0.5.4.post3", "0.5.10", "0.5.23"]
    assert sorted(texts, key=parse_version) == texts
    assert parse_version("main") == (0, 0, 0, 0)
    assert not same_model("a/b", "")


def test_secrets_of_a_server_are_not_kept() -> None:
    """`/server_info` holds both keys in clear and again in the launch command."""
    body = {
        "model_path": "/m",
        "api_key": "sk-one",
        "admin_api_key": "sk-two",
        "launch_command": "--model-path /m --api-key sk-one --admin-api-key=sk-two --file-password 'p w'",
        "version": "0.5.23",
    }
    kept = repr(read_info("http://x:1", body, {}, {})) + json.dumps(read_info("u", body, {}, {}).describe())
    assert not any(secret in kept for secret in ("sk-one", "sk-two", "p w"))
    assert "--model-path /m" in kept


def test_loads_add_up_over_ranks_and_old_shapes() -> None:
    """`/v1/loads` with two ranks, and `/get_load` of servers before 0.5.21."""
    rank = {"num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.5, "max_running_requests": 8}
    loads = read_loads({"loads": [rank, rank | {"token_usage": 0.7, "queues": {"retracted": 3}}]})
    assert loads is not None
    assert (loads.running, loads.waiting, loads.max_running, loads.token_usage, loads.retracted) == (
        4,
        2,
        16,
        0.7,
        3,
    )
    old = read_loads([{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2}])
    assert old is not None
    assert (old.running, old.waiting) == (3, 2)
    assert read_loads({"detail": "Not Found"}) is None


@pytest.mark.parametrize(
    ("limit", "in_flight", "seen", "expected"),
    [
        pytest.param(256, 256, {"running": 256, "waiting": 0}, 261, id="no one waits: 2 % more"),
        pytest.param(32, 32, {"running": 32, "waiting": 0, "max": 64}, 64, id="slots are idle: all of them"),
        pytest.param(4, 4, {"running": 4, "waiting": 0, "max": 64}, 8, id="slots are idle: twice as many"),
        pytest.param(65, 65, {"running": 64, "waiting": 0, "max": 64}, 66, id="no slot is idle: one more"),
        pytest.param(100, 100, {"running": 100, "waiting": 0, "max": 2048, "token_usage": 0.6}, 150,
                     id="idle slots, memory for half as many rows again"),
        pytest.param(261, 261, {"running": 100, "waiting": 0, "max": 256}, 261, id="most are on their way"),
        pytest.param(256, 200, {"running": 200, "waiting": 0}, 256, id="not full: no more"),
        pytest.param(256, 256, {"running": 250, "waiting": 5}, 256, id="a short queue is right"),
        pytest.param(300, 300, {"running": 256, "waiting": 44}, 261, id="a long queue shrinks it to target"),
        pytest.param(256, 256, {"running": 256, "waiting": 0, "token_usage": 0.95}, 256, id="memory is full"),
        pytest.param(
            256, 256, {"running": 200, "waiting": 0, "retracted": 2}, 230, id="retractions: a tenth less"
        ),
        pytest.param(8, 8, {"running": 64, "waiting": 40}, 8, id="others' rows do not raise it"),
        pytest.param(1, 1, {"running": 0, "waiting": 90}, 1, id="never below one"),
    ],
)  # fmt: skip
def test_the_window_keeps_one_row_waiting(
    limit: int, in_flight: int, seen: dict[str, Any], expected: int
) -> None:
    """Waiting rows stay within [1, max(4, 2 %)] of the running ones."""
    rank = {f"num_{key}_reqs": seen[key] for key in ("running", "waiting")}
    rank |= {"token_usage": seen.get("token_usage", 0.0), "queues": {"retracted": seen.get("retracted", 0)}}
    rank["max_running_requests"] = seen.get("max")
    loads = read_loads({"loads": [rank]})
    assert loads is not None
    assert on_loads(Window(limit), loads, in_flight).limit == expected


def test_windows_open_at_what_the_server_runs() -> None:
    """The job's wish, else the server's slots and one to wait, else a modest guess; a 503 takes a tenth."""
    assert [open_window(w, s).limit for w, s in ((7, 256), (None, 256), (None, 2), (None, None))] == [
        7,
        261,
        3,
        64,
    ]
    assert [open_window(w, s, 4).limit for w, s in ((7, 256), (None, 256), (None, 2))] == [2, 66, 1]
    assert on_busy(Window(100)).limit == 90
    assert on_busy(Window(1)).limit == 1


@pytest.mark.parametrize("runs", [1, 2, 3, 16])
@pytest.mark.parametrize("first", [None, 4096], ids=["own-share", "far-too-much"])
def test_runs_that_share_a_server_fill_it_and_do_not_overrun_it(runs: int, first: int | None) -> None:
    """Each sees only the server's account and its own rows; together they keep a short queue at most."""
    slots = 256
    windows = [open_window(first, slots, runs) for _ in range(runs)]
    for _ in range(200):
        windows = _looked(windows, slots)
    waiting = sum(window.limit for window in windows) - slots
    assert 0 < waiting <= 6 * runs + 6, [window.limit for window in windows]
    if runs > 1:  # one is in its tail: the others take what it leaves
        for _ in range(200):
            windows[0] = Window(1, sharers=runs)
            windows = _looked(windows, slots)
        assert sum(window.limit for window in windows[1:]) + 1 >= slots


def _looked(windows: list[Window], slots: int) -> list[Window]:
    """Every run fills its window, then looks at the server once."""
    rows = sum(window.limit for window in windows)
    loads = Loads(running=min(rows, slots), waiting=max(0, rows - slots))
    return [on_loads(window, loads, window.limit) for window in windows]
