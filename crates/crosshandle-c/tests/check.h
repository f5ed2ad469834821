/* Checks of the C tests. */

#pragma once

#include <crosshandle.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPECT(expected, call) expect((expected), (call), #call, __LINE__)
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* Ends the program unless a call has returned the expected result, with a message for an error. */
static inline void expect(crosshandle_result expected, crosshandle_result actual, const char *call,
                          int line)
{
    const char *message = crosshandle_error_message();
    if (actual != expected) {
        fprintf(stderr, "line %d: %s returned %d instead of %d: %s\n", line, call, (int)actual,
                (int)expected, message);
        exit(1);
    }
    if (expected != CROSSHANDLE_OK && message[0] == 0) {
        fprintf(stderr, "line %d: %s left no message\n", line, call);
        exit(1);
    }
}

/* Creates a context on the host. */
static inline crosshandle_context *create_context(const crosshandle_context_options *options)
{
    crosshandle_device *device;
    crosshandle_context *context;
    EXPECT(CROSSHANDLE_OK, crosshandle_device_find("host", &device));
    EXPECT(CROSSHANDLE_OK, crosshandle_context_create(device, options, &context));
    EXPECT(CROSSHANDLE_OK, crosshandle_device_close(device));
    return context;
}
