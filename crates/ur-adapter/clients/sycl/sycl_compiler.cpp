// A SYCL program whose kernels the SYCL runtime compiles at run time (libsycl-jit). Two processes
// compute on shared memory, and notify each other by events. Building the program requires no SYCL
// compiler.
//
//   sycl_compiler [OPTION...]              compiles the kernels with these options, and runs them
//   sycl_compiler --save FILE [OPTION...]  also writes the compiled kernels to a file
//   sycl_compiler --load FILE              runs the kernels from a file, without the compiler
//
// For NVIDIA GPUs, the compiler needs NVIDIA's libdevice: --cuda-path=DIRECTORY. Kernels that use
// none of its functions can be compiled with -nocudalib.

#include "peer.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;
namespace ipc = syclex::ipc;

using bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;
using handle_data = std::vector<std::byte>;

constexpr size_t count = 1 << 16;
constexpr size_t group = 128;
constexpr int rounds = 10;

static const char *const source = R"(
#include <sycl/sycl.hpp>
namespace work_item = sycl::ext::oneapi::this_work_item;
namespace syclex = sycl::ext::oneapi::experimental;

extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))
void iota(float start, float *data) {
  size_t id = work_item::get_nd_item<1>().get_global_linear_id();
  data[id] = start + static_cast<float>(id);
}

// Reverses the elements of each work-group through local memory.
extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))
void reverse(float *data, syclex::work_group_memory<float[]> local) {
  auto item = work_item::get_nd_item<1>();
  size_t id = item.get_local_linear_id(), size = item.get_local_range(0);
  local[id] = data[item.get_global_linear_id()];
  sycl::group_barrier(item.get_group());
  data[item.get_global_linear_id()] = local[size - 1 - id];
}

// Stores the sum of each work-group's elements, which a reduction over the group computes.
extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))
void sum(const float *data, float *sums) {
  auto item = work_item::get_nd_item<1>();
  float all = sycl::reduce_over_group(item.get_group(), data[item.get_global_linear_id()],
                                      sycl::plus<float>());
  if (item.get_local_linear_id() == 0)
    sums[item.get_group_linear_id()] = all;
}

// Uses a two-dimensional grid that starts at an offset.
extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<2>))
void place(int *data, int width) {
  auto item = work_item::get_nd_item<2>();
  int row = item.get_global_id(0), column = item.get_global_id(1);
  data[row * width + column] = 1000 * row + column;
}
)";

static const char *const with_library = R"(
#include <sycl/sycl.hpp>
namespace work_item = sycl::ext::oneapi::this_work_item;
namespace syclex = sycl::ext::oneapi::experimental;

extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))
void wave(float *data) {
  size_t id = work_item::get_nd_item<1>().get_global_linear_id();
  data[id] = sycl::sin(data[id]) + sycl::sqrt(static_cast<float>(id));
}
)";

static bundle compile(const sycl::queue &queue, const char *text,
                      const std::vector<std::string> &options) {
  auto start = std::chrono::steady_clock::now();
  auto language = syclex::source_language::sycl;
  auto sources =
      syclex::create_kernel_bundle_from_source(queue.get_context(), language, std::string(text));
  std::string log;
  auto built = syclex::build(
      sources, syclex::properties{syclex::build_options{options}, syclex::save_log{&log}});
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  printf("compiled in %.2f s\n", took.count());
  return built;
}

static std::vector<float> read(sycl::queue &queue, const float *memory, size_t size) {
  std::vector<float> list(size);
  queue.copy(memory, list.data(), size).wait();
  return list;
}

static sycl::nd_range<1> all() { return {sycl::range<1>(count), sycl::range<1>(group)}; }

static void launch_iota(sycl::queue &queue, const sycl::kernel &iota, float start, float *memory) {
  queue.submit([&](sycl::handler &handler) {
    handler.set_args(start, memory);
    handler.parallel_for(all(), iota);
  });
}

static void launch_reverse(sycl::queue &queue, const sycl::kernel &reverse, float *memory) {
  queue.submit([&](sycl::handler &handler) {
    syclex::work_group_memory<float[]> local(group, handler);
    handler.set_args(memory, local);
    handler.parallel_for(all(), reverse);
  });
}

static void run_alone(sycl::queue &queue, bundle kernels) {
  float *memory = sycl::malloc_device<float>(count, queue);
  launch_iota(queue, kernels.ext_oneapi_get_kernel("iota"), 0.5f, memory);
  launch_reverse(queue, kernels.ext_oneapi_get_kernel("reverse"), memory);
  auto found = read(queue, memory, count);
  for (size_t i = 0; i < count; i++)
    EXPECT(found[i] == 0.5f + float(i / group * group + group - 1 - i % group));

  float *sums = sycl::malloc_device<float>(count / group, queue);
  launch_iota(queue, kernels.ext_oneapi_get_kernel("iota"), 0, memory);
  queue.submit([&](sycl::handler &handler) {
    handler.set_args(static_cast<const float *>(memory), sums);
    handler.parallel_for(all(), kernels.ext_oneapi_get_kernel("sum"));
  });
  auto totals = read(queue, sums, count / group);
  for (size_t i = 0; i < totals.size(); i++) {
    float wanted = float(group) * float(i * group) + float(group * (group - 1) / 2);
    EXPECT(std::abs(totals[i] - wanted) <= wanted * 1e-5f);
  }

  constexpr int rows = 48, columns = 64, width = 80;
  int *table = sycl::malloc_device<int>(width * (rows + 4), queue);
  queue.memset(table, 0xFF, sizeof(int) * width * (rows + 4));
  queue.submit([&](sycl::handler &handler) {
    handler.set_args(table, width);
    sycl::range<2> global(rows, columns), local(4, 16);
    handler.parallel_for(sycl::nd_range<2>(global, local), kernels.ext_oneapi_get_kernel("place"));
  });
  std::vector<int> numbers(width * (rows + 4));
  queue.copy(table, numbers.data(), numbers.size()).wait();
  for (int row = 0; row < rows; row++)
    for (int column = 0; column < width; column++)
      EXPECT(numbers[row * width + column] == (column < columns ? 1000 * row + column : -1));
  sycl::free(table, queue);
  sycl::free(sums, queue);
  sycl::free(memory, queue);
  puts("one process: right");
}

static void run_with_library(sycl::queue &queue, bundle kernels) {
  float *memory = sycl::malloc_device<float>(count, queue);
  queue.fill(memory, 1.0f, count);
  queue.submit([&](sycl::handler &handler) {
    handler.set_args(memory);
    handler.parallel_for(all(), kernels.ext_oneapi_get_kernel("wave"));
  });
  auto found = read(queue, memory, count);
  for (size_t i = 0; i < count; i++)
    EXPECT(std::abs(found[i] - (std::sin(1.0f) + std::sqrt(float(i)))) < 1e-3f);
  sycl::free(memory, queue);
  puts("functions of libdevice: right");
}

static void send_handle(int link, const handle_data &data) {
  say_bytes(link, bytes_of(data.data(), data.size()));
}

static handle_data receive_handle(int link) {
  bytes bytes = hear_bytes(link);
  auto first = reinterpret_cast<std::byte *>(bytes.data);
  return {first, first + bytes.size};
}

// Runs in the second process: reverses the numbers that the first process writes.
static void consume(int link, sycl::queue &queue, bundle kernels) {
  auto context = queue.get_context();
  auto device = queue.get_device();
  auto *memory = static_cast<float *>(ipc::memory::open(receive_handle(link), context, device));
  auto numbered = ipc::event::open(receive_handle(link), context);
  auto reversed = ipc::event::open(receive_handle(link), context);
  auto reverse = kernels.ext_oneapi_get_kernel("reverse");
  for (int round = 0; round < rounds; round++) {
    MEET(link);
    syclex::enqueue_wait_event(queue, numbered);
    launch_reverse(queue, reverse, memory);
    syclex::enqueue_signal_event(queue, reversed);
    MEET(link);
  }
  queue.wait();
  ipc::memory::close(memory, context);
}

static void produce(int link, sycl::queue &queue, bundle kernels) {
  auto context = queue.get_context();
  float *memory = sycl::malloc_device<float>(count, queue);
  auto numbered = syclex::make_event(context, syclex::properties{syclex::enable_ipc{true}});
  auto reversed = syclex::make_event(context, syclex::properties{syclex::enable_ipc{true}});
  send_handle(link, ipc::memory::get(memory, context).data());
  send_handle(link, ipc::event::get(numbered).data());
  send_handle(link, ipc::event::get(reversed).data());
  auto iota = kernels.ext_oneapi_get_kernel("iota");
  for (int round = 0; round < rounds; round++) {
    launch_iota(queue, iota, float(round), memory);
    syclex::enqueue_signal_event(queue, numbered);
    MEET(link);
    MEET(link);
    syclex::enqueue_wait_event(queue, reversed);
    auto found = read(queue, memory, count);
    for (size_t i = 0; i < count; i++)
      EXPECT(found[i] == float(round) + float(i / group * group + group - 1 - i % group));
  }
  sycl::free(memory, queue);
  puts("two processes: right");
}

// Encodes a property as in the file with the compiled kernels. The property is a 64-bit number of
// bits, followed by these bits. Each character encodes six bits, starting with the lowest bits.
static std::string coded(const std::string &text) {
  const char *digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  uint64_t bits = text.size() * 8;
  std::string bytes(reinterpret_cast<const char *>(&bits), sizeof bits), result;
  bytes += text;
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 6) {
    unsigned digit = 0;
    for (size_t i = 0; i < 6 && bit + i < bytes.size() * 8; i++)
      digit |= unsigned(static_cast<unsigned char>(bytes[(bit + i) / 8]) >> (bit + i) % 8 & 1) << i;
    result += digits[digit];
  }
  return result;
}

// Corrects the target name in the file. This version of the SYCL runtime writes a target name that
// it does not recognise when it reads the file. It compares only the part before the first dash.
static void rename_target(std::vector<char> &bytes) {
  std::string written = coded("llvm_nvptx64-unknown-unknown");
  std::string known = coded("nvptx64-nvidia-cuda-unknown_");
  auto found = std::search(bytes.begin(), bytes.end(), written.begin(), written.end());
  if (found != bytes.end() && known.size() == written.size())
    std::copy(known.begin(), known.end(), found);
}

static void save(bundle kernels, const std::string &path) {
  auto bytes = kernels.ext_oneapi_get_content();
  rename_target(bytes);
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
  printf("%zu bytes in %s\n", bytes.size(), path.c_str());
}

static bundle load(const sycl::queue &queue, const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  return syclex::get_kernel_bundle<sycl::bundle_state::executable>(
      queue.get_context(), {queue.get_device()}, bytes);
}

int main(int argc, char **argv) try {
  limit_life();
  // The compiler needs more time than other clients.
  alarm(3 * DEADLINE);
  bool is_second = argc > 1 && strcmp(argv[1], "second") == 0;
  std::vector<std::string> options(argv + 1, argv + argc);
  std::string from, to;
  if (is_second) {
    from = getenv("SYCL_COMPILER_FILE");
  } else if (options.size() >= 2 && (options[0] == "--save" || options[0] == "--load")) {
    (options[0] == "--save" ? to : from) = options[1];
    options.erase(options.begin(), options.begin() + 2);
  }
  sycl::queue queue{sycl::property::queue::in_order{}};
  auto device = queue.get_device();
  if (is_second) {
    auto kernels = load(queue, from);
    consume(PARENT, queue, kernels);
    return 0;
  }
  printf("%s, architecture %s\n", device.get_info<sycl::info::device::name>().c_str(),
         device.get_info<sycl::info::device::version>().c_str());
  if (from.empty()) {
    if (!device.ext_oneapi_can_build(syclex::source_language::sycl)) {
      puts("the runtime does not compile SYCL for this device");
      return 77;
    }
    auto kernels = compile(queue, source, options);
    from = to.empty() ? "/tmp/sycl_compiler." + std::to_string(getpid()) : to;
    save(kernels, from);
    auto more = compile(queue, with_library, options);
    save(more, from + ".library");
    run_alone(queue, kernels);
    run_with_library(queue, more);
  } else {
    run_alone(queue, load(queue, from));
    run_with_library(queue, load(queue, from + ".library"));
  }
  setenv("SYCL_COMPILER_FILE", from.c_str(), 1);
  auto kernels = load(queue, from);
  peer second = start_peer("second");
  produce(second.link, queue, kernels);
  end_peer(&second);
  return 0;
} catch (const sycl::exception &error) {
  fail("%s: %s", doing, error.what());
}
