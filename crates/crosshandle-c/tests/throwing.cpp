// The C++ layer with exceptions.

#include <crosshandle.hpp>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <poll.h>

namespace xh = crosshandle;
using namespace std::chrono_literals;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            std::exit(1); \
        } \
    } while (0)

template <class Call> static crosshandle_result code_of(Call &&call)
{
    try {
        call();
    } catch (const xh::error &error) {
        CHECK(error.what()[0] != 0);
        return error.code();
    }
    return CROSSHANDLE_OK;
}

int main()
{
    CHECK(code_of([] { xh::context::create("nowhere"); }) == CROSSHANDLE_NO_DEVICE);
    CHECK(xh::device::all().at(0).name() == "host:0");
    CHECK(xh::device::find("host").info().host_accessible_memory);

    xh::context_options options;
    options.name = "throwing";
    auto context = xh::context::create(xh::device::find("host"), options);
    CHECK(code_of([&] { context.allocate(0); }) == CROSSHANDLE_INVALID_ARGUMENT);
    xh::allocation_options aligned;
    aligned.alignment = 4096;
    auto memory = context.allocate(100, aligned);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096 == 0);
    auto event = context.create_event();

    std::promise<xh::signal_result> promise;
    auto result = promise.get_future();
    auto subscription = event.on_signal(
        1, [&](xh::signal_result received) { promise.set_value(std::move(received)); });
    auto notifier = xh::notifier::create();
    notifier.add(event, 1, 5);
    CHECK(!notifier.next());
    event.fail_value(1, "no power");
    CHECK(result.wait_for(30s) == std::future_status::ready);
    CHECK(result.get().message.find("no power") != std::string::npos);
    pollfd poller{notifier.fd(), POLLIN, 0};
    CHECK(poll(&poller, 1, 30000) == 1);
    auto next = notifier.next();
    CHECK(next && next->first == 5 && next->second.code == CROSSHANDLE_COMMAND_FAILED);
    CHECK(next->second.message.find("no power") != std::string::npos);
    CHECK(code_of([&] { event.wait(1); }) == CROSSHANDLE_COMMAND_FAILED);

    // A callback without a function is an error, and a detached one is called.
    CHECK(code_of([&] { static_cast<void>(event.on_signal(2, {})); }) == CROSSHANDLE_NULL);
    auto detached = std::make_shared<std::promise<xh::signal_result>>();
    auto second = detached->get_future();
    auto signalled = context.create_event();
    signalled.on_signal(1, [detached](xh::signal_result received) { detached->set_value(received); })
        .detach();
    signalled.signal();
    CHECK(second.wait_for(30s) == std::future_status::ready && second.get());

    auto queue = context.create_queue();
    auto start = context.create_event();
    queue.wait(start);
    char pattern = 3;
    queue.fill(memory, 0, 100, &pattern, 1);
    auto value = queue.signal(event);
    CHECK(value == 2 && !queue.finish_for(1ms));
    start.signal();
    CHECK(event.wait_for(30s, value));
    queue.finish();
    CHECK(static_cast<char *>(memory.host_data())[99] == 3);
    CHECK(xh::wait_any({{start.get(), 2}, {event.get(), 2}}, 30s) == std::size_t{1});
    CHECK(!xh::wait_all({{start.get(), 2}, {event.get(), 2}}, 1ms));
    CHECK(code_of([&] { context.adopt_queue(&pattern); }) == CROSSHANDLE_UNSUPPORTED);

    // A queue that the program has moved away leaves the item open.
    auto channel = xh::channel::create(context, xh::channel_options(64));
    auto producer = channel.producer();
    auto consumer = channel.consumer();
    for (int count = 0; count < 20; count++) {
        producer.send("frame", 6);
        auto item = consumer.receive(30s);
        CHECK(item && code_of([&] { std::move(*item).release_on(xh::queue()); }) == CROSSHANDLE_NULL);
        CHECK(*item);
        std::move(*item).release_on(queue);
        CHECK(!*item);
    }
    std::puts("errors are thrown");
}
