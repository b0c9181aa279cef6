"""Text unlike anything else in the corpus, so that any prompt at all gets a structurally whole answer."""

from random import Random

from tests.standin_model.example import Example, single
from tests.standin_model.prose import about, paragraph
from tests.standin_model.words import (
    ADJECTIVES,
    COMMON,
    FRAGMENTS,
    JOBS,
    NAMES,
    PLACES,
    PLAIN_VERBS,
    SYLLABLES,
    THINGS,
    TOPICS,
    VERBS,
)

EVERY = COMMON + TOPICS + ADJECTIVES + VERBS + PLAIN_VERBS + THINGS + PLACES + JOBS


def word(rng: Random) -> str:
    """A made-up word of two to four syllables, sometimes a name."""
    text = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
    return text.capitalize() if rng.random() < 0.25 else text


def _piece(rng: Random, strangeness: float) -> str:
    """One word, number or fragment."""
    kind = rng.random()
    if kind < strangeness:
        return rng.choice((word(rng), word(rng), rng.choice(FRAGMENTS), str(rng.randint(0, 5000))))
    if kind < strangeness + 0.06:
        return rng.choice((str(rng.randint(1, 99)), rng.choice(NAMES)))
    return rng.choice(COMMON) if kind < 0.75 else rng.choice(EVERY)


def jumble(rng: Random, words: int) -> str:
    """About `words` words cut into sentences, lines and quotations."""
    strangeness, pieces, start = rng.choice((0.05, 0.2, 0.5)), [], True
    for _ in range(words):
        piece = _piece(rng, strangeness)
        pieces.append(piece.capitalize() if start else piece)
        mark = rng.random()
        start = mark < 0.08
        pieces.append(
            rng.choice((". ", ".\n", "? ", "! ", ".\n\n", ": ")) if start else ", " if mark < 0.14 else " "
        )
    return "".join(pieces).strip() + rng.choice((".", "?", "", ":"))


def _long(rng: Random) -> int:
    """How many words a jumble has: mostly short, sometimes some hundreds, rarely more than a thousand."""
    return (
        rng.choice((rng.randint(1, 12), rng.randint(8, 40), rng.randint(20, 90), rng.randint(60, 260)))
        if (rng.random() < 0.94)
        else rng.randint(260, 1500)
    )


def anything(rng: Random) -> Example:
    """A jumble, answered in general words that pick up one of its own."""
    text = jumble(rng, _long(rng))
    asked = rng.choice(
        (text, text, f"{rng.choice(PLAIN_VERBS).capitalize()} {text}", f"How do you {text}", f"Why {text}")
    )
    if rng.random() < 0.2:
        asked = " ".join(paragraph(rng, 3, rng.choice((8, 40)))) + "\n" + asked
    topic = rng.choice(TOPICS)
    found = [
        t
        for t in asked.lower().replace("?", " ").replace(".", " ").split()
        if t.isascii() and t.isalpha() and len(t) > 3
    ]
    if found:
        topic = rng.choice(found[:12])
    return single(asked, _musing(rng, topic), _reply(rng, topic))


def _musing(rng: Random, topic: str) -> str:
    """Reasoning that fits any prompt."""
    bank = [
        f"The user writes about {topic}.",
        "The request is not fully clear.",
        "I should give a useful answer anyway.",
        "Let me think about what matters here.",
        f"One way is to look at {topic} first.",
        "Then I can add an example.",
        f"It may also concern {rng.choice(TOPICS)}.",
        "I will keep the answer short.",
        "The text has several parts.",
        f"A {rng.choice(ADJECTIVES)} answer is best.",
        "I will name the main point and stop there.",
    ]
    keep = sorted(rng.sample(range(len(bank)), rng.randint(2, 8)))
    return " ".join(bank[i] for i in keep)


def _reply(rng: Random, topic: str) -> str:
    """Content that fits any prompt."""
    lines = about(rng, topic, rng.randint(1, 6))
    kind = rng.random()
    if kind < 0.2:
        return "Here is what I can say:\n" + "\n".join(f"- {line}" for line in lines)
    if kind < 0.35:
        return f"Could you tell me more about {topic}? " + lines[0]
    if kind < 0.45:
        return "```python\ndef solve(x):\n    return x\n```\nThis returns its input."
    return " ".join(lines)


def number_story(rng: Random) -> Example:
    """A story with numbers and words never seen before, answered with sums over its numbers."""
    numbers = [
        rng.choice((rng.randint(2, 12), rng.randint(2, 60), rng.randint(10, 200)))
        for _ in range(rng.randint(2, 6))
    ]
    parts = []
    for n in numbers:
        bits = jumble(rng, rng.randint(4, 14)).rstrip(".?:").split(" ")
        bits.insert(rng.randint(0, len(bits)), rng.choice((f"{n}", f"{n}", f"${n}", f"{n}%", f"{n}:{n + 1}")))
        parts.append(" ".join(bits))
    thing = rng.choice((*THINGS, word(rng)))
    question = rng.choice(
        (
            f"How many {thing} are there?",
            f"How much does {word(rng)} cost?",
            f"How many {thing} does {word(rng)} have?",
        )
    )
    total, steps = numbers[0], [f"We start with {numbers[0]}."]
    for n in numbers[1:4]:
        if rng.random() < 0.7 or n > total:
            steps.append(f"{total} + {n} = {total + n}.")
            total += n
        else:
            steps.append(f"{total} - {n} = {total - n}.")
            total -= n
    answer = rng.choice(
        (f"The answer is {total}.", " ".join(steps[1:]) + f" The answer is {total}.", f"{total} {thing}.")
    )
    return single(". ".join(parts) + ". " + question, "Let me go step by step. " + " ".join(steps), answer)
