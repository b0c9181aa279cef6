"""Train the byte-level BPE; write the tokenizer files, chat template and generation defaults of `../model`.

python -m tests.standin_model.tokenizer --out deployments/standin/model
"""

import argparse
import json
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.standin_model.conversations import conversations
from tests.standin_model.salad import EVERY
from tests.standin_model.words import FRAGMENTS, NAMES

VOCABULARY = 2048
# The pattern of Qwen2's tokenizer: letters, single digits, punctuation, whitespace. Equal to the class
# default of the Qwen family, so that a loader which picks its class by model_type cannot change the ids.
PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
# (text, special), in id order, contiguous at the end of the vocabulary; flags as in Kimi-K2's tokenizer.
CONTROL = (
    ("[BOS]", True),
    ("[EOS]", True),
    ("<|im_end|>", True),
    ("<|im_user|>", True),
    ("<|im_assistant|>", True),
    ("<|im_system|>", True),
    ("<|tool_calls_section_begin|>", False),
    ("<|tool_calls_section_end|>", False),
    ("<|tool_call_begin|>", False),
    ("<|tool_call_argument_begin|>", False),
    ("<|tool_call_end|>", False),
    ("<|im_middle|>", True),
    ("<think>", False),
    ("</think>", False),
)


def train(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of VOCABULARY ids, the control tokens last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - len(CONTROL), initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=special) for text, special in CONTROL])
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"expected {VOCABULARY} ids, got {tokenizer.get_vocab_size()}")
    return tokenizer


def texts(seed: int, count: int) -> list[str]:
    """Training text for the merges: conversations, and word lists so that everyday English stays short."""
    rng = Random(seed)
    lines: list[str] = []
    for example in conversations(seed, count):
        lines += [str(message["content"]) for message in example.messages]
        lines += [example.reasoning, example.content]
    for _ in range(count // 4):
        lines.append(" ".join(rng.choice((*EVERY, *NAMES)) for _ in range(40)))
    lines += list(FRAGMENTS) * 20
    return lines


def _write_settings(out: Path, ids: dict[str, int]) -> None:
    """Write tokenizer_config.json, generation_config.json and chat_template.jinja."""
    added = {
        str(ids[text]): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }
        for text, special in CONTROL
    }
    settings = {
        "added_tokens_decoder": added,
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[EOS]",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    # As with Kimi, the tokenizer's eos is not what ends a turn: generation_config.json says what does.
    generation = {
        "bos_token_id": ids["[BOS]"],
        "eos_token_id": [ids["<|im_end|>"]],
        "pad_token_id": ids["[EOS]"],
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
    }
    for name, content in (("tokenizer_config.json", settings), ("generation_config.json", generation)):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")
    template = Path(__file__).with_name("chat_template.jinja").read_text()
    (out / "chat_template.jinja").write_text(template)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=30_000)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train(texts(arguments.seed, arguments.conversations))
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    _write_settings(arguments.out, tokenizer.get_vocab())


if __name__ == "__main__":
    main()
