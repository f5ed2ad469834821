/* Memory and a channel under names of a holder, which the test starts. */

#include "check.h"

#include <string.h>

int main(void)
{
    crosshandle_context_options options = {.size = sizeof options, .no_pooling = true};
    crosshandle_context *context = create_context(&options);
    crosshandle_holder *holder;
    crosshandle_held *held;
    EXPECT(CROSSHANDLE_OK, crosshandle_holder_create(NULL, &holder));
    EXPECT(CROSSHANDLE_NO_SUCH_NAME,
           crosshandle_holder_open(holder, "weights", CROSSHANDLE_READ_ONLY, &held));

    crosshandle_memory *memory[2];
    for (int index = 0; index < 2; index++)
        EXPECT(CROSSHANDLE_OK, crosshandle_memory_allocate(context, 4096, NULL, &memory[index]));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_write(memory[1], 0, "kept", 5));
    crosshandle_part parts[2] = {{NULL, memory[0]}, {"bias", memory[1]}};
    crosshandle_hold_options hold = {.size = sizeof hold, .label = "a model", .read_token = "secret"};
    uint64_t version = 0;
    EXPECT(CROSSHANDLE_OK,
           crosshandle_holder_hand_over(holder, "weights", parts, 2, &hold, &version, NULL));
    CHECK(version == 1);
    EXPECT(CROSSHANDLE_NAME_TAKEN,
           crosshandle_holder_hand_over(holder, "weights", parts, 2, &hold, &version, NULL));
    EXPECT(CROSSHANDLE_PERMISSION_DENIED,
           crosshandle_holder_open(holder, "weights", CROSSHANDLE_READ_ONLY, &held));
    EXPECT(CROSSHANDLE_NULL, crosshandle_holder_open(holder, NULL, CROSSHANDLE_READ_ONLY, &held));
    for (int index = 0; index < 2; index++)
        EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(memory[index]));
    EXPECT(CROSSHANDLE_OK, crosshandle_holder_close(holder));

    crosshandle_holder_options with_token = {.size = sizeof with_token, .token = "secret"};
    EXPECT(CROSSHANDLE_OK, crosshandle_holder_create(&with_token, &holder));
    EXPECT(CROSSHANDLE_OK, crosshandle_holder_open(holder, "weights", CROSSHANDLE_READ_ONLY, &held));
    char text[64];
    size_t length;
    EXPECT(CROSSHANDLE_OK, crosshandle_held_label(held, text, sizeof text, &length));
    CHECK(strcmp(text, "a model") == 0 && length == 7 && crosshandle_held_version(held) == 1);
    CHECK(crosshandle_held_part_count(held) == 2);
    EXPECT(CROSSHANDLE_OK, crosshandle_held_role(held, 1, text, sizeof text, NULL));
    CHECK(strcmp(text, "bias") == 0);
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_held_role(held, 2, text, sizeof text, NULL));
    crosshandle_memory_handle handle;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_held_get_handle(held, "other", &handle));
    EXPECT(CROSSHANDLE_OK, crosshandle_held_get_handle(held, NULL, &handle));
    EXPECT(CROSSHANDLE_OK, crosshandle_held_get_handle(held, "bias", &handle));
    EXPECT(CROSSHANDLE_OK, crosshandle_held_close(held));
    crosshandle_memory *opened;
    EXPECT(CROSSHANDLE_OK,
           crosshandle_memory_open(context, &handle, CROSSHANDLE_READ_ONLY, CROSSHANDLE_FOREVER,
                                   &opened));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_read(opened, 0, text, 5));
    CHECK(strcmp(text, "kept") == 0);
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(opened));
    EXPECT(CROSSHANDLE_TIMED_OUT,
           crosshandle_holder_await_version(holder, "weights", 1, 10000000, &held));
    EXPECT(CROSSHANDLE_OK, crosshandle_holder_pin(holder, "weights", true));
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_holder_remove(holder, "weights"));
    EXPECT(CROSSHANDLE_OK, crosshandle_holder_pin(holder, "weights", false));
    EXPECT(CROSSHANDLE_OK, crosshandle_holder_remove(holder, "weights"));

    /* A channel. */
    crosshandle_channel *channel;
    crosshandle_channel_options shape = {.size = sizeof shape, .slot_size = 64, .awaits_producers = true};
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_create(context, &shape, &channel));
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_hand_over(channel, holder, "frames", NULL));
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_close(channel));
    EXPECT(CROSSHANDLE_OK,
           crosshandle_channel_open_name(context, holder, "frames", CROSSHANDLE_READ_WRITE, &channel));
    EXPECT(CROSSHANDLE_OK, crosshandle_channel_close(channel));

    EXPECT(CROSSHANDLE_OK, crosshandle_holder_close(holder));
    EXPECT(CROSSHANDLE_CLOSED, crosshandle_holder_remove(holder, "weights"));
    EXPECT(CROSSHANDLE_OK, crosshandle_context_close(context));
    puts("names are kept");
    return 0;
}
