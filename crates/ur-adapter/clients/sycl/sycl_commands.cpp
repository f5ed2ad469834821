// A SYCL program without kernels. It uses USM of each kind, copies, fills, 2D copies, buffers and
// accessors, host tasks, dependencies and profiling, on in-order and out-of-order queues.

#include "peer.h"
#include <algorithm>
#include <numeric>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;

constexpr size_t count = 1 << 18;

static std::vector<int> numbers(int first) {
  std::vector<int> list(count);
  std::iota(list.begin(), list.end(), first);
  return list;
}

static void usm(sycl::queue queue) {
  for (auto kind : {sycl::usm::alloc::device, sycl::usm::alloc::host, sycl::usm::alloc::shared}) {
    int *memory = sycl::aligned_alloc<int>(256, count, queue, kind);
    EXPECT(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % 256 == 0);
    EXPECT(sycl::get_pointer_type(memory + 5, queue.get_context()) == kind);
    auto list = numbers(3);
    std::vector<int> found(count);
    queue.copy(list.data(), memory, count).wait();
    if (kind != sycl::usm::alloc::device)
      EXPECT(std::equal(list.begin(), list.end(), memory));
    sycl::event filled = queue.fill(memory + 1, -1, 10);
    sycl::event set = queue.memset(memory + 20, 0xab, 40, filled);
    queue.copy(memory, found.data(), count, set).wait();
    std::fill_n(list.begin() + 1, 10, -1);
    std::fill_n(list.begin() + 20, 10, 0xabababab);
    EXPECT(found == list);
    if (kind == sycl::usm::alloc::shared) {
      queue.prefetch(memory, count);
      queue.mem_advise(memory, count, 0).wait();
    }
    sycl::free(memory, queue);
  }
  EXPECT(sycl::get_pointer_type(&queue, queue.get_context()) == sycl::usm::alloc::unknown);
}

static void rows_of_usm(sycl::queue queue) {
  constexpr size_t pitch = 512, width = 100, height = 64;
  auto *memory = sycl::malloc_device<unsigned char>(pitch * height, queue);
  queue.memset(memory, 1, pitch * height).wait();
  std::vector<unsigned char> rows(width * height), found(pitch * height);
  std::iota(rows.begin(), rows.end(), 0);
  queue.ext_oneapi_memcpy2d(memory + 8, pitch, rows.data(), width, width, height).wait();
  queue.ext_oneapi_memset2d(memory + 200, pitch, 9, 10, height).wait();
  queue.copy(memory, found.data(), found.size()).wait();
  for (size_t y = 0; y < height; y++)
    for (size_t x = 0; x < pitch; x++) {
      unsigned char expected = 1;
      if (x >= 8 && x < 8 + width)
        expected = rows[y * width + x - 8];
      else if (x >= 200 && x < 210)
        expected = 9;
      EXPECT(found[y * pitch + x] == expected);
    }
  sycl::free(memory, queue);
}

static void buffers(sycl::queue queue) {
  auto list = numbers(5);
  {
    sycl::buffer<int> buffer{list.data(), sycl::range{count}}, other{sycl::range{count}};
    queue.submit([&](sycl::handler &handler) {
      sycl::accessor part{buffer, handler, sycl::range{100}, sycl::id{50}};
      handler.fill(part, -7);
    });
    queue.submit([&](sycl::handler &handler) {
      sycl::accessor from{buffer, handler, sycl::read_only};
      sycl::accessor to{other, handler, sycl::write_only, sycl::no_init};
      handler.copy(from, to);
    });
    sycl::host_accessor seen{other};
    EXPECT(seen[49] == 54 && seen[50] == -7 && seen[149] == -7 && seen[150] == 155);
    seen[0] = 1234;
    sycl::buffer<int> sub{buffer, sycl::id{1024}, sycl::range{1024}};
    queue.submit([&](sycl::handler &handler) {
      sycl::accessor whole{sub, handler};
      handler.fill(whole, 8);
    });
  }
  // The buffer has been destroyed, so its contents are in the memory from which it was created.
  EXPECT(list[49] == 54 && list[50] == -7 && list[1024] == 8 && list[2047] == 8 &&
         list[2048] == 2053);
}

static void planes_of_buffers(sycl::queue queue) {
  constexpr size_t x = 20, y = 30, z = 10;
  std::vector<int> list(x * y * z), found(4 * 5 * 6);
  std::iota(list.begin(), list.end(), 0);
  sycl::buffer<int, 3> buffer{list.data(), sycl::range{z, y, x}};
  queue
      .submit([&](sycl::handler &handler) {
        sycl::accessor part{buffer, handler, sycl::range{4, 5, 6}, sycl::id{1, 2, 3}};
        handler.copy(part, found.data());
      })
      .wait();
  for (size_t i = 0; i < found.size(); i++)
    EXPECT(found[i] == int(((i / 30 + 1) * y + i / 6 % 5 + 2) * x + i % 6 + 3));
}

static void host_tasks(sycl::queue queue) {
  int *memory = sycl::malloc_host<int>(1, queue);
  *memory = 1;
  sycl::event last;
  for (int i = 0; i < 20; i++) {
    last = queue.submit([&](sycl::handler &handler) {
      handler.depends_on(last);
      handler.host_task([=] { *memory = *memory * 3 + i; });
    });
    last = queue.submit([&](sycl::handler &handler) {
      handler.depends_on(last);
      handler.memcpy(memory, memory, sizeof *memory);
    });
  }
  last.wait_and_throw();
  unsigned expected = 1;
  for (unsigned i = 0; i < 20; i++)
    expected = expected * 3 + i;
  EXPECT(unsigned(*memory) == expected);
  sycl::free(memory, queue);
}

static void dependencies(sycl::queue queue, sycl::queue other) {
  auto list = numbers(9);
  std::vector<int> found(count);
  std::vector<int *> hops;
  for (int i = 0; i < 10; i++)
    hops.push_back(sycl::malloc_device<int>(count, queue));
  sycl::event last = queue.copy(list.data(), hops[0], count);
  for (size_t i = 1; i < hops.size(); i++)
    last = (i % 2 ? other : queue).copy(hops[i - 1], hops[i], count, last);
  sycl::event barrier = queue.ext_oneapi_submit_barrier({last});
  other.copy(hops.back(), found.data(), count, barrier).wait();
  EXPECT(found == list);
  queue.wait_and_throw();
  other.wait_and_throw();
  EXPECT(queue.ext_oneapi_empty());
  for (int *hop : hops)
    sycl::free(hop, queue);
}

static void profiling(const sycl::device &device) {
  using namespace sycl::info::event_profiling;
  sycl::queue queue{device, sycl::property::queue::enable_profiling{}};
  char *memory = sycl::malloc_device<char>(count, queue);
  sycl::event event = queue.memset(memory, 1, count);
  event.wait();
  auto submit = event.get_profiling_info<command_submit>();
  auto start = event.get_profiling_info<command_start>();
  auto end = event.get_profiling_info<command_end>();
  EXPECT(0 < submit && submit <= start && start <= end);

  // An event that the program created and signals repeatedly, on a queue without profiling.
  sycl::queue plain{queue.get_context(), device, sycl::property::queue::in_order{}};
  auto own =
      syclex::make_event(queue.get_context(), syclex::properties{syclex::enable_profiling{true}});
  for (uint64_t earlier = end, i = 0; i < 5; i++) {
    plain.memset(memory, int(i), count);
    syclex::enqueue_signal_event(plain, own);
    own.wait();
    EXPECT(earlier <= own.get_profiling_info<command_start>());
    EXPECT(own.get_profiling_info<command_start>() <= own.get_profiling_info<command_end>());
    earlier = own.get_profiling_info<command_end>();
  }
  sycl::free(memory, queue);
}

static void questions(const sycl::device &device) {
  using namespace sycl::info::device;
  EXPECT(device.is_cpu() || device.is_gpu());
  EXPECT(!device.get_info<name>().empty());
  EXPECT(!device.get_info<vendor>().empty());
  EXPECT(!device.get_info<driver_version>().empty());
  EXPECT(device.get_info<max_compute_units>() > 0);
  EXPECT(device.get_info<global_mem_size>() > 0);
  EXPECT(device.get_info<max_mem_alloc_size>() > 0);
  EXPECT(device.has(sycl::aspect::usm_device_allocations));
  EXPECT(device.has(sycl::aspect::usm_host_allocations));
  EXPECT(device.has(sycl::aspect::usm_shared_allocations));
  EXPECT(device.has(sycl::aspect::queue_profiling));
  EXPECT(device.has(sycl::aspect::ext_oneapi_virtual_mem));
  auto all = device.get_platform().get_devices();
  EXPECT(std::find(all.begin(), all.end(), device) != all.end());
}

int main() try {
  limit_life();
  sycl::device device;
  questions(device);
  sycl::queue in_order{device, sycl::property::queue::in_order{}}, out_of_order{device};
  for (auto &queue : {in_order, out_of_order}) {
    usm(queue);
    rows_of_usm(queue);
    buffers(queue);
    planes_of_buffers(queue);
    host_tasks(queue);
    dependencies(queue, out_of_order);
  }
  profiling(device);
} catch (const std::exception &error) {
  fail("%s: %s", doing, error.what());
}
