"""Plugins for inference engines. Model loaders get the weights from a holder instead of from files.

The engines vLLM and SGLang find the modules `vllm` and `sglang` as plugins through this package's
entry points, and LMCache the module `lmcache`, so programs need not import them. `transformers`
models need no loader: use `crosshandle.transformers.from_holder`.

The loaders accept the fields of `_settings.Settings` in `--model-loader-extra-config`.
"""
