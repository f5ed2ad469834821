/* Callbacks, notifiers and queues: each wait that a program can make without a thread of its own. */

#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>

static const uint64_t TIMEOUT = 30 * UINT64_C(1000000000);

/* What a callback has received. Events tell the main thread about each step. */
struct seen {
    crosshandle_event *called;
    crosshandle_event *released;
    crosshandle_result result;
    char message[256];
};

static void on_signal(void *user, crosshandle_result result, const char *message)
{
    struct seen *seen = user;
    seen->result = result;
    snprintf(seen->message, sizeof seen->message, "%s", message);
    crosshandle_event_signal(seen->called, NULL);
}

static void on_release(void *user)
{
    struct seen *seen = user;
    crosshandle_event_signal(seen->released, NULL);
}

static void callbacks(crosshandle_context *context)
{
    struct seen seen = {.result = CROSSHANDLE_OTHER};
    crosshandle_event *event;
    crosshandle_subscription *subscription;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &event));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &seen.called));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &seen.released));

    /* A callback that stays registered by itself. */
    EXPECT(CROSSHANDLE_OK,
           crosshandle_event_on_signal(event, 1, on_signal, on_release, &seen, NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_signal(event, NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(seen.released, 1, TIMEOUT));
    CHECK(crosshandle_event_completed(seen.called) == 1);
    CHECK(seen.result == CROSSHANDLE_OK && seen.message[0] == 0);

    /* A failed signal. */
    EXPECT(CROSSHANDLE_OK,
           crosshandle_event_on_signal(event, 2, on_signal, on_release, &seen, &subscription));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_fail_value(event, 2, "no light"));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(seen.released, 2, TIMEOUT));
    CHECK(seen.result == CROSSHANDLE_COMMAND_FAILED && strstr(seen.message, "no light"));
    EXPECT(CROSSHANDLE_OK, crosshandle_subscription_close(subscription));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_subscription_close(subscription));

    /* A cancelled callback, which is only released. */
    EXPECT(CROSSHANDLE_OK,
           crosshandle_event_on_signal(event, 3, on_signal, on_release, &seen, &subscription));
    EXPECT(CROSSHANDLE_OK, crosshandle_subscription_close(subscription));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(seen.released, 3, TIMEOUT));
    CHECK(crosshandle_event_completed(seen.called) == 2);

    /* A call that fails releases too. */
    EXPECT(CROSSHANDLE_NULL, crosshandle_event_on_signal(event, 3, NULL, on_release, &seen, NULL));
    CHECK(crosshandle_event_completed(seen.released) == 4);

    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(event));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(seen.called));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(seen.released));
}

static void notifiers(crosshandle_context *context)
{
    crosshandle_notifier *notifier;
    crosshandle_event *events[2];
    for (int index = 0; index < 2; index++)
        EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &events[index]));
    EXPECT(CROSSHANDLE_OK, crosshandle_notifier_create(&notifier));
    struct pollfd poller = {.fd = crosshandle_notifier_fd(notifier), .events = POLLIN};
    CHECK(poller.fd >= 0 && poll(&poller, 1, 0) == 0);

    EXPECT(CROSSHANDLE_OK, crosshandle_notifier_add(notifier, events[0], CROSSHANDLE_LATEST, 70));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_notifier_add(notifier, events[1], 1, 70));
    EXPECT(CROSSHANDLE_OK, crosshandle_notifier_add(notifier, events[1], 1, 71));
    bool found = true;
    uint64_t token = 0;
    crosshandle_result result = CROSSHANDLE_OTHER;
    EXPECT(CROSSHANDLE_OK, crosshandle_notifier_next(notifier, &found, &token, &result));
    CHECK(!found && token == 0 && result == CROSSHANDLE_OTHER);

    EXPECT(CROSSHANDLE_OK, crosshandle_event_signal(events[0], NULL));
    CHECK(poll(&poller, 1, 30000) == 1);
    EXPECT(CROSSHANDLE_OK, crosshandle_notifier_next(notifier, &found, &token, &result));
    CHECK(found && token == 70 && result == CROSSHANDLE_OK);
    EXPECT(CROSSHANDLE_OK, crosshandle_event_fail_value(events[1], 1, "no sound"));
    CHECK(poll(&poller, 1, 30000) == 1);
    EXPECT(CROSSHANDLE_OK, crosshandle_notifier_next(notifier, &found, &token, &result));
    CHECK(found && token == 71 && result == CROSSHANDLE_COMMAND_FAILED);
    CHECK(strstr(crosshandle_error_message(), "no sound"));
    CHECK(poll(&poller, 1, 0) == 0);
    bool removed = true;
    EXPECT(CROSSHANDLE_OK, crosshandle_notifier_remove(notifier, 71, &removed));
    CHECK(!removed);
    EXPECT(CROSSHANDLE_OK, crosshandle_notifier_close(notifier));
    CHECK(crosshandle_notifier_fd(notifier) == -1);
    for (int index = 0; index < 2; index++)
        EXPECT(CROSSHANDLE_OK, crosshandle_event_close(events[index]));
}

static void raise_flag(void *user)
{
    *(bool *)user = true;
}

/* The release function of `raise_flag`, which must come first unless that is not called. */
static void raise_second(void *user)
{
    ((bool *)user)[1] = true;
}

static void queues(crosshandle_context *context)
{
    crosshandle_queue *queue;
    crosshandle_memory *memory[2];
    crosshandle_event *start, *done;
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_create(context, false, &queue));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &start));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &done));
    for (int index = 0; index < 2; index++)
        EXPECT(CROSSHANDLE_OK, crosshandle_memory_allocate(context, 64, NULL, &memory[index]));
    memset(crosshandle_memory_host_data(memory[1]), 0, 64);

    /* Nothing runs before the signal. */
    bool flags[2] = {false, false}, finished = true;
    uint16_t pattern = 0x1234;
    uint64_t value = 0;
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_wait(queue, start, CROSSHANDLE_LATEST));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_fill(queue, memory[0], 0, 64, &pattern, 2));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_copy(queue, memory[1], 8, memory[0], 0, 8));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_copy_rows(queue, memory[1], 32, 8, memory[0], 0, 16, 4, 2));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_call(queue, raise_flag, raise_second, flags));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_signal(queue, done, &value));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_flush(queue));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_try_finish(queue, &finished));
    CHECK(value == 1 && !finished);
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_queue_finish(queue, 1000000));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_signal(start, NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(done, 1, TIMEOUT));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_finish(queue, TIMEOUT));
    CHECK(flags[0] && flags[1]);
    const uint16_t *copy = crosshandle_memory_host_data(memory[1]);
    for (int index = 0; index < 32; index++) {
        bool filled = (index >= 4 && index < 8) || index == 16 || index == 17 || index == 20 || index == 21;
        CHECK(copy[index] == (filled ? 0x1234 : 0));
    }

    EXPECT(CROSSHANDLE_INVALID_ARGUMENT,
           crosshandle_queue_copy(queue, memory[1], 8, memory[0], SIZE_MAX, 8));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_queue_fill(queue, memory[0], 0, 3, &pattern, 2));
    EXPECT(CROSSHANDLE_NULL, crosshandle_queue_call(queue, NULL, NULL, NULL));
    flags[0] = flags[1] = false;
    EXPECT(CROSSHANDLE_NULL, crosshandle_queue_call(NULL, raise_flag, raise_second, flags));
    CHECK(!flags[0] && flags[1]);
    EXPECT(CROSSHANDLE_UNSUPPORTED, crosshandle_queue_adopt(context, flags, &queue));
    CHECK(crosshandle_queue_native(queue) == NULL && crosshandle_context_native(context) == NULL);

    /* A wait for several events. */
    crosshandle_awaited awaited[2] = {{start, 2}, {done, 1}};
    size_t index = 9;
    EXPECT(CROSSHANDLE_OK, crosshandle_wait_any(awaited, 2, TIMEOUT, &index));
    CHECK(index == 1);
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_wait_all(awaited, 2, 1000000));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_signal(queue, start, NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_wait_all(awaited, 2, TIMEOUT));

    EXPECT(CROSSHANDLE_OK, crosshandle_queue_close(queue));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(start));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(done));
    for (int number = 0; number < 2; number++)
        EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(memory[number]));
}

/* The latest error belongs to a thread. */
static void *fails(void *user)
{
    (void)user;
    CHECK(crosshandle_error_message()[0] == 0);
    EXPECT(CROSSHANDLE_NULL, crosshandle_event_signal(NULL, NULL));
    return NULL;
}

static void threads(crosshandle_context *context)
{
    crosshandle_event *event;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &event));
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_event_wait(event, 1, 0));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fails, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(strstr(crosshandle_error_message(), "timed out"));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(event));
}

int main(void)
{
    crosshandle_context *context = create_context(NULL);
    callbacks(context);
    notifiers(context);
    queues(context);
    threads(context);
    EXPECT(CROSSHANDLE_OK, crosshandle_context_close(context));
    puts("every wait ends");
    return 0;
}
