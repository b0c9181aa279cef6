"""Loads conversations as SpecForge does: `python read_conversations.py TOKENIZER FILE…`, where it is.

Prints one JSON list: per row the whole `text` that it tokenizes, and what of it is `learnt`: both decoded,
the latter from the ids that its own mask supervises.
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
            learnt = [i for i, supervised in zip(ids, mask, strict=True) if supervised]
            found.append({"text": tokenizer.decode(ids), "learnt": tokenizer.decode(learnt)})
    print(json.dumps(found))
