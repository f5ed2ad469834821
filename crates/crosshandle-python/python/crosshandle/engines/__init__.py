"""Loaders for inference engines, which take weights from a holder instead of from files.

`vllm` and `sglang` register themselves with their engine as plugins, by this package's entry points: nothing is to be
imported. `transformers` models need none of this: see `crosshandle.torch.load_state_dict`.

Both engines take the settings of `Settings` in their `--model-loader-extra-config`.
"""
