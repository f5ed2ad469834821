/* Channels within one process: each function once, and each mistake. */

#include "check.h"

#include <pthread.h>
#include <string.h>

static const uint64_t TIMEOUT = 30 * UINT64_C(1000000000);

static crosshandle_consumer *shared_consumer;
static crosshandle_event *started;

/* Waits for an item that comes when the main thread has seen that the consumer is in use. */
static void *receive(void *user)
{
    crosshandle_item **item = user;
    crosshandle_result result;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_signal(started, NULL));
    /* The main thread uses the consumer too, until this thread waits. */
    while ((result = crosshandle_consumer_receive(shared_consumer, TIMEOUT, item)) == CROSSHANDLE_IN_USE)
        ;
    CHECK(result == CROSSHANDLE_OK);
    return NULL;
}

int main(void)
{
    crosshandle_context *context = create_context(NULL);
    crosshandle_channel *channel, *readers;
    crosshandle_channel_options options = {.size = sizeof options};
    EXPECT(CROSSHANDLE_NULL, crosshandle_channel_create(context, NULL, &channel));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_channel_create(context, &options, &channel));
    options.slot_size = 4096;
    options.depth = 3;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_channel_create(context, &options, &channel));
    options.depth = 2;
    options.delivery = 7;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_channel_create(context, &options, &channel));
    options.delivery = CROSSHANDLE_QUEUE;
    options.when_full = 7;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_channel_create(context, &options, &channel));
    options.when_full = CROSSHANDLE_WAIT;
    options.name = "test";
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_create(context, &options, &channel));

    /* A handle for consumers grants no more. */
    crosshandle_channel_handle handle;
    crosshandle_producer *producer, *second;
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_get_handle(channel, CROSSHANDLE_READ_ONLY, &handle));
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_open(context, &handle, TIMEOUT, &readers));
    EXPECT(CROSSHANDLE_PERMISSION_DENIED, crosshandle_producer_create(readers, &producer));
    crosshandle_channel_handle same;
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_get_handle(readers, CROSSHANDLE_READ_ONLY, &same));
    CHECK(memcmp(&same, &handle, sizeof same) == 0);
    EXPECT(CROSSHANDLE_PERMISSION_DENIED,
           crosshandle_channel_get_handle(readers, CROSSHANDLE_READ_WRITE, &same));

    /* Handles of memory and of channels are different kinds. */
    char text[CROSSHANDLE_HANDLE_TEXT_SIZE];
    crosshandle_memory *plain;
    crosshandle_memory_handle plain_handle;
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_allocate(context, 4096, NULL, &plain));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_get_handle(plain, CROSSHANDLE_READ_WRITE, &plain_handle));
    EXPECT(CROSSHANDLE_BAD_HANDLE,
           crosshandle_channel_handle_from_bytes(plain_handle.bytes, sizeof plain_handle.bytes, &same));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_handle_to_text(&plain_handle, text, sizeof text));
    EXPECT(CROSSHANDLE_BAD_HANDLE, crosshandle_channel_handle_from_text(text, &same));
    CHECK(memcmp(&same, &handle, sizeof same) == 0);
    memcpy(same.bytes, plain_handle.bytes, sizeof same.bytes);
    crosshandle_channel *not_opened;
    EXPECT(CROSSHANDLE_BAD_HANDLE, crosshandle_channel_open(context, &same, TIMEOUT, &not_opened));
    EXPECT(CROSSHANDLE_BAD_HANDLE, crosshandle_channel_handle_to_text(&same, text, sizeof text));
    EXPECT(CROSSHANDLE_BAD_HANDLE,
           crosshandle_memory_handle_from_bytes(handle.bytes, sizeof handle.bytes, &plain_handle));
    memcpy(plain_handle.bytes, handle.bytes, sizeof plain_handle.bytes);
    CHECK(crosshandle_memory_handle_length(&plain_handle) == 0);
    EXPECT(CROSSHANDLE_BAD_HANDLE,
           crosshandle_memory_open(context, &plain_handle, CROSSHANDLE_READ_ONLY, 0, &plain));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(plain));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_channel_handle_to_text(&handle, text, 10));
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_handle_to_text(&handle, text, sizeof text));
    EXPECT(CROSSHANDLE_BAD_HANDLE, crosshandle_memory_handle_from_text(text, &plain_handle));
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_handle_from_text(text, &same));
    CHECK(memcmp(&same, &handle, sizeof same) == 0);
    EXPECT(CROSSHANDLE_OK,
           crosshandle_channel_handle_from_bytes(handle.bytes, sizeof handle.bytes, &same));
    EXPECT(CROSSHANDLE_NULL, crosshandle_channel_open(context, NULL, TIMEOUT, &not_opened));

    EXPECT(CROSSHANDLE_OK, crosshandle_producer_create(channel, &producer));
    EXPECT(CROSSHANDLE_EXHAUSTED, crosshandle_producer_create(channel, &second));
    crosshandle_consumer *consumer;
    EXPECT(CROSSHANDLE_OK, crosshandle_consumer_create(readers, &consumer));
    crosshandle_channel_info state;
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_get_info(channel, &state));
    CHECK(state.slot_size == 4096 && state.depth == 2 && state.producers == 1 && state.consumers == 1);
    CHECK(state.delivery == CROSSHANDLE_QUEUE && state.when_full == CROSSHANDLE_WAIT);

    /* In place. */
    crosshandle_slot *slots[3];
    uint64_t number = 9;
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_reserve(producer, &slots[0]));
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_reserve(producer, &slots[1]));
    EXPECT(CROSSHANDLE_EXHAUSTED, crosshandle_producer_reserve(producer, &slots[2]));
    CHECK(crosshandle_slot_size(slots[0]) == 4096);
    memcpy(crosshandle_slot_data(slots[0]), "in place", 9);
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_slot_set_length(slots[0], 4097));
    EXPECT(CROSSHANDLE_OK, crosshandle_slot_set_length(slots[0], 9));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_slot_set_user(slots[0], &state, 65));
    EXPECT(CROSSHANDLE_OK, crosshandle_slot_set_user(slots[0], "user", 5));
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_publish(producer, slots[0], 0, &number));
    CHECK(number == 0);
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_producer_publish(producer, slots[0], 0, &number));
    CHECK(crosshandle_slot_data(slots[0]) == NULL);

    /* As an array. */
    crosshandle_array array = {.type_code = 2, .type_bits = 32, .dimensions = 2, .shape = {3, 4}};
    EXPECT(CROSSHANDLE_OK, crosshandle_slot_set_array(slots[1], &array));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_slot_set_length(slots[1], 9));
    array.dimensions = 9;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_slot_set_array(slots[1], &array));
    EXPECT(CROSSHANDLE_OK, crosshandle_slot_write(slots[1], 0, "array", 6));
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_publish(producer, slots[1], 0, NULL));

    /* A full channel: the program keeps the slot. */
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_reserve(producer, &slots[2]));
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_producer_publish(producer, slots[2], 0, NULL));
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_producer_publish(producer, slots[2], 1000000, NULL));
    CHECK(crosshandle_slot_size(slots[2]) == 4096);
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_producer_send(producer, "late", 5, 0, NULL));

    crosshandle_item *items[2];
    crosshandle_item_info info;
    char bytes[64];
    size_t length;
    EXPECT(CROSSHANDLE_OK, crosshandle_consumer_receive(consumer, 0, &items[0]));
    EXPECT(CROSSHANDLE_OK, crosshandle_item_get_info(items[0], &info));
    CHECK(info.number == 0 && info.size == 9 && info.time_ns > 0);
    CHECK(strcmp(info.data, "in place") == 0);
    EXPECT(CROSSHANDLE_OK, crosshandle_item_get_user(items[0], bytes, sizeof bytes, &length));
    CHECK(length == 5 && strcmp(bytes, "user") == 0);
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_item_get_array(items[0], &array));
    strcpy(bytes, "kept");
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_item_read(items[0], 1, bytes, 9));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_item_read(items[0], 1, bytes, SIZE_MAX));
    CHECK(strcmp(bytes, "kept") == 0);
    EXPECT(CROSSHANDLE_OK, crosshandle_consumer_receive(consumer, TIMEOUT, &items[1]));
    EXPECT(CROSSHANDLE_OK, crosshandle_item_get_array(items[1], &array));
    CHECK(array.dimensions == 2 && array.shape[0] == 3 && array.shape[1] == 4);
    CHECK(array.type_code == 2 && array.type_bits == 32);
    EXPECT(CROSSHANDLE_OK, crosshandle_item_read(items[1], 0, bytes, 6));
    CHECK(strcmp(bytes, "array") == 0);
    EXPECT(CROSSHANDLE_OK, crosshandle_item_close(items[0]));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_item_close(items[0]));

    /* With a queue. */
    crosshandle_queue *queue;
    crosshandle_memory *memory;
    crosshandle_event *start;
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_create(context, false, &queue));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_allocate(context, 4096, NULL, &memory));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &start));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_write(memory, 100, "by a queue", 11));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_wait(queue, start, CROSSHANDLE_LATEST));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_copy_to_slot(queue, slots[2], 0, memory, 100, 11));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT,
           crosshandle_queue_copy_to_slot(queue, slots[2], 4096, memory, 100, 11));
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_publish_on(producer, queue, slots[2], TIMEOUT, NULL));
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_consumer_receive(consumer, 1000000, &items[0]));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_signal(start, NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_consumer_receive_on(consumer, queue, TIMEOUT, &items[0]));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_copy_from_item(queue, memory, 200, items[0], 0, 11));
    EXPECT(CROSSHANDLE_OK, crosshandle_item_release_on(items[0], queue));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_item_release_on(items[0], queue));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_finish(queue, TIMEOUT));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_read(memory, 200, bytes, 11));
    CHECK(strcmp(bytes, "by a queue") == 0);
    EXPECT(CROSSHANDLE_OK, crosshandle_item_close(items[1]));

    /* The newest item, and a slot that is returned. */
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_send(producer, "old", 4, TIMEOUT, NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_send(producer, "new", 4, TIMEOUT, &number));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_producer_send(producer, &options, 5000, 0, NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_consumer_receive_latest(consumer, TIMEOUT, &items[0]));
    EXPECT(CROSSHANDLE_OK, crosshandle_item_get_info(items[0], &info));
    CHECK(info.number == number && strcmp(info.data, "new") == 0);
    EXPECT(CROSSHANDLE_OK, crosshandle_item_close(items[0]));
    for (int count = 0; count < 100; count++) {
        EXPECT(CROSSHANDLE_OK, crosshandle_producer_reserve(producer, &slots[0]));
        EXPECT(CROSSHANDLE_OK, crosshandle_slot_close(slots[0]));
    }

    /* An item that is released with a wrong queue stays open. */
    for (int count = 0; count < 20; count++) {
        EXPECT(CROSSHANDLE_OK, crosshandle_producer_send(producer, "lost", 5, 0, NULL));
        EXPECT(CROSSHANDLE_OK, crosshandle_consumer_receive(consumer, TIMEOUT, &items[0]));
        crosshandle_queue *wrong = count % 2 == 0 ? NULL : (crosshandle_queue *)memory;
        crosshandle_result refused = count % 2 == 0 ? CROSSHANDLE_NULL : CROSSHANDLE_WRONG_OBJECT;
        EXPECT(refused, crosshandle_item_release_on(items[0], wrong));
        EXPECT(CROSSHANDLE_OK, crosshandle_item_get_info(items[0], &info));
        CHECK(strcmp(info.data, "lost") == 0);
        if (count % 4 < 2)
            EXPECT(CROSSHANDLE_OK, crosshandle_item_close(items[0]));
        else
            EXPECT(CROSSHANDLE_OK, crosshandle_item_release_on(items[0], queue));
    }

    /* Only one thread at a time uses a consumer. */
    pthread_t thread;
    shared_consumer = consumer;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &started));
    CHECK(pthread_create(&thread, NULL, receive, &items[0]) == 0);
    EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(started, 1, TIMEOUT));
    while (crosshandle_consumer_fd(consumer) != -1)
        ;
    CHECK(strstr(crosshandle_error_message(), "another thread"));
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_send(producer, "last", 5, TIMEOUT, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
    EXPECT(CROSSHANDLE_OK, crosshandle_item_close(items[0]));
    CHECK(crosshandle_consumer_lost(consumer) == 0);

    /* The end. */
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_consumer_receive(consumer, 0, &items[0]));
    EXPECT(CROSSHANDLE_OK, crosshandle_producer_close(producer));
    EXPECT(CROSSHANDLE_CHANNEL_CLOSED, crosshandle_consumer_receive(consumer, TIMEOUT, &items[0]));
    EXPECT(CROSSHANDLE_OK, crosshandle_consumer_close(consumer));
    EXPECT(CROSSHANDLE_WRONG_OBJECT, crosshandle_item_close((crosshandle_item *)channel));
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_close(readers));
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_close(channel));
    EXPECT(CROSSHANDLE_OK, crosshandle_queue_close(queue));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(memory));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(start));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(started));
    EXPECT(CROSSHANDLE_OK, crosshandle_context_close(context));
    puts("items cross");
    return 0;
}
