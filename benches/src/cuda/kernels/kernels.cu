// Round trips of kernels with threads of the host and with other kernels: this library, and words
// without it.
#include "crosshandle.cuh"

static __device__ void delay_for(crosshandle_u64 nanoseconds)
{
    crosshandle_u64 begin = crosshandle::detail::nanoseconds();
    while (crosshandle::detail::nanoseconds() - begin < nanoseconds) {
    }
}

// Waits for `ping` and signals `pong` after `delay` nanoseconds, again and again.
extern "C" __global__ void ours(
    crosshandle_device_event ping, crosshandle_device_event pong, crosshandle_u64 rounds,
    crosshandle_u64 delay)
{
    for (crosshandle_u64 round = 0; round < rounds; round++) {
        if (crosshandle::wait_next(ping, 4000000000ull) != crosshandle::complete)
            return;
        if (delay != 0)
            delay_for(delay);
        crosshandle::signal(pong);
    }
}

// The other side of `ours`: signals `ping` and waits for `pong`.
extern "C" __global__ void ours_first(
    crosshandle_device_event ping, crosshandle_device_event pong, crosshandle_u64 rounds)
{
    for (crosshandle_u64 round = 0; round < rounds; round++) {
        crosshandle::signal(ping);
        if (crosshandle::wait_next(pong, 4000000000ull) != crosshandle::complete)
            return;
    }
}

static __device__ void await(const crosshandle_u64 *word, crosshandle_u64 number)
{
    crosshandle_u64 seen;
    do
        asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
    while (seen < number);
}

static __device__ void store(crosshandle_u64 *word, crosshandle_u64 number)
{
    asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(word), "l"(number) : "memory");
}

// Waits until the first word reaches the next count, and stores the count in the second word after
// `delay` nanoseconds.
extern "C" __global__ void raw(
    crosshandle_u64 *ping, crosshandle_u64 *pong, crosshandle_u64 *count, crosshandle_u64 rounds,
    crosshandle_u64 delay)
{
    crosshandle_u64 last = *count + rounds;
    for (crosshandle_u64 round = *count + 1; round <= last; round++) {
        await(ping, round);
        if (delay != 0)
            delay_for(delay);
        store(pong, round);
    }
    *count = last;
}

// The two halves of `raw` for one round, as two nodes of a graph, which may have work between them.
extern "C" __global__ void raw_wait(
    crosshandle_u64 *ping, crosshandle_u64 *pong, crosshandle_u64 *count)
{
    await(ping, *count + 1);
}

extern "C" __global__ void raw_signal(
    crosshandle_u64 *ping, crosshandle_u64 *pong, crosshandle_u64 *count)
{
    *count += 1;
    store(pong, *count);
}

// The two halves of `raw_first`.
extern "C" __global__ void raw_first_signal(
    crosshandle_u64 *ping, crosshandle_u64 *pong, crosshandle_u64 *count)
{
    *count += 1;
    store(ping, *count);
}

extern "C" __global__ void raw_first_wait(
    crosshandle_u64 *ping, crosshandle_u64 *pong, crosshandle_u64 *count)
{
    await(pong, *count);
}

// The other side of `raw`.
extern "C" __global__ void raw_first(
    crosshandle_u64 *ping, crosshandle_u64 *pong, crosshandle_u64 *count, crosshandle_u64 rounds)
{
    crosshandle_u64 last = *count + rounds;
    for (crosshandle_u64 round = *count + 1; round <= last; round++) {
        store(ping, round);
        await(pong, round);
    }
    *count = last;
}
