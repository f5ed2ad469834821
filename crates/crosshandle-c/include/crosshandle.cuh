/* Crosshandle in code on a device: kernels signal shared events and wait for them.
 *
 * The header compiles with nvcc and NVRTC for kernels, and with any C++11 compiler for the host.
 * NVRTC needs no other header. A kernel takes a `crosshandle_device_event` by value, which
 * `crosshandle_event_open_on_device` fills.
 *
 *     __global__ void consume(crosshandle_device_event full, crosshandle_device_event empty, ...)
 *     {
 *         if (threadIdx.x == 0 && crosshandle::wait_next(full, 1000000000) != crosshandle::complete)
 *             return;
 *         ...
 *         if (threadIdx.x == 0) crosshandle::signal(empty);
 *     }
 *
 * Rules:
 * - Only the event's creator signals, and it creates the event with a single signaller.
 * - The signals of one event are ordered: one thread makes them, or kernels in one stream.
 * - The same holds for the calls of `wait_next` on one event.
 * - Every wait has a deadline. A kernel that waits occupies a part of the device.
 *
 * docs/device-signals.md describes the memory model.
 */
#ifndef CROSSHANDLE_CUH
#define CROSSHANDLE_CUH

#if defined(__CUDACC_RTC__)
/* The structure of crosshandle.h, which needs headers that NVRTC does not have. */
typedef struct crosshandle_device_event {
    void *words;
    void *signalled;
    void *awaited;
    void *abort;
} crosshandle_device_event;
#else
#include "crosshandle.h"
#endif

typedef unsigned int crosshandle_u32;
typedef unsigned long long crosshandle_u64;

/* A channel between code on devices: slots in shared memory, and an event for each direction. The
 * producer has created `full`, and the consumer has created `empty`. Both are new, and the consumer
 * fills its structure before the producer signals. A thread or a stream can take the part of either
 * side with the same events. Item n is in slot (n - 1) mod `depth`. */
typedef struct crosshandle_device_channel {
    /* Signal n says that item n is published. */
    crosshandle_device_event full;
    /* Signal n says that the slot of item n is free again. */
    crosshandle_device_event empty;
    /* The slots, `stride` bytes apart. */
    void *slots;
    crosshandle_u64 stride;
    /* The number of slots, which is not 0. */
    crosshandle_u64 depth;
} crosshandle_device_channel;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define CROSSHANDLE_DEVICE __device__ __forceinline__
#else
#include <time.h>
#define CROSSHANDLE_DEVICE static inline
#endif

namespace crosshandle {

/* The result of a wait. */
enum status {
    /* The signal is complete. What its signaller wrote before is visible. */
    complete = 0,
    /* The deadline has passed. */
    timed_out = 1,
    /* The process that should have signalled has ended. */
    peer_died = 2,
    /* The signaller reported a failure. */
    failed = 3,
    /* The program asked code on the device to stop. */
    aborted = 4
};

/* A timeout that never ends. */
static const crosshandle_u64 forever = ~0ull;

namespace detail {

static const crosshandle_u64 ring = 7;
static const crosshandle_u64 failed_bit = 1ull << 31;
/* Offsets in the words of an event, in units of 8 bytes. */
static const unsigned words_at = 1;
static const unsigned failed_from_at = 16;
static const unsigned failed_to_at = 24;
/* Shifts of the number and the reason in a word of `failed_to`, and of the number in `issued`. */
static const unsigned number_shift = 14;
static const unsigned reason_shift = 12;
static const crosshandle_u64 reason_died = 1;
static const crosshandle_u64 reason_failed = 2;
/* After this many signals, the signaller checks that the host has taken enough numbers ahead. */
static const crosshandle_u64 check_interval = 1ull << 20;
/* Maximum time in nanoseconds for which the signaller waits for these numbers. */
static const crosshandle_u64 numbers_timeout = 10000000000ull;
/* The bit of the abort word by which the program asks code on the device to stop. */
static const crosshandle_u32 stop_bit = 1;
/* Number of polls between two looks at the abort word. */
static const unsigned polls_per_abort_check = 64;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/* Loads and stores of the system's scope, which order all memory of the GPUs and the host. */
CROSSHANDLE_DEVICE crosshandle_u64 load(const void *address)
{
    crosshandle_u64 value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

CROSSHANDLE_DEVICE crosshandle_u32 load_abort(const void *address)
{
    crosshandle_u32 value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

CROSSHANDLE_DEVICE void store(void *address, crosshandle_u64 value)
{
    asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

/* Counts are used by ordered code of one device only. */
CROSSHANDLE_DEVICE crosshandle_u64 count(const void *address)
{
    return *static_cast<const volatile crosshandle_u64 *>(address);
}

CROSSHANDLE_DEVICE void set_count(void *address, crosshandle_u64 value)
{
    *static_cast<volatile crosshandle_u64 *>(address) = value;
}

/* Adds 1 to a count, which is in the device's own memory, and returns the new value. */
CROSSHANDLE_DEVICE crosshandle_u64 add_one(void *address)
{
    crosshandle_u64 before;
    asm volatile("atom.add.u64 %0, [%1], 1;" : "=l"(before) : "l"(address) : "memory");
    return before + 1;
}

CROSSHANDLE_DEVICE crosshandle_u64 nanoseconds()
{
    crosshandle_u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : : "memory");
    return now;
}

CROSSHANDLE_DEVICE void pause()
{
}

#else

CROSSHANDLE_DEVICE crosshandle_u64 load(const void *address)
{
    return __atomic_load_n(static_cast<const crosshandle_u64 *>(address), __ATOMIC_ACQUIRE);
}

CROSSHANDLE_DEVICE crosshandle_u32 load_abort(const void *address)
{
    return __atomic_load_n(static_cast<const crosshandle_u32 *>(address), __ATOMIC_RELAXED);
}

CROSSHANDLE_DEVICE void store(void *address, crosshandle_u64 value)
{
    __atomic_store_n(static_cast<crosshandle_u64 *>(address), value, __ATOMIC_RELEASE);
}

CROSSHANDLE_DEVICE crosshandle_u64 count(const void *address)
{
    return __atomic_load_n(static_cast<const crosshandle_u64 *>(address), __ATOMIC_RELAXED);
}

CROSSHANDLE_DEVICE void set_count(void *address, crosshandle_u64 value)
{
    __atomic_store_n(static_cast<crosshandle_u64 *>(address), value, __ATOMIC_RELAXED);
}

CROSSHANDLE_DEVICE crosshandle_u64 add_one(void *address)
{
    return __atomic_add_fetch(static_cast<crosshandle_u64 *>(address), 1, __ATOMIC_RELAXED);
}

CROSSHANDLE_DEVICE crosshandle_u64 nanoseconds()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<crosshandle_u64>(now.tv_sec) * 1000000000ull
        + static_cast<crosshandle_u64>(now.tv_nsec);
}

CROSSHANDLE_DEVICE void pause()
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif

CROSSHANDLE_DEVICE crosshandle_u64 *word(const crosshandle_device_event &event, unsigned at)
{
    return static_cast<crosshandle_u64 *>(event.words) + at;
}

CROSSHANDLE_DEVICE unsigned index(crosshandle_u64 number)
{
    return static_cast<unsigned>(number % ring);
}

/* Returns whether a word has reached a number. Compares the lower 32 bits, cyclically. */
CROSSHANDLE_DEVICE bool reached(crosshandle_u64 word, crosshandle_u64 number)
{
    crosshandle_u32 ahead = static_cast<crosshandle_u32>(word >> 32)
        - static_cast<crosshandle_u32>(number);
    return ahead < 0x80000000u;
}

/* Returns the result of a signal that has finished, from the records of failures. */
CROSSHANDLE_DEVICE status result(const crosshandle_device_event &event, crosshandle_u64 number)
{
    crosshandle_u64 to = load(word(event, failed_to_at + index(number)));
    crosshandle_u64 from = load(word(event, failed_from_at + index(number)));
    if (from == 0 || number < from || number > to >> number_shift)
        return complete;
    return (to >> reason_shift & 3) == reason_failed ? failed : peer_died;
}

/* Returns whether the program asked code on the device to stop. */
CROSSHANDLE_DEVICE bool is_stopped(const crosshandle_device_event &event)
{
    return event.abort != 0 && (load_abort(event.abort) & stop_bit) != 0;
}

/* Waits until the host has taken more numbers ahead than the next interval uses. Returns false if
 * the program asked code on the device to stop, or if the host does not respond. */
CROSSHANDLE_DEVICE bool await_numbers(const crosshandle_device_event &event, crosshandle_u64 number)
{
    crosshandle_u64 start = nanoseconds();
    while (load(word(event, 0)) >> number_shift < number + 2 * check_interval) {
        if (is_stopped(event) || nanoseconds() - start >= numbers_timeout)
            return false;
        pause();
    }
    return true;
}

/* Returns the slot of an item. */
CROSSHANDLE_DEVICE void *slot(const crosshandle_device_channel &channel, crosshandle_u64 number)
{
    return static_cast<char *>(channel.slots) + (number - 1) % channel.depth * channel.stride;
}

/* Takes the next number of a signal. Returns 0 if the code cannot signal the event. */
CROSSHANDLE_DEVICE crosshandle_u64 take(const crosshandle_device_event &event)
{
    if (event.signalled == 0)
        return 0;
    crosshandle_u64 number = add_one(event.signalled);
    if ((number & (check_interval - 1)) == 0 && !await_numbers(event, number))
        return 0;
    return number;
}

} /* namespace detail */

/* Signals the event and returns the number of the signal. Returns 0, and does not signal, if the
 * code may only wait for the event or is stopped while it waits for the host. Everything that the
 * calling thread wrote before, and everything that it knows other threads to have written, is
 * visible after a wait. */
CROSSHANDLE_DEVICE crosshandle_u64 signal(const crosshandle_device_event &event)
{
    crosshandle_u64 number = detail::take(event);
    if (number == 0)
        return 0;
    detail::store(detail::word(event, detail::words_at + detail::index(number)), number << 32);
    return number;
}

/* Signals the event as failed, and returns as `signal` does. Waits for this signal return `failed`,
 * or CommandFailed on the host. */
CROSSHANDLE_DEVICE crosshandle_u64 fail(const crosshandle_device_event &event)
{
    crosshandle_u64 number = detail::take(event);
    if (number == 0)
        return 0;
    unsigned index = detail::index(number);
    crosshandle_u64 *from = detail::word(event, detail::failed_from_at + index);
    crosshandle_u64 *to = detail::word(event, detail::failed_to_at + index);
    crosshandle_u64 last = detail::load(to) >> detail::number_shift;
    /* Consecutive failures form one range. */
    if (last == 0 || last + detail::ring < number)
        detail::store(from, number);
    detail::store(to, number << detail::number_shift | detail::reason_failed << detail::reason_shift);
    detail::store(detail::word(event, detail::words_at + index), number << 32 | detail::failed_bit);
    return number;
}

/* Returns whether code on the device should stop: a process that shares an event with this context
 * has ended, or the program asked for it. */
CROSSHANDLE_DEVICE bool is_aborted(const crosshandle_device_event &event)
{
    return event.abort != 0 && detail::load_abort(event.abort) != 0;
}

/* Returns whether signal `number` has finished, and its result in `outcome`. */
CROSSHANDLE_DEVICE bool try_wait(
    const crosshandle_device_event &event, crosshandle_u64 number, status &outcome)
{
    crosshandle_u64 word =
        detail::load(detail::word(event, detail::words_at + detail::index(number)));
    if (!detail::reached(word, number))
        return false;
    /* A later signal on the word clears the bit of an earlier failure. */
    bool is_latest = static_cast<crosshandle_u32>(word >> 32)
        == static_cast<crosshandle_u32>(number);
    bool is_unmarked = (word & detail::failed_bit) == 0;
    outcome = is_latest && is_unmarked ? complete : detail::result(event, number);
    return true;
}

/* Waits for signal `number`, which may not be submitted yet, for at most `timeout` nanoseconds of
 * the device's clock. */
CROSSHANDLE_DEVICE status wait(
    const crosshandle_device_event &event, crosshandle_u64 number, crosshandle_u64 timeout)
{
    status outcome = complete;
    if (try_wait(event, number, outcome))
        return outcome;
    crosshandle_u64 start = detail::nanoseconds();
    for (unsigned polls = 1;; polls++) {
        if (try_wait(event, number, outcome))
            return outcome;
        if (timeout != forever && detail::nanoseconds() - start >= timeout)
            return timed_out;
        if (polls % detail::polls_per_abort_check == 0 && detail::is_stopped(event))
            return try_wait(event, number, outcome) ? outcome : aborted;
        detail::pause();
    }
}

/* Waits for the next signal: the first call waits for the signal after the latest one at the time
 * when the structure was filled, and each further call for the signal after that. A wait that times
 * out or is aborted does not count. */
CROSSHANDLE_DEVICE status wait_next(const crosshandle_device_event &event, crosshandle_u64 timeout)
{
    crosshandle_u64 number = detail::count(event.awaited) + 1;
    status outcome = wait(event, number, timeout);
    if (outcome != timed_out && outcome != aborted)
        detail::set_count(event.awaited, number);
    return outcome;
}

/* Waits until the channel's next slot is free, and returns its address in `slot`. Only for the
 * producer, which has created `full`. */
CROSSHANDLE_DEVICE status reserve(
    const crosshandle_device_channel &channel, crosshandle_u64 timeout, void *&slot)
{
    if (channel.full.signalled == 0)
        return failed;
    crosshandle_u64 number = detail::count(channel.full.signalled) + 1;
    if (number > channel.depth) {
        status outcome = wait(channel.empty, number - channel.depth, timeout);
        if (outcome != complete)
            return outcome;
    }
    slot = detail::slot(channel, number);
    return complete;
}

/* Publishes the item in the reserved slot, and returns its number. Returns 0 as `signal` does. */
CROSSHANDLE_DEVICE crosshandle_u64 publish(const crosshandle_device_channel &channel)
{
    return signal(channel.full);
}

/* Publishes that the reserved slot has no item. Its `receive` returns `failed`. */
CROSSHANDLE_DEVICE crosshandle_u64 publish_failure(const crosshandle_device_channel &channel)
{
    return fail(channel.full);
}

/* Waits for the next item, and returns its address in `slot`. Only for the consumer. A slot whose
 * `receive` returned `failed` or `peer_died` must be released too. */
CROSSHANDLE_DEVICE status receive(
    const crosshandle_device_channel &channel, crosshandle_u64 timeout, void *&slot)
{
    crosshandle_u64 number = detail::count(channel.full.awaited) + 1;
    slot = detail::slot(channel, number);
    return wait_next(channel.full, timeout);
}

/* Gives the oldest received slot back to the producer, and returns its number. Only for the
 * consumer, which has created `empty`. Returns 0 as `signal` does. */
CROSSHANDLE_DEVICE crosshandle_u64 release(const crosshandle_device_channel &channel)
{
    return signal(channel.empty);
}

} /* namespace crosshandle */

#endif
