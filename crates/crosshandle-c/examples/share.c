/* Two processes share a buffer and two events.
 *
 * The program starts itself as a second process and passes three handles as text. The second
 * process fills the buffer and signals. The first process checks the bytes.
 *
 *     cc share.c $(pkg-config --cflags --libs crosshandle) -o share && ./share [DEVICE]
 */

#include <crosshandle.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { SIZE = 1 << 20 };

static const uint64_t TIMEOUT = 30 * UINT64_C(1000000000);

/* Ends the program if a call has failed. */
static void check(crosshandle_result result, const char *what)
{
    if (result != CROSSHANDLE_OK) {
        fprintf(stderr, "%s: %s (%d)\n", what, crosshandle_error_message(), (int)result);
        exit(1);
    }
}

static crosshandle_context *create_context(const char *name)
{
    crosshandle_device *device;
    crosshandle_context *context;
    check(crosshandle_device_find(name, &device), "finding the device");
    check(crosshandle_context_create(device, NULL, &context), "creating a context");
    check(crosshandle_device_close(device), "closing the device");
    return context;
}

/* The second process: opens the objects, fills the buffer, and waits until the first has read it. */
static int second(const char *device, char **handles)
{
    crosshandle_context *context = create_context(device);
    crosshandle_memory_handle buffer_handle;
    crosshandle_event_handle filled_handle, read_handle;
    check(crosshandle_memory_handle_from_text(handles[0], &buffer_handle), "reading a handle");
    check(crosshandle_event_handle_from_text(handles[1], &filled_handle), "reading a handle");
    check(crosshandle_event_handle_from_text(handles[2], &read_handle), "reading a handle");

    crosshandle_memory *buffer;
    crosshandle_event *filled, *read;
    check(crosshandle_memory_open(context, &buffer_handle, CROSSHANDLE_READ_WRITE, TIMEOUT, &buffer),
          "opening the buffer");
    check(crosshandle_event_open(context, &filled_handle, TIMEOUT, &filled), "opening an event");
    check(crosshandle_event_open(context, &read_handle, TIMEOUT, &read), "opening an event");

    unsigned char *bytes = malloc(SIZE);
    memset(bytes, 42, SIZE);
    check(crosshandle_memory_write(buffer, 0, bytes, SIZE), "filling the buffer");
    check(crosshandle_event_signal(filled, NULL), "signalling");
    check(crosshandle_event_wait(read, CROSSHANDLE_LATEST, TIMEOUT), "waiting for the reader");

    free(bytes);
    check(crosshandle_event_close(read), "closing");
    check(crosshandle_event_close(filled), "closing");
    check(crosshandle_memory_close(buffer), "closing");
    check(crosshandle_context_close(context), "closing");
    return 0;
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "host";
    if (argc == 5)
        return second(device, argv + 2);

    crosshandle_context *context = create_context(device);
    crosshandle_memory *buffer;
    crosshandle_event *filled, *read;
    check(crosshandle_memory_allocate(context, SIZE, NULL, &buffer), "allocating the buffer");
    check(crosshandle_event_create(context, NULL, &filled), "creating an event");
    check(crosshandle_event_create(context, NULL, &read), "creating an event");

    /* The handles are bytes. Text is handy for arguments. */
    crosshandle_memory_handle buffer_handle;
    crosshandle_event_handle filled_handle, read_handle;
    check(crosshandle_memory_get_handle(buffer, CROSSHANDLE_READ_WRITE, &buffer_handle), "handle");
    check(crosshandle_event_get_handle(filled, &filled_handle), "handle");
    check(crosshandle_event_get_handle(read, &read_handle), "handle");
    char texts[3][CROSSHANDLE_HANDLE_TEXT_SIZE];
    check(crosshandle_memory_handle_to_text(&buffer_handle, texts[0], sizeof texts[0]), "text");
    check(crosshandle_event_handle_to_text(&filled_handle, texts[1], sizeof texts[1]), "text");
    check(crosshandle_event_handle_to_text(&read_handle, texts[2], sizeof texts[2]), "text");

    extern char **environ;
    pid_t child;
    char *arguments[] = {argv[0], (char *)device, texts[0], texts[1], texts[2], NULL};
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) != 0) {
        perror("starting the second process");
        return 1;
    }

    check(crosshandle_event_wait(filled, CROSSHANDLE_LATEST, TIMEOUT), "waiting for the bytes");
    unsigned char *bytes = malloc(SIZE);
    check(crosshandle_memory_read(buffer, 0, bytes, SIZE), "reading the buffer");
    for (size_t index = 0; index < SIZE; index++) {
        if (bytes[index] != 42) {
            fprintf(stderr, "byte %zu is %d\n", index, bytes[index]);
            return 1;
        }
    }
    free(bytes);
    check(crosshandle_event_signal(read, NULL), "signalling");

    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the second process has failed\n");
        return 1;
    }
    printf("%d bytes from process %d\n", SIZE, (int)child);
    check(crosshandle_event_close(read), "closing");
    check(crosshandle_event_close(filled), "closing");
    check(crosshandle_memory_close(buffer), "closing");
    check(crosshandle_context_close(context), "closing");
    return 0;
}
