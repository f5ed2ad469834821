// SYCL graphs with kernels. Two processes compute in turns on shared memory, ordered by the events
// of their graphs. One process records its queues natively, so the adapter captures them. The other
// process adds nodes explicitly, and updates their arguments between runs.
//
// The kernels are a SPIR-V module. The environment variable KERNELS_PTX contains its path.

#include "peer.h"
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;
namespace ipc = syclex::ipc;

using bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;

constexpr uint32_t count = 1 << 14;
constexpr uint32_t rounds = 8;

static void send(int link, const std::vector<std::byte> &data) {
  say_bytes(link, bytes_of(data.data(), data.size()));
}

static std::vector<std::byte> receive(int link) {
  bytes bytes = hear_bytes(link);
  auto first = reinterpret_cast<std::byte *>(bytes.data);
  return {first, first + bytes.size};
}

static bundle load(const sycl::queue &queue) {
  std::ifstream file(getenv("KERNELS_PTX"), std::ios::binary);
  std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return std::byte(c); });
  auto language = syclex::source_language::spirv;
  auto source = syclex::create_kernel_bundle_from_source(queue.get_context(), language, bytes);
  return syclex::build(source);
}

// Launches the kernel `fill` or `scale`. `scale` replaces each word by 3 * word + value.
template <class Value>
static void launch(sycl::handler &handler, const sycl::kernel &kernel, uint32_t *memory, Value value) {
  handler.set_arg(0, memory);
  handler.set_arg(1, value);
  handler.set_arg(2, count);
  handler.parallel_for(sycl::range<1>(count), kernel);
}

static bool holds(sycl::queue &queue, const uint32_t *memory, uint32_t value) {
  std::vector<uint32_t> found(count);
  queue.copy(memory, found.data(), count).wait();
  bool same = std::all_of(found.begin(), found.end(), [&](uint32_t word) { return word == value; });
  if (!same)
    fprintf(stderr, "%u and more instead of %u\n", found[0], value);
  return same;
}

// Runs in the second process: creates a graph by adding nodes. An argument of the second node
// changes in each round.
static int second() {
  sycl::queue queue{sycl::property::queue::in_order{}};
  auto context = queue.get_context();
  auto kernels = load(queue);
  auto memory = static_cast<uint32_t *>(ipc::memory::open(receive(PARENT), context, queue.get_device()));
  sycl::event filled = ipc::event::open(receive(PARENT), context);
  sycl::event scaled = ipc::event::open(receive(PARENT), context);
  uint32_t *spare = sycl::malloc_device<uint32_t>(count, queue);
  syclex::command_graph graph{context, queue.get_device()};
  syclex::dynamic_parameter<uint32_t> added(0);
  auto scale = kernels.ext_oneapi_get_kernel("scale");
  auto first = graph.add([&](sycl::handler &h) { launch(h, scale, memory, 1u); });
  auto next = graph.add([&](sycl::handler &h) { launch(h, scale, memory, added); },
                        {syclex::property::node::depends_on(first)});
  graph.add([&](sycl::handler &h) { h.memcpy(spare, memory, count * sizeof(uint32_t)); },
            {syclex::property::node::depends_on(next)});
  auto executable = graph.finalize({syclex::property::graph::updatable{}});
  uint32_t round;
  while (hear_or_end(PARENT, &round, sizeof round)) {
    added.update(10 * round);
    executable.update(next);
    syclex::enqueue_wait_event(queue, filled);
    queue.ext_oneapi_graph(executable);
    syclex::enqueue_signal_event(queue, scaled);
    say(PARENT, &round, sizeof round);
    EXPECT(holds(queue, spare, 3 * (3 * (7 + 5) + 1) + 10 * round));
  }
  sycl::free(spare, queue);
  ipc::memory::close(memory, context);
  return 0;
}

// Records two queues: a launch, a fork to the other queue, and a launch that follows both queues.
static syclex::command_graph<syclex::graph_state::executable>
record(sycl::queue &queue, bundle &kernels, uint32_t *memory, uint32_t *other) {
  auto context = queue.get_context();
  sycl::queue branch{context, queue.get_device(), {sycl::property::queue::in_order{}}};
  auto fill = kernels.ext_oneapi_get_kernel("fill"), scale = kernels.ext_oneapi_get_kernel("scale");
  syclex::command_graph graph{
      context, queue.get_device(), {syclex::property::graph::enable_native_recording{}}};
  graph.begin_recording(queue);
  EXPECT(queue.ext_oneapi_get_state() == syclex::queue_state::recording);
  sycl::event begun = queue.submit([&](sycl::handler &h) { launch(h, fill, memory, 4u); });
  sycl::event copied = branch.submit([&](sycl::handler &h) {
    h.depends_on(begun);
    h.memcpy(other, memory, count * sizeof(uint32_t));
  });
  EXPECT(branch.ext_oneapi_get_state() == syclex::queue_state::recording);
  sycl::event tripled = branch.submit([&](sycl::handler &h) { launch(h, scale, other, 2u); });
  queue.submit([&](sycl::handler &h) {
    h.depends_on({copied, tripled});
    h.memcpy(memory, other, count * sizeof(uint32_t) / 2);
  });
  queue.submit([&](sycl::handler &h) { launch(h, fill, memory, 12u); });
  graph.end_recording(queue);
  EXPECT(branch.ext_oneapi_get_state() == syclex::queue_state::executing);
  return graph.finalize();
}

static void first() {
  sycl::queue queue{sycl::property::queue::in_order{}};
  auto context = queue.get_context();
  auto kernels = load(queue);
  uint32_t *memory = sycl::malloc_device<uint32_t>(count, queue);
  uint32_t *other = sycl::malloc_device<uint32_t>(count, queue);
  queue.memset(memory, 0, count * sizeof(uint32_t)).wait();
  auto filled = syclex::make_event(context, syclex::properties{syclex::enable_ipc{}});
  auto scaled = syclex::make_event(context, syclex::properties{syclex::enable_ipc{}});
  auto graph = record(queue, kernels, memory, other);
  EXPECT(holds(queue, memory, 0));
  peer peer = start_peer("second");
  send(peer.link, ipc::memory::get(memory, context).data());
  send(peer.link, ipc::event::get(filled).data());
  send(peer.link, ipc::event::get(scaled).data());
  for (uint32_t round = 0; round < rounds; round++) {
    queue.ext_oneapi_graph(graph);
    syclex::enqueue_signal_event(queue, filled);
    say(peer.link, &round, sizeof round);
    hear(peer.link, &round, sizeof round);
    syclex::enqueue_wait_event(queue, scaled);
    EXPECT(holds(queue, memory, 3 * (3 * 12 + 1) + 10 * round));
    EXPECT(holds(queue, other, 3 * 4 + 2));
  }
  end_peer(&peer);
  sycl::free(memory, queue);
  sycl::free(other, queue);
}

int main(int argc, char **argv) {
  limit_life();
  try {
    if (argc == 2 && std::string{argv[1]} == "second")
      return second();
    first();
  } catch (const sycl::exception &error) {
    fail("%s: %s", doing, error.what());
  }
  return 0;
}
