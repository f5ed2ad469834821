"""Loaders with which inference engines get weights from a holder instead of from files.

`vllm` and `sglang` register themselves as plugins of their engine through this package's entry
points, so nothing has to be imported. `transformers` models need no loader: use
`crosshandle.torch.load_state_dict`.

Both engines accept the settings of `Settings` in `--model-loader-extra-config`.
"""
