/* A camera sends frames to another process, which runs inference on each of them.
 *
 * The camera writes each frame into shared memory in place, and waits while the channel is full. The
 * inference waits for frames with `poll`, as an event loop does, and reads them in place.
 *
 *     cc camera.c $(pkg-config --cflags --libs crosshandle) -o camera && ./camera
 */

#include <crosshandle.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { HEIGHT = 480, WIDTH = 640, COLOURS = 3, FRAMES = 300, TIMEOUT_MS = 30000 };

static const uint64_t TIMEOUT = 30 * UINT64_C(1000000000);

static void check(crosshandle_result result, const char *what)
{
    if (result != CROSSHANDLE_OK) {
        fprintf(stderr, "%s: %s (%d)\n", what, crosshandle_error_message(), (int)result);
        exit(1);
    }
}

static crosshandle_context *create_context(void)
{
    crosshandle_device *device;
    crosshandle_context *context;
    check(crosshandle_device_find("host", &device), "finding the device");
    check(crosshandle_context_create(device, NULL, &context), "creating a context");
    check(crosshandle_device_close(device), "closing the device");
    return context;
}

/* Checks a frame, and returns its number. */
static uint64_t inspect(const crosshandle_item *frame)
{
    crosshandle_item_info info;
    crosshandle_array format;
    check(crosshandle_item_get_info(frame, &info), "reading a frame");
    check(crosshandle_item_get_array(frame, &format), "reading a frame's format");
    if (format.dimensions != 3 || format.shape[0] != HEIGHT || format.shape[1] != WIDTH) {
        fprintf(stderr, "frame %llu has a wrong format\n", (unsigned long long)info.number);
        exit(1);
    }
    const unsigned char *pixels = info.data;
    uint64_t sum = 0;
    for (size_t index = 0; index < info.size; index++)
        sum += pixels[index];
    if (sum != info.size * (info.number % 256)) {
        fprintf(stderr, "frame %llu is damaged\n", (unsigned long long)info.number);
        exit(1);
    }
    return info.number;
}

/* The second process. */
static int infer(const char *text)
{
    crosshandle_context *context = create_context();
    crosshandle_channel_handle handle;
    crosshandle_channel *channel;
    crosshandle_consumer *consumer;
    check(crosshandle_channel_handle_from_text(text, &handle), "reading the handle");
    check(crosshandle_channel_open(context, &handle, TIMEOUT, &channel), "opening the channel");
    check(crosshandle_consumer_create(channel, &consumer), "joining the channel");

    uint64_t next = 0;
    struct pollfd poller = {.fd = crosshandle_consumer_fd(consumer), .events = POLLIN};
    crosshandle_result result;
    do {
        if (poll(&poller, 1, TIMEOUT_MS) != 1) {
            fprintf(stderr, "no frame has come\n");
            return 1;
        }
        crosshandle_item *frame;
        while ((result = crosshandle_consumer_receive(consumer, 0, &frame)) == CROSSHANDLE_OK) {
            if (inspect(frame) != next++) {
                fprintf(stderr, "a frame is missing\n");
                return 1;
            }
            check(crosshandle_item_close(frame), "closing a frame");
        }
    } while (result == CROSSHANDLE_TIMED_OUT);
    if (result != CROSSHANDLE_CHANNEL_CLOSED)
        check(result, "receiving a frame");
    printf("inference: %llu frames\n", (unsigned long long)next);

    check(crosshandle_consumer_close(consumer), "closing");
    check(crosshandle_channel_close(channel), "closing");
    check(crosshandle_context_close(context), "closing");
    return next == FRAMES ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return infer(argv[1]);

    crosshandle_context *context = create_context();
    crosshandle_array format = {
        .type_code = 1, .type_bits = 8, .dimensions = 3, .shape = {HEIGHT, WIDTH, COLOURS}};
    crosshandle_channel_options options = {.size = sizeof options, .array = &format, .depth = 4};
    crosshandle_channel *channel;
    crosshandle_producer *producer;
    check(crosshandle_channel_create(context, &options, &channel), "creating the channel");
    check(crosshandle_producer_create(channel, &producer), "joining the channel");

    crosshandle_channel_handle handle;
    char text[CROSSHANDLE_HANDLE_TEXT_SIZE];
    check(crosshandle_channel_get_handle(channel, CROSSHANDLE_READ_ONLY, &handle), "handle");
    check(crosshandle_channel_handle_to_text(&handle, text, sizeof text), "text");
    extern char **environ;
    char *arguments[] = {argv[0], text, NULL};
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) != 0) {
        perror("starting the second process");
        return 1;
    }

    for (int number = 0; number < FRAMES; number++) {
        crosshandle_slot *frame;
        check(crosshandle_producer_reserve(producer, &frame), "reserving a slot");
        memset(crosshandle_slot_data(frame), number % 256, crosshandle_slot_size(frame));
        check(crosshandle_producer_publish(producer, frame, TIMEOUT, NULL), "publishing a frame");
    }
    check(crosshandle_producer_close(producer), "leaving the channel");

    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the inference has failed\n");
        return 1;
    }
    printf("camera: %d frames\n", FRAMES);
    check(crosshandle_channel_close(channel), "closing");
    check(crosshandle_context_close(context), "closing");
    return 0;
}
