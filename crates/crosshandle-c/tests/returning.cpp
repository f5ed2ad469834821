// The C++ layer without exceptions: calls return their error. The program is compiled with
// -fno-exceptions.

#include <crosshandle.hpp>

#include <cstdio>
#include <cstdlib>

namespace xh = crosshandle;
using namespace std::chrono_literals;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            std::exit(1); \
        } \
    } while (0)

// A condition must not confuse the value with the success of the call.
static_assert(!std::is_constructible_v<bool, xh::outcome<bool>>);
static_assert(!std::is_constructible_v<bool, xh::outcome<std::optional<xh::item>>>);
static_assert(std::is_constructible_v<bool, xh::outcome<xh::memory>>);

int main()
{
    auto missing = xh::context::create("nowhere");
    CHECK(!missing && missing.error().code() == CROSSHANDLE_NO_DEVICE);
    CHECK(std::string(missing.error().what()).find("nowhere") != std::string::npos);

    auto context = *xh::context::create("host");
    auto memory = *context.allocate(4096);
    auto event = *context.create_event();
    CHECK(context && memory.size() == 4096);

    // Moved objects are empty, and empty objects return errors.
    auto moved = std::move(event);
    CHECK(!event && moved);
    auto refused = event.signal();
    CHECK(!refused && refused.error().code() == CROSSHANDLE_NULL);

    auto late = moved.wait_for(1ms);
    CHECK(late.has_value() && !late.value());
    const auto &constant = late;
    CHECK(!*constant && !constant.value());
    CHECK(*moved.signal() == 1);
    CHECK(*moved.wait_until(std::chrono::steady_clock::now() + 30s));
    CHECK(*moved.wait_for(std::chrono::hours::max()));
    CHECK(moved.wait());

    const auto made = memory.handle();
    CHECK(made->size() == CROSSHANDLE_MEMORY_HANDLE_SIZE);
    auto text = made->text();
    CHECK(text);
    auto handle = xh::memory_handle::from_text(*text);
    CHECK(handle);
    auto opened = context.open(*handle, xh::access::read_only);
    CHECK(opened && opened->size() == 4096);
    auto written = opened->write(0, "x", 1);
    CHECK(!written && written.error().code() == CROSSHANDLE_PERMISSION_DENIED);
    CHECK(!xh::event_handle::from_text(*text));

    // The owner of a part is released when the part is closed.
    auto owner = std::make_shared<int>(7);
    {
        auto part = memory.lend(0, 64, owner);
        CHECK(part && owner.use_count() == 2);
    }
    CHECK(owner.use_count() == 1);
    CHECK(!memory.lend(0, 0, owner) && owner.use_count() == 1);

#if defined(__cpp_lib_span)
    auto numbers = memory.as<std::uint32_t>();
    CHECK(numbers.size() == 1024);
    numbers[3] = 9;
    CHECK(opened->as<const std::uint32_t>()[3] == 9);
#endif
    std::puts("errors are returned");
}
