"""The fault switches: their names, what each does, and which are on.

A switch is `NAME`, `NAME=ARG`, `NAME*TIMES` or `NAME=ARG*TIMES`; without TIMES it stays on until switched
off. How they act lies in fault_arrivals.py (before a request is read), fault_replies.py (the reply's content)
and fault_sendings.py (how the reply goes out).
"""

from dataclasses import dataclass

from deployments.standin.counters import Counters

# name: (argument, what happens)
FAULTS: dict[str, str] = {
    "loading_seconds": "S: /health answers 503 for S seconds after the start (at start only)",
    "refuse_seconds": "S: the port opens S seconds after the start (at start only)",
    "keepalive": "S: idle connections are closed after S seconds instead of 5 (at start only)",
    "other_weights": "SHARE: noise of that share lies on all weights (at start only)",
    "queue_full": "/generate answers 503 `The request queue is full.`",
    "error_500_text": "/generate answers 500 text/plain",
    "bad_request": "object|string|message: /generate answers 400 in this shape",
    "hang": "the decoder stands still: requests are accepted and never answered, /v1/loads grows stale",
    "deaf": "nothing at all is answered, on any endpoint",
    "slow_reply": "S: the reply waits S seconds",
    "lost_reply": "the generation is made and never answered",
    "reset_before_reply": "the generation is made, then the connection is reset without an answer",
    "reset_after_reply": "the answer is sent, then the connection is reset",
    "truncate_body": "half of the answer is sent, then the connection closes",
    "wrong_json": "the answer is 200 with a body that is no JSON",
    "drip": "the answer comes one space at a time and never ends",
    "flood": "the answer has no end: ids without a stop, as fast as they are read",
    "crash_on_request": "N[+S]: the Nth /generate from now kills the process, S seconds later (default 0)",
    "crash_on_id": "ID[+S]: a prompt with this id kills the process, S seconds later (default 0)",
    "cap_silently": "N: max_new_tokens is cut to N without a word",
    "strip_think": "think ids vanish from output_ids (hypothetical: no genuine server does this)",
    "prompt_tail": "K: output_ids begin with the last K (default 5) prompt ids, as in 0.5.1 to 0.5.4",
    "no_output_ids": "the reply has text only, as in 0.4.x",
    "abort_200": "aborted|queue|unavailable: HTTP 200 with finish_reason abort",
    "nan_stop": "finish_reason is stop, matched `NaN happened`, the last id an end id",
    "length_first": "an end id as the last allowed id has finish_reason length, as up to 0.5.16",
    "empty_ids": "output_ids is empty",
    "big_id": "one output id lies outside the vocabulary",
    "wrong_prompt_tokens": "meta_info.prompt_tokens is one less",
    "missing_optional_meta": "meta_info holds id and finish_reason only",
    "extra_meta": "the reply has keys that nobody knows",
    "weight_version": "V: the weights carry another version",
    "wrong_model": "PATH: the server says that it serves another model",
    "told_slots": "N: it says that it runs N rows at once, whatever its flags and its KV pool allow",
    "clock_jump": "S: the times that /v1/loads tells are S seconds ahead (negative: behind)",
}


@dataclass(slots=True)
class Setting:
    """One switch that is on."""

    argument: str
    left: int | None  # how often it still acts; None: always


def parse_setting(text: str) -> Setting:
    """Read `ARG`, `ARG*TIMES` or `*TIMES`; raises ValueError if TIMES is no natural number."""
    argument, star, times = text.partition("*")
    return Setting(argument, int(times) if star else None)


def parse_fault(text: str) -> tuple[str, Setting]:
    """Read `NAME`, `NAME=ARG`, `NAME*TIMES` or `NAME=ARG*TIMES`; raises ValueError for an unknown name."""
    name, equals, rest = text.partition("=")
    if not equals:
        name, star, times = text.partition("*")
        rest = star + times
    if name not in FAULTS:
        raise ValueError(f"unknown fault {name!r}; known: {', '.join(FAULTS)}")
    return name, parse_setting(rest)


class Switches:
    """Which faults are on."""

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        """Switch on what the command line names; raises ValueError for an unknown name."""
        self._on = dict(parse_fault(text) for text in texts)

    def set(self, name: str, argument: str | int | float | bool | None) -> None:
        """Switch a fault on (argument, True) or off (None, False); raises ValueError for an unknown name."""
        if name not in FAULTS:
            raise ValueError(f"unknown fault {name!r}; known: {', '.join(FAULTS)}")
        if argument is None or argument is False:
            self._on.pop(name, None)
        else:
            self._on[name] = parse_setting("" if argument is True else str(argument))

    def value(self, name: str) -> str | None:
        """The argument of a switch that is on, without using it up."""
        setting = self._on.get(name)
        return None if setting is None or setting.left == 0 else setting.argument

    def take(self, name: str, counters: Counters) -> str | None:
        """The argument of a switch that acts now, counted; None if it is off or used up."""
        setting = self._on.get(name)
        if setting is None or setting.left == 0:
            return None
        if setting.left is not None:
            setting.left -= 1
        counters.faults[name] += 1
        return setting.argument

    def report(self) -> dict[str, str]:
        """What is on: name to argument with the times left."""
        return {name: s.argument + ("" if s.left is None else f"*{s.left}") for name, s in self._on.items()}
