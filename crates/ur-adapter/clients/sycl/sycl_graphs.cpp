// SYCL graphs without kernels in two processes. Each process creates a graph on shared memory. One
// process records a queue, and the other process adds nodes. The two graphs run in turns, ordered
// by their events. Then each process records its queue natively, with the shared events inside, and
// both submit all runs at once. The first process also records two queues natively, with reusable
// events between them and a host task.

#include "peer.h"
#include <algorithm>
#include <numeric>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;
namespace ipc = syclex::ipc;

constexpr size_t block = 1 << 14;
constexpr int rounds = 6, replays = 201;

static void send(int link, const std::vector<std::byte> &data) {
  say_bytes(link, bytes_of(data.data(), data.size()));
}

static std::vector<std::byte> receive(int link) {
  bytes bytes = hear_bytes(link);
  auto first = reinterpret_cast<std::byte *>(bytes.data);
  return {first, first + bytes.size};
}

static void write(sycl::queue &queue, int *to, int value) {
  queue.copy(std::vector<int>(block, value).data(), to, block).wait();
}

static bool holds(sycl::queue &queue, const int *from, int value) {
  std::vector<int> found(block);
  queue.copy(from, found.data(), block).wait();
  return std::all_of(found.begin(), found.end(), [&](int word) { return word == value; });
}

// Records a queue natively. Each run waits for the next signal of `before`, does the work, and signals
// `after`.
template <class Work>
static auto record_between(sycl::queue &queue, sycl::event &before, sycl::event &after, Work work) {
  syclex::command_graph graph{queue.get_context(), queue.get_device(),
                              {syclex::property::graph::enable_native_recording{}}};
  graph.begin_recording(queue);
  syclex::enqueue_wait_event(queue, before);
  work();
  syclex::enqueue_signal_event(queue, after);
  graph.end_recording(queue);
  return graph.finalize();
}

// Runs in the second process: swaps the first two of three blocks, with nodes that depend on each
// other.
static int second() {
  sycl::queue queue{sycl::property::queue::in_order{}};
  auto context = queue.get_context();
  auto memory = static_cast<int *>(ipc::memory::open(receive(PARENT), context, queue.get_device()));
  sycl::event rotated = ipc::event::open(receive(PARENT), context);
  sycl::event swapped = ipc::event::open(receive(PARENT), context);
  int *spare = sycl::malloc_device<int>(block, queue);
  syclex::command_graph graph{context, queue.get_device()};
  auto first = graph.add([&](sycl::handler &h) { h.memcpy(spare, memory, block * sizeof(int)); });
  auto next = graph.add([&](sycl::handler &h) { h.memcpy(memory, memory + block, block * sizeof(int)); },
                        {syclex::property::node::depends_on(first)});
  graph.add([&](sycl::handler &h) { h.memcpy(memory + block, spare, block * sizeof(int)); },
            {syclex::property::node::depends_on(next)});
  auto swap = graph.finalize();
  auto inside = record_between(queue, rotated, swapped, [&] {
    queue.memcpy(spare, memory, block * sizeof(int));
    queue.memcpy(memory, memory + block, block * sizeof(int));
    queue.memcpy(memory + block, spare, block * sizeof(int));
  });
  char token;
  while (hear_or_end(PARENT, &token, 1)) {
    if (token == 'w') {
      for (int i = 0; i < replays; i++)
        queue.ext_oneapi_graph(inside);
    } else {
      syclex::enqueue_wait_event(queue, rotated);
      queue.ext_oneapi_graph(swap);
      syclex::enqueue_signal_event(queue, swapped);
    }
    say(PARENT, &token, 1);
  }
  queue.wait_and_throw();
  sycl::free(spare, queue);
  ipc::memory::close(memory, context);
  return 0;
}

// Runs in the first process: moves each block down by one place, with a graph that was recorded
// from a queue.
static void first() {
  sycl::queue queue{sycl::property::queue::in_order{}};
  auto context = queue.get_context();
  int *memory = sycl::malloc_device<int>(3 * block, queue), *spare = sycl::malloc_device<int>(block, queue);
  int *marks = sycl::malloc_device<int>(block, queue);
  for (int i = 0; i < 3; i++)
    write(queue, memory + i * block, i);
  auto rotated = syclex::make_event(context, syclex::properties{syclex::enable_ipc{}});
  auto swapped = syclex::make_event(context, syclex::properties{syclex::enable_ipc{}});
  syclex::command_graph graph{context, queue.get_device()};
  graph.begin_recording(queue);
  queue.memcpy(spare, memory, block * sizeof(int));
  queue.memcpy(memory, memory + block, 2 * block * sizeof(int));
  queue.memcpy(memory + 2 * block, spare, block * sizeof(int));
  queue.memset(marks, 0x11, block * sizeof(int));
  graph.end_recording();
  auto rotate = graph.finalize();
  peer peer = start_peer("second");
  send(peer.link, ipc::memory::get(memory, context).data());
  send(peer.link, ipc::event::get(rotated).data());
  send(peer.link, ipc::event::get(swapped).data());
  std::vector<int> order{0, 1, 2};
  for (int round = 0; round < rounds; round++) {
    char token = 'r';
    if (round > 0)
      syclex::enqueue_wait_event(queue, swapped);
    queue.ext_oneapi_graph(rotate);
    syclex::enqueue_signal_event(queue, rotated);
    say(peer.link, &token, 1);
    hear(peer.link, &token, 1);
    std::rotate(order.begin(), order.begin() + 1, order.end());
    std::swap(order[0], order[1]);
  }
  auto inside = record_between(queue, swapped, rotated, [&] {
    queue.memcpy(spare, memory, block * sizeof(int));
    queue.memcpy(memory, memory + block, 2 * block * sizeof(int));
    queue.memcpy(memory + 2 * block, spare, block * sizeof(int));
  });
  char token = 'w';
  say(peer.link, &token, 1);
  for (int i = 0; i < replays; i++) {
    queue.ext_oneapi_graph(inside);
    std::rotate(order.begin(), order.begin() + 1, order.end());
    std::swap(order[0], order[1]);
  }
  hear(peer.link, &token, 1);
  swapped.wait();
  for (int i = 0; i < 3; i++)
    EXPECT(holds(queue, memory + i * block, order[i]));
  EXPECT(holds(queue, marks, 0x11111111));
  end_peer(&peer);
  sycl::free(memory, queue);
  sycl::free(spare, queue);
  sycl::free(marks, queue);
}

// Reusable events order two queues before a native recording, inside it, and after its runs. A host
// task runs once in each run.
static void record_natively() {
  sycl::queue origin{sycl::property::queue::in_order{}};
  auto context = origin.get_context();
  auto device = origin.get_device();
  sycl::queue branch{context, device, {sycl::property::queue::in_order{}}};
  int *memory = sycl::malloc_device<int>(3 * block, origin);
  auto fork = syclex::make_event(context), join = syclex::make_event(context);
  int calls = 0;
  origin.memset(memory, 0x22, block * sizeof(int));
  syclex::enqueue_signal_event(origin, fork);
  syclex::enqueue_wait_event(branch, fork);
  branch.memcpy(memory + block, memory, block * sizeof(int)).wait();
  EXPECT(holds(branch, memory + block, 0x22222222));
  syclex::command_graph graph{
      context, device, {syclex::property::graph::enable_native_recording{}}};
  graph.begin_recording(origin);
  origin.memset(memory, 0x33, block * sizeof(int));
  syclex::enqueue_signal_event(origin, fork);
  syclex::enqueue_wait_event(branch, fork);
  EXPECT(branch.ext_oneapi_get_state() == syclex::queue_state::recording);
  branch.memcpy(memory + block, memory, block * sizeof(int));
  syclex::host_task(branch, [&calls] { calls++; });
  syclex::enqueue_signal_event(branch, join);
  syclex::enqueue_wait_event(origin, join);
  origin.memcpy(memory + 2 * block, memory + block, block * sizeof(int));
  graph.end_recording(origin);
  EXPECT(branch.ext_oneapi_get_state() == syclex::queue_state::executing);
  auto executable = graph.finalize();
  EXPECT(calls == 0);
  for (int round = 1; round <= 3; round++) {
    write(origin, memory, 5);
    origin.ext_oneapi_graph(executable);
    syclex::enqueue_signal_event(origin, fork);
    syclex::enqueue_wait_event(branch, fork);
    EXPECT(holds(branch, memory + 2 * block, 0x33333333));
    fork.wait();
    join.wait();
    EXPECT(calls == round);
  }
  sycl::free(memory, origin);
}

int main(int count, char **words) {
  limit_life();
  try {
    if (count == 2 && std::string{words[1]} == "second")
      return second();
    first();
    record_natively();
  } catch (const sycl::exception &error) {
    fail("%s: %s", doing, error.what());
  }
  return 0;
}
