// Two processes share a buffer and two events, as in share.c.
//
//     c++ -std=c++17 share.cpp $(pkg-config --cflags --libs crosshandle) -o share && ./share [DEVICE]

#include <crosshandle.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <vector>

namespace xh = crosshandle;
using namespace std::chrono_literals;

constexpr std::size_t SIZE = 1 << 20;

// The second process: opens the objects, fills the buffer, and waits until the first has read it.
static int second(const xh::context &context, char **handles)
{
    auto buffer = context.open(xh::memory_handle::from_text(handles[0]));
    auto filled = context.open(xh::event_handle::from_text(handles[1]));
    auto read = context.open(xh::event_handle::from_text(handles[2]));
    std::vector<unsigned char> bytes(SIZE, 42);
    buffer.write(0, bytes.data(), bytes.size());
    filled.signal();
    return read.wait_for(30s) ? 0 : 1;
}

int main(int argc, char **argv)
try {
    std::string device = argc > 1 ? argv[1] : "host";
    auto context = xh::context::create(device);
    if (argc == 5)
        return second(context, argv + 2);

    auto buffer = context.allocate(SIZE);
    auto filled = context.create_event();
    auto read = context.create_event();
    std::string texts[] = {buffer.handle().text(), filled.handle().text(), read.handle().text()};

    pid_t child;
    char *arguments[] = {argv[0], device.data(), texts[0].data(), texts[1].data(), texts[2].data(),
                         nullptr};
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) {
        std::cerr << "the second process does not start\n";
        return 1;
    }

    auto deadline = std::chrono::steady_clock::now() + 30s;
    if (!filled.wait_until(deadline)) {
        std::cerr << "the bytes are late\n";
        return 1;
    }
    std::vector<unsigned char> bytes(SIZE);
    buffer.read(0, bytes.data(), bytes.size());
    if (std::count(bytes.begin(), bytes.end(), 42) != static_cast<std::ptrdiff_t>(SIZE)) {
        std::cerr << "wrong bytes\n";
        return 1;
    }
    read.signal();

    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        std::cerr << "the second process has failed\n";
        return 1;
    }
    std::cout << SIZE << " bytes from process " << child << '\n';
    return 0;
} catch (const xh::error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
