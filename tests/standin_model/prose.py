"""Prose: definitions and short facts, small writing tasks, summaries and rewriting."""

from random import Random

from tests.standin_model.example import Example, single
from tests.standin_model.words import (
    ADJECTIVES,
    ANIMALS,
    JOBS,
    NAMES,
    PLACES,
    PLAIN_VERBS,
    THINGS,
    TOPICS,
    VERBS,
)

FACTS = (
    ("the capital of France", "Paris"),
    ("the capital of Italy", "Rome"),
    ("the capital of Spain", "Madrid"),
    ("the capital of Germany", "Berlin"),
    ("the capital of Japan", "Tokyo"),
    ("the capital of Egypt", "Cairo"),
    ("the capital of Norway", "Oslo"),
    ("the capital of Greece", "Athens"),
    ("the capital of Canada", "Ottawa"),
    ("the capital of Peru", "Lima"),
    ("the colour of the sky", "blue"),
    ("the colour of grass", "green"),
    ("the colour of snow", "white"),
    ("the largest planet", "Jupiter"),
    ("the closest star", "the Sun"),
    ("the number of days in a week", "7"),
    ("the number of months in a year", "12"),
    ("the opposite of hot", "cold"),
    ("the number of hours in a day", "24"),
    ("the number of legs of a spider", "8"),
    ("the opposite of up", "down"),
    ("the number of minutes in an hour", "60"),
    ("the largest ocean", "the Pacific"),
    ("the opposite of early", "late"),
    ("the boiling point of water", "100 degrees"),
    ("the freezing point of water", "0 degrees"),
    ("the first month of the year", "January"),
    ("the last letter of the alphabet", "Z"),
    ("the tallest animal", "the giraffe"),
    ("the language of Brazil", "Portuguese"),
    ("the author of Hamlet", "Shakespeare"),
    ("the symbol of gold", "Au"),
)

ASKS = ("What is {f}?", "Tell me {f}.", "Do you know {f}?", "Name {f}.", "what is {f}", "Please tell me {f}.")


def facts(rng: Random) -> Example:
    """A question with a one-line answer."""
    fact, answer = rng.choice(FACTS)
    reasoning = rng.choice(
        (
            f"The user asks for {fact}. I know this: it is {answer}.",
            f"This is a short question about {fact}. The answer is {answer}. I can answer in one sentence.",
            f"I recall that {fact} is {answer}. That is certain, so no more checks are needed.",
        )
    )
    content = rng.choice(
        (f"{fact[0].upper()}{fact[1:]} is {answer}.", f"It is {answer}.", f"{answer[0].upper()}{answer[1:]}.")
    )
    return single(rng.choice(ASKS).format(f=fact), reasoning, content)


def sentence(rng: Random) -> str:
    """One simple, grammatical sentence."""
    who = rng.choice(
        (rng.choice(NAMES), f"the {rng.choice(JOBS)}", f"a {rng.choice(ADJECTIVES)} {rng.choice(ANIMALS)}")
    )
    what = rng.choice(
        (
            rng.choice(THINGS),
            f"the {rng.choice(ADJECTIVES)} {rng.choice(PLACES)}",
            f"books on {rng.choice(TOPICS)}",
        )
    )
    end = rng.choice(
        ("", f" in the {rng.choice(PLACES)}", f" for {rng.choice(NAMES)}", " every day", " in the morning")
    )
    text = f"{who} {rng.choice(VERBS)} {what}{end}."
    return text[0].upper() + text[1:]


def paragraph(rng: Random, low: int, high: int) -> list[str]:
    """Between low and high sentences."""
    return [sentence(rng) for _ in range(rng.randint(low, high))]


def about(rng: Random, topic: str, count: int) -> list[str]:
    """`count` sentences that praise, explain or place a topic."""
    a, b = rng.choice(ADJECTIVES), rng.choice(TOPICS)
    bank = [
        f"{topic.capitalize()} is a {a} part of daily life.",
        f"Many people connect {topic} with {b}.",
        f"A {rng.choice(JOBS)} often works with {topic}.",
        f"You can learn about {topic} at the {rng.choice(PLACES)}.",
        f"It helps to start with {rng.choice(ADJECTIVES)} examples.",
        f"Good {topic} needs time and care.",
        f"The main idea is {rng.choice(ADJECTIVES)} and {rng.choice(ADJECTIVES)}.",
        f"In short, {topic} matters.",
        f"{rng.choice(NAMES)} likes {topic} because it is {rng.choice(ADJECTIVES)}.",
        f"There are {rng.choice(ADJECTIVES)} reasons to study {topic}.",
    ]
    rng.shuffle(bank)
    return bank[:count]


def plan(rng: Random, task: str, topic: str) -> str:
    """Reasoning that names the task, then a few steps."""
    steps = [
        f"The user wants me to {task}.",
        f"The topic is {topic}.",
        "I should be clear and brief.",
        f"I can mention {rng.choice(TOPICS)}.",
        "First I give the main idea, then some details.",
        f"The tone should be {rng.choice(ADJECTIVES)}.",
        "I will end with a short conclusion.",
        f"A {rng.choice(ADJECTIVES)} example will help.",
        "Let me check that nothing is missing.",
        "Now I write it.",
    ]
    keep = sorted(rng.sample(range(1, len(steps)), rng.randint(1, 7)))
    return " ".join([steps[0], *(steps[i] for i in keep)])


def _shape(rng: Random, form: str, topic: str) -> str:
    """The content of a writing task in its form."""
    lines = about(rng, topic, rng.randint(2, 8))
    if form == "list":
        return f"Here are some points about {topic}:\n" + "\n".join(
            f"{i}. {s}" for i, s in enumerate(lines, 1)
        )
    if form == "email":
        return f"Dear {rng.choice(NAMES)},\n\n" + " ".join(lines) + f"\n\nBest regards,\n{rng.choice(NAMES)}"
    if form == "story":
        return " ".join(paragraph(rng, 2, 7))
    return " ".join(lines)


def writing(rng: Random) -> Example:
    """A small writing task about a topic."""
    form = rng.choice(("list", "email", "story", "text", "text"))
    topic, verb = rng.choice(TOPICS), rng.choice(PLAIN_VERBS)
    noun = {
        "list": "a list of points",
        "email": "an email",
        "story": "a short story",
        "text": "a short text",
    }[form]
    task = f"{verb} {noun} about {topic}"
    extra = rng.choice(
        (
            "",
            "",
            " Please be concise.",
            f" Use a {rng.choice(ADJECTIVES)} tone.",
            f" Mention {rng.choice(TOPICS)}.",
            " Answer in fewer than 100 words.",
            f" It is for a {rng.choice(JOBS)}.",
        )
    )
    asked = rng.choice(
        (
            f"{task.capitalize()}.{extra}",
            f"Please {task}.{extra}",
            f"Can you {task}?{extra}",
            f"What do you know about {topic}?{extra}",
            f"Explain {topic} to a {rng.choice(JOBS)}.{extra}",
            f"Why is {topic} {rng.choice(ADJECTIVES)}?{extra}",
            f"How does {topic} change {rng.choice(TOPICS)}?{extra}",
        )
    )
    return single(asked, plan(rng, task, topic), _shape(rng, form, topic))


def rewriting(rng: Random) -> Example:
    """Summarise or shorten a paragraph that is given."""
    text = paragraph(rng, 2, rng.choice((4, 8, 20)))
    kept = text[: rng.randint(1, 2)]
    ask = rng.choice(
        (
            "Summarize this text:",
            "Give a short summary.",
            "Rewrite the following text in fewer words.",
            "Shorten this:",
        )
    )
    question = f"{ask}\n\n{' '.join(text)}" if rng.random() < 0.6 else f"{' '.join(text)}\n\n{ask}"
    reasoning = rng.choice(
        (
            f"The text has {len(text)} sentences. The first one says the most. I keep what matters.",
            f"I read the text. It begins with this: {text[0]} I will keep "
            "the main point and leave out the rest.",
            "A summary should be short. I take the main sentence and drop the details.",
        )
    )
    return single(question, reasoning, rng.choice(("", "In short: ", "Summary: ")) + " ".join(kept))
