"""Greedy ids by transformers in float32, as vectors for the numpy decoder (PyTorch and transformers needed).

python -m tests.standin_model.golden --model DIR --out tests/data/standin_greedy.json
"""

import argparse
import importlib
import json
from pathlib import Path
from random import Random
from typing import Any

from deployments.standin.template import ChatTemplate
from tests.standin_model.conversations import conversations
from tests.standin_model.salad import jumble

LIMIT = 96  # ids generated per prompt


def prompts(template: ChatTemplate) -> list[list[int]]:
    """Twelve prompts: a sum, thinking off, nine of the mixture, and a jumble of some hundred ids."""
    user = [{"role": "user", "content": "What is 2+2?"}]
    mixed = [template.prompt(e.messages, e.tools, thinking=e.thinking) for e in conversations(77, 9)]
    long = [{"role": "user", "content": jumble(Random(5), 240)}]
    return [template.prompt(user), template.prompt(user, thinking=False), *mixed, template.prompt(long)]


def greedy(model: Any, torch: Any, prompt: list[int], end: int) -> tuple[list[int], float]:
    """(ids up to the end token or LIMIT, smallest distance between the two best logits)."""
    ids, margin = list(prompt), float("inf")
    with torch.no_grad():
        while len(ids) < len(prompt) + LIMIT and (len(ids) == len(prompt) or ids[-1] != end):
            best = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
    return ids[len(prompt) :], margin


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    template = ChatTemplate(arguments.model)
    end = template.tokenizer.token_to_id("<|im_end|>")
    vectors = []
    for prompt in prompts(template):
        output, margin = greedy(model, torch, prompt, end)
        vectors.append({"input_ids": prompt, "output_ids": output, "smallest_margin": round(margin, 6)})
    origin = {
        "command": "python -m tests.standin_model.golden",
        "torch": torch.__version__,
        "dtype": "float32",
        "transformers": transformers.__version__,
        "device": "cpu",
        "max_new_tokens": LIMIT,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(v) for v in vectors)
    arguments.out.write_text(f'{{"origin": {json.dumps(origin)},\n"vectors": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
