// A camera sends frames to another process, which runs inference on them.
//
// The camera writes each frame into shared memory in place. It never waits for the inference: when
// the channel is full, the oldest frame is replaced. The inference takes the newest frame, and reads
// it in place.
//
//     c++ -std=c++17 camera.cpp $(pkg-config --cflags --libs crosshandle) -o camera && ./camera

#include <crosshandle.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <spawn.h>
#include <string>
#include <sys/wait.h>

namespace xh = crosshandle;
using namespace std::chrono_literals;

constexpr std::uint64_t HEIGHT = 480, WIDTH = 640, COLOURS = 3, FRAMES = 300;

// What the camera tells about each frame.
struct exposure {
    std::uint32_t microseconds;
    float gain;
};

// The second process. Returns whether each frame was whole and newer than the one before.
static bool infer(const std::string &handle, const std::string &ready)
{
    auto context = xh::context::create("host");
    auto channel = xh::channel::open(context, xh::channel_handle::from_text(handle));
    auto frames = channel.consumer();
    context.open(xh::event_handle::from_text(ready)).signal();
    std::uint64_t seen = 0, next = 0;
    try {
        while (auto frame = frames.receive_latest(30s)) {
            auto *pixels = static_cast<const unsigned char *>(frame->data());
            auto info = frame->user<exposure>();
            if (!info || info->microseconds != frame->number() || frame->number() < next)
                return false;
            // The inference: the mean brightness, which must be that of the whole frame.
            std::uint64_t sum = 0;
            for (std::size_t index = 0; index < frame->size(); index++)
                sum += pixels[index];
            if (sum != frame->size() * (frame->number() % 256))
                return false;
            next = frame->number() + 1;
            seen++;
        }
    } catch (const xh::error &error) {
        if (error.code() != CROSSHANDLE_CHANNEL_CLOSED)
            throw;
    }
    std::cout << "inference: " << seen << " of " << next << " frames\n";
    return next == FRAMES;
}

int main(int argc, char **argv)
try {
    if (argc == 3)
        return infer(argv[1], argv[2]) ? 0 : 1;

    auto context = xh::context::create("host");
    crosshandle_array format{1, 8, 3, {HEIGHT, WIDTH, COLOURS}};
    xh::channel_options options(0);
    options.array = &format;
    options.depth = 2;
    options.when_full = CROSSHANDLE_DROP_OLDEST;
    options.name = "camera";
    auto channel = xh::channel::create(context, options);
    auto camera = channel.producer();

    auto ready = context.create_event();
    std::string handle = channel.handle(xh::access::read_only).text();
    std::string ready_handle = ready.handle().text();
    char *arguments[] = {argv[0], handle.data(), ready_handle.data(), nullptr};
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) {
        std::cerr << "the second process does not start\n";
        return 1;
    }

    // A real camera starts at once. This one waits, so that the example always has an audience.
    if (!ready.wait_for(30s)) {
        std::cerr << "the inference is late\n";
        return 1;
    }
    for (std::uint64_t number = 0; number < FRAMES; number++) {
        auto frame = camera.reserve();
        std::memset(frame.data(), static_cast<int>(number % 256), frame.size());
        frame.set_user(exposure{static_cast<std::uint32_t>(number), 1.5F});
        camera.publish(frame);
    }
    camera.close();

    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        std::cerr << "the inference has failed\n";
        return 1;
    }
    std::cout << "camera: " << FRAMES << " frames\n";
    return 0;
} catch (const xh::error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
