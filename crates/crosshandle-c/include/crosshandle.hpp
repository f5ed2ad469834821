// The C++17 interface of Crosshandle, a header-only layer over crosshandle.h.
//
// Objects are move-only, and close themselves. An object keeps alive what it needs, so the order of
// destruction does not matter. Any thread may use any object, except that one thread at a time uses
// a producer, a consumer or a slot. Moving and destroying an object must not happen at the same time
// as another call.
//
// Errors: a call that fails throws `crosshandle::error`. If exceptions are disabled, or if
// CROSSHANDLE_NO_EXCEPTIONS is defined before this header is included, calls return
// `crosshandle::outcome<T>`, which has the value or the error, as std::expected does. Both kinds of
// translation units can be linked together.
//
// crosshandle.h describes the errors and the rules of each function. The comments here say only what
// C++ adds.

#pragma once

#include "crosshandle.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#if __has_include(<version>)
#include <version>
#endif
#if defined(__cpp_lib_span)
#include <span>
#endif

#if !defined(CROSSHANDLE_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define CROSSHANDLE_NO_EXCEPTIONS
#endif

namespace crosshandle {

/// An error: its code, and the text that says what to do about it.
class error : public std::runtime_error {
public:
    /// Takes the text of this thread's latest error.
    explicit error(crosshandle_result code)
        : std::runtime_error(latest_message()), code_(code), os_code_(crosshandle_error_os_code())
    {
    }

    crosshandle_result code() const noexcept { return code_; }

    /// The `errno` of the operating system, or 0.
    int os_code() const noexcept { return os_code_; }

private:
    /// The text is null in a thread that is ending.
    static const char *latest_message() noexcept
    {
        const char *message = crosshandle_error_message();
        return message ? message : "";
    }

    crosshandle_result code_;
    int os_code_;
};

/// The names of the two forms differ, so that files with and without exceptions can be linked.
#if defined(CROSSHANDLE_NO_EXCEPTIONS)
inline namespace returning {

namespace detail {

/// Whether a condition could confuse a value of this type with the success of the call.
template <class T> inline constexpr bool is_condition = std::is_same_v<T, bool>;
template <class T> inline constexpr bool is_condition<std::optional<T>> = true;

} // namespace detail

/// The value or the error of a call. An outcome of a `bool` or a `std::optional` is no condition:
/// ask `has_value()` for the success of the call, and then `value()` for its result.
template <class T> class [[nodiscard]] outcome {
public:
    outcome(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    outcome(crosshandle::error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool has_value() const noexcept { return state_.index() == 0; }

    template <class U = T, class = std::enable_if_t<!detail::is_condition<U>>>
    explicit operator bool() const noexcept
    {
        return has_value();
    }

    /// The value, which must be present.
    T &value() & { return *std::get_if<0>(&state_); }
    const T &value() const & { return *std::get_if<0>(&state_); }
    T &&value() && { return std::move(*std::get_if<0>(&state_)); }
    T &operator*() & { return value(); }
    const T &operator*() const & { return value(); }
    T &&operator*() && { return std::move(*this).value(); }
    T *operator->() { return std::get_if<0>(&state_); }
    const T *operator->() const { return std::get_if<0>(&state_); }

    /// The error, which must be present.
    const crosshandle::error &error() const { return *std::get_if<1>(&state_); }

private:
    std::variant<T, crosshandle::error> state_;
};

template <> class [[nodiscard]] outcome<void> {
public:
    outcome() = default;
    outcome(crosshandle::error error) : error_(std::move(error)) {}

    bool has_value() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return has_value(); }
    const crosshandle::error &error() const { return *error_; }

private:
    std::optional<crosshandle::error> error_;
};

namespace detail {
inline error failed(crosshandle_result code) { return error(code); }
} // namespace detail
#define CROSSHANDLE_FAIL(failure) return failure
#else
inline namespace throwing {

/// The value of a call. An error is thrown.
template <class T> using outcome = T;

namespace detail {
inline error failed(crosshandle_result code) { return error(code); }
} // namespace detail
#define CROSSHANDLE_FAIL(failure) throw failure
#endif

namespace detail {

/// Ends a call that returns a value.
template <class T, class Make> outcome<T> finish(crosshandle_result result, Make &&make)
{
    if (result != CROSSHANDLE_OK)
        CROSSHANDLE_FAIL(failed(result));
    return std::forward<Make>(make)();
}

/// Ends a call that returns nothing.
inline outcome<void> finish(crosshandle_result result)
{
    if (result != CROSSHANDLE_OK)
        CROSSHANDLE_FAIL(failed(result));
    return outcome<void>();
}

/// Ends a call that waits. A timeout is the value `false`.
inline outcome<bool> finish_wait(crosshandle_result result)
{
    if (result == CROSSHANDLE_TIMED_OUT)
        return false;
    return finish<bool>(result, [] { return true; });
}

/// Ends a call that returns a value, or nothing after a timeout.
template <class T, class Make>
outcome<std::optional<T>> finish_optional(crosshandle_result result, Make &&make)
{
    if (result == CROSSHANDLE_TIMED_OUT)
        return std::optional<T>();
    return finish<std::optional<T>>(result,
                                    [&] { return std::optional<T>(std::forward<Make>(make)()); });
}

/// Converts a duration to nanoseconds. A negative duration is 0, and a very long one never passes.
template <class Rep, class Period>
std::uint64_t nanoseconds(std::chrono::duration<Rep, Period> duration)
{
    using fine = std::chrono::duration<std::uint64_t, std::nano>;
    if (duration <= duration.zero())
        return 0;
    if (std::chrono::duration<double, std::nano>(duration).count() >= 1.8e19)
        return CROSSHANDLE_FOREVER;
    return std::chrono::duration_cast<fine>(duration).count();
}

/// Converts a deadline to the time that is left.
template <class Clock, class Duration>
std::uint64_t nanoseconds(std::chrono::time_point<Clock, Duration> deadline)
{
    if (deadline == deadline.max())
        return CROSSHANDLE_FOREVER;
    return nanoseconds(deadline - Clock::now());
}

/// Calls a function of the C interface that copies a text.
template <class Copy> outcome<std::string> text(Copy &&copy)
{
    std::size_t length = 0;
    crosshandle_result result = copy(nullptr, 0, &length);
    std::string text(length, '\0');
    if (result == CROSSHANDLE_OK)
        result = copy(text.data(), text.size() + 1, &length);
    return finish<std::string>(result, [&] { return std::move(text); });
}

/// A `std::shared_ptr` that the C interface releases.
inline void *keep(std::shared_ptr<void> owner)
{
    return owner ? new std::shared_ptr<void>(std::move(owner)) : nullptr;
}

inline void release(void *owner) { delete static_cast<std::shared_ptr<void> *>(owner); }

/// An object of the C interface, which is closed on destruction.
template <class T, crosshandle_result (*Close)(T *)> class object {
public:
    /// An object that is closed already, for variables that are assigned later.
    object() noexcept = default;
    explicit object(T *raw) noexcept : raw_(raw) {}
    object(object &&other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}

    object &operator=(object &&other) noexcept
    {
        if (this != &other) {
            close();
            raw_ = std::exchange(other.raw_, nullptr);
        }
        return *this;
    }

    ~object() { close(); }

    /// Closes the object before its destruction.
    void close() noexcept { Close(std::exchange(raw_, nullptr)); }

    /// The object for the C interface, which stays owned by this object.
    T *get() const noexcept { return raw_; }

    /// Gives the object away: the caller closes it.
    T *release() noexcept { return std::exchange(raw_, nullptr); }

    explicit operator bool() const noexcept { return raw_ != nullptr; }

private:
    T *raw_ = nullptr;
};

/// A handle: the bytes that one process sends to another.
template <class Raw, crosshandle_result (*FromBytes)(const std::uint8_t *, std::size_t, Raw *),
          crosshandle_result (*FromText)(const char *, Raw *),
          crosshandle_result (*ToText)(const Raw *, char *, std::size_t)>
struct handle {
    Raw raw;

    /// Checks bytes that another process has sent.
    static outcome<handle> from_bytes(const void *bytes, std::size_t size)
    {
        handle made{};
        crosshandle_result result =
            FromBytes(static_cast<const std::uint8_t *>(bytes), size, &made.raw);
        return finish<handle>(result, [&] { return made; });
    }

    /// Checks a text that another process has sent.
    static outcome<handle> from_text(const std::string &text)
    {
        handle made{};
        crosshandle_result result = FromText(text.c_str(), &made.raw);
        return finish<handle>(result, [&] { return made; });
    }

    outcome<std::string> text() const
    {
        char text[CROSSHANDLE_HANDLE_TEXT_SIZE];
        crosshandle_result result = ToText(&raw, text, sizeof text);
        return finish<std::string>(result, [&] { return std::string(text); });
    }

    const std::uint8_t *data() const noexcept { return raw.bytes; }
    static constexpr std::size_t size() noexcept { return sizeof(Raw); }
};

} // namespace detail

/// A handle to memory.
using memory_handle =
    detail::handle<crosshandle_memory_handle, crosshandle_memory_handle_from_bytes,
                   crosshandle_memory_handle_from_text, crosshandle_memory_handle_to_text>;
/// A handle to an event.
using event_handle =
    detail::handle<crosshandle_event_handle, crosshandle_event_handle_from_bytes,
                   crosshandle_event_handle_from_text, crosshandle_event_handle_to_text>;
/// A handle to a channel.
using channel_handle =
    detail::handle<crosshandle_channel_handle, crosshandle_channel_handle_from_bytes,
                   crosshandle_channel_handle_from_text, crosshandle_channel_handle_to_text>;

/// What a process may do with memory.
enum class access : std::uint32_t {
    read_write = CROSSHANDLE_READ_WRITE,
    read_only = CROSSHANDLE_READ_ONLY,
};

/// Where memory is.
enum class memory_kind : std::uint32_t {
    device = CROSSHANDLE_MEMORY_DEVICE,
    host = CROSSHANDLE_MEMORY_HOST,
    shared = CROSSHANDLE_MEMORY_SHARED,
};

/// The latest signal, or the first one if none was submitted.
inline constexpr std::uint64_t latest = CROSSHANDLE_LATEST;
/// The latest signal, or no signal if none was submitted.
inline constexpr std::uint64_t submitted = CROSSHANDLE_SUBMITTED;
/// A timeout that never passes.
inline constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();
/// The time that opening a handle waits for its exporter, unless the caller says otherwise.
inline constexpr std::chrono::seconds open_timeout{10};

/// A device that has memory and runs queues.
class device : public detail::object<crosshandle_device, crosshandle_device_close> {
public:
    using object::object;

    /// Finds a device by its name, such as `host` or `cuda:1`.
    static outcome<device> find(const std::string &name)
    {
        crosshandle_device *raw = nullptr;
        crosshandle_result result = crosshandle_device_find(name.c_str(), &raw);
        return detail::finish<device>(result, [&] { return device(raw); });
    }

    /// All devices of this process, the host first.
    static outcome<std::vector<device>> all()
    {
        std::vector<device> devices;
        const std::size_t count = crosshandle_device_count();
        for (std::size_t index = 0; index < count; index++) {
            crosshandle_device *raw = nullptr;
            crosshandle_result result = crosshandle_device_at(index, &raw);
            if (result != CROSSHANDLE_OK)
                CROSSHANDLE_FAIL(detail::failed(result));
            devices.emplace_back(raw);
        }
        return outcome<std::vector<device>>(std::move(devices));
    }

    outcome<std::string> name() const
    {
        return detail::text([this](char *to, std::size_t size, std::size_t *length) {
            return crosshandle_device_name(get(), to, size, length);
        });
    }

    outcome<std::string> description() const
    {
        return detail::text([this](char *to, std::size_t size, std::size_t *length) {
            return crosshandle_device_description(get(), to, size, length);
        });
    }

    outcome<crosshandle_device_info> info() const
    {
        crosshandle_device_info info{};
        crosshandle_result result = crosshandle_device_get_info(get(), &info);
        return detail::finish<crosshandle_device_info>(result, [&] { return info; });
    }
};

/// A range of device memory that was allocated, adopted or opened here.
class memory : public detail::object<crosshandle_memory, crosshandle_memory_close> {
public:
    using object::object;

    /// The device address, which is a valid pointer if the host can access the memory.
    void *data() const noexcept { return crosshandle_memory_data(get()); }

    /// A pointer with which the host can access the memory, or null.
    void *host_data() const noexcept { return crosshandle_memory_host_data(get()); }

    std::size_t size() const noexcept { return crosshandle_memory_size(get()); }

#if defined(__cpp_lib_span)
    /// The memory as elements for access by the host. The span is empty if the host cannot access
    /// the memory. `T` must be const for memory that was opened read-only.
    template <class T> std::span<T> as() const noexcept
    {
        static_assert(std::is_trivially_copyable_v<T>);
        T *first = static_cast<T *>(host_data());
        return {first, first ? size() / sizeof(T) : 0};
    }
#endif

    outcome<void> read(std::size_t offset, void *to, std::size_t size) const
    {
        return detail::finish(crosshandle_memory_read(get(), offset, to, size));
    }

    outcome<void> write(std::size_t offset, const void *from, std::size_t size) const
    {
        return detail::finish(crosshandle_memory_write(get(), offset, from, size));
    }

    outcome<memory_handle> handle(access granted = access::read_write) const
    {
        memory_handle made{};
        crosshandle_result result = crosshandle_memory_get_handle(
            get(), static_cast<std::uint32_t>(granted), &made.raw);
        return detail::finish<memory_handle>(result, [&] { return made; });
    }

    outcome<memory_handle> handle_at(std::size_t offset) const
    {
        memory_handle made{};
        crosshandle_result result = crosshandle_memory_get_handle_at(get(), offset, &made.raw);
        return detail::finish<memory_handle>(result, [&] { return made; });
    }

    /// Lends a part as memory of its own. `owner` is destroyed when nothing uses the part.
    outcome<memory> lend(std::size_t offset, std::size_t size, std::shared_ptr<void> owner) const
    {
        crosshandle_memory *raw = nullptr;
        void *kept = detail::keep(std::move(owner));
        crosshandle_result result =
            crosshandle_memory_lend(get(), offset, size, detail::release, kept, &raw);
        return detail::finish<memory>(result, [&] { return memory(raw); });
    }

    outcome<void> set_name(const std::string &name) const
    {
        return detail::finish(crosshandle_memory_set_name(get(), name.c_str()));
    }
};

/// A registered callback. Its destruction cancels the call, unless it is already due. The callback may
/// still run after the destruction, so it must share the ownership of what it uses.
class [[nodiscard]] subscription
    : public detail::object<crosshandle_subscription, crosshandle_subscription_close> {
public:
    using object::object;

    /// Keeps the callback registered without this object.
    void detach() noexcept { crosshandle_subscription_detach(this->release()); }
};

/// The result of a wait, as callbacks and notifiers receive it.
struct signal_result {
    crosshandle_result code;
    std::string message;

    explicit operator bool() const noexcept { return code == CROSSHANDLE_OK; }
};

/// A counter of signals, shared by all processes that have it open.
class event : public detail::object<crosshandle_event, crosshandle_event_close> {
public:
    using object::object;

    outcome<event_handle> handle() const
    {
        event_handle made{};
        crosshandle_result result = crosshandle_event_get_handle(get(), &made.raw);
        return detail::finish<event_handle>(result, [&] { return made; });
    }

    /// Submits a signal from the host, and returns its number.
    outcome<std::uint64_t> signal() const
    {
        std::uint64_t value = 0;
        crosshandle_result result = crosshandle_event_signal(get(), &value);
        return detail::finish<std::uint64_t>(result, [&] { return value; });
    }

    outcome<void> signal_value(std::uint64_t value) const
    {
        return detail::finish(crosshandle_event_signal_value(get(), value));
    }

    outcome<void> fail_value(std::uint64_t value, const std::string &message) const
    {
        return detail::finish(crosshandle_event_fail_value(get(), value, message.c_str()));
    }

    /// Waits for a signal without a deadline.
    outcome<void> wait(std::uint64_t value = latest) const
    {
        return detail::finish(crosshandle_event_wait(get(), value, CROSSHANDLE_FOREVER));
    }

    /// Waits for a signal. Returns false if the timeout passes.
    template <class Rep, class Period>
    outcome<bool> wait_for(std::chrono::duration<Rep, Period> timeout,
                           std::uint64_t value = latest) const
    {
        return detail::finish_wait(
            crosshandle_event_wait(get(), value, detail::nanoseconds(timeout)));
    }

    /// Waits for a signal. Returns false if the deadline passes.
    template <class Clock, class Duration>
    outcome<bool> wait_until(std::chrono::time_point<Clock, Duration> deadline,
                             std::uint64_t value = latest) const
    {
        return detail::finish_wait(
            crosshandle_event_wait(get(), value, detail::nanoseconds(deadline)));
    }

    /// Returns whether a signal is complete, without waiting.
    outcome<bool> try_wait(std::uint64_t value = latest) const
    {
        bool complete = false;
        crosshandle_result result = crosshandle_event_try_wait(get(), value, &complete);
        return detail::finish<bool>(result, [&] { return complete; });
    }

    std::uint64_t submitted() const noexcept { return crosshandle_event_submitted(get()); }
    std::uint64_t completed() const noexcept { return crosshandle_event_completed(get()); }

    /// Calls a function once when a signal has completed or failed. An exception that leaves the
    /// function ends the program.
    outcome<subscription> on_signal(std::uint64_t value,
                                    std::function<void(signal_result)> function) const
    {
        using call = std::function<void(signal_result)>;
        crosshandle_callback callback = nullptr;
        if (function)
            callback = [](void *user, crosshandle_result code, const char *message) noexcept {
                (*static_cast<call *>(user))(signal_result{code, message});
            };
        auto release = [](void *user) { delete static_cast<call *>(user); };
        crosshandle_subscription *raw = nullptr;
        crosshandle_result result = crosshandle_event_on_signal(
            get(), value, callback, release, new call(std::move(function)), &raw);
        return detail::finish<subscription>(result, [&] { return subscription(raw); });
    }

    outcome<void> set_name(const std::string &name) const
    {
        return detail::finish(crosshandle_event_set_name(get(), name.c_str()));
    }
};

/// Waits until all signals are complete. Returns false if the timeout passes.
template <class Rep, class Period>
outcome<bool> wait_all(const std::vector<crosshandle_awaited> &awaited,
                       std::chrono::duration<Rep, Period> timeout)
{
    return detail::finish_wait(
        crosshandle_wait_all(awaited.data(), awaited.size(), detail::nanoseconds(timeout)));
}

/// Waits until one of the signals is complete, and returns its index. Returns nothing if the timeout
/// passes.
template <class Rep, class Period>
outcome<std::optional<std::size_t>> wait_any(const std::vector<crosshandle_awaited> &awaited,
                                             std::chrono::duration<Rep, Period> timeout)
{
    std::size_t index = 0;
    crosshandle_result result = crosshandle_wait_any(awaited.data(), awaited.size(),
                                                     detail::nanoseconds(timeout), &index);
    return detail::finish_optional<std::size_t>(result, [&] { return index; });
}

/// Awaits any number of signals for an event loop, which watches the descriptor `fd`.
class notifier : public detail::object<crosshandle_notifier, crosshandle_notifier_close> {
public:
    using object::object;

    static outcome<notifier> create()
    {
        crosshandle_notifier *raw = nullptr;
        crosshandle_result result = crosshandle_notifier_create(&raw);
        return detail::finish<notifier>(result, [&] { return notifier(raw); });
    }

    outcome<void> add(const event &awaited, std::uint64_t value, std::uint64_t token) const
    {
        return detail::finish(crosshandle_notifier_add(get(), awaited.get(), value, token));
    }

    /// Cancels a signal, and returns whether the token was in use.
    outcome<bool> remove(std::uint64_t token) const
    {
        bool removed = false;
        crosshandle_result result = crosshandle_notifier_remove(get(), token, &removed);
        return detail::finish<bool>(result, [&] { return removed; });
    }

    /// Takes the next signal that has completed or failed, with its token.
    outcome<std::optional<std::pair<std::uint64_t, signal_result>>> next() const
    {
        using notification = std::optional<std::pair<std::uint64_t, signal_result>>;
        bool found = false;
        std::uint64_t token = 0;
        crosshandle_result code = CROSSHANDLE_OK;
        crosshandle_result result = crosshandle_notifier_next(get(), &found, &token, &code);
        return detail::finish<notification>(result, [&]() -> notification {
            if (!found)
                return std::nullopt;
            std::string message = code == CROSSHANDLE_OK ? "" : error(code).what();
            return std::pair(token, signal_result{code, std::move(message)});
        });
    }

    int fd() const noexcept { return crosshandle_notifier_fd(get()); }
};

/// A queue of commands: the library's own, or a stream of the program.
class queue : public detail::object<crosshandle_queue, crosshandle_queue_close> {
public:
    using object::object;

    /// Signals an event when all earlier work is complete, and returns the number of the signal.
    outcome<std::uint64_t> signal(const event &event) const
    {
        std::uint64_t value = 0;
        crosshandle_result result = crosshandle_queue_signal(get(), event.get(), &value);
        return detail::finish<std::uint64_t>(result, [&] { return value; });
    }

    /// Makes all later work wait for a signal.
    outcome<void> wait(const event &event, std::uint64_t value = latest) const
    {
        return detail::finish(crosshandle_queue_wait(get(), event.get(), value));
    }

    outcome<void> copy(const memory &destination, std::size_t destination_offset,
                       const memory &source, std::size_t source_offset, std::size_t size) const
    {
        return detail::finish(crosshandle_queue_copy(get(), destination.get(), destination_offset,
                                                     source.get(), source_offset, size));
    }

    outcome<void> fill(const memory &memory, std::size_t offset, std::size_t size,
                       const void *pattern, std::size_t pattern_size) const
    {
        return detail::finish(
            crosshandle_queue_fill(get(), memory.get(), offset, size, pattern, pattern_size));
    }

    outcome<void> flush() const { return detail::finish(crosshandle_queue_flush(get())); }

    outcome<void> finish() const
    {
        return detail::finish(crosshandle_queue_finish(get(), CROSSHANDLE_FOREVER));
    }

    /// Waits until all work is complete. Returns false if the timeout passes.
    template <class Rep, class Period>
    outcome<bool> finish_for(std::chrono::duration<Rep, Period> timeout) const
    {
        return detail::finish_wait(crosshandle_queue_finish(get(), detail::nanoseconds(timeout)));
    }

    /// The driver's own queue, or null.
    void *native() const noexcept { return crosshandle_queue_native(get()); }
};

/// A driver's event that happens when a signal is finished.
class native_event
    : public detail::object<crosshandle_native_event, crosshandle_native_event_close> {
public:
    using object::object;

    void *native() const noexcept { return crosshandle_native_event_native(get()); }
};

/// The options of a context, with the defaults.
struct context_options : crosshandle_context_options {
    context_options() noexcept : crosshandle_context_options{} { size = sizeof(crosshandle_context_options); }
};

/// The options of an allocation, with the defaults.
struct allocation_options : crosshandle_allocation_options {
    allocation_options() noexcept : crosshandle_allocation_options{}
    {
        size = sizeof(crosshandle_allocation_options);
    }
};

/// The options of an event, with the defaults.
struct event_options : crosshandle_event_options {
    event_options() noexcept : crosshandle_event_options{} { size = sizeof(crosshandle_event_options); }
};

/// A device in use. It allocates, exports and opens memory, and creates events and queues.
class context : public detail::object<crosshandle_context, crosshandle_context_close> {
public:
    using object::object;

    static outcome<context> create(const device &device,
                                   const crosshandle_context_options &options = context_options())
    {
        crosshandle_context *raw = nullptr;
        crosshandle_result result = crosshandle_context_create(device.get(), &options, &raw);
        return detail::finish<context>(result, [&] { return context(raw); });
    }

    /// Creates a context on the device with a name, such as `host` or `cuda:1`.
    static outcome<context> create(const std::string &name)
    {
        crosshandle_device *raw = nullptr;
        crosshandle_result result = crosshandle_device_find(name.c_str(), &raw);
        if (result != CROSSHANDLE_OK)
            CROSSHANDLE_FAIL(detail::failed(result));
        return create(device(raw));
    }

    outcome<memory>
    allocate(std::size_t size,
             const crosshandle_allocation_options &options = allocation_options()) const
    {
        crosshandle_memory *raw = nullptr;
        crosshandle_result result = crosshandle_memory_allocate(get(), size, &options, &raw);
        return detail::finish<memory>(result, [&] { return memory(raw); });
    }

    /// Adopts memory that the program has allocated with the driver, and still frees.
    outcome<memory> adopt_memory(void *address, std::size_t size) const
    {
        crosshandle_memory *raw = nullptr;
        crosshandle_result result = crosshandle_memory_adopt(get(), address, size, &raw);
        return detail::finish<memory>(result, [&] { return memory(raw); });
    }

    template <class Rep = std::int64_t, class Period = std::ratio<1>>
    outcome<memory> open(const memory_handle &handle, access wanted = access::read_write,
                         std::chrono::duration<Rep, Period> timeout = open_timeout) const
    {
        crosshandle_memory *raw = nullptr;
        crosshandle_result result =
            crosshandle_memory_open(get(), &handle.raw, static_cast<std::uint32_t>(wanted),
                                    detail::nanoseconds(timeout), &raw);
        return detail::finish<memory>(result, [&] { return memory(raw); });
    }

    template <class Rep = std::int64_t, class Period = std::ratio<1>>
    outcome<event> open(const event_handle &handle,
                        std::chrono::duration<Rep, Period> timeout = open_timeout) const
    {
        crosshandle_event *raw = nullptr;
        crosshandle_result result =
            crosshandle_event_open(get(), &handle.raw, detail::nanoseconds(timeout), &raw);
        return detail::finish<event>(result, [&] { return event(raw); });
    }

    outcome<event> create_event(const crosshandle_event_options &options = event_options()) const
    {
        crosshandle_event *raw = nullptr;
        crosshandle_result result = crosshandle_event_create(get(), &options, &raw);
        return detail::finish<event>(result, [&] { return event(raw); });
    }

    /// Creates a shareable event from a `CUevent` or `ze_event_handle_t`.
    outcome<event> adopt_event(void *native) const
    {
        crosshandle_event *raw = nullptr;
        crosshandle_result result = crosshandle_event_adopt(get(), native, &raw);
        return detail::finish<event>(result, [&] { return event(raw); });
    }

    /// Creates a driver's event that happens when the latest signal of an event is finished.
    outcome<native_event> create_native_event(const event &event) const
    {
        crosshandle_native_event *raw = nullptr;
        crosshandle_result result = crosshandle_native_event_create(get(), event.get(), &raw);
        return detail::finish<native_event>(result, [&] { return native_event(raw); });
    }

    outcome<queue> create_queue(bool out_of_order = false) const
    {
        crosshandle_queue *raw = nullptr;
        crosshandle_result result = crosshandle_queue_create(get(), out_of_order, &raw);
        return detail::finish<queue>(result, [&] { return queue(raw); });
    }

    /// Adopts a `cudaStream_t` or `ze_command_list_handle_t`, which the program still destroys.
    outcome<queue> adopt_queue(void *native) const
    {
        crosshandle_queue *raw = nullptr;
        crosshandle_result result = crosshandle_queue_adopt(get(), native, &raw);
        return detail::finish<queue>(result, [&] { return queue(raw); });
    }

    /// The driver's own context, or null.
    void *native() const noexcept { return crosshandle_context_native(get()); }
};

/// A name that a holder keeps.
class held : public detail::object<crosshandle_held, crosshandle_held_close> {
public:
    using object::object;

    std::uint64_t version() const noexcept { return crosshandle_held_version(get()); }

    outcome<std::string> label() const
    {
        return detail::text([this](char *to, std::size_t size, std::size_t *length) {
            return crosshandle_held_label(get(), to, size, length);
        });
    }

    /// A handle to the memory with a role, with the access with which the name was opened.
    outcome<memory_handle> handle(const std::string &role = "memory") const
    {
        memory_handle made{};
        crosshandle_result result = crosshandle_held_get_handle(get(), role.c_str(), &made.raw);
        return detail::finish<memory_handle>(result, [&] { return made; });
    }
};

/// The options of a holder's client, with the defaults.
struct holder_options : crosshandle_holder_options {
    holder_options() noexcept : crosshandle_holder_options{} { size = sizeof(crosshandle_holder_options); }
};

/// The options of a hand-over, with the defaults.
struct hold_options : crosshandle_hold_options {
    hold_options() noexcept : crosshandle_hold_options{} { size = sizeof(crosshandle_hold_options); }
};

/// A client of the holder.
class holder : public detail::object<crosshandle_holder, crosshandle_holder_close> {
public:
    using object::object;

    static outcome<holder> create(const crosshandle_holder_options &options = holder_options())
    {
        crosshandle_holder *raw = nullptr;
        crosshandle_result result = crosshandle_holder_create(&options, &raw);
        return detail::finish<holder>(result, [&] { return holder(raw); });
    }

    /// Hands memory over under a name, and returns the version of the name.
    outcome<std::uint64_t> hand_over(const std::string &name, const memory &memory,
                                     const crosshandle_hold_options &options = hold_options()) const
    {
        crosshandle_part part{nullptr, memory.get()};
        std::uint64_t version = 0;
        crosshandle_result result = crosshandle_holder_hand_over(get(), name.c_str(), &part, 1,
                                                                 &options, &version, nullptr);
        return detail::finish<std::uint64_t>(result, [&] { return version; });
    }

    outcome<held> open(const std::string &name, access wanted = access::read_only) const
    {
        crosshandle_held *raw = nullptr;
        crosshandle_result result = crosshandle_holder_open(
            get(), name.c_str(), static_cast<std::uint32_t>(wanted), &raw);
        return detail::finish<held>(result, [&] { return held(raw); });
    }

    outcome<void> remove(const std::string &name) const
    {
        return detail::finish(crosshandle_holder_remove(get(), name.c_str()));
    }
};

/// The options of a channel for items of at most `slot_size` bytes, with the defaults.
struct channel_options : crosshandle_channel_options {
    explicit channel_options(std::size_t slot_size) noexcept : crosshandle_channel_options{}
    {
        size = sizeof(crosshandle_channel_options);
        this->slot_size = slot_size;
    }
};

/// A reserved slot, which returns to its producer on destruction.
class slot : public detail::object<crosshandle_slot, crosshandle_slot_close> {
public:
    using object::object;

    /// The device address, which is a valid pointer if the channel is on the host.
    void *data() const noexcept { return crosshandle_slot_data(get()); }
    std::size_t size() const noexcept { return crosshandle_slot_size(get()); }

#if defined(__cpp_lib_span)
    /// The slot as elements, if the channel is on the host.
    template <class T> std::span<T> as() const noexcept
    {
        static_assert(std::is_trivially_copyable_v<T>);
        return {static_cast<T *>(data()), size() / sizeof(T)};
    }
#endif

    outcome<void> set_length(std::size_t length) const
    {
        return detail::finish(crosshandle_slot_set_length(get(), length));
    }

    outcome<void> set_array(const crosshandle_array &array) const
    {
        return detail::finish(crosshandle_slot_set_array(get(), &array));
    }

    /// Sets a small value that the item carries in addition to its contents.
    template <class T> outcome<void> set_user(const T &value) const
    {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= CROSSHANDLE_USER_BYTES);
        return detail::finish(crosshandle_slot_set_user(get(), &value, sizeof value));
    }

    outcome<void> write(std::size_t offset, const void *from, std::size_t size) const
    {
        return detail::finish(crosshandle_slot_write(get(), offset, from, size));
    }
};

/// A received item, whose slot becomes free on destruction.
class item : public detail::object<crosshandle_item, crosshandle_item_close> {
public:
    using object::object;

    crosshandle_item_info info() const noexcept
    {
        crosshandle_item_info info{};
        crosshandle_item_get_info(get(), &info);
        return info;
    }

    /// The device address, which is a valid pointer if the channel is on the host.
    const void *data() const noexcept { return info().data; }
    std::size_t size() const noexcept { return info().size; }
    std::uint64_t number() const noexcept { return info().number; }

    /// The time of the publication, on the clock `CLOCK_MONOTONIC`.
    std::chrono::nanoseconds time() const noexcept
    {
        return std::chrono::nanoseconds(info().time_ns);
    }

#if defined(__cpp_lib_span)
    /// The item as elements, if the channel is on the host.
    template <class T> std::span<const T> as() const noexcept
    {
        static_assert(std::is_trivially_copyable_v<T>);
        crosshandle_item_info info = this->info();
        return {static_cast<const T *>(info.data), info.size / sizeof(T)};
    }
#endif

    outcome<crosshandle_array> array() const
    {
        crosshandle_array array{};
        crosshandle_result result = crosshandle_item_get_array(get(), &array);
        return detail::finish<crosshandle_array>(result, [&] { return array; });
    }

    /// The small value that the producer has set, or nothing if it has another size.
    template <class T> outcome<std::optional<T>> user() const
    {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= CROSSHANDLE_USER_BYTES);
        T value{};
        std::size_t length = 0;
        crosshandle_result result = crosshandle_item_get_user(get(), &value, sizeof value, &length);
        using found = std::optional<T>;
        return detail::finish<found>(
            result, [&] { return length == sizeof value ? found(value) : found(); });
    }

    outcome<void> read(std::size_t offset, void *to, std::size_t size) const
    {
        return detail::finish(crosshandle_item_read(get(), offset, to, size));
    }

    /// Closes the item, and frees its slot when all earlier work of the queue is complete.
    /// If `queue` is empty, the item stays open.
    outcome<void> release_on(const queue &queue) &&
    {
        crosshandle_result result = crosshandle_item_release_on(get(), queue.get());
        // After any other error the item is closed.
        if (queue)
            this->release();
        return detail::finish(result);
    }
};

/// A process's role of sending items. One thread at a time uses it.
class producer : public detail::object<crosshandle_producer, crosshandle_producer_close> {
public:
    using object::object;

    outcome<slot> reserve() const
    {
        crosshandle_slot *raw = nullptr;
        crosshandle_result result = crosshandle_producer_reserve(get(), &raw);
        return detail::finish<slot>(result, [&] { return slot(raw); });
    }

    /// Publishes a slot, and closes it. Returns the number of the item, or nothing if the channel
    /// stays full until the timeout passes. The program then still has the slot.
    template <class Rep = std::int64_t, class Period = std::nano>
    outcome<std::optional<std::uint64_t>>
    publish(slot &slot, std::chrono::duration<Rep, Period> timeout = forever) const
    {
        std::uint64_t number = 0;
        return published(slot, number,
                         crosshandle_producer_publish(get(), slot.get(),
                                                      detail::nanoseconds(timeout), &number));
    }

    /// Publishes a slot as `publish` does, while a queue may still write it.
    template <class Rep = std::int64_t, class Period = std::nano>
    outcome<std::optional<std::uint64_t>>
    publish_on(const queue &queue, slot &slot,
               std::chrono::duration<Rep, Period> timeout = forever) const
    {
        std::uint64_t number = 0;
        return published(slot, number,
                         crosshandle_producer_publish_on(get(), queue.get(), slot.get(),
                                                         detail::nanoseconds(timeout), &number));
    }

    /// Copies bytes into a slot, and publishes it. Returns nothing if the channel stays full until
    /// the timeout passes.
    template <class Rep = std::int64_t, class Period = std::nano>
    outcome<std::optional<std::uint64_t>>
    send(const void *bytes, std::size_t size,
         std::chrono::duration<Rep, Period> timeout = forever) const
    {
        std::uint64_t number = 0;
        crosshandle_result result = crosshandle_producer_send(
            get(), bytes, size, detail::nanoseconds(timeout), &number);
        return detail::finish_optional<std::uint64_t>(result, [&] { return number; });
    }

private:
    static outcome<std::optional<std::uint64_t>> published(slot &slot, const std::uint64_t &number,
                                                           crosshandle_result result)
    {
        // The library has closed the slot.
        if (result == CROSSHANDLE_OK)
            static_cast<void>(slot.release());
        return detail::finish_optional<std::uint64_t>(result, [&] { return number; });
    }
};

/// A process's role of receiving items. One thread at a time uses it.
class consumer : public detail::object<crosshandle_consumer, crosshandle_consumer_close> {
public:
    using object::object;

    /// Receives the next item. Returns nothing if the timeout passes.
    template <class Rep = std::int64_t, class Period = std::nano>
    outcome<std::optional<item>>
    receive(std::chrono::duration<Rep, Period> timeout = forever) const
    {
        crosshandle_item *raw = nullptr;
        crosshandle_result result =
            crosshandle_consumer_receive(get(), detail::nanoseconds(timeout), &raw);
        return detail::finish_optional<item>(result, [&] { return item(raw); });
    }

    /// Receives the newest item, and drops the older ones. Returns nothing if the timeout passes.
    template <class Rep = std::int64_t, class Period = std::nano>
    outcome<std::optional<item>>
    receive_latest(std::chrono::duration<Rep, Period> timeout = forever) const
    {
        crosshandle_item *raw = nullptr;
        crosshandle_result result =
            crosshandle_consumer_receive_latest(get(), detail::nanoseconds(timeout), &raw);
        return detail::finish_optional<item>(result, [&] { return item(raw); });
    }

    /// Receives the next item, and makes later work of a queue wait for it. Returns nothing if the
    /// timeout passes.
    template <class Rep = std::int64_t, class Period = std::nano>
    outcome<std::optional<item>>
    receive_on(const queue &queue, std::chrono::duration<Rep, Period> timeout = forever) const
    {
        crosshandle_item *raw = nullptr;
        crosshandle_result result = crosshandle_consumer_receive_on(
            get(), queue.get(), detail::nanoseconds(timeout), &raw);
        return detail::finish_optional<item>(result, [&] { return item(raw); });
    }

    /// The descriptor for event loops, or -1.
    int fd() const noexcept { return crosshandle_consumer_fd(get()); }
    std::uint64_t lost() const noexcept { return crosshandle_consumer_lost(get()); }
};

/// A ring of slots in shared memory, through which processes send items.
class channel : public detail::object<crosshandle_channel, crosshandle_channel_close> {
public:
    using object::object;

    static outcome<channel> create(const context &context,
                                   const crosshandle_channel_options &options)
    {
        crosshandle_channel *raw = nullptr;
        crosshandle_result result = crosshandle_channel_create(context.get(), &options, &raw);
        return detail::finish<channel>(result, [&] { return channel(raw); });
    }

    template <class Rep = std::int64_t, class Period = std::ratio<1>>
    static outcome<channel> open(const context &context, const channel_handle &handle,
                                 std::chrono::duration<Rep, Period> timeout = open_timeout)
    {
        crosshandle_channel *raw = nullptr;
        crosshandle_result result = crosshandle_channel_open(
            context.get(), &handle.raw, detail::nanoseconds(timeout), &raw);
        return detail::finish<channel>(result, [&] { return channel(raw); });
    }

    /// Opens a channel that a holder keeps under a name.
    static outcome<channel> open(const context &context, const holder &holder,
                                 const std::string &name, access wanted = access::read_write)
    {
        crosshandle_channel *raw = nullptr;
        crosshandle_result result =
            crosshandle_channel_open_name(context.get(), holder.get(), name.c_str(),
                                          static_cast<std::uint32_t>(wanted), &raw);
        return detail::finish<channel>(result, [&] { return channel(raw); });
    }

    /// A handle that grants both roles, or only the role of consumers.
    outcome<channel_handle> handle(access granted = access::read_write) const
    {
        channel_handle made{};
        crosshandle_result result = crosshandle_channel_get_handle(
            get(), static_cast<std::uint32_t>(granted), &made.raw);
        return detail::finish<channel_handle>(result, [&] { return made; });
    }

    outcome<void> hand_over(const holder &holder, const std::string &name,
                            const crosshandle_hold_options &options = hold_options()) const
    {
        return detail::finish(
            crosshandle_channel_hand_over(get(), holder.get(), name.c_str(), &options));
    }

    outcome<crosshandle_channel_info> info() const
    {
        crosshandle_channel_info info{};
        crosshandle_result result = crosshandle_channel_get_info(get(), &info);
        return detail::finish<crosshandle_channel_info>(result, [&] { return info; });
    }

    outcome<crosshandle::producer> producer() const
    {
        crosshandle_producer *raw = nullptr;
        crosshandle_result result = crosshandle_producer_create(get(), &raw);
        return detail::finish<crosshandle::producer>(
            result, [&] { return crosshandle::producer(raw); });
    }

    outcome<crosshandle::consumer> consumer() const
    {
        crosshandle_consumer *raw = nullptr;
        crosshandle_result result = crosshandle_consumer_create(get(), &raw);
        return detail::finish<crosshandle::consumer>(
            result, [&] { return crosshandle::consumer(raw); });
    }
};

} // inline namespace
} // namespace crosshandle

#undef CROSSHANDLE_FAIL
