"""A model of transformers whose weights a holder has: built in milliseconds, without a copy.

    crosshandle hold &
    crosshandle load DIRECTORY/model.safetensors --name llama --device cuda:0
    python transformers_model.py DIRECTORY llama "A text to continue"

DIRECTORY is a checkpoint of the Hub: its weights are read by the loader, and not by this program.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from crosshandle import store

directory, name, text = sys.argv[1:]
held = store.open(name, framework="torch")
model = AutoModelForCausalLM.from_pretrained(
    None, config=AutoConfig.from_pretrained(directory), state_dict=held.state_dict(), dtype="auto"
).eval()
where = next(model.parameters()).device
tokens = AutoTokenizer.from_pretrained(directory)(text, return_tensors="pt").to(where)
with torch.no_grad():
    print(model.generate(**tokens, max_new_tokens=20)[0].tolist())
