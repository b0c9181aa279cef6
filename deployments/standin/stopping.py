"""When a generation ends, in SGLang's order: text, id, length (sglang 0.5.23, schedule_batch.py:2007)."""

from typing import Any

from tokenizers import Tokenizer

from deployments.standin.generation import Generation


def finish_reason(generation: Generation, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The finish_reason after the newest id, or None to go on."""
    stops, output = generation.stops, generation.output
    if not stops.limit:
        return {"type": "length", "length": 0}
    if stops.texts or stops.patterns:
        text = tokenizer.decode(output, skip_special_tokens=stops.skip_special_tokens)
        for stop in stops.texts:
            if stop in text:
                return {"type": "stop", "matched": stop}
        for pattern in stops.patterns:
            if pattern.search(text):
                return {"type": "stop", "matched": pattern.pattern}
    if output[-1] in stops.ids:
        return {"type": "stop", "matched": output[-1]}
    if len(output) >= stops.limit:
        return {"type": "length", "length": stops.limit}
    return None


def shown_text(generation: Generation, tokenizer: Tokenizer) -> str:
    """The text of the output ids: the stop is cut from it unless no_stop_trim, the ids keep theirs.

    What a pattern matched stays in the text, as genuine.
    """
    stops, finish, ids = generation.stops, generation.finish, generation.output
    matched = finish.get("matched") if finish is not None else None
    if isinstance(matched, int) and not stops.no_stop_trim and ids and ids[-1] == matched:
        ids = ids[:-1]
    text: str = tokenizer.decode(ids, skip_special_tokens=stops.skip_special_tokens)
    if finish is None:
        return text.rstrip("\ufffd")  # the rest of the character is still to come
    if matched in stops.texts and not stops.no_stop_trim:
        text = text.partition(matched)[0]
    return text
