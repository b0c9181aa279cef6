"""The mixture: single questions, system prompts, follow-up turns, tool calls, thinking switched off."""

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.standin_model.arithmetic import sums, word_problems
from tests.standin_model.example import Example, Message
from tests.standin_model.prose import facts, rewriting, writing
from tests.standin_model.salad import anything, jumble, number_story
from tests.standin_model.words import ADJECTIVES, JOBS, PLACES, TOPICS

# Share of each kind; number stories and jumbles stand for real prompts, which are unlike all the others.
KINDS = (
    (sums, 0.20),
    (word_problems, 0.17),
    (facts, 0.09),
    (writing, 0.15),
    (rewriting, 0.09),
    (anything, 0.18),
    (number_story, 0.12),
)
FOLLOW_UPS = (
    "Rewrite your previous response.",
    "Explain that in other words.",
    "Make it shorter.",
    "Can you add an example?",
    "Why?",
    "Are you sure?",
    "Now say it in one sentence.",
    "Take your previous response and rephrase it as a poem.",
    "What did you mean by that?",
    "Repeat the answer.",
    "Please check your own response.",
    "Translate it into French.",
)


def question(rng: Random) -> Example:
    """One question of the mixture."""
    kinds, weights = zip(*KINDS, strict=True)
    kind = rng.choices(kinds, weights)[0]
    example: Example = kind(rng)
    return example


def _system(rng: Random) -> Message:
    """A system prompt, short or rambling."""
    text = rng.choice(
        (
            "You are a helpful assistant.",
            f"You are a {rng.choice(ADJECTIVES)} {rng.choice(JOBS)}.",
            "Answer briefly.",
            "Think step by step, then answer.",
            f"You know everything about {rng.choice(TOPICS)}.",
            jumble(rng, rng.randint(5, 60)),
        )
    )
    return {"role": "system", "content": text}


def _follow_up(rng: Random) -> Example:
    """An earlier exchange, then a request that refers to it or changes the subject."""
    earlier = question(rng)
    history = earlier.answered()
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        history += question(rng).answered()
    if rng.random() < 0.4:
        return question(rng).before(*history)
    asked = rng.choice(FOLLOW_UPS) if rng.random() < 0.7 else jumble(rng, rng.randint(4, 30))
    start = " ".join(history[-1]["content"].split()[:12])
    reasoning = rng.choice(
        (
            f"The user refers to my last answer. It was: {start}. I keep its meaning.",
            "The user wants a change of the previous answer. I will say it again in a new way.",
            f"My previous answer began with: {start}. I can give it again, with fewer words.",
        )
    )
    content = rng.choice(
        (f"In other words: {history[-1]['content']}", f"Yes. {start}.", f"Here it is again: {start}.")
    )
    return Example((*history, {"role": "user", "content": asked}), reasoning, content[:600])


def _tool(name: str, about: str, argument: str) -> Message:
    """A tool declaration of one string argument."""
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


TOOLS = (
    _tool("get_weather", "Weather of a place.", "place"),
    _tool("search", "Search the web.", "query"),
    _tool("calculator", "Evaluate an expression.", "expression"),
    _tool("get_time", "Time in a place.", "place"),
)


def _tool_use(rng: Random) -> Example:
    """Tools are declared; the answer calls one, or follows a tool's result, or needs none."""
    tools = tuple(rng.sample(TOOLS, rng.randint(1, 3)))
    function = rng.choice(tools)["function"]
    name, argument = function["name"], function["parameters"]["required"][0]
    values = {
        "place": rng.choice(PLACES),
        "query": rng.choice(TOPICS),
        "expression": f"{rng.randint(1, 99)}+{rng.randint(1, 99)}",
    }
    value = values[argument]
    asked = rng.choice(
        (
            f"Use {name} for {value}.",
            f"Please call {name} with {value}.",
            f"{name}: {value}",
            f"I need {name} of {value}.",
        )
    )
    user = {"role": "user", "content": asked}
    reasoning = f"The user needs {name}. I call the tool with {argument} {value}."
    call = (f"functions.{name}:0", json.dumps({argument: value}))
    if rng.random() < 0.6:
        content = rng.choice(("", "", "I will look it up."))
        return Example((user,), reasoning, content, call=call, tools=tools)
    if rng.random() < 0.3:
        return replace(question(rng), tools=tools)
    outcome = rng.choice((str(rng.randint(1, 40)), rng.choice(ADJECTIVES)))
    return Example(
        (user, _called(call, name, reasoning), {"role": "tool", "tool_call_id": call[0], "content": outcome}),
        f"The tool {name} returned {outcome}. I can answer now.",
        f"The result for {value} is {outcome}.",
        tools=tools,
    )


def _called(call: tuple[str, str], name: str, reasoning: str) -> Message:
    """The assistant turn that made a call."""
    function = {"name": name, "arguments": call[1]}
    calls = [{"id": call[0], "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "reasoning_content": reasoning, "tool_calls": calls}


def conversation(rng: Random) -> Example:
    """One conversation of the training mixture."""
    kind = rng.random()
    example = _tool_use(rng) if kind < 0.06 else _follow_up(rng) if kind < 0.2 else question(rng)
    if rng.random() < 0.22:
        example = example.before(_system(rng))
    if rng.random() < 0.1:
        example = replace(example, thinking=False)
    return example


def conversations(seed: int, count: int) -> Iterator[Example]:
    """`count` conversations, a function of the seed alone."""
    rng = Random(seed)
    for _ in range(count):
        yield conversation(rng)
