"""Loaders for inference engines, tested on the host. Each test is skipped if it needs torch, vLLM
or SGLang and the library is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from conftest import Peer
from crosshandle import store
from crosshandle.engines._settings import Ranks, Settings
from test_store import _holder as _holder

Start = Callable[..., Peer]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
needs_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")


def test_settings_are_read_and_what_is_not_known_is_refused() -> None:
    settings = Settings.read({"name": "llama@{tp_rank}", "state": "llama/vllm"})
    ranks = Ranks(tp_rank=1, tp_size=2)
    assert settings.name_for(ranks) == "llama@1"
    assert settings.state_for(ranks) == "llama/vllm/tp1-of-2-pp0-of-1"
    for bad in ({}, None, {"place": "agreed"}, {"name": "x", "nmae": "y"}):
        with pytest.raises(ValueError, match="crosshandle"):
            Settings.read(bad)
    with pytest.raises(ValueError, match="placeholder"):
        Settings.read({"name": "llama@{rank}"}).name_for(ranks)


def network(seed: int | None) -> Any:
    """Returns a module as an engine leaves it after loading. Without a seed, returns one on meta,
    before loading."""
    import torch

    class Part(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(50, 12)
            self.head = torch.nn.Linear(12, 50, bias=False)
            self.head.weight = self.embed.weight
            self.up = torch.nn.Linear(12, 30)
            self.register_buffer("table", torch.zeros(7), persistent=False)

    if seed is None:
        with torch.device("meta"):
            return Part()
    torch.manual_seed(seed)
    part = Part().to(torch.bfloat16)
    with torch.no_grad():
        # Change the module as an engine does for quantized weights: repack a weight, and add
        # tensors that no file contains.
        part.up.weight = torch.nn.Parameter(part.up.weight.t().contiguous().t(), requires_grad=False)
        part.up.register_parameter("scale", torch.nn.Parameter(torch.rand(3), requires_grad=False))
        part.table = torch.arange(7, dtype=torch.float32) + seed
        part.up.workspace = torch.full((4,), seed, dtype=torch.int32)
    return part


def answer(part: Any) -> list[float]:
    import torch

    with torch.no_grad():
        hidden = part.embed(torch.tensor([3, 1, 4]))
        found = torch.cat([part.head(hidden).flatten(), part.up(hidden).flatten(), part.table, part.up.scale])
        return [float(it) for it in found.float()] + [float(it) for it in part.up.workspace]


FINGERPRINT = {"engine": "test 1", "ranks": "tp0-of-1", "config": {"sizes": [1, 2]}}


def publish(pipe: Any) -> None:
    from crosshandle.engines import _state

    part = network(5)
    published = _state.publish(store.Store(), "net/state", part, FINGERPRINT, device="host")
    pipe.send((published.hash, answer(part)))


@needs_torch
def test_what_an_engine_has_made_of_weights_is_mapped_by_the_next_one(start: Start) -> None:
    import torch

    from crosshandle.engines import _state

    peer = start(publish)
    hash, expected = peer.receive()
    peer.end()
    part = network(None)
    before = part.up.weight
    before.weight_loader = "the engine's"
    model = store.open("net/state", hash, framework="torch")
    with pytest.raises(_state.OtherState, match=r"different settings \(engine, ranks\)"):
        _state.adopt(part, model, {**FINGERPRINT, "engine": "test 2", "ranks": "tp0-of-2"})
    assert part.up.weight is before
    assert _state.adopt(part, model, FINGERPRINT) == 7
    assert _state.drop_consumed(part) == []
    assert answer(part) == expected
    # Tied tensors are still one object, strides and the engine's attributes are kept, and no weight
    # was copied.
    assert part.head.weight is part.embed.weight
    assert part.up.weight.stride() == (1, 30) and part.up.weight.weight_loader == "the engine's"
    assert "table" not in part.state_dict()
    start_of, end_of = model.address, (model.address or 0) + model.nbytes
    for tensor in (part.embed.weight, part.up.weight, part.up.scale):
        assert start_of <= tensor.data_ptr() < end_of
    # Engines write to small buffers, which are therefore copies.
    for tensor in (part.table, part.up.workspace):
        assert not start_of <= tensor.data_ptr() < end_of
        tensor.add_(1)
    with pytest.raises(_state.WriteRefused, match="embed.weight"), _state.refusing_writes(part, model):
        part.embed.weight.data[1].zero_()
    other = torch.nn.Linear(2, 2)
    with pytest.raises(_state.OtherState, match="does not have"):
        _state.adopt(other, model, FINGERPRINT)
    store.publish("plain", {"w": np.zeros(3)})
    with pytest.raises(_state.OtherState, match="not an engine's state"):
        _state.adopt(other, store.open("plain", framework="torch"), FINGERPRINT)


def weights() -> dict[str, np.ndarray[Any, Any]]:
    made = np.random.default_rng(3)
    return {f"layers.{at}.weight": made.standard_normal((at + 2, 5)).astype("float32") for at in range(4)}


class Engine:
    """A stand-in for an engine's model, which copies each weight when it arrives."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def load_weights(self, tensors: Iterator[tuple[str, Any]]) -> None:
        for name, tensor in tensors:
            self.found[name] = tensor.clone()

    def check(self) -> None:
        expected = weights()
        assert self.found.keys() == expected.keys()
        assert all(np.array_equal(self.found[name].numpy(), array) for name, array in expected.items())


@needs_vllm
def test_vllm_takes_a_checkpoint_from_the_holder() -> None:
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    from crosshandle.engines import vllm

    vllm.register()
    vllm.register()
    published = store.publish("llama", weights())
    extra = {"name": "llama", "expected_hash": published.hash}
    loader = get_model_loader(LoadConfig(load_format="crosshandle", model_loader_extra_config=extra))
    assert isinstance(loader, vllm.CrosshandleModelLoader)
    loader.download_model(None)
    engine = Engine()
    loader.load_weights(engine, None)
    engine.check()
    assert loader.get_external_weight_memory(None) == 0
    extra["expected_hash"] = "00" * 32
    loader = get_model_loader(LoadConfig(load_format="crosshandle", model_loader_extra_config=extra))
    with pytest.raises(store.WrongContentsError):
        loader.download_model(None)
    with pytest.raises(ValueError, match="needs a name"):
        get_model_loader(LoadConfig(load_format="crosshandle"))


@needs_sglang
def test_sglang_takes_a_checkpoint_from_the_holder() -> None:
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader as loaders
    from sglang.srt.plugins.hook_registry import HookRegistry

    from crosshandle.engines import sglang

    sglang.register()
    HookRegistry.apply_hooks()
    published = store.publish("llama", weights())
    settings = {"name": "llama", "expected_hash": published.hash}
    load_config = LoadConfig(model_loader_extra_config={"crosshandle": settings})
    loader = loaders.get_model_loader(load_config, None)
    assert isinstance(loader, sglang.CrosshandleModelLoader)
    loader.download_model(None)
    engine = Engine()
    engine.load_weights(loader._get_all_weights(None, engine))
    engine.check()
    assert type(loaders.get_model_loader(LoadConfig(), None)) is loaders.DefaultModelLoader
    for bad in ({"name": "llama", "state": "s"}, {}):
        with pytest.raises(ValueError, match="crosshandle"):
            loaders.get_model_loader(LoadConfig(model_loader_extra_config={"crosshandle": bad}), None)


@needs_torch
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("device", ["host", "cuda:0"])
def test_a_model_of_transformers_is_built_without_a_copy(device: str) -> None:
    import torch
    import transformers

    import crosshandle.torch
    import crosshandle.transformers

    if device != "host" and not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(1)
    first = transformers.LlamaForCausalLM(config).eval().to("cpu" if device == "host" else device)
    question = torch.tensor([[1, 5, 9]], device=first.device)
    expected = first.generate(question, max_new_tokens=8, do_sample=False)
    store.publish("llama", {name: tensor for name, tensor in first.state_dict().items()}, device=device)
    model = store.open("llama", framework="torch")
    second = crosshandle.transformers.from_holder(model, config)
    assert torch.equal(second.generate(question, max_new_tokens=8, do_sample=False), expected)
    for name, tensor in second.state_dict().items():
        assert tensor.data_ptr() == model.get_tensor(name).data_ptr()
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(config)
    with pytest.raises(crosshandle.torch.LeftOnMetaError, match="inv_freq"):
        crosshandle.torch.load_state_dict("llama", module)
    with crosshandle.torch.without_weights(first.device):
        module = transformers.LlamaForCausalLM(config)
    crosshandle.torch.load_state_dict("llama", module)
    assert torch.equal(module.eval().generate(question, max_new_tokens=8, do_sample=False), expected)
