#!/bin/sh
# Runs the pack of `cargo xtask gpu-pack` on this machine's GPUs, and prints one table at the end.
#
#   run.sh [FILTER]     only the conformance cases whose name contains FILTER
#
# Variables, with their defaults in parentheses:
# - PARTS: the parts to run, of driver, suite, replays, link, deaths, clients, interop, programs,
#   python, holder, store, engines, checker, bench, bench-python, models and peers (all).
# - JOBS: number of cases at a time (half of the CPUs, at most 8).
# - LIMIT: time limit of each run, in seconds (300).
# - RECORD: number of runs of the benchmarks, which write their results as JSON files into OUT (3).
# - BENCH, BENCH_PYTHON, MODELS, PEERS: more options of the benchmarks ("--only gpu" for PEERS).
# - REPLAYS: number of replays of graphs next to other signals (100000).
# - DEATHS: options of 'conformance gpu-deaths'.
# - CLAIMS, CLAIM_SECONDS: number of a holder's writers that are killed (200), and time limit (120).
# - HOLDER, HOLDER_SECONDS: number of a holder's other processes that are killed (500), and time
#   limit (120).
# - EXAMPLE_MIB: size of the model in the holder's example, in MiB (1024).
# - STORE: options of the store's benchmark.
# - UPDATES: options of the benchmark of weight updates.
# - OUT: directory for the complete outputs (results).
#
# The exit code is 1 if anything failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$here/results}
# The driver creates one context at a time, so more cases would only delay each other.
jobs=$((($(nproc) + 1) / 2))
[ "$jobs" -gt 8 ] && jobs=8
jobs=${JOBS:-$jobs}
limit=${LIMIT:-300}
filter=${1:-}
if [ -z "$filter" ]; then all="driver suite replays link deaths clients interop programs python holder store engines checker bench bench-python models peers"; else all="driver suite checker"; fi
parts=${PARTS:-$all}
table=$out/table
mkdir -p "$out" || exit 2
: > "$table"

gpus=$("$here/crosshandle" devices --json | grep -c '"cuda:[0-9]*"')
if [ "$gpus" -eq 0 ]; then
    "$here/crosshandle" devices
    echo "no GPU that CUDA can use: see 'crosshandle doctor'" >&2
    exit 2
fi
"$here/crosshandle" devices

# Compiles and runs the example whose kernels pass frames through a channel.
pipeline() {
    if ! command -v nvcc > /dev/null; then
        row "pipeline: no nvcc" 0 1 0 0
        return
    fi
    files=$here/pipeline
    run "pipeline" sh -c "nvcc '$files/pipeline.cu' -I '$files' '$files/libcrosshandle_c.so' \
        -o '$out/pipeline' && '$out/pipeline'"
}

# Returns whether a part is selected.
wants() {
    case " $parts " in *" $1 "*) ;; *) false ;; esac
}

# Adds a row to the table: row NAME PASSED SKIPPED FAILED SECONDS
row() {
    printf '%-34s %7s %8s %7s %8s\n' "$@" >> "$table"
}

# Runs a program with a time limit, keeps its output, and adds its row: run NAME COMMAND…
run() {
    name=$1
    shift
    log=$out/$(echo "$name" | tr -c 'a-z0-9\n' '-').log
    echo
    echo "== $name"
    began=$(date +%s)
    timeout -k 10 "$limit" "$@" > "$log" 2>&1
    code=$?
    taken=$(($(date +%s) - began))
    # Prints only the failures. The log contains everything.
    grep -E '^(failed|late|crashed|unavailable) |^    |panicked|FAILED' "$log" | head -n 200
    counts=$(sed -n \
        -e 's/.*: \([0-9]*\) passed, \([0-9]*\) skipped, \([0-9]*\) failed$/\1 \2 \3/p' \
        -e 's/^\([0-9]*\) passed in .*/\1 0 0/p' \
        -e 's/^\([0-9]*\) passed, \([0-9]*\) skipped.* in .*/\1 \2 0/p' \
        -e 's/^\([0-9]*\) failed, \([0-9]*\) passed in .*/\2 0 \1/p' \
        -e 's/^\([0-9]*\) failed, \([0-9]*\) passed, \([0-9]*\) skipped.* in .*/\2 \3 \1/p' \
        -e 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \3 \2/p' \
        "$log" | tail -n 1)
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        row "$name" - - late "$taken"
    elif [ -n "$counts" ]; then
        # shellcheck disable=SC2086
        set -- $counts
        # A program that ends with an error without counted failures, or that ran nothing, has
        # failed.
        if [ "$code" -ne 0 ] && [ "$3" -eq 0 ]; then
            tail -n 20 "$log"
            set -- "$1" "$2" 1
        fi
        row "$name" "$@" "$taken"
    elif [ "$code" -eq 0 ]; then
        row "$name" 1 0 0 "$taken"
    else
        tail -n 20 "$log"
        row "$name" 0 0 1 "$taken"
    fi
}

conformance() {
    run "$1 with $2" "$here/conformance" --device "$1" --peer-device "$2" --jobs "$jobs" $filter
}

# C and C++ programs on the stock Unified Runtime, with the adapter for GPUs.
clients() {
    # Sockets need a short path, and the directory must be private.
    if ! { mkdir -p "$out/runtime" && sockets=$(mktemp -d) &&
        { tar -xJf "$here/runtime.tar.xz" -C "$out/runtime" ||
            python3 -m tarfile -e "$here/runtime.tar.xz" "$out/runtime"; }; }; then
        row "ur, the stock runtime unpacked" 0 0 1 0
        return
    fi
    for client in bindless command_buffers dynamic_link error_table events free graphs hostile_handles images kernel_answers kernels leaks memory \
        memory_handles native pending physical_memory sub_devices sycl_bindless sycl_commands sycl_graphs sycl_sharing; do
        on_adapter "ur $client" "$here/clients/$client"
    done
    # Clients that need a context of two devices.
    for client in two_devices; do
        if [ "$gpus" -gt 1 ]; then
            on_adapter "ur $client" "$here/clients/$client"
            on_adapter "ur $client, validated" \
                UR_ENABLE_LAYERS=UR_LAYER_FULL_VALIDATION "$here/clients/$client"
        else
            row "ur $client: one GPU" 0 1 0 0
        fi
    done
    for client in events memory physical_memory sycl_sharing; do
        on_adapter "ur $client, intercepted" UR_ENABLE_LOADER_INTERCEPT=1 "$here/clients/$client"
        on_adapter "ur $client, validated" \
            UR_ENABLE_LAYERS=UR_LAYER_FULL_VALIDATION "$here/clients/$client"
    done
    # Two processes that read each other's output.
    on_adapter "ur example" sh -c 'cd "$1" && mkfifo to from && {
        "$0" producer > to < from & "$0" consumer < to > from && wait $!; }' \
        "$here/clients/ipc" "$sockets"
    # dpctl, if the pack has one for this Python. It also needs numpy.
    wheel=$(echo "$here"/dpctl-*-"$(python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"-*.whl)
    if [ -f "$wheel" ] && python3 -c 'import numpy'; then
        python3 -m zipfile -e "$wheel" "$out/dpctl"
        for mode in "" listed; do
            on_adapter "ur dpctl${mode:+, $mode}" "PYTHONPATH=$out/dpctl" \
                python3 "$here/clients/arrays.py" $mode
        done
    else
        row "ur dpctl: no wheel, or no numpy" 0 1 0 0
    fi
    rm -rf "$sockets"
}

# Runs a client over the adapter: on_adapter NAME [VARIABLE=VALUE]… COMMAND…
on_adapter() {
    title=$1
    shift
    run "$title" env "LD_LIBRARY_PATH=$out/runtime${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        "UR_ADAPTERS_FORCE_LOAD=$here/libur_adapter_crosshandle_cuda.so" \
        "CROSSHANDLE_SOCKET_DIR=$sockets" "KERNELS_PTX=$here/clients/kernels.ptx" \
        "IMAGES_PTX=$here/clients/images.ptx" "$@"
}

# Processes that share arrays of torch and CuPy. They print what is missing.
interop() {
    for pair in "torch torch" "cupy cupy" "torch cupy"; do
        # shellcheck disable=SC2086
        run "${pair% *} with ${pair#* }" python3 -B "$here/interop/share_arrays.py" $pair
    done
}

# Copies a file to a GPU, and reads it in another process.
share_and_read() {
    run "share and read" sh -c '
        head -c 30000000 /dev/urandom > "$1/shared" || exit
        "$0" share --device cuda:0 "$1/shared" > "$1/handle" & exporter=$!
        for _ in 1 2 3 4 5 6 7 8 9 10; do [ -s "$1/handle" ] && break; sleep 1; done
        "$0" read "$(head -n 1 "$1/handle")" > "$1/read" &&
            cmp "$1/shared" "$1/read"
        code=$?
        kill $exporter; wait $exporter
        rm -f "$1/shared" "$1/read" "$1/handle"
        exit $code' "$here/crosshandle" "$out"
}

# Unpacks the Python module and sets its directory: python_module. It fails without a suitable
# interpreter.
python_module() {
    site=$out/python
    [ -d "$site/crosshandle" ] || python3 -m zipfile -e "$here"/python/*.whl "$site"
    chmod +x "$site/crosshandle/_bin/crosshandle"
    PYTHONPATH=$site python3 -c 'import crosshandle'
}

# Tests of the Python module with the installed libraries: torch, CuPy, JAX, numba, cuda.core.
python_tests() {
    run "python tour" env "PYTHONPATH=$site" python3 -m crosshandle.tour
    for tests in gpu foreign channels_gpu device_signals_gpu objects processes pending documents kills; do
        run "python $(echo "$tests" | tr _ ' ')" env "PYTHONPATH=$site" PYTHONDONTWRITEBYTECODE=1 \
            python3 -m pytest -q -p no:cacheprovider "$here/python/tests/test_$tests.py"
    done
}

# Unpacks an archive of the pack into a directory next to the results: unpacked NAME
unpacked() {
    mkdir -p "$out/$1" && [ -f "$here/$1.tar.xz" ] &&
        { tar -xJf "$here/$1.tar.xz" -C "$out/$1" 2> /dev/null ||
            python3 -m tarfile -e "$here/$1.tar.xz" "$out/$1"; }
}

if wants driver; then
    run "driver" "$here/crosshandle-cuda-units" --include-ignored --test-threads 1
    run "driver, adapter" "$here/adapter-units" on_a_gpu --include-ignored --test-threads 1
    run "driver, store" "$here/store-units" on_a_gpu --include-ignored --test-threads 1
    run "names of threads" "$here/crosshandle-threads" --exact every_thread_of_the_library_has_a_documented_name
fi
if wants suite; then
    conformance host host
    conformance cuda:0 cuda:0
    conformance host cuda:0
    conformance cuda:0 host
    if [ "$gpus" -gt 1 ]; then
        conformance cuda:0 cuda:1
        conformance cuda:1 cuda:0
    fi
fi
# Replays of graphs, started by this library and by torch, next to signals without a graph.
if wants replays; then
    run "replays" "$here/conformance" replays --device cuda:0 --count "${REPLAYS:-100000}"
    cat "$log"
    if python_module && python3 -c 'import pytest, torch'; then
        run "replays, captured" env "PYTHONPATH=$site" PYTHONDONTWRITEBYTECODE=1 \
            "CROSSHANDLE_REPLAYS=${REPLAYS:-100000}" \
            python3 -m pytest -q -s -p no:cacheprovider "$here/python/tests/test_device_signals_gpu.py" \
            -k stale_nor_lost
        cat "$log"
    else
        row "replays, captured: no torch" 0 1 0 0
    fi
fi
# Two processes copy GPU memory from one to the other through host memory.
if wants link; then
    unpacked ucx || row "links: no UCX" 0 1 0 0
    export CROSSHANDLE_UCX="$out/ucx/libucx/lib" CROSSHANDLE_LINK_PEER="$here/crosshandle-link-peer"
    run "links of GPUs' memory" \
        "$here/crosshandle-two-hosts" devices::on_a_gpu --include-ignored --nocapture --test-threads 1
    grep -hE 'MB/s|SKIPPED' "$out"/links-of-*.log
fi
# Processes that are killed while they have GPU memory open, and while streams wait for them.
if wants deaths; then
    # shellcheck disable=SC2086
    run "deaths" "$here/conformance" gpu-deaths --device cuda:0 ${DEATHS-}
    grep -E '^(ok|failed) ' "$out/deaths.log"
fi
wants clients && clients
wants interop && interop
if wants programs; then
    run "demo" "$here/crosshandle" demo --device cuda:0
    [ "$gpus" -gt 1 ] && run "demo on two" "$here/crosshandle" demo --device cuda:0 --peer-device cuda:1
    share_and_read
    pipeline
fi
if wants python; then
    if python_module && python3 -c 'import pytest'; then
        python_tests
    else
        row "python: no interpreter, or no pytest" 0 1 0 0
    fi
fi
# Memory that a holder keeps. Writers are killed while a kernel runs, all other processes are killed
# at random, and the example shares a model.
if wants holder; then
    of_holder() {
        title=$1
        shift
        run "$title" env CROSSHANDLE_HOLDER_DEVICE=cuda:0 \
            CROSSHANDLE_CLAIM_CYCLES="${CLAIMS:-200}" CROSSHANDLE_CLAIM_SECONDS="${CLAIM_SECONDS:-120}" \
            CROSSHANDLE_HOLDER_CYCLES="${HOLDER:-500}" CROSSHANDLE_HOLDER_SECONDS="${HOLDER_SECONDS:-120}" \
            "$here/crosshandle-holder" --exact --nocapture --test-threads 1 "$@"
        grep -E 'kill to their end|cycles in|free memory' "$log"
    }
    of_holder "holder, names" names::handed_over_memory_outlives_its_maker \
        names::a_killed_holder_has_a_successor_and_readers_notice_nothing \
        recovery::names_come_back_from_readers_when_both_holders_die
    of_holder "holder, claims" claims::writers_are_killed_and_no_two_have_one_epoch
    of_holder "holder, deaths" deaths::nothing_is_lost_whoever_dies_when
    # The example has a Python reader if an interpreter can load the module.
    if python_module; then reader=$site; else reader=; fi
    run "holder, example" env CROSSHANDLE="$here/crosshandle" DEVICE=cuda:0 MIB="${EXAMPLE_MIB:-1024}" \
        PYTHONPATH="$reader" bash "$here/holder/run.sh"
    cat "$log"
fi
# Models that a holder keeps: tests with torch, and a comparison with raw copies and safetensors.
if wants store; then
    if python_module && python3 -c 'import pytest, torch'; then
        for tests in store store_gpu engines; do
            run "$(echo "$tests" | tr _ ' ')" env "PYTHONPATH=$site" PYTHONDONTWRITEBYTECODE=1 \
                python3 -m pytest -q -p no:cacheprovider "$here/python/tests/test_$tests.py"
        done
        # shellcheck disable=SC2086
        run "store figures" env "PYTHONPATH=$site" python3 -B "$here/python/bench/store.py" ${STORE-}
        cat "$out/store-figures.log"
    else
        row "store: no pytest, or no torch" 0 1 0 0
    fi
fi
# Integrations, next to the steps of the packages that they replace: Ray's transport `CUDA_IPC`,
# LMCache's events, and vLLM's backend `ipc` with two engines.
if wants engines; then
    if python_module && python3 -c 'import torch'; then
        run "engine steps, ray" env "PYTHONPATH=$site" python3 -B "$here/python/bench/engine_steps.py" ray --steps
        run "engine steps, events" env "PYTHONPATH=$site" python3 -B "$here/python/bench/engine_steps.py" events --steps
        # shellcheck disable=SC2086
        run "engine steps, updates" env "PYTHONPATH=$site" python3 -B "$here/python/bench/updates.py" ${UPDATES-}
        cat "$out"/engine-steps-*.log
    else
        row "engines: no torch" 0 1 0 0
    fi
fi
# The driver's own checker runs the same cases. A call that the driver refuses is no error here.
if wants checker && command -v compute-sanitizer > /dev/null; then
    checker="compute-sanitizer --tool memcheck --report-api-errors no --target-processes all"
    run "compute-sanitizer" "$here/conformance" --device cuda:0 --peer-device cuda:0 --jobs "$jobs" \
        --under "$checker --error-exitcode 9" $filter
fi
# Benchmarks write files of results, which belong into benches/results of the checkout.
measure() {
    suite=$1
    shift
    run "bench $suite" "$@" --record "${RECORD:-3}" --into "$out" --commit "$(cat "$here/commit")"
    cat "$log"
}
if wants bench; then
    # shellcheck disable=SC2086
    measure cuda "$here/bench" cuda ${BENCH-}
fi
if wants bench-python; then
    if python_module && python3 -c 'import torch'; then
        # shellcheck disable=SC2086
        measure python env "PYTHONPATH=$site" "$here/bench" python gpu \
            --scripts "$here/python/bench" ${BENCH_PYTHON-}
        measure loader env "PYTHONPATH=$site" "$here/bench" python loader \
            --scripts "$here/python/bench"
    else
        row "bench python: no torch" 0 1 0 0
    fi
fi
# Other libraries. The pack has wheels of some; torch is the machine's.
with_peers() {
    for wheel in "$here"/peers/*.whl; do
        [ -f "$wheel" ] && python3 -m zipfile -e "$wheel" "$out/peers"
    done
    [ -d "$out/nixl" ] || unpacked nixl || echo "no NIXL"
    unpacked ucx || echo "no UCX"
    peers="PYTHONPATH=$site:$out/peers:$out/nixl"
}
if wants models; then
    if python_module && python3 -c 'import torch'; then
        with_peers
        # shellcheck disable=SC2086
        measure models env "$peers" "$here/bench" python models \
            --scripts "$here/python/bench" ${MODELS-}
    else
        row "bench models: no torch" 0 1 0 0
    fi
fi
if wants peers; then
    if python_module && python3 -c 'import torch'; then
        with_peers
        # shellcheck disable=SC2086
        measure peers env "$peers" "CROSSHANDLE_UCX=$out/ucx/libucx/lib" \
            "CROSSHANDLE_LINK_PEER=$here/crosshandle-link-peer" \
            "NIXL_PLUGIN_DIR=$out/nixl/nixl_cu13.libs/nixl" "$here/bench" peers \
            --scripts "$here/python/bench" ${PEERS---only gpu}
        # The page of figures shows these rows apart from those of a host without a GPU.
        for results in "$out"/*-peers.json; do
            [ -f "$results" ] && mv "$results" "${results%.json}-gpu.json"
        done
    else
        row "bench peers: no torch" 0 1 0 0
    fi
fi

echo
printf '%-34s %7s %8s %7s %8s\n' run passed skipped failed seconds
cat "$table"
awk '$(NF - 1) != "0" { bad = 1 } END { exit bad }' "$table"
