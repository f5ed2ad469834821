"""A model of transformers whose weights a holder has: built in milliseconds, without a copy.

    crosshandle hold &
    crosshandle load DIRECTORY/model.safetensors --name llama --device cuda:0
    python transformers_model.py DIRECTORY llama "A text to continue"

DIRECTORY is a checkpoint of the Hub. The loader reads its weights, and this program does not.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoConfig, AutoTokenizer

import crosshandle.transformers

directory, name, text = sys.argv[1:]
model = crosshandle.transformers.from_holder(name, AutoConfig.from_pretrained(directory))
where = next(model.parameters()).device
tokens = AutoTokenizer.from_pretrained(directory)(text, return_tensors="pt").to(where)
with torch.no_grad():
    print(model.generate(**tokens, max_new_tokens=20, do_sample=False)[0].tolist())
