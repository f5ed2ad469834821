// A SYCL program with two processes. It shares memory with the current and the older spelling of
// the extension, events in both directions, and physical memory. The program does not depend on the
// adapter.

#include "peer.h"
#include <future>
#include <numeric>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;
namespace ipc = syclex::ipc;

using handle_data = std::vector<std::byte>;

constexpr int rounds = 2;
constexpr size_t count = 100'000;

static void send_handle(int link, const handle_data &data) {
  say_bytes(link, bytes_of(data.data(), data.size()));
}

static handle_data receive_handle(int link) {
  bytes bytes = hear_bytes(link);
  auto first = reinterpret_cast<std::byte *>(bytes.data);
  return {first, first + bytes.size};
}

// Returns a list of consecutive numbers that starts with `first`.
static std::vector<int> numbers(int first, size_t size = count) {
  std::vector<int> list(size);
  std::iota(list.begin(), list.end(), first);
  return list;
}

static std::vector<int> read(sycl::queue &queue, const int *memory, size_t size = count) {
  std::vector<int> list(size);
  queue.copy(memory, list.data(), size).wait();
  return list;
}

static void write(sycl::queue &queue, const std::vector<int> &list, int *memory) {
  queue.copy(list.data(), memory, list.size()).wait();
}

// Memory

static void produce_memory(int link, sycl::queue queue) {
  auto context = queue.get_context();
  int *memory = sycl::malloc_device<int>(count, queue);
  write(queue, numbers(1), memory);
  ipc::handle handle = ipc::memory::get(memory + 10, context);
  send_handle(link, handle.data());
  ipc::memory::put(handle, context);
  MEET(link);
  auto expected = numbers(1);
  std::fill_n(expected.begin() + 10, 5, 42);
  EXPECT(read(queue, memory) == expected);
  sycl::free(memory, queue);
  MEET(link);
}

static void consume_memory(int link, sycl::queue queue) {
  auto context = queue.get_context();
  auto device = queue.get_device();
  handle_data data = receive_handle(link);
  int *memory = static_cast<int *>(ipc::memory::open(data, context, device));
  int *again = static_cast<int *>(ipc::memory::open(data, context, device));
  EXPECT(sycl::get_pointer_type(memory, context) == sycl::usm::alloc::device);
  EXPECT(sycl::get_pointer_device(memory, context) == device);
  EXPECT(read(queue, memory, count - 10) == numbers(11, count - 10));
  queue.fill(memory, 42, 5).wait();
  ipc::memory::close(memory, context);
  MEET(link);
  MEET(link);
  EXPECT(read(queue, again, 5) == std::vector<int>(5, 42));
  ipc::memory::close(again, context);
}

// Memory, with the older spelling of the extension and the default context

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static void produce_older_memory(int link, sycl::queue queue) {
  int *memory = sycl::malloc_device<int>(count, queue);
  write(queue, numbers(7), memory);
  syclex::ipc_memory::handle handle = syclex::ipc_memory::get(memory);
  send_handle(link, handle.data());
  MEET(link);
  syclex::ipc_memory::put(handle);
  EXPECT(read(queue, memory) == numbers(8));
  sycl::free(memory, queue);
}

static void consume_older_memory(int link, sycl::queue queue) {
  int *memory = static_cast<int *>(syclex::ipc_memory::open(receive_handle(link)));
  EXPECT(read(queue, memory) == numbers(7));
  write(queue, numbers(8), memory);
  syclex::ipc_memory::close(memory);
  MEET(link);
}

#pragma GCC diagnostic pop

// Events

static sycl::queue another(const sycl::queue &queue) {
  return {queue.get_context(), queue.get_device(), sycl::property::queue::in_order{}};
}

// Submits a write and a signal. They run only after the other process has seen that the signal is
// pending.
static void signal(int link, sycl::queue &queue, sycl::event &event, int *memory,
                   const std::vector<int> &list) {
  std::promise<void> gate;
  auto opened = gate.get_future().share();
  syclex::host_task(queue, [=] { opened.wait(); });
  queue.copy(list.data(), memory, list.size());
  syclex::enqueue_signal_event(queue, event);
  MEET(link);
  MEET(link);
  gate.set_value();
  event.wait();
  EXPECT(event.get_info<sycl::info::event::command_execution_status>() ==
         sycl::info::event_command_status::complete);
  MEET(link);
}

// Waits on the host or in a queue, and then checks the contents that were written before the
// signal. The queue must not be the one that signalled the event in `signal`, because the SYCL
// runtime omits a wait in the in-order queue that signals the event.
static void await(int link, sycl::queue &queue, sycl::event &event, const int *memory,
                  const std::vector<int> &list, int how) {
  MEET(link);
  EXPECT(event.get_info<sycl::info::event::command_execution_status>() !=
         sycl::info::event_command_status::complete);
  MEET(link);
  std::vector<int> found(list.size());
  if (how == 0)
    event.wait_and_throw();
  else if (how == 1)
    syclex::enqueue_wait_event(queue, event);
  else
    syclex::enqueue_wait_events(queue, {event});
  queue.copy(memory, found.data(), found.size()).wait();
  EXPECT(found == list);
  MEET(link);
}

static void produce_events(int link, sycl::queue queue) {
  auto context = queue.get_context();
  sycl::queue signals = another(queue), waits = another(queue);
  int *memory = sycl::malloc_device<int>(count, queue);
  ipc::handle handle = ipc::memory::get(memory, context);
  send_handle(link, handle.data());
  ipc::memory::put(handle, context);
  auto mine = syclex::make_event(context, syclex::properties{syclex::enable_ipc{true}});
  handle = ipc::event::get(mine);
  send_handle(link, handle.data());
  ipc::event::put(handle, context);
  sycl::event theirs = ipc::event::open(receive_handle(link), context);
  for (int number = 0; number < 6; number++) {
    signal(link, signals, mine, memory, numbers(number));
    await(link, waits, theirs, memory, numbers(-number), number % 3);
    await(link, waits, mine, memory, numbers(10 * number), number % 3);
    signal(link, signals, theirs, memory, numbers(20 * number));
  }
  sycl::free(memory, queue);
}

static void consume_events(int link, sycl::queue queue) {
  auto context = queue.get_context();
  sycl::queue signals = another(queue), waits = another(queue);
  int *memory =
      static_cast<int *>(ipc::memory::open(receive_handle(link), context, queue.get_device()));
  sycl::event theirs = ipc::event::open(receive_handle(link), context);
  theirs.wait();
  auto mine = syclex::make_event(context, syclex::properties{syclex::enable_ipc{true}});
  ipc::handle handle = ipc::event::get(mine);
  send_handle(link, handle.data());
  ipc::event::put(handle, context);
  for (int number = 0; number < 6; number++) {
    await(link, waits, theirs, memory, numbers(number), number % 3);
    signal(link, signals, mine, memory, numbers(-number));
    signal(link, signals, theirs, memory, numbers(10 * number));
    await(link, waits, mine, memory, numbers(20 * number), number % 3);
  }
  ipc::memory::close(memory, context);
}

// Physical memory

// A virtual address range into which physical memory is mapped.
struct mapping {
  syclex::physical_mem memory;
  sycl::context context;
  uintptr_t start;
  int *data;

  explicit mapping(const syclex::physical_mem &physical)
      : memory(physical), context(physical.get_context()),
        start(syclex::reserve_virtual_mem(memory.size(), context)),
        data(static_cast<int *>(
            memory.map(start, memory.size(), syclex::address_access_mode::read_write))) {}

  mapping(const mapping &) = delete;

  ~mapping() {
    syclex::unmap(data, memory.size(), context);
    syclex::free_virtual_mem(start, memory.size(), context);
  }
};

static void produce_physical_memory(int link, sycl::queue queue) {
  auto context = queue.get_context();
  size_t size = syclex::get_mem_granularity(queue.get_device(), context);
  syclex::physical_mem memory{queue.get_device(), context, size,
                              syclex::properties{syclex::enable_ipc{true}}};
  EXPECT(memory.ipc_enabled());
  mapping mapping{memory};
  size_t length = size / sizeof(int);
  write(queue, numbers(3, length), mapping.data);
  ipc::handle handle = ipc::physical_memory::get(memory);
  send_handle(link, handle.data());
  MEET(link);
  ipc::physical_memory::put(handle, context);
  EXPECT(read(queue, mapping.data, length) == numbers(4, length));
}

static void consume_physical_memory(int link, sycl::queue queue) {
  syclex::physical_mem memory =
      ipc::physical_memory::open(receive_handle(link), queue.get_context(), queue.get_device());
  mapping mapping{memory};
  size_t length = memory.size() / sizeof(int);
  EXPECT(read(queue, mapping.data, length) == numbers(3, length));
  write(queue, numbers(4, length), mapping.data);
  MEET(link);
}

int main(int argc, char **) try {
  limit_life();
  bool consumer = argc > 1;
  peer other = consumer ? peer{0, PARENT} : start_peer("consumer");
  sycl::queue queue{sycl::property::queue::in_order{}};
  auto device = queue.get_device();
  EXPECT(device.has(sycl::aspect::ext_oneapi_ipc_memory));
  EXPECT(device.has(sycl::aspect::ext_oneapi_ipc_event));
  EXPECT(device.has(sycl::aspect::ext_oneapi_ipc_physical_memory));
  for (int round = 0; round < rounds; round++) {
    (consumer ? consume_memory : produce_memory)(other.link, queue);
    (consumer ? consume_older_memory : produce_older_memory)(other.link, queue);
    (consumer ? consume_events : produce_events)(other.link, queue);
    (consumer ? consume_physical_memory : produce_physical_memory)(other.link, queue);
  }
  if (!consumer)
    end_peer(&other);
} catch (const std::exception &error) {
  fail("%s: %s", doing, error.what());
}
