"""Everything that makes `../model`: the text, the tokenizer, the training run, the measurements.

Run order: `tokenizer.py` (CPU, seconds), `fit.py` (needs PyTorch), `golden.py` (needs PyTorch),
`measure.py` (the stand-in's own decoder). Nothing here is imported by the server.
"""
