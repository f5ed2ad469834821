// Kernels of one thread that signal events and wait for them.
#include "crosshandle.cuh"

// The result of a kernel: the last status, the number of rounds, and nanoseconds.
struct result {
    crosshandle_u64 status;
    crosshandle_u64 rounds;
    crosshandle_u64 nanoseconds;
};

// Waits for `theirs` and signals `ours`, again and again. The first kernel signals before it waits.
extern "C" __global__ void turns(
    crosshandle_device_event ours, crosshandle_device_event theirs, crosshandle_u64 rounds,
    crosshandle_u64 is_first, crosshandle_u64 timeout, result *result)
{
    crosshandle_u64 start = crosshandle::detail::nanoseconds();
    crosshandle_u64 round = 0;
    unsigned status = 0;
    if (is_first)
        crosshandle::signal(ours);
    while (round < rounds) {
        status = crosshandle::wait_next(theirs, timeout);
        if (status)
            break;
        round++;
        if (!is_first || round < rounds)
            crosshandle::signal(ours);
    }
    result->status = status;
    result->rounds = round;
    result->nanoseconds = crosshandle::detail::nanoseconds() - start;
}

// Waits for one signal.
extern "C" __global__ void wait_for(
    crosshandle_device_event event, crosshandle_u64 number, crosshandle_u64 timeout,
    result *result)
{
    crosshandle_u64 start = crosshandle::detail::nanoseconds();
    result->status = crosshandle::wait(event, number, timeout);
    result->nanoseconds = crosshandle::detail::nanoseconds() - start;
}

// Signals several times, with pauses. The last signals fail.
extern "C" __global__ void signals(
    crosshandle_device_event event, crosshandle_u64 successes, crosshandle_u64 failures,
    crosshandle_u64 pause, result *result)
{
    for (crosshandle_u64 round = 0; round < successes + failures; round++) {
        crosshandle_u64 start = crosshandle::detail::nanoseconds();
        while (crosshandle::detail::nanoseconds() - start < pause) {
        }
        result->rounds =
            round < successes ? crosshandle::signal(event) : crosshandle::fail(event);
    }
}
