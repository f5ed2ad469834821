// Kernels that signal events and wait for them, of one thread except `litmus`.
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

// Sends or receives items of 8 words through a channel. The producer fails each tenth item.
extern "C" __global__ void pass_items(
    crosshandle_device_channel channel, crosshandle_u64 is_producer, crosshandle_u64 items,
    crosshandle_u64 timeout, result *result)
{
    crosshandle_u64 start = crosshandle::detail::nanoseconds();
    crosshandle_u64 item = 0;
    unsigned status = 0;
    while (item < items && status == 0) {
        void *slot;
        crosshandle_u64 number = item + 1;
        bool fails = number % 10 == 0;
        if (is_producer) {
            status = crosshandle::reserve(channel, timeout, slot);
            if (status)
                break;
            for (unsigned i = 0; i < 8; i++)
                static_cast<crosshandle_u64 *>(slot)[i] = number * 8 + i;
            crosshandle_u64 published = fails ? crosshandle::publish_failure(channel)
                                              : crosshandle::publish(channel);
            if (published != number)
                status = 9;
        } else {
            status = crosshandle::receive(channel, timeout, slot);
            if (status == (fails ? crosshandle::failed : crosshandle::complete))
                status = 0;
            else
                break;
            for (unsigned i = 0; i < 8; i++)
                if (static_cast<volatile crosshandle_u64 *>(slot)[i] != number * 8 + i)
                    status = 9;
            if (crosshandle::release(channel) != number)
                status = 9;
        }
        item++;
    }
    result->status = status;
    result->rounds = item;
    result->nanoseconds = crosshandle::detail::nanoseconds() - start;
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define SHARED __shared__
#define THREAD threadIdx.x
#define THREADS blockDim.x
#define BARRIER() __syncthreads()
#else
#define SHARED
#define THREAD 0u
#define THREADS 1u
#define BARRIER()
#endif

// Number of words that each side writes in a round, and the status of a round that saw older words.
static const unsigned litmus_words = 64;
static const crosshandle_u64 stale = 9;

// Writes words, signals, waits, and checks the words of the other side, again and again. All threads
// of the block write and check words without synchronization. Only one thread signals and waits.
// Words of even and odd rounds are separate, because the other side may be one round ahead.
extern "C" __global__ void litmus(
    crosshandle_device_event ours, crosshandle_device_event theirs, crosshandle_u64 *words,
    crosshandle_u64 side, crosshandle_u64 rounds, crosshandle_u64 timeout, result *result)
{
    SHARED crosshandle_u64 status;
    SHARED unsigned is_stale;
    crosshandle_u64 round = 0;
    if (THREAD == 0) {
        status = 0;
        is_stale = 0;
    }
    while (round < rounds) {
        round++;
        crosshandle_u64 *own = words + (2 * side + round % 2) * litmus_words;
        const crosshandle_u64 *other = words + (2 * (1 - side) + round % 2) * litmus_words;
        for (unsigned i = THREAD; i < litmus_words; i += THREADS)
            own[i] = round * litmus_words + i;
        BARRIER();
        if (THREAD == 0) {
            crosshandle::signal(ours);
            status = crosshandle::wait_next(theirs, timeout);
        }
        BARRIER();
        if (status)
            break;
        for (unsigned i = THREAD; i < litmus_words; i += THREADS)
            if (other[i] != round * litmus_words + i)
                is_stale = 1;
        BARRIER();
        if (is_stale)
            break;
    }
    if (THREAD == 0) {
        result->status = is_stale ? stale : status;
        result->rounds = round;
        result->nanoseconds = 0;
    }
}
