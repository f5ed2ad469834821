"""Makes a small Llama with random weights, and a tokenizer: `tiny_model.py DIRECTORY SEED [SIZE]`.

Nothing is downloaded. SIZE multiplies the width of the model (default: 1, which makes 6 MB).
"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def main(directory: str, seed: str, size: str = "1") -> None:
    words = ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(1021))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(directory)
    width = 256 * int(size)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=4,
        num_attention_heads=4 * int(size),
        num_key_value_heads=4 * int(size),
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(int(seed))
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                # Wide enough that the most likely token is clear, whatever the order of additions.
                parameter.normal_(0, 0.3)
    model.save_pretrained(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
