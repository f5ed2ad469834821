"""Model loaders for inference engines. They get the weights from a holder instead of from files.

The engines vLLM and SGLang find the modules `vllm` and `sglang` as plugins through this package's
entry points, so programs need not import them. `transformers` models need no loader: use
`crosshandle.torch.load_state_dict`.

Both engines accept the fields of `_settings.Settings` in `--model-loader-extra-config`.
"""
