/* The functions of crosshandle.cuh, compiled for the host. A thread of each of two processes plays
 * the part of a kernel. */

#include "check.h"
#include "crosshandle.cuh"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

static const crosshandle_u64 TIMEOUT = 30 * 1000000000ull;
static const unsigned ROUNDS = 2000;

/* An event with its access for code. */
struct shared {
    crosshandle_event *event;
    crosshandle_event_on_device *on_device;
    crosshandle_device_event code;
};

static shared opened(crosshandle_context *context, crosshandle_event *event)
{
    shared result = {};
    result.event = event;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_open_on_device(context, event, &result.on_device,
                                                           &result.code));
    return result;
}

static shared created(crosshandle_context *context, bool single_signaller)
{
    crosshandle_event_options options = {};
    options.size = sizeof options;
    options.single_signaller = single_signaller;
    crosshandle_event *event;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, &options, &event));
    return opened(context, event);
}

static void closed(shared &shared)
{
    EXPECT(CROSSHANDLE_OK, crosshandle_event_on_device_close(shared.on_device));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(shared.event));
}

static void send(int to, crosshandle_event *event)
{
    crosshandle_event_handle handle;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_get_handle(event, &handle));
    CHECK(write(to, &handle, sizeof handle) == sizeof handle);
}

static shared receive(int from, crosshandle_context *context)
{
    crosshandle_event_handle handle;
    CHECK(read(from, &handle, sizeof handle) == sizeof handle);
    crosshandle_event *event;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_open(context, &handle, TIMEOUT, &event));
    return opened(context, event);
}

/* Waits for `theirs` and signals `ours`, as the kernel of the conformance suite does. */
static void turns(const crosshandle_device_event &ours, const crosshandle_device_event &theirs)
{
    for (unsigned round = 1; round <= ROUNDS; round++) {
        CHECK(crosshandle::wait_next(theirs, TIMEOUT) == crosshandle::complete);
        CHECK(crosshandle::signal(ours) == round);
    }
}

/* The second process: it plays, and then waits to be killed. */
static int second(int from, int to)
{
    crosshandle_context *context = create_context(NULL);
    shared pong = created(context, true);
    send(to, pong.event);
    shared ping = receive(from, context);
    /* A third event, whose signals come from the host. */
    shared word = receive(from, context);
    /* The counts of wait_next begin now, before the first signal. */
    CHECK(write(to, "r", 1) == 1);
    turns(pong.code, ping.code);
    for (crosshandle_u64 number = 1; number <= 40; number++) {
        CHECK(crosshandle::wait(word.code, number, TIMEOUT) == crosshandle::complete);
        /* The words of earlier signals on the host are written too. */
        crosshandle::status outcome;
        CHECK(crosshandle::try_wait(word.code, number > 3 ? number - 3 : 1, outcome));
    }
    CHECK(crosshandle::wait(word.code, 41, TIMEOUT) == crosshandle::failed);
    crosshandle::fail(pong.code);
    crosshandle::signal(pong.code);
    pause();
    return 1;
}

int main(int count, char **arguments)
{
    if (count == 3)
        return second(atoi(arguments[1]), atoi(arguments[2]));
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    char from[12], to[12];
    snprintf(from, sizeof from, "%d", there[0]);
    snprintf(to, sizeof to, "%d", back[1]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", arguments[0], from, to, static_cast<char *>(NULL));
        _exit(2);
    }
    crosshandle_context *context = create_context(NULL);
    shared ping = created(context, true), word = created(context, false);
    shared pong = receive(back[0], context);
    send(there[1], ping.event);
    send(there[1], word.event);
    char ready;
    CHECK(read(back[0], &ready, 1) == 1);

    /* One thread plays. This thread sleeps until the other process has signalled. */
    std::thread kernel([&] {
        crosshandle::signal(ping.code);
        for (unsigned round = 1; round < ROUNDS; round++) {
            CHECK(crosshandle::wait_next(pong.code, TIMEOUT) == crosshandle::complete);
            crosshandle::signal(ping.code);
        }
        CHECK(crosshandle::wait_next(pong.code, TIMEOUT) == crosshandle::complete);
    });
    for (crosshandle_u64 number = 100; number <= ROUNDS; number += 100)
        EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(pong.event, number, TIMEOUT));
    kernel.join();
    CHECK(crosshandle_event_submitted(ping.event) == ROUNDS);
    CHECK(crosshandle_event_completed(pong.event) == ROUNDS);
    EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(ping.event, CROSSHANDLE_LATEST, 0));

    /* Only code of the creator signals. */
    CHECK(pong.code.signalled == NULL && word.code.signalled == NULL);
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_event_signal(ping.event, NULL));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_event_signal(pong.event, NULL));

    /* The host signals code, and fails one signal. */
    for (int signal = 0; signal < 40; signal++)
        EXPECT(CROSSHANDLE_OK, crosshandle_event_signal(word.event, NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_fail_value(word.event, 41, "on purpose"));
    /* Code fails a signal. */
    EXPECT(CROSSHANDLE_COMMAND_FAILED, crosshandle_event_wait(pong.event, ROUNDS + 1, TIMEOUT));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(pong.event, ROUNDS + 2, TIMEOUT));
    CHECK(crosshandle::wait(pong.code, ROUNDS + 1, TIMEOUT) == crosshandle::failed);

    /* Deadlines and requests to stop. */
    crosshandle_u64 start = crosshandle::detail::nanoseconds();
    CHECK(crosshandle::wait(pong.code, ROUNDS + 3, 20000000) == crosshandle::timed_out);
    CHECK(crosshandle::detail::nanoseconds() - start >= 20000000);
    CHECK(!crosshandle::is_aborted(pong.code));
    EXPECT(CROSSHANDLE_OK, crosshandle_context_abort_device_code(context, true));
    CHECK(crosshandle::wait(pong.code, ROUNDS + 3, TIMEOUT) == crosshandle::aborted);
    EXPECT(CROSSHANDLE_OK, crosshandle_context_abort_device_code(context, false));

    /* A death. */
    std::thread waiter([&] {
        CHECK(crosshandle::wait(pong.code, ROUNDS + 3, TIMEOUT) == crosshandle::peer_died);
    });
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    start = crosshandle::detail::nanoseconds();
    waiter.join();
    CHECK(crosshandle::detail::nanoseconds() - start < 5000000000ull);
    EXPECT(CROSSHANDLE_PEER_DIED, crosshandle_event_wait(pong.event, ROUNDS + 3, TIMEOUT));
    while (!crosshandle::is_aborted(pong.code))
        CHECK(crosshandle::detail::nanoseconds() - start < 5000000000ull);

    closed(ping);
    closed(pong);
    closed(word);
    EXPECT(CROSSHANDLE_OK, crosshandle_context_close(context));
    return 0;
}
