"""A vLLM engine in a process of its own, which a test asks over its standard streams.

The first argument is a JSON object with the options of `vllm.LLM`. Each line of the input is a JSON
list: the name of a method and its arguments. Each line of the output that starts with `REPLY ` is a
JSON object with the result, or with the error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def answer(engine: Any, call: list[Any]) -> Any:
    from vllm import SamplingParams

    name, *arguments = call
    if name == "generate":
        sampling = SamplingParams(temperature=0, max_tokens=arguments[1], ignore_eos=True)
        engine.reset_prefix_cache()
        outputs = engine.generate(arguments[0], sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
    if name == "cached":
        # The numbers of prompt tokens that were not computed.
        engine.reset_prefix_cache()
        outputs = engine.generate(arguments[0], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        return [output.num_cached_tokens for output in outputs]
    if name == "times":
        # The seconds until the first token, without the blocks in the engine's own cache.
        taken = []
        for _ in range(arguments[1]):
            engine.reset_prefix_cache()
            begin = time.perf_counter()
            engine.generate(arguments[0], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
            taken.append(time.perf_counter() - begin)
        return taken
    if name == "memory":
        return memory()
    return getattr(engine, name)(*arguments)


def memory() -> dict[str, int]:
    """Returns the process's memory in bytes. No other process can share `Anonymous` memory."""
    found: dict[str, int] = {}
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key in ("Rss", "Pss", "Anonymous"):
                found[key] = int(value.split()[0]) * 1024
    return found


def main() -> None:
    # The engine runs in this process, so that killing the process kills all of it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    begin = time.monotonic()
    from vllm import LLM

    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    loading: list[float] = []
    load = CPUModelRunner.load_model

    def timed(*arguments: Any, **named: Any) -> None:
        started = time.monotonic()
        load(*arguments, **named)
        loading.append(time.monotonic() - started)

    CPUModelRunner.load_model = timed
    engine = LLM(**json.loads(sys.argv[1]))
    found = {"loading_s": sum(loading), "ready_s": time.monotonic() - begin}
    print("REPLY " + json.dumps({"result": found}), flush=True)
    for line in sys.stdin:
        try:
            reply = {"result": answer(engine, json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print("REPLY " + json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
