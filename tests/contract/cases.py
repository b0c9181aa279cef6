"""The table of requests, and what of an answer must agree between the stand-in and the genuine server."""

import json
import re
from collections.abc import Callable
from typing import Any

import attrs

from tests.support.embedded import CLOSER, END, MODEL, VOCAB, prompt

GREEDY = {"temperature": 0.0, "max_new_tokens": 48}
QUESTION = prompt("What is 2+2?").tolist()
OTHER = prompt("Anna has 3 apples and gets 4 more. How many?").tolist()


@attrs.frozen
class Case:
    """One request.

    Args:
        name: unique.
        path: where it goes.
        body: JSON object, raw bytes, or None for a GET.
        keep: what of the answer must agree; the whole normalised answer by default.
        method: HTTP method; POST when there is a body.
    """

    name: str
    path: str
    body: Any = None
    keep: Callable[[int, Any], Any] | None = None
    method: str = ""


def ask(input_ids: Any, /, *, sampling: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a greedy `/generate` body."""
    return {"input_ids": input_ids, "sampling_params": GREEDY | (sampling or {}), **fields}


VOLATILE = frozenset(
    {"e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details", "created"}
)
"""Keys whose values depend on time, cache or machine; that they are there is compared all the same."""


def normalise(value: Any, key: str = "") -> Any:
    """Return an answer without what may differ: times, cache hits, random rids, logprobs' last digits."""
    if key in VOLATILE:
        return "…"
    if isinstance(value, dict):
        return {k: normalise(v, k) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [normalise(v) for v in value]
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, str):
        return re.sub(r"\b[0-9a-f]{32}\b", "<rid>", value.replace(str(MODEL), "<model>"))
    return value


def whole(status: int, body: Any) -> Any:
    """Keep everything."""
    return {"status": status, "body": normalise(body)}


def first_line(status: int, body: Any) -> Any:
    """Keep the status, the keys, and the first line of the message: the rest echoes Python types."""
    kept = normalise(body)
    if isinstance(kept, dict) and isinstance(kept.get("message"), str):
        kept["message"] = kept["message"].split("\n")[0]
    return {"status": status, "body": kept}


def contract_error(status: int, body: Any) -> Any:
    """Keep the status and the first word group of a contract error, which lists all known fields."""
    text = body.get("error") if isinstance(body, dict) else None
    return {"status": status, "error": re.split(r", expected one of", str(text))[0]}


def status_only(status: int, body: Any) -> Any:
    """Keep the status."""
    return {"status": status}


def with_keys(*names: str) -> Callable[[int, Any], Any]:
    """Keep the status and some keys of the body."""

    def keep(status: int, body: Any) -> Any:
        return {
            "status": status,
            "body": {name: normalise(body.get(name, "missing"), name) for name in names},
        }

    return keep


def key_types(*names: str) -> Callable[[int, Any], Any]:
    """Keep the status and the types of some keys of the body."""

    def keep(status: int, body: Any) -> Any:
        return {"status": status, "types": {name: type(body.get(name)).__name__ for name in names}}

    return keep


def loads_shape(status: int, body: Any) -> Any:
    """Keep the keys of `/v1/loads` that a client needs, and the idle counts."""
    rank = body["loads"][0]
    names = (
        "dp_rank",
        "num_running_reqs",
        "num_waiting_reqs",
        "max_running_requests",
        "max_total_num_tokens",
    )
    return {
        "status": status,
        "version": body["version"],
        "rank": {name: rank.get(name, "missing") for name in names},
        "stamped": isinstance(rank.get("timestamp"), float),
    }


def chat(**fields: Any) -> dict[str, Any]:
    """Return a greedy chat request."""
    messages = [{"role": "user", "content": "What is 2+2?"}]
    return {"model": "m", "messages": messages, "max_tokens": 48, "temperature": 0.0, **fields}


def chat_message(status: int, body: Any) -> Any:
    """Keep what the model said and why it ended."""
    choice = body["choices"][0]
    message = {
        name: choice["message"].get(name) for name in ("role", "content", "reasoning_content", "tool_calls")
    }
    return {
        "status": status,
        "message": message,
        "finish_reason": choice["finish_reason"],
        "matched_stop": choice.get("matched_stop"),
        "usage": {name: body["usage"].get(name) for name in ("prompt_tokens", "completion_tokens")},
    }


def last_event(status: int, body: Any) -> Any:
    """Keep the last JSON event of a stream, how it ends, and whether chunks were cumulative."""
    events = [line[6:] for line in str(body).split("\n\n") if line.startswith("data: ")]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    lengths = [len(chunk.get("output_ids", [])) for chunk in chunks]
    return {
        "status": status,
        "done": events[-1:] == ["[DONE]"],
        "last": normalise(chunks[-1]) if chunks else None,
        "cumulative": lengths == sorted(lengths),
    }


def force(token: int, **sampling: Any) -> dict[str, Any]:
    """Return sampling that forces one id."""
    return {"max_new_tokens": 1, "logit_bias": {str(token): 1000.0}, **sampling}


def _bad(name: str, keep: Callable[[int, Any], Any], **sampling: Any) -> Case:
    return Case(name, "/generate", ask(QUESTION, sampling=sampling), keep)


def _scored(name: str, sampling: dict[str, Any] | None = None, /, **fields: Any) -> Case:
    sampling = {"max_new_tokens": 3} | (sampling or {})
    return Case(name, "/generate", ask(QUESTION, rid="lp", sampling=sampling, return_logprob=True, **fields))


CASES = [
    # completions
    Case("greedy", "/generate", ask(QUESTION, rid="greedy")),
    Case("greedy, another prompt", "/generate", ask(OTHER, rid="other")),
    Case("ids alone, no template", "/generate", ask([942, 285], rid="plain")),
    Case("one id", "/generate", ask([5], sampling={"max_new_tokens": 8}, rid="one")),
    Case("cut by its cap", "/generate", ask(QUESTION, sampling={"max_new_tokens": 3}, rid="cut")),
    Case("default cap", "/generate",
         {"input_ids": QUESTION, "sampling_params": {"temperature": 0, "ignore_eos": True}},
         with_keys("output_ids")),
    Case("null cap", "/generate", ask(QUESTION, sampling={"max_new_tokens": None}, rid="null")),
    Case("cap zero", "/generate", ask(QUESTION, sampling={"max_new_tokens": 0}, rid="zero")),
    Case("text and ids", "/generate", ask(QUESTION, rid="both", text="Hello")),
    Case("text only", "/generate", {"text": "What is 2+2?", "sampling_params": GREEDY, "rid": "text"}),
    Case("prompt ids echoed", "/generate", ask(QUESTION, rid="echo", return_prompt_token_ids=True)),
    Case("unknown top-level key is ignored", "/generate", ask(QUESTION, rid="extra", nobody_knows=1)),
    Case("whole text", "/generate", ask(QUESTION, rid="whole",
         sampling={"skip_special_tokens": False, "no_stop_trim": True})),
    Case("no_stop_trim alone", "/generate", ask(QUESTION, rid="trim", sampling={"no_stop_trim": True})),
    Case("special tokens kept", "/generate", ask(QUESTION, rid="s", sampling={"skip_special_tokens": False})),
    Case("stop id", "/generate", ask(QUESTION, rid="stopid", sampling={"stop_token_ids": [CLOSER]})),
    Case("stop string", "/generate", ask(QUESTION, rid="stopstr", sampling={"stop": "="})),
    Case("stop string, not trimmed", "/generate",
         ask(QUESTION, rid="s2", sampling={"stop": ["="], "no_stop_trim": True})),
    Case("stop pattern", "/generate", ask(QUESTION, rid="regex", sampling={"stop_regex": r"\d ="})),
    Case("ignore_eos", "/generate",
         ask(QUESTION, rid="ie", sampling={"ignore_eos": True, "max_new_tokens": 24})),
    Case("ignore_eos ignores stop ids too", "/generate",
         ask(QUESTION, rid="is", sampling={"ignore_eos": True, "stop_token_ids": [CLOSER]})),
    Case("forced closer", "/generate", ask(QUESTION, rid="closer", sampling=force(CLOSER))),
    Case("forced end", "/generate", ask(QUESTION, rid="end", sampling=force(END))),
    Case("forced last id", "/generate", ask(QUESTION, rid="last", sampling=force(VOCAB - 1))),
    Case("end on the last allowed id", "/generate", ask(QUESTION, rid="edge",
         sampling={"max_new_tokens": 1, "logit_bias": {str(END): 1000.0}})),
    Case("least count", "/generate", ask(QUESTION, rid="least", sampling={"min_new_tokens": 30})),
    Case("repetition penalty", "/generate", ask(QUESTION, rid="rep", sampling={"repetition_penalty": 1.3})),
    Case("frequency penalty", "/generate", ask(QUESTION, rid="freq", sampling={"frequency_penalty": 0.7})),
    Case("presence penalty", "/generate", ask(QUESTION, rid="pres", sampling={"presence_penalty": 0.7})),
    Case("logprobs", "/generate",
         ask(QUESTION, rid="lp", sampling={"max_new_tokens": 3}, return_logprob=True)),
    _scored("logprobs of the prompt", logprob_start_len=0),
    _scored("logprobs from its middle on", logprob_start_len=15),
    _scored("logprobs of its last id", logprob_start_len=16),
    _scored("logprobs from its end on", logprob_start_len=17),
    _scored("logprobs from beyond its end", logprob_start_len=18),
    _scored("best ids", logprob_start_len=14, top_logprobs_num=3),
    _scored("best ids of the output alone", top_logprobs_num=2),
    _scored("logprobs with texts", logprob_start_len=15, top_logprobs_num=1, return_text_in_logprobs=True),
    _scored("logprobs, cap zero", {"max_new_tokens": 0}, logprob_start_len=12, top_logprobs_num=1),
    _scored("logprobs, cold", {"temperature": 0.5, "top_p": 1e-6}, logprob_start_len=14, top_logprobs_num=2),
    _scored("logprobs, hot", {"temperature": 2.0, "top_p": 1e-6}, logprob_start_len=14, top_logprobs_num=2),
    _scored("logprobs, cold but greedy", {"temperature": 0.5, "top_k": 1}, top_logprobs_num=2),
    _scored("logprobs, penalised", {"max_new_tokens": 5, "repetition_penalty": 1.3}, logprob_start_len=14,
            top_logprobs_num=2),
    _scored("logprobs, penalised by frequency", {"max_new_tokens": 5, "frequency_penalty": 1.5},
            logprob_start_len=14, top_logprobs_num=2),
    _scored("logprobs, biased", {"logit_bias": {"577": 2.0}}, logprob_start_len=14, top_logprobs_num=2),
    _scored("logprobs, min_p and top_k cut", {"temperature": 1.0, "top_k": 3, "top_p": 1e-6, "min_p": 0.1},
            top_logprobs_num=2),
    Case("best ids are for who asks", "/generate", ask(QUESTION, rid="notasked", top_logprobs_num=2)),
    Case("logprobs of a batch, each its own", "/generate", {"input_ids": [QUESTION, OTHER],
         "rid": ["l0", "l1"], "sampling_params": GREEDY | {"max_new_tokens": 2},
         "return_logprob": [True, False], "logprob_start_len": [15, -1], "top_logprobs_num": [1, 0]}),
    Case("logprobs in a stream", "/generate", ask(QUESTION, rid="ls", stream=True, return_logprob=True,
         logprob_start_len=15, top_logprobs_num=1, sampling={"max_new_tokens": 3}), last_event),
    Case("a batch", "/generate", ask([QUESTION, OTHER], rid=["b0", "b1"])),
    Case("a batch of one", "/generate", ask([QUESTION], rid=["b2"])),
    Case("a batch with one rid", "/generate", ask([QUESTION, OTHER], rid="b3")),
    Case("sampling per item", "/generate", {"input_ids": [QUESTION, OTHER], "rid": ["p0", "p1"],
         "sampling_params": [GREEDY, GREEDY | {"max_new_tokens": 2}]}),
    Case("two samples", "/generate", ask(QUESTION, sampling={"n": 2, "max_new_tokens": 4})),
    Case("stream", "/generate", ask(QUESTION, rid="stream", stream=True), last_event),
    # length arithmetic, context 4096
    Case("silent cap by the context", "/generate", ask([5] * 4000, rid="c94", sampling={"max_new_tokens": 96,
         "ignore_eos": True}), with_keys("meta_info")),
    Case("prompt and cap beyond the context", "/generate", ask([5] * 4000, sampling={"max_new_tokens": 97})),
    Case("prompt at the bound", "/generate", ask([5] * 4090, sampling={"max_new_tokens": 1})),
    Case("prompt below the bound", "/generate", ask([5] * 4089, rid="below", sampling={"max_new_tokens": 1}),
         with_keys("meta_info")),
    Case("prompt of the context's length", "/generate", ask([5] * 4096, sampling={"max_new_tokens": 1})),
    Case("prompt longer than the context", "/generate", ask([5] * 5000, sampling={"max_new_tokens": 1})),
    # refusals
    Case("no JSON", "/generate", b"{", first_line),
    Case("NaN", "/generate", b'{"input_ids": [5], "sampling_params": {"temperature": NaN}}', first_line),
    Case("text as ids", "/generate", ask("abc"), first_line),
    Case("a float among ids", "/generate", ask([5, 1.5]), first_line),
    Case("text among ids", "/generate", ask([5, "6"]), first_line),
    Case("true among ids", "/generate", ask([5, True]), contract_error),
    Case("rid is a number", "/generate", ask(QUESTION, rid=5), first_line),
    Case("unknown sampling key", "/generate", ask(QUESTION, sampling={"seed": 1}), contract_error),
    Case("temperature is text", "/generate", ask(QUESTION, sampling={"temperature": "hot"}), contract_error),
    Case("no ids", "/generate", ask([])),
    Case("no input", "/generate", {"sampling_params": GREEDY}),
    Case("rids and batch differ", "/generate", ask([QUESTION, OTHER], rid=["x"])),
    Case("rids repeat", "/generate", ask([QUESTION, OTHER], rid=["a", "a"])),
    _bad("temperature below 0", whole, temperature=-1.0),
    _bad("top_p 0", whole, top_p=0.0),
    _bad("top_p above 1", whole, top_p=1.5),
    _bad("top_k 0", whole, top_k=0),
    _bad("min_p above 1", whole, min_p=2.0),
    _bad("repetition_penalty too large", whole, repetition_penalty=3.0),
    _bad("frequency_penalty too large", whole, frequency_penalty=3.0),
    _bad("max_new_tokens below 0", whole, max_new_tokens=-1),
    _bad("least above most", whole, min_new_tokens=9, max_new_tokens=3),
    _bad("bias outside the vocabulary", whole, logit_bias={str(VOCAB): 1.0}),
    Case("hidden states are off", "/generate", ask(QUESTION, return_hidden_states=True)),
    Case("stream of a bad request", "/generate",
         ask(QUESTION, stream=True, sampling={"top_p": 0.0}), last_event),
    Case("wrong method", "/generate", None, whole, "DELETE"),
    Case("unknown path", "/nowhere"),
    # introspection
    Case("health", "/health"),
    Case("health_generate", "/health_generate"),
    Case("ready", "/ready", None, status_only),
    Case("model_info", "/model_info", None, with_keys("tokenizer_path", "model_path", "is_generation",
         "preferred_sampling_params", "weight_version", "reasoning_parser", "tool_call_parser", "model_type",
         "architectures")),
    Case("get_model_info", "/get_model_info", None, with_keys("model_path", "weight_version")),
    Case("server_info", "/server_info", None, with_keys("model_path", "reasoning_parser", "tool_call_parser",
         "context_length", "max_running_requests", "max_queued_requests", "api_key", "allow_auto_truncate",
         "enable_strict_thinking", "skip_tokenizer_init", "status", "max_total_num_tokens",
         "max_req_input_len",
         "version", "watermark_default_enabled", "preferred_sampling_params", "speculative_algorithm")),
    Case("get_server_info", "/get_server_info", None, with_keys("model_path", "version", "reasoning_parser")),
    Case("server_info types", "/server_info", None,
         key_types("launch_command", "internal_states", "random_seed")),
    Case("models", "/v1/models", None, whole),
    Case("loads", "/v1/loads?include=core", None, loads_shape),
    Case("old load", "/get_load", None, status_only),
    Case("metrics are off", "/metrics", None, status_only),
    Case("flush the cache", "/flush_cache", {}, status_only),
    Case("abort an unknown rid", "/abort_request", {"rid": "nobody"}),
    Case("separate_reasoning", "/separate_reasoning",
         {"text": "<think>a</think>b", "reasoning_parser": "qwen3"}),
    # chat, parser on
    Case("chat", "/v1/chat/completions", chat(), chat_message),
    Case("chat, not separated", "/v1/chat/completions", chat(separate_reasoning=False), chat_message),
    Case("chat, cut in the reasoning", "/v1/chat/completions", chat(max_tokens=3), chat_message),
    Case("chat with ids", "/v1/chat/completions", chat(return_token_ids=True), with_keys("usage")),
]  # fmt: skip
