// A pipeline of two processes whose kernels pass frames through a channel. No host takes part in its
// steps.
//
// The producer's kernel writes frames into the slots of the channel. The consumer's kernel receives
// each frame, adds it up, and releases its slot. On one GPU, the two kernels run in turns, each for
// its time slice.
//
//     nvcc pipeline.cu $(pkg-config --cflags --libs crosshandle) -o pipeline && ./pipeline

#include "crosshandle.cuh"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

constexpr unsigned FRAMES = 20, PIXELS = 1 << 16, DEPTH = 4, THREADS = 256;
constexpr crosshandle_u64 TIMEOUT = 10 * 1000000000ull;

static void check(crosshandle_result result, const char *call)
{
    if (result == CROSSHANDLE_OK)
        return;
    std::fprintf(stderr, "%s: %s\n", call, crosshandle_error_message());
    std::exit(1);
}
#define CHECK(call) check(call, #call)

// One thread reserves or receives a slot, and one publishes or releases it, for the whole block.
__global__ void produce(crosshandle_device_channel channel)
{
    __shared__ void *slot;
    __shared__ crosshandle::status status;
    for (unsigned frame = 1; frame <= FRAMES; frame++) {
        if (threadIdx.x == 0)
            status = crosshandle::reserve(channel, TIMEOUT, slot);
        __syncthreads();
        if (status != crosshandle::complete)
            return;
        for (unsigned pixel = threadIdx.x; pixel < PIXELS; pixel += THREADS)
            static_cast<unsigned *>(slot)[pixel] = frame;
        __syncthreads();
        if (threadIdx.x == 0)
            crosshandle::publish(channel);
    }
}

__global__ void consume(crosshandle_device_channel channel, unsigned long long *sums)
{
    __shared__ void *slot;
    __shared__ crosshandle::status status;
    for (unsigned frame = 0; frame < FRAMES; frame++) {
        if (threadIdx.x == 0)
            status = crosshandle::receive(channel, TIMEOUT, slot);
        __syncthreads();
        if (status != crosshandle::complete)
            return;
        unsigned long long sum = 0;
        for (unsigned pixel = threadIdx.x; pixel < PIXELS; pixel += THREADS)
            sum += static_cast<const volatile unsigned *>(slot)[pixel];
        atomicAdd(&sums[frame], sum);
        __syncthreads();
        if (threadIdx.x == 0)
            crosshandle::release(channel);
    }
}

// The same channel for both sides. Each side has its own view of the events and the memory.
static crosshandle_device_channel channel_of(const crosshandle_device_event &full,
                                             const crosshandle_device_event &empty,
                                             const crosshandle_memory *memory)
{
    crosshandle_device_channel channel = {};
    channel.full = full;
    channel.empty = empty;
    channel.slots = crosshandle_memory_data(memory);
    channel.stride = PIXELS * sizeof(unsigned);
    channel.depth = DEPTH;
    return channel;
}

// What the producer sends to the consumer.
struct offer {
    crosshandle_memory_handle memory;
    crosshandle_event_handle full;
};

struct event {
    crosshandle_event *event;
    crosshandle_event_on_device *on_device;
    crosshandle_device_event code;
};

static event on_device(crosshandle_context *context, crosshandle_event *opened)
{
    event result = {opened, nullptr, {}};
    CHECK(crosshandle_event_open_on_device(context, opened, &result.on_device, &result.code));
    return result;
}

static event create(crosshandle_context *context)
{
    crosshandle_event_options options = {};
    options.size = sizeof options;
    options.single_signaller = true;
    crosshandle_event *created;
    CHECK(crosshandle_event_create(context, &options, &created));
    return on_device(context, created);
}

static event open(crosshandle_context *context, const crosshandle_event_handle &handle)
{
    crosshandle_event *opened;
    CHECK(crosshandle_event_open(context, &handle, TIMEOUT, &opened));
    return on_device(context, opened);
}

static void close(const event &event)
{
    CHECK(crosshandle_event_on_device_close(event.on_device));
    CHECK(crosshandle_event_close(event.event));
}

static int run_consumer(crosshandle_context *context, int from, int to)
{
    offer offer;
    if (read(from, &offer, sizeof offer) != sizeof offer)
        return 1;
    crosshandle_memory *memory;
    CHECK(crosshandle_memory_open(context, &offer.memory, CROSSHANDLE_READ_WRITE, TIMEOUT, &memory));
    event full = open(context, offer.full), empty = create(context);
    crosshandle_event_handle handle;
    CHECK(crosshandle_event_get_handle(empty.event, &handle));
    unsigned long long *sums;
    cudaMalloc(&sums, FRAMES * sizeof *sums);
    cudaMemset(sums, 0, FRAMES * sizeof *sums);
    consume<<<1, THREADS>>>(channel_of(full.code, empty.code, memory), sums);
    if (write(to, &handle, sizeof handle) != sizeof handle)
        return 1;
    unsigned long long found[FRAMES];
    if (cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost) != cudaSuccess)
        return 1;
    for (unsigned frame = 0; frame < FRAMES; frame++)
        if (found[frame] != static_cast<unsigned long long>(frame + 1) * PIXELS)
            return 1;
    std::printf("the consumer's kernel added up %u frames\n", FRAMES);
    close(full);
    close(empty);
    CHECK(crosshandle_memory_close(memory));
    return 0;
}

static int run_producer(crosshandle_context *context, int from, int to)
{
    crosshandle_memory *memory;
    CHECK(crosshandle_memory_allocate(context, DEPTH * PIXELS * sizeof(unsigned), nullptr, &memory));
    event full = create(context);
    offer offer;
    CHECK(crosshandle_memory_get_handle(memory, CROSSHANDLE_READ_WRITE, &offer.memory));
    CHECK(crosshandle_event_get_handle(full.event, &offer.full));
    crosshandle_event_handle handle;
    if (write(to, &offer, sizeof offer) != sizeof offer
        || read(from, &handle, sizeof handle) != sizeof handle)
        return 1;
    event empty = open(context, handle);
    produce<<<1, THREADS>>>(channel_of(full.code, empty.code, memory));
    if (cudaDeviceSynchronize() != cudaSuccess)
        return 1;
    // The consumer has the memory open until it ends.
    CHECK(crosshandle_event_wait(empty.event, FRAMES, TIMEOUT));
    close(full);
    close(empty);
    CHECK(crosshandle_memory_close(memory));
    return 0;
}

int main(int count, char **arguments)
{
    bool is_consumer = count == 3;
    int there[2], back[2];
    pid_t child = 0;
    if (!is_consumer) {
        if (pipe(there) != 0 || pipe(back) != 0)
            return 1;
        std::string from = std::to_string(there[0]), to = std::to_string(back[1]);
        child = fork();
        if (child == 0) {
            execl("/proc/self/exe", arguments[0], from.c_str(), to.c_str(), nullptr);
            _exit(1);
        }
    }
    crosshandle_device *device;
    crosshandle_context *context;
    CHECK(crosshandle_device_find("cuda:0", &device));
    CHECK(crosshandle_context_create(device, nullptr, &context));
    int failed = is_consumer
        ? run_consumer(context, std::atoi(arguments[1]), std::atoi(arguments[2]))
        : run_producer(context, back[0], there[1]);
    int status = 0;
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        failed = 1;
    CHECK(crosshandle_context_close(context));
    CHECK(crosshandle_device_close(device));
    return failed;
}
