// Round trips between a kernel and a thread of the host: this library, and words without it.
#include "crosshandle.cuh"

// Waits for `ping` and signals `pong`, again and again.
extern "C" __global__ void ours(
    crosshandle_device_event ping, crosshandle_device_event pong, crosshandle_u64 rounds)
{
    for (crosshandle_u64 round = 0; round < rounds; round++) {
        if (crosshandle::wait_next(ping, 4000000000ull) != crosshandle::complete)
            return;
        crosshandle::signal(pong);
    }
}

// Waits until the first word reaches the next count, and stores the count in the second word.
extern "C" __global__ void raw(
    crosshandle_u64 *ping, crosshandle_u64 *pong, crosshandle_u64 *count, crosshandle_u64 rounds)
{
    crosshandle_u64 last = *count + rounds;
    for (crosshandle_u64 round = *count + 1; round <= last; round++) {
        crosshandle_u64 seen;
        do
            asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(seen) : "l"(ping) : "memory");
        while (seen < round);
        asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(pong), "l"(round) : "memory");
    }
    *count = last;
}
