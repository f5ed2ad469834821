// Plain SYCL buffers on two devices. The queues are in the default context, which contains all
// devices. SYCL's scheduler orders the kernels, and the adapter moves the contents.
//
// The kernels are a SPIR-V module. The environment variable KERNELS_PTX contains its path.

#include "peer.h"
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;

using bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;
using buffer = sycl::buffer<uint32_t>;

constexpr uint32_t count = 1 << 14;
constexpr uint32_t rounds = 10;

static bundle load(const sycl::context &context) {
  std::ifstream file(getenv("KERNELS_PTX"), std::ios::binary);
  std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return std::byte(c); });
  auto language = syclex::source_language::spirv;
  auto source = syclex::create_kernel_bundle_from_source(context, language, bytes);
  return syclex::build(source);
}

// Replaces each word by 3 * word + value.
static void scale(sycl::queue &queue, const sycl::kernel &kernel, buffer &words, uint32_t value) {
  queue.submit([&](sycl::handler &handler) {
    handler.set_arg(0, words.get_access<sycl::access::mode::read_write>(handler));
    handler.set_arg(1, value);
    handler.set_arg(2, uint32_t(words.size()));
    handler.parallel_for(sycl::range<1>(words.size()), kernel);
  });
}

static void expect_all(buffer &words, uint32_t value) {
  sycl::host_accessor found{words, sycl::read_only};
  for (uint32_t i = 0; i < count; i++)
    if (found[i] != value)
      fail("%s: word %u is %u, not %u", doing, i, found[i], value);
}

// Kernels on alternating devices change one buffer. The host changes it in between.
static void alternate(sycl::queue (&queues)[2], const sycl::kernel &kernel) {
  std::vector<uint32_t> words(count, 1);
  uint32_t wanted = 1;
  {
    buffer all{words.data(), words.size()};
    for (uint32_t round = 0; round < rounds; round++) {
      scale(queues[round % 2], kernel, all, round);
      scale(queues[1 - round % 2], kernel, all, 1);
      wanted = 3 * (3 * wanted + round) + 1;
      if (round % 4 == 3) {
        HERE("the host reads and writes");
        expect_all(all, wanted);
        sycl::host_accessor written{all, sycl::read_write};
        for (uint32_t i = 0; i < count; i++)
          written[i] += 5;
        wanted += 5;
      }
    }
    HERE("both devices are done");
    expect_all(all, wanted);
  }
  EXPECT(words.front() == wanted && words.back() == wanted);
}

// Each device computes on one half of a buffer. The devices then exchange their halves.
static void divide(sycl::queue (&queues)[2], const sycl::kernel &kernel) {
  std::vector<uint32_t> words(count, 2);
  {
    buffer all{words.data(), words.size()};
    buffer low{all, sycl::id<1>(0), sycl::range<1>(count / 2)};
    buffer high{all, sycl::id<1>(count / 2), sycl::range<1>(count / 2)};
    for (uint32_t round = 0; round < rounds; round++) {
      scale(queues[round % 2], kernel, low, 1);
      scale(queues[1 - round % 2], kernel, high, 1);
    }
    // A kernel on the whole buffer follows both halves.
    scale(queues[1], kernel, all, 0);
  }
  uint32_t wanted = 2;
  for (uint32_t round = 0; round < rounds; round++)
    wanted = 3 * wanted + 1;
  wanted *= 3;
  for (uint32_t word : words)
    EXPECT(word == wanted);
}

// One device writes a buffer, and a copy command of the other device reads it.
static void copy(sycl::queue (&queues)[2], const sycl::kernel &kernel) {
  buffer from{sycl::range<1>(count)}, to{sycl::range<1>(count)};
  queues[0].submit([&](sycl::handler &handler) {
    handler.fill(from.get_access<sycl::access::mode::discard_write>(handler), 7u);
  });
  scale(queues[0], kernel, from, 2);
  queues[1].submit([&](sycl::handler &handler) {
    handler.copy(from.get_access<sycl::access::mode::read>(handler),
                 to.get_access<sycl::access::mode::discard_write>(handler));
  });
  scale(queues[0], kernel, to, 1);
  HERE("the copy is complete");
  expect_all(from, 23);
  expect_all(to, 70);
}

int main() {
  limit_life();
  try {
    auto devices = sycl::device::get_devices();
    EXPECT(devices.size() >= 2);
    sycl::queue queues[2] = {sycl::queue{devices[0]}, sycl::queue{devices[1]}};
    auto context = queues[0].get_context();
    EXPECT(context == queues[1].get_context() && context.get_devices().size() >= 2);
    auto kernels = load(context);
    auto kernel = kernels.ext_oneapi_get_kernel("scale");
    alternate(queues, kernel);
    divide(queues, kernel);
    copy(queues, kernel);
    sycl::queue in_order[2] = {sycl::queue{devices[0], sycl::property::queue::in_order{}},
                               sycl::queue{devices[1], sycl::property::queue::in_order{}}};
    alternate(in_order, kernel);
  } catch (const sycl::exception &error) {
    fail("%s: %s", doing, error.what());
  }
  return 0;
}
