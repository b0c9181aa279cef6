"""The tool calls of an answer: which functions it calls with what, in every family's notation."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen(slots=True, eq=False)
class Call:
    """One tool call.

    Args:
        id: as the model wrote it (Kimi: `functions.look:0`), else made up from its place.
        name: of the function.
        arguments: as JSON text, verbatim where the model writes JSON.
    """

    id: str
    name: str
    arguments: str

    def as_message(self) -> dict[str, Any]:
        """Return the call as an assistant message holds it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def as_call(message: Mapping[str, Any]) -> Call:
    """Return a call from the form that an assistant message holds."""
    function = message["function"]
    return Call(message["id"], function["name"], function["arguments"])


_KIMI = re.compile(
    r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>", re.DOTALL
)
_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_JSON = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<tool_call>\s*<function=([^>]+)>(.*?)</function>\s*</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_KEYED = re.compile(r"<tool_call>\s*([^<\s]+)\s*((?:<arg_key>.*?</arg_value>\s*)*)</tool_call>", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_INVOKE = re.compile(r'<(?:｜DSML｜)?invoke name="([^"]+)">(.*?)</(?:｜DSML｜)?invoke>', re.DOTALL)
_NAMED = re.compile(
    r'<(?:｜DSML｜)?parameter name="([^"]+)"(?: string="(true|false)")?>(.*?)</(?:｜DSML｜)?parameter>',
    re.DOTALL,
)
_TAGGED = re.compile(r"<([\w-]+)>(.*?)</\1>", re.DOTALL)
_CHANNEL = re.compile(r"to=functions\.([\w.-]+).*?<\|message\|>(.*)", re.DOTALL)


def read_calls(text: str) -> list[Call]:
    """Return the calls in the decoded tool-call segments of an answer; [] when none can be read.

    For matching and for history only: what is stored are the ids.
    """
    calls = [Call(id, name, arguments) for id, name, arguments in _found(text.replace("]<]minimax[>[", ""))]
    return [call if call.id else attrs.evolve(call, id=f"call_{i}") for i, call in enumerate(calls)]


def _found(text: str) -> Iterator[tuple[str, str, str]]:
    for head, arguments in _KIMI.findall(text):
        yield head.strip(), head.strip().removeprefix("functions.").rsplit(":", 1)[0], arguments.strip()
    for head, body in _DEEPSEEK.findall(text):
        name, _, fenced = body.partition("\n")
        if "```" in fenced:  # R1: `function`, then name and fenced JSON
            yield "", name.strip(), fenced.strip().removeprefix("```json").removesuffix("```").strip()
        else:
            yield "", head.strip(), body.strip()
    for body in _JSON.findall(text):
        call = _parsed(body)
        if isinstance(call, Mapping) and isinstance(call.get("name"), str):
            yield "", call["name"], json.dumps(call.get("arguments", {}), ensure_ascii=False)
    for name, body in _FUNCTION.findall(text):
        yield "", name, _object(_PARAMETER.findall(body))
    for name, body in _KEYED.findall(text):
        yield "", name, _object(_PAIR.findall(body))
    for name, body in _INVOKE.findall(text):
        named = [(key, value) for key, _, value in _NAMED.findall(body)]
        yield "", name, _object(named or _TAGGED.findall(body))
    for name, body in _CHANNEL.findall(text):
        yield "", name, body.strip()


def _object(pairs: Sequence[tuple[str, str]]) -> str:
    """Return name and value pairs as a JSON object; a value that is JSON is taken as such."""
    values = {}
    for key, value in pairs:
        parsed = _parsed(value)
        values[key.strip()] = value if parsed is None else parsed
    return json.dumps(values, ensure_ascii=False)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def splice_results(
    calls: Sequence[Call], recorded: Mapping[str, Any], results: Sequence[Mapping[str, Any]], match: str
) -> list[dict[str, Any]] | None:
    """Return recorded tool results as answers to the calls that were really made; None when one has no match.

    Args:
        calls: what the model called.
        recorded: the recorded answer whose calls gave `results`.
        results: the recorded tool messages behind it.
        match: `position`: the k-th result answers the k-th call, and there are as many; `name`: the first
            unused result of a call to the same function; `name_args`: with equal arguments too.
    """
    known = [_recorded(call) for call in recorded.get("tool_calls") or ()]
    if match == "position":
        if len(calls) != len(results):
            return None
        return [_answering(call, result) for call, result in zip(calls, results, strict=True)]
    left = list(zip(known, _in_call_order(recorded, results), strict=False))
    spliced = []
    for call in calls:
        fits = (i for i, (name_args, _) in enumerate(left) if _same(call, name_args, match))
        place = next(fits, None)
        if place is None:
            return None
        spliced.append(_answering(call, left.pop(place)[1]))
    return spliced


def _recorded(call: Mapping[str, Any]) -> tuple[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    return str(function.get("name")), _parsed(arguments) if isinstance(arguments, str) else arguments


def _same(call: Call, recorded: tuple[str, Any], match: str) -> bool:
    name, arguments = recorded
    return call.name == name and (match == "name" or _parsed(call.arguments) == arguments)


def _in_call_order(
    recorded: Mapping[str, Any], results: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Order results as the calls were made, by `tool_call_id` where all have one."""
    ids = [call.get("id") for call in recorded.get("tool_calls") or ()]
    by_id = {result.get("tool_call_id"): result for result in results}
    if None not in ids and len(by_id) == len(results) and set(ids) == set(by_id):
        return [by_id[id] for id in ids]
    return list(results)


def _answering(call: Call, result: Mapping[str, Any]) -> dict[str, Any]:
    return {**result, "role": "tool", "tool_call_id": call.id, "name": call.name}
