"""One training conversation: what is sent, and the answer that the model should give."""

from dataclasses import dataclass, field, replace
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """Messages up to the last user or tool message, and the assistant turn that follows.

    `call` is the tool call that ends the answer: (id, arguments as JSON text). With `thinking` false
    the reasoning is not trained: the template closes it in the prompt.
    """

    messages: tuple[Message, ...]
    reasoning: str
    content: str
    call: tuple[str, str] | None = None
    tools: tuple[Message, ...] = ()
    thinking: bool = field(default=True)

    @property
    def target(self) -> str:
        """The text that the model must produce after the prompt, up to and with the end of the turn."""
        text = f"{self.reasoning}</think>{self.content}" if self.thinking else self.content
        if self.call is not None:
            name, arguments = self.call
            text += (
                f"<|tool_calls_section_begin|><|tool_call_begin|>{name}<|tool_call_argument_begin|>{arguments}"
                "<|tool_call_end|><|tool_calls_section_end|>"
            )
        return text + "<|im_end|>"

    def before(self, *messages: Message) -> "Example":
        """The same example with messages (a system prompt, earlier turns) in front of it."""
        return replace(self, messages=messages + self.messages)

    def answered(self) -> tuple[Message, ...]:
        """The messages with this example's answer appended, as history for a further turn."""
        return (*self.messages, {"role": "assistant", "content": self.content})


def single(question: str, reasoning: str, content: str) -> Example:
    """An example of one user message."""
    return Example(({"role": "user", "content": question},), reasoning.strip(), content.strip())
