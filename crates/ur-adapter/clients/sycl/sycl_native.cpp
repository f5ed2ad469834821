// A SYCL program that also calls Level Zero directly. It converts SYCL objects to the driver's
// objects, and the driver's objects to SYCL objects.

#include "peer.h"
#include "ze.h"
#include <sycl/ext/oneapi/backend/level_zero.hpp>
#include <sycl/sycl.hpp>
#include <vector>

constexpr auto level_zero = sycl::backend::ext_oneapi_level_zero;
constexpr auto keep = sycl::ext::oneapi::level_zero::ownership::keep;
constexpr auto transfer = sycl::ext::oneapi::level_zero::ownership::transfer;
constexpr size_t size = 64 << 10;

static ze_handle list_of(const sycl::queue &queue) {
  auto native = sycl::get_native<level_zero>(queue);
  EXPECT(std::holds_alternative<ze_command_list_handle_t>(native));
  return std::get<ze_command_list_handle_t>(native);
}

static bool is_all(sycl::queue queue, const char *memory, char byte) {
  std::vector<char> found(size);
  queue.memcpy(found.data(), memory, size).wait();
  return found == std::vector<char>(size, byte);
}

static void devices(const sycl::queue &queue) {
  sycl::device device = queue.get_device();
  EXPECT(device.get_backend() == level_zero);
  ze_handle driver = sycl::get_native<level_zero>(device.get_platform());
  uint32_t count = 8;
  ze_handle drivers[8], all[16];
  ZE(ze.zeDriverGet(&count, drivers));
  EXPECT(count > 0 && driver == drivers[0]);
  count = 16;
  ZE(ze.zeDeviceGet(driver, &count, all));
  ze_device_handle_t native = sycl::get_native<level_zero>(device);
  EXPECT(count > 0 && native == all[0]);
  EXPECT(sycl::make_device<level_zero>(native) == device);
  EXPECT(sycl::make_platform<level_zero>(sycl::get_native<level_zero>(device.get_platform())) ==
         device.get_platform());
}

// Runs the program's native commands between SYCL commands, with barriers where SYCL guarantees no
// order.
static void commands(sycl::queue queue) {
  char *memory = sycl::malloc_device<char>(size, queue);
  std::vector<char> first(size, 1), last(size, 3);
  ze_handle list = list_of(queue);
  queue.memcpy(memory, first.data(), size);
  queue.ext_oneapi_submit_barrier();
  ze_fill(list, memory, 2, size);
  queue.wait();
  EXPECT(is_all(queue, memory, 2));
  ze_fill(list, memory, 4, size);
  queue.ext_oneapi_submit_barrier();
  queue.memcpy(memory, last.data(), size);
  queue.wait();
  EXPECT(is_all(queue, memory, 3));
  sycl::free(memory, queue);
}

// SYCL commands wait for a native event, and native commands wait for a SYCL event.
static void events(sycl::queue queue) {
  sycl::context context = queue.get_context();
  ze_handle native_context = sycl::get_native<level_zero>(context);
  ze_handle list =
      ze_create_list(native_context, sycl::get_native<level_zero>(queue.get_device()));
  char *memory = sycl::malloc_device<char>(size, queue);
  std::vector<char> first(size, 1), last(size, 3);
  sycl::event copied = queue.memcpy(memory, first.data(), size);
  ze_handle native = sycl::get_native<level_zero>(copied);
  ZE(ze.zeCommandListAppendWaitOnEvents(list, 1, &native));
  ze_fill(list, memory, 2, size);
  ze_event made = ze_create_event(native_context);
  ZE(ze.zeCommandListAppendSignalEvent(list, made.event));
  sycl::event theirs = sycl::make_event<level_zero>(
      {static_cast<ze_event_handle_t>(made.event), keep}, context);
  queue.memcpy(memory, last.data(), size, theirs).wait();
  EXPECT(is_all(queue, memory, 3));
  theirs.wait();
  ze_finish(native_context, list);
  ZE(ze.zeEventDestroy(made.event));
  ZE(ze.zeEventPoolDestroy(made.pool));
  ZE(ze.zeCommandListDestroy(list));
  sycl::free(memory, queue);
}

// Runs SYCL commands between native commands, in the program's own context and command list.
static void queues(const sycl::device &device) {
  ze_device_handle_t native = sycl::get_native<level_zero>(device);
  ze_description desc = {ZE_CONTEXT_DESC, nullptr, {0}};
  ze_handle made = nullptr;
  ZE(ze.zeContextCreate(sycl::get_native<level_zero>(device.get_platform()), &desc, &made));
  for (auto ownership : {keep, transfer}) {
    sycl::context context = sycl::make_context<level_zero>(
        {static_cast<ze_context_handle_t>(made), {device}, keep});
    EXPECT(sycl::get_native<level_zero>(context) == made);
    auto list = static_cast<ze_command_list_handle_t>(ze_create_list(made, native));
    sycl::queue queue = sycl::make_queue<level_zero>(
        {list, device, ownership, {sycl::property::queue::in_order()}}, context);
    EXPECT(list_of(queue) == list && queue.is_in_order());
    char *memory = sycl::malloc_device<char>(size, queue), *other =
        sycl::malloc_device<char>(size, queue);
    for (char round = 1; round < 20; round++) {
      ze_fill(list, memory, round, size);
      queue.memcpy(other, memory, size);
      ze_fill(list, memory, 100, size);
      queue.wait();
      EXPECT(is_all(queue, other, round) && is_all(queue, memory, 100));
    }
    sycl::free(memory, queue);
    sycl::free(other, queue);
    commands(queue);
    queue.wait();
    queue = sycl::queue(device);
    if (ownership == keep)
      ZE(ze.zeCommandListDestroy(list));
  }
  ZE(ze.zeContextDestroy(made));
}

int main() {
  limit_life();
  load_ze();
  sycl::device device(sycl::default_selector_v);
  sycl::queue in_order(device, sycl::property::queue::in_order());
  sycl::queue free_order(device);
  devices(in_order);
  commands(in_order);
  commands(free_order);
  events(in_order);
  events(free_order);
  queues(device);
  return 0;
}
