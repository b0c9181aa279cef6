"""Arithmetic: bare sums and short word problems, each with the steps that lead to the right answer."""

from random import Random

from tests.standin_model.example import Example, single
from tests.standin_model.words import JOBS, NAMES, PLACES, THINGS

SUM_QUESTIONS = (
    "What is {e}?",
    "what is {e}",
    "Calculate {e}.",
    "{e} = ?",
    "How much is {e}?",
    "Please compute {e}.",
    "Can you tell me what {e} is?",
    "{e}",
    "Solve: {e}",
    "Find the value of {e}.",
    "What's {e}?",
)
SUM_ANSWERS = ("{e} = {r}.", "The answer is {r}.", "{r}", "{e} is {r}.", "It is {r}.")


def _number(rng: Random) -> int:
    """A number that is often small: half below 10, most below 100."""
    return rng.choice((rng.randint(0, 9), rng.randint(1, 12), rng.randint(10, 99), rng.randint(10, 60)))


def added(a: int, b: int) -> str:
    """The written steps of a + b, split into tens and ones where that helps."""
    if a < 10 or b < 10:
        return f"{a} + {b} = {a + b}."
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    parts = f"Tens: {a // 10 * 10} + {b // 10 * 10} = {tens}. Ones: {a % 10} + {b % 10} = {ones}."
    return f"{parts} {tens} + {ones} = {a + b}."


def multiplied(a: int, b: int) -> str:
    """The written steps of a * b for b below 13, split into tens and ones where that helps."""
    if a < 13:
        return f"{a} * {b} = {a * b}."
    tens, ones = a // 10 * 10 * b, a % 10 * b
    return f"{a // 10 * 10} * {b} = {tens}. {a % 10} * {b} = {ones}. {tens} + {ones} = {a * b}."


def _operation(rng: Random) -> tuple[str, int, str]:
    """(expression, result, written steps) of one operation whose result is a natural number."""
    a, b = _number(rng), _number(rng)
    kind = rng.random()
    if kind < 0.5:
        return f"{a} + {b}", a + b, added(a, b)
    if kind < 0.72:
        a, b = max(a, b), min(a, b)
        return f"{a} - {b}", a - b, f"{a} - {b} = {a - b}."
    if kind < 0.9:
        b = rng.randint(0, 12)
        return f"{a} * {b}", a * b, multiplied(a, b)
    b, r = rng.randint(1, 12), rng.randint(1, 12)
    return f"{b * r} / {b}", r, f"{b} * {r} = {b * r}, so {b * r} / {b} = {r}."


def sums(rng: Random) -> Example:
    """One bare sum such as "What is 2+2?"."""
    expression, result, steps = _operation(rng)
    asked = expression.replace(" ", "") if rng.random() < 0.4 else expression
    if rng.random() < 0.1:
        asked = (
            expression.replace("+", "plus")
            .replace("-", "minus")
            .replace("*", "times")
            .replace("/", "divided by")
        )
    lead = rng.choice(("", "", "I need to work out {e}. ", "The user asks for {e}. ", "Let me calculate. "))
    tail = rng.choice(("", "", " So the answer is {r}.", " That is all."))
    fill = {"e": expression, "r": result}
    return single(
        rng.choice(SUM_QUESTIONS).format(e=asked),
        (lead + steps + tail).format(**fill),
        rng.choice(SUM_ANSWERS).format(**fill),
    )


def _story(rng: Random) -> tuple[str, list[str], int, str]:
    """(story, written steps, result, question) of one word problem with one to four events."""
    who, thing = rng.choice(NAMES), rng.choice(THINGS)
    have = rng.randint(2, 60)
    place = rng.choice(PLACES)
    story = [
        rng.choice(
            (
                f"{who} has {have} {thing}.",
                f"{who} the {rng.choice(JOBS)} starts with {have} {thing}.",
                f"At the {place}, {who} finds {have} {thing}.",
            )
        )
    ]
    steps = [f"{who} starts with {have} {thing}."]
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        event, step, have = _event(rng, who, thing, have)
        story.append(event)
        steps.append(step)
    question = rng.choice(
        (
            f"How many {thing} does {who} have now?",
            f"How many {thing} are left?",
            f"What is the total number of {thing}?",
            f"How many {thing} does {who} have in total?",
        )
    )
    return " ".join(story), steps, have, question


def _event(rng: Random, who: str, thing: str, have: int) -> tuple[str, str, int]:
    """(sentence, written step, new count) of one thing that happens to the count."""
    other = rng.choice(NAMES)
    kind = rng.random()
    if kind < 0.45:
        n = rng.randint(1, 40)
        text = rng.choice(
            (
                f"{other} gives {who} {n} more.",
                f"{who} buys {n} more {thing}.",
                f"Then {who} gets {n} {thing} from {other}.",
            )
        )
        return text, f"Then {have} + {n} = {have + n}.", have + n
    if kind < 0.8 and have > 1:
        n = rng.randint(1, min(have - 1, 30))
        text = rng.choice(
            (
                f"{who} gives {n} to {other}.",
                f"{who} loses {n} of them.",
                f"{who} sells {n} {thing}.",
                f"{other} takes {n} of the {thing}.",
            )
        )
        return text, f"Then {have} - {n} = {have - n}.", have - n
    if have % 2 == 0 and kind < 0.9:
        return f"{who} gives half of them to {other}.", f"Half of {have} is {have // 2}.", have // 2
    n = rng.choice((2, 3))
    word = {2: "doubles", 3: "triples"}[n]
    return f"{who} {word} the number of {thing}.", f"Then {have} * {n} = {have * n}.", have * n


def word_problems(rng: Random) -> Example:
    """One story problem, solved event by event."""
    story, steps, result, question = _story(rng)
    thing = question.split()[2] if question.startswith("How many") else "things"
    answer = rng.choice(
        (
            f"The answer is {result}.",
            f"There are {result} {thing}.",
            f"{result} {thing}.",
            " ".join(steps[1:]) + f" The answer is {result}.",
            "Here is the solution:\n"
            + "\n".join(f"{i}. {s}" for i, s in enumerate(steps, 1))
            + f"\nThe answer is {result}.",
        )
    )
    lead = rng.choice(
        ("", "Let me go step by step. ", f"The question is: {question} ", "First I read the story. ")
    )
    return single(
        f"{story} {question}", lead + " ".join(steps) + rng.choice(("", f" The answer is {result}.")), answer
    )
