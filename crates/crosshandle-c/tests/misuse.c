/* Calls functions with wrong arguments. Each call must return the right error, and the process must
 * survive. */

#include "check.h"

#include <string.h>

int main(void)
{
    crosshandle_device *device = NULL;
    crosshandle_context *context = NULL;
    crosshandle_memory *memory = NULL;
    crosshandle_event *event = NULL;
    char text[CROSSHANDLE_HANDLE_TEXT_SIZE];

    CHECK(strcmp(crosshandle_error_message(), "") == 0);
    CHECK(crosshandle_abi_version() == CROSSHANDLE_ABI_VERSION);
    CHECK(crosshandle_device_count() >= 1);

    /* Devices. */
    EXPECT(CROSSHANDLE_NULL, crosshandle_device_find(NULL, &device));
    EXPECT(CROSSHANDLE_NULL, crosshandle_device_find("host", NULL));
    EXPECT(CROSSHANDLE_NO_DEVICE, crosshandle_device_find("nowhere", &device));
    CHECK(strstr(crosshandle_error_message(), "nowhere"));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_device_find("\xff\xfe", &device));
    EXPECT(CROSSHANDLE_NO_DEVICE, crosshandle_device_at(100000, &device));
    CHECK(device == NULL);
    EXPECT(CROSSHANDLE_OK, crosshandle_device_find("host", &device));
    size_t length;
    EXPECT(CROSSHANDLE_OK, crosshandle_device_name(device, NULL, 0, &length));
    CHECK(length == strlen("host:0"));
    EXPECT(CROSSHANDLE_OK, crosshandle_device_name(device, text, 4, NULL));
    CHECK(strcmp(text, "hos") == 0);
    crosshandle_device_info info;
    EXPECT(CROSSHANDLE_OK, crosshandle_device_get_info(device, &info));
    CHECK(info.host_accessible_memory && info.dlpack_type == 1 && info.total_memory > 0);

    /* Contexts. */
    EXPECT(CROSSHANDLE_NULL, crosshandle_context_create(NULL, NULL, &context));
    EXPECT(CROSSHANDLE_NULL, crosshandle_context_create(device, NULL, NULL));
    crosshandle_context_options unsized_options = {.size = 0};
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT,
           crosshandle_context_create(device, &unsized_options, &context));
    crosshandle_context_options options = {.size = sizeof options};
    options.peers = 77;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_context_create(device, &options, &context));
    options.peers = CROSSHANDLE_PEERS_SAME_USER;
    options.name = "misuse";
    EXPECT(CROSSHANDLE_OK, crosshandle_context_create(device, &options, &context));

    /* Memory. */
    EXPECT(CROSSHANDLE_NULL, crosshandle_memory_allocate(NULL, 8, NULL, &memory));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_allocate(context, 0, NULL, &memory));
    crosshandle_allocation_options allocation = {.size = sizeof allocation};
    allocation.alignment = 3;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT,
           crosshandle_memory_allocate(context, 8, &allocation, &memory));
    allocation.alignment = 4096;
    allocation.kind = 9;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT,
           crosshandle_memory_allocate(context, 8, &allocation, &memory));
    allocation.kind = CROSSHANDLE_MEMORY_SHARED;
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_allocate(context, 8, &allocation, &memory));
    CHECK(crosshandle_memory_size(memory) == 8);
    CHECK((uintptr_t)crosshandle_memory_data(memory) % 4096 == 0);
    CHECK(crosshandle_memory_host_data(memory) == crosshandle_memory_data(memory));
    uint64_t word = 0x123456789abcdef0, read = 0;
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_write(memory, 0, &word, sizeof word));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_read(memory, 0, &read, sizeof read));
    CHECK(read == word);
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_read(memory, 1, &read, sizeof read));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT,
           crosshandle_memory_write(memory, SIZE_MAX, &word, sizeof word));
    /* Sizes that no object has. A failed call writes nothing. */
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_read(memory, 0, &read, SIZE_MAX));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_write(memory, 0, &word, SIZE_MAX));
    CHECK(read == word);
    EXPECT(CROSSHANDLE_NULL, crosshandle_memory_write(memory, 0, NULL, 1));
    CHECK(crosshandle_memory_data(NULL) == NULL && crosshandle_memory_size(NULL) == 0);

    /* Handles. */
    crosshandle_memory_handle memory_handle;
    crosshandle_event_handle event_handle;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_get_handle(memory, 2, &memory_handle));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_get_handle_at(memory, 8, &memory_handle));
    EXPECT(CROSSHANDLE_OK,
           crosshandle_memory_get_handle(memory, CROSSHANDLE_READ_ONLY, &memory_handle));
    strcpy(text, "kept");
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_handle_to_text(&memory_handle, text, 10));
    CHECK(strcmp(text, "kept") == 0);
    EXPECT(CROSSHANDLE_BAD_HANDLE,
           crosshandle_memory_handle_from_bytes(memory_handle.bytes, 10, &memory_handle));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT,
           crosshandle_memory_handle_from_bytes(memory_handle.bytes, SIZE_MAX, &memory_handle));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_handle_to_text(&memory_handle, text, sizeof text));
    EXPECT(CROSSHANDLE_BAD_HANDLE, crosshandle_event_handle_from_text(text, &event_handle));
    EXPECT(CROSSHANDLE_BAD_HANDLE, crosshandle_event_handle_from_text("", &event_handle));
    EXPECT(CROSSHANDLE_BAD_HANDLE,
           crosshandle_event_handle_from_bytes(memory_handle.bytes, sizeof memory_handle.bytes,
                                               &event_handle));
    crosshandle_memory *opened = NULL;
    EXPECT(CROSSHANDLE_PERMISSION_DENIED,
           crosshandle_memory_open(context, &memory_handle, CROSSHANDLE_READ_WRITE, 0, &opened));
    EXPECT(CROSSHANDLE_OK,
           crosshandle_memory_open(context, &memory_handle, CROSSHANDLE_READ_ONLY,
                                   CROSSHANDLE_FOREVER, &opened));
    EXPECT(CROSSHANDLE_PERMISSION_DENIED, crosshandle_memory_write(opened, 0, &word, 1));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT,
           crosshandle_memory_get_handle(opened, CROSSHANDLE_READ_ONLY, &memory_handle));
    crosshandle_memory_handle damaged = memory_handle;
    damaged.bytes[50] ^= 1;
    EXPECT(CROSSHANDLE_BAD_HANDLE, crosshandle_memory_handle_to_text(&damaged, text, sizeof text));
    EXPECT(CROSSHANDLE_BAD_HANDLE,
           crosshandle_memory_open(context, &damaged, CROSSHANDLE_READ_ONLY, 0, &opened));
    CHECK(crosshandle_memory_handle_length(&damaged) == 0);
    CHECK(crosshandle_memory_handle_length(&memory_handle) == 8);

    /* Events. */
    EXPECT(CROSSHANDLE_OK, crosshandle_event_create(context, NULL, &event));
    bool complete = true;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_try_wait(event, CROSSHANDLE_SUBMITTED, &complete));
    CHECK(complete);
    EXPECT(CROSSHANDLE_OK, crosshandle_event_try_wait(event, CROSSHANDLE_LATEST, &complete));
    CHECK(!complete);
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_event_wait(event, 1, 1000000));
    EXPECT(CROSSHANDLE_TIMED_OUT, crosshandle_event_wait(event, 1, 0));
    uint64_t value = 0;
    EXPECT(CROSSHANDLE_OK, crosshandle_event_signal(event, &value));
    CHECK(value == 1 && crosshandle_event_completed(event) == 1);
    EXPECT(CROSSHANDLE_OK, crosshandle_event_wait(event, 1, CROSSHANDLE_FOREVER));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_event_signal_value(event, 1));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_fail_value(event, 2, "the sensor is gone"));
    EXPECT(CROSSHANDLE_COMMAND_FAILED, crosshandle_event_wait(event, 2, 0));
    CHECK(strstr(crosshandle_error_message(), "the sensor is gone"));
    crosshandle_awaited awaited[2] = {{event, 1}, {NULL, 1}};
    size_t index = 7;
    EXPECT(CROSSHANDLE_NULL, crosshandle_wait_any(awaited, 2, 0, &index));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_wait_any(NULL, 0, 0, &index));
    EXPECT(CROSSHANDLE_OK, crosshandle_wait_any(awaited, 1, 0, &index));
    CHECK(index == 0);

    /* Objects of another kind. */
    EXPECT(CROSSHANDLE_WRONG_OBJECT, crosshandle_event_signal((crosshandle_event *)memory, NULL));
    CHECK(strstr(crosshandle_error_message(), "no event"));
    EXPECT(CROSSHANDLE_WRONG_OBJECT, crosshandle_memory_close((crosshandle_memory *)context));

    /* Closed objects. */
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(memory));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_memory_close(memory));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_memory_read(memory, 0, &read, 1));
    CHECK(crosshandle_memory_data(memory) == NULL);
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(opened));
    EXPECT(CROSSHANDLE_OK, crosshandle_event_close(event));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_event_wait(event, 1, CROSSHANDLE_FOREVER));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_wait_all(awaited, 1, CROSSHANDLE_FOREVER));
    EXPECT(CROSSHANDLE_OK, crosshandle_device_close(device));
    EXPECT(CROSSHANDLE_OK, crosshandle_context_close(context));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_context_close(context));
    puts("every misuse is an error");
    return 0;
}
