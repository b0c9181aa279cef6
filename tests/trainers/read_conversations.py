"""Loads conversations as SpecForge does: `python read_conversations.py TOKENIZER FILE…`, where it is.

Prints one JSON list: per row the text that it would train on, decoded from the ids its own mask supervises.
"""

import json
import sys

from specforge.data.prompt_builder import prepare_prompt_tasks
from transformers import AutoTokenizer

if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    found = []
    for path in sys.argv[2:]:
        tasks = prepare_prompt_tasks(
            path,
            tokenizer,
            chat_template="kimi-k2-thinking",
            max_length=4096,
            is_preformatted=False,
            train_only_last_turn=True,
            cache_dir=None,
            cache_key=None,
            num_proc=None,
        )
        for task in tasks:
            ids, mask = task["payload"]["input_ids"], task["payload"]["loss_mask"]
            found.append(tokenizer.decode([i for i, learnt in zip(ids, mask, strict=True) if learnt]))
    print(json.dumps(found))
