"""The faithfulness probe: what one server does to token ids, by channel, with evidence.

Transport is proved without relying on what the model says: `logit_bias` forces the closer and the end in
one-token requests, and the same ids must come back. Then a natural answer is asked for and shown. Only the
`/generate` ids decide; the other channels (its text, chat completions) are listed for what they lose.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from tasks.errors import ServerError, SurroundingsError
from tasks.rows.records import Ids
from tasks.sglang.client import ServerClient
from tasks.sglang.gates import half_refusal
from tasks.sglang.info import ServerInfo
from tasks.sglang.judge import (
    FORCE,
    Check,
    ProbePlan,
    finish_of,
    has_closed,
    in_vocabulary,
    judge_forced,
    judge_natural,
    read_ids,
    shorten,
    shown,
    verdict_of,
)
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.protocol import SAMPLING_DEFAULTS

EMPTY_TRIES: Final = 5
"""A server that answers without ids so many times in a row does so always."""

END_ROOM: Final = 2
"""Cap when the end is forced: SGLang 0.5.16 and before call an end on the last allowed id `length`."""


@attrs.frozen(slots=True, eq=False)
class ProbeReport:
    """What a server does to token ids.

    Args:
        url: the server.
        verdict: `faithful`, `unfaithful` or `unknown`.
        checks: what was checked, in order.
        server: what the server says of itself.
        prompt_ids: int32[n]: what was sent.
        natural_ids: int32[m]: the natural answer's ids, verbatim.
        names: display name of each natural id.
        text: the natural answer decoded by us.
        prompt_names: display name of each prompt id.
    """

    url: str
    verdict: str
    checks: tuple[Check, ...]
    server: ServerInfo
    prompt_ids: Ids
    natural_ids: Ids
    names: tuple[str, ...]
    text: str
    prompt_names: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the JSON object of the `probe` verb."""
        return {
            "url": self.url,
            "verdict": self.verdict,
            "checks": [attrs.asdict(check) for check in self.checks],
            "server": self.server.describe(),
            "natural": {"ids": self.natural_ids.tolist(), "names": list(self.names), "text": self.text},
        }

    def lines(self) -> list[str]:
        """Return the report as plain lines for a person: what was sent, what came back, what was checked."""
        info = self.server
        parser = info.reasoning_parser or "off"
        head = [
            f"{self.url}: {self.verdict} · SGLang {info.version or '?'} · {info.model_path or '?'} · "
            f"reasoning parser {parser}",
            f"  sent  {_row(self.prompt_ids, self.prompt_names)}",
            f"  got   {_row(self.natural_ids, self.names)}",
        ]
        width = max((len(c.name) for c in self.checks), default=0)
        return head + [
            f"  {'ok  ' if c.passed else 'LOST' if c.channel != 'generate' else 'FAIL'} {c.channel:<8} "
            f"{c.name:<{width}}  expected {c.expected}; got {c.got}"
            for c in self.checks
        ]


def _row(ids: Ids, names: Sequence[str], most: int = 24) -> str:
    parts = [f"{i}:{n}" for i, n in zip(ids.tolist(), names, strict=False)]
    if len(parts) > most:
        parts = [*parts[: most // 2], f"… {len(parts) - most} more …", *parts[-most // 2 :]]
    return " ".join(parts)


async def probe_server(client: ServerClient, plan: ProbePlan, info: ServerInfo) -> ProbeReport:
    """Ask one server and judge it.

    Raises:
        ServerError: it does not answer.
        SurroundingsError: the key is missing or wrong, it has no room for the question, it refuses the
            request for good, or is half of a server.
    """
    if half := half_refusal(info):
        raise SurroundingsError(f"{client.url}: {half}")
    plan = _fitting(plan, info)
    checks: list[Check] = []
    for closer in dict.fromkeys(plan.closer_ids):
        checks += await _forced(client, plan, "closer", closer)
    checks += await _forced(client, plan, "end", plan.end_ids[0], ends=True)
    checks += await _forced(client, plan, "last_id", plan.vocab_size - 1)
    reply = await _natural(client, plan)
    natural = read_ids(reply.get("output_ids"))
    checks += judge_natural(plan, reply)
    closed = has_closed(plan, natural)
    text = plan.decode(natural) if in_vocabulary(natural, plan.vocab_size) else ""
    checks += _text_channel(plan, natural, text, reply)
    checks += await _tokenizer(client, plan, info)
    checks += await _chat_channel(client, plan, info)
    return ProbeReport(
        url=client.url,
        verdict=verdict_of(checks, closed),
        checks=tuple(checks),
        server=info,
        prompt_ids=plan.input_ids,
        natural_ids=natural,
        names=tuple(plan.name_of(i) if 0 <= i < plan.vocab_size else str(i) for i in natural.tolist()),
        text=text,
        prompt_names=tuple(plan.name_of(i) for i in plan.input_ids.tolist()),
    )


def _fitting(plan: ProbePlan, info: ServerInfo) -> ProbePlan:
    """Return a plan whose cap is what the server's context and KV pool leave, by the arithmetic of rows."""
    known = [size for size in (info.context_length, info.max_total_num_tokens) if size is not None]
    sent, bounds = int(plan.input_ids.size), [size - 2 - END_ROOM for size in known]
    if info.max_req_input_len is not None:
        bounds.append(info.max_req_input_len - 1)
    if bounds and sent > min(bounds):
        raise SurroundingsError(
            f"{info.url}: expected room for the probe's question, a prompt of at most "
            f"{max(0, min(bounds))} ids, got {sent}: start it with a larger --context-length, or with more "
            "memory for its KV pool"
        )
    room = min([plan.max_new_tokens, *(size - 2 - sent for size in known)])
    return attrs.evolve(plan, max_new_tokens=room)


async def _forced(
    client: ServerClient, plan: ProbePlan, name: str, token: int, *, ends: bool = False
) -> list[Check]:
    params = SAMPLING_DEFAULTS | {
        "max_new_tokens": END_ROOM if ends else 1,
        "temperature": 0.0,
        "logit_bias": {str(token): FORCE},
    }
    try:
        reply = await _generate(client, {"input_ids": plan.input_ids, "sampling_params": params})
    except AttemptError as error:
        if error.outcome != "bad_request":
            raise
        wanted = f"[{token}] {plan.name_of(token)}"
        return [Check(f"{name}_forced", "generate", False, wanted, str(error))]
    return judge_forced(plan, name, token, reply, ends=ends)


async def _natural(client: ServerClient, plan: ProbePlan) -> dict[str, Any]:
    """Ask for the natural answer; what is refused for good is not asked again: a person must act."""
    try:
        return await _generate(client, _natural_body(plan))
    except AttemptError as error:
        if error.outcome != "bad_request":
            raise
        raise SurroundingsError(
            f"{error} (the probe: {plan.input_ids.size} ids, max_new_tokens {plan.max_new_tokens}): "
            "expected an answer; look at the job's sampling and the server's limits (--context-length), and "
            "at any proxy in front of it"
        ) from error


async def _generate(client: ServerClient, body: dict[str, Any]) -> dict[str, Any]:
    """Ask `/generate`; a reply without ids counts only when it comes `EMPTY_TRIES` times in a row.

    Other ids than those expected are proof at once; none at all may be a passing fault.

    Raises:
        AttemptError: no usable answer, or the request was aborted: nothing is shown by it.
    """
    for _ in range(EMPTY_TRIES):
        reply = await client.ask("/generate", body)
        finish = finish_of(reply)
        if finish.get("type") == "abort":
            raise AttemptError("aborted", f"{client.url}: a probe was aborted: {finish.get('message')}")
        if reply.get("output_ids"):
            break
    return reply


def _text_channel(plan: ProbePlan, natural: Ids, text: str, reply: Mapping[str, Any]) -> list[Check]:
    got = reply.get("text")
    if not isinstance(got, str):
        return [Check("text", "text", False, "the text of these ids", "no text (ids only)")]
    names = [plan.name_of(i) for i in (*plan.closer_ids, *plan.end_ids) if i in set(natural.tolist())]
    lost = [name for name in names if name not in got]
    return [Check("text", "text", not lost and got == text, shorten(text), shorten(got))]


async def _tokenizer(client: ServerClient, plan: ProbePlan, info: ServerInfo) -> list[Check]:
    """Compare the server's tokenisation of the prompt's text with ours; a leading BOS may be added."""
    text = plan.decode(plan.input_ids)
    if not text or info.flags.get("skip_tokenizer_init"):
        return []
    body = {"text": text, "sampling_params": {"max_new_tokens": 1}, "return_prompt_token_ids": True}
    try:
        reply = await client.ask("/generate", body)
    except ServerError:
        return []
    meta, theirs = reply.get("meta_info"), reply.get("prompt_token_ids")
    ours = plan.input_ids.tolist()
    if isinstance(theirs, list):
        return [Check("tokenizer", "text", ours in (theirs, theirs[1:]), shown(ours), shown(theirs))]
    count = meta.get("prompt_tokens") if isinstance(meta, dict) else None
    same = count in (len(ours), len(ours) + 1)
    return [Check("tokenizer", "text", same, f"{len(ours)} ids", f"{count} ids")]


async def _chat_channel(client: ServerClient, plan: ProbePlan, info: ServerInfo) -> list[Check]:
    """Show what chat completions lose: as the server has it, and without its parser where it has one."""
    checks = [await _chat(client, plan, "chat_content", f"parser {info.reasoning_parser or 'off'}")]
    if info.reasoning_parser:
        checks.append(await _chat(client, plan, "chat_unparsed", "no parser", separate_reasoning=False))
    return checks


async def _chat(client: ServerClient, plan: ProbePlan, name: str, parser: str, **fields: Any) -> Check:
    expected = "the answer with its closer, in one piece"
    try:
        reply = await client.chat(
            [{"role": "user", "content": plan.question}], plan.max_new_tokens, temperature=0.0, **fields
        )
    except ServerError as error:
        return Check(name, "chat", False, expected, f"no answer: {str(error)[:200]}")
    message = _message(reply)
    content, apart = message.get("content") or "", message.get("reasoning_content")
    closers = [plan.name_of(i) for i in plan.closer_ids]
    whole = bool(content) and all(name in content for name in closers) and not apart
    got = f"{parser}: content {shorten(str(content))}"
    if apart:
        got += f", reasoning_content {shorten(str(apart))}: the closer belongs to neither"
    return Check(name, "chat", whole, expected, got)


def _message(reply: Mapping[str, Any]) -> dict[str, Any]:
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    message = first.get("message") if isinstance(first, dict) else {}
    return message if isinstance(message, dict) else {}


def _natural_body(plan: ProbePlan) -> dict[str, Any]:
    params = SAMPLING_DEFAULTS | plan.sampling | {"max_new_tokens": plan.max_new_tokens}
    for name in ("seed", "sampling_seed"):
        params.pop(name, None)
    return {"input_ids": plan.input_ids, "sampling_params": params}
