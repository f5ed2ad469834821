// A CUDA producer and a CUDA consumer in two processes.
//
// The producer fills memory of its own (cuMemAlloc) on its own stream. The consumer copies it on a
// stream of its own. The streams wait for each other through events, and neither process waits on
// the host between its steps. The program loads the CUDA driver itself, so it needs no toolkit:
// with one, replace the declarations below by <cuda.h>.
//
//     c++ -std=c++17 cuda.cpp $(pkg-config --cflags --libs crosshandle) -ldl -o cuda && ./cuda
//
// The exit code is 77 if there is no CUDA device.

#include <crosshandle.hpp>

#include <algorithm>
#include <cstdint>
#include <dlfcn.h>
#include <iostream>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <vector>

namespace xh = crosshandle;
using namespace std::chrono_literals;

constexpr std::size_t SIZE = 64 << 20;
constexpr std::uint32_t ROUNDS = 20;

// The functions of the CUDA driver that this program calls.
struct cuda {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    using pointer = unsigned long long;
    using stream = struct CUstream_st *;

    int (*ctx_set)(void *) = find<int (*)(void *)>("cuCtxSetCurrent");
    int (*allocate)(pointer *, std::size_t) = find<int (*)(pointer *, std::size_t)>("cuMemAlloc_v2");
    int (*deallocate)(pointer) = find<int (*)(pointer)>("cuMemFree_v2");
    int (*fill)(pointer, unsigned, std::size_t, stream) =
        find<int (*)(pointer, unsigned, std::size_t, stream)>("cuMemsetD32Async");
    int (*copy)(void *, pointer, std::size_t, stream) =
        find<int (*)(void *, pointer, std::size_t, stream)>("cuMemcpyDtoHAsync_v2");
    int (*create)(stream *, unsigned) = find<int (*)(stream *, unsigned)>("cuStreamCreate");
    int (*synchronize)(stream) = find<int (*)(stream)>("cuStreamSynchronize");
    int (*destroy)(stream) = find<int (*)(stream)>("cuStreamDestroy_v2");

    template <class Function> Function find(const char *name) const
    {
        return library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    }
};

static void check(int code, const char *what)
{
    if (code != 0)
        throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(code));
}

// A stream of the program, and the queue through which it signals and waits.
struct stream {
    stream(const cuda &driver, const xh::context &context) : driver(driver)
    {
        constexpr unsigned NON_BLOCKING = 1;
        check(driver.create(&native, NON_BLOCKING), "creating a stream");
        queue = context.adopt_queue(native);
    }

    ~stream()
    {
        queue.close();
        driver.destroy(native);
    }

    const cuda &driver;
    cuda::stream native = nullptr;
    xh::queue queue;
};

// The second process: each round waits for the producer's stream, and checks a sample of the memory.
static bool consume(const cuda &driver, const xh::context &context, char **handles)
{
    auto memory = context.open(xh::memory_handle::from_text(handles[0]), xh::access::read_only);
    auto filled = context.open(xh::event_handle::from_text(handles[1]));
    auto copied = context.open(xh::event_handle::from_text(handles[2]));
    stream stream(driver, context);
    std::vector<std::uint32_t> samples(ROUNDS * 2);
    auto address = reinterpret_cast<cuda::pointer>(memory.data());
    for (std::uint32_t round = 1; round <= ROUNDS; round++) {
        std::uint32_t *to = &samples[(round - 1) * 2];
        stream.queue.wait(filled, round);
        check(driver.copy(to, address, 4, stream.native), "copying");
        check(driver.copy(to + 1, address + SIZE - 4, 4, stream.native), "copying");
        stream.queue.signal(copied);
    }
    check(driver.synchronize(stream.native), "waiting for the stream");
    for (std::uint32_t index = 0; index < samples.size(); index++)
        if (samples[index] != index / 2 + 1)
            return false;
    return true;
}

int main(int argc, char **argv)
try {
    cuda driver;
    if (!driver.library) {
        std::cout << "skipped: there is no CUDA driver\n";
        return 77;
    }
    xh::context context;
    try {
        context = xh::context::create("cuda");
    } catch (const xh::error &error) {
        if (error.code() != CROSSHANDLE_NO_DEVICE)
            throw;
        std::cout << "skipped: " << error.what() << '\n';
        return 77;
    }
    check(driver.ctx_set(context.native()), "selecting the context");
    if (argc == 4)
        return consume(driver, context, argv + 1) ? 0 : 1;

    cuda::pointer address = 0;
    check(driver.allocate(&address, SIZE), "allocating memory");
    auto memory = context.adopt_memory(reinterpret_cast<void *>(address), SIZE);
    auto filled = context.create_event();
    auto copied = context.create_event();
    std::string texts[] = {memory.handle(xh::access::read_only).text(), filled.handle().text(),
                           copied.handle().text()};
    char *arguments[] = {argv[0], texts[0].data(), texts[1].data(), texts[2].data(), nullptr};
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) {
        std::cerr << "the second process does not start\n";
        return 1;
    }
    {
        stream stream(driver, context);
        for (std::uint32_t round = 1; round <= ROUNDS; round++) {
            // The memory is written again when the consumer has read it.
            if (round > 1)
                stream.queue.wait(copied, round - 1);
            check(driver.fill(address, round, SIZE / 4, stream.native), "filling");
            stream.queue.signal(filled);
        }
        if (!copied.wait_for(60s, ROUNDS)) {
            std::cerr << "the consumer is late\n";
            return 1;
        }
        check(driver.synchronize(stream.native), "waiting for the stream");
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        std::cerr << "the consumer has failed\n";
        return 1;
    }
    memory.close();
    check(driver.deallocate(address), "freeing memory");
    std::cout << ROUNDS << " rounds of " << SIZE << " bytes from stream to stream\n";
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
