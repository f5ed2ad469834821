"""Compares models from a holder with models from files, for several kinds of models.

Exits with an error if one of them differs.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers

import crosshandle.torch
import crosshandle.transformers
from crosshandle import store

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QUESTION = torch.tensor([[1, 5, 9, 33]])


def answer(model: Any) -> Any:
    return model.generate(QUESTION, max_new_tokens=12, do_sample=False)


def check(name: str, config: Any, kind: Any) -> tuple[Any, Any]:
    """Publishes a model with random weights, and compares it with the mapped one."""
    torch.manual_seed(3)
    model = kind(config).to(torch.bfloat16).eval()
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        store.load(name, [f"{directory}/model.safetensors"])
        plain = kind.from_pretrained(directory).eval()
        read = transformers.AutoConfig.from_pretrained(directory)
    mapped = crosshandle.transformers.from_holder(name, read)
    assert type(mapped) is kind and not mapped.training
    assert torch.equal(answer(mapped), answer(plain)), name
    assert not any(tensor.is_meta for tensor in [*mapped.parameters(), *mapped.buffers()])
    return plain, mapped


def main() -> None:
    llama = transformers.LlamaForCausalLM
    plain, mapped = check("llama", transformers.LlamaConfig(**SMALL), llama)
    held = store.open("llama", framework="torch")
    count = sum(1 for _ in mapped.named_parameters())
    assert count == len(held), "a parameter is not one of the holder's tensors"
    for name, parameter in mapped.named_parameters():
        assert torch.equal(parameter, held[name]) and not parameter.requires_grad

    # One mapping contains all weights, so no weight was copied.
    addresses = [parameter.data_ptr() for parameter in mapped.parameters()]
    assert max(addresses) - min(addresses) < held.nbytes

    _, tied = check("tied", transformers.LlamaConfig(**SMALL, tie_word_embeddings=True), llama)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight

    # transformers fuses the experts, so the names in the files differ from those in the model.
    experts = transformers.MixtralConfig(**SMALL, num_local_experts=4)
    check("experts", experts, transformers.MixtralForCausalLM)

    config = transformers.LlamaConfig(**SMALL)
    with torch.device("meta"):
        module = llama(config)
    try:
        crosshandle.torch.load_state_dict("llama", module)
        raise AssertionError("buffers on meta were not noticed")
    except crosshandle.torch.LeftOnMetaError as error:
        assert "model.rotary_emb.inv_freq" in error.names
    with crosshandle.torch.without_weights():
        module = llama(config)
    crosshandle.torch.load_state_dict("llama", module)
    assert torch.equal(answer(module.eval()), answer(plain))
    print(transformers.__version__, torch.__version__)


if __name__ == "__main__":
    main()
