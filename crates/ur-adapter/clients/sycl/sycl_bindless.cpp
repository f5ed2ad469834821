// A SYCL program without kernels that creates bindless images. It tests image memory with several
// levels and layers, copies between images and of image parts, sampled and unsampled images, memory
// as an image, and queries.

#include "peer.h"
#include <numeric>
#include <sycl/ext/oneapi/bindless_images.hpp>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;

constexpr size_t width = 40, height = 12, depth = 6;

static std::vector<float> numbers(size_t count) {
  std::vector<float> list(count);
  std::iota(list.begin(), list.end(), 1.0f);
  return list;
}

// Copies pixels of four floats into an image and back. The images have one, two or three
// dimensions, or layers.
static void go_and_return(sycl::queue queue, const syclex::image_descriptor &description) {
  syclex::image_mem_handle image = syclex::alloc_image_mem(description, queue);
  size_t pixels = description.width * std::max<size_t>(description.height, 1) *
                  std::max<size_t>(description.depth, 1) * std::max(description.array_size, 1u);
  std::vector<float> list = numbers(pixels * description.num_channels), found(list.size());
  queue.ext_oneapi_copy(list.data(), image, description).wait();
  queue.ext_oneapi_copy(image, found.data(), description).wait();
  EXPECT(found == list);
  sycl::range<3> size = syclex::get_image_range(image, queue);
  EXPECT(size[0] == description.width && size[1] == description.height);
  EXPECT(syclex::get_image_channel_type(image, queue) == description.channel_type);
  EXPECT(syclex::get_image_num_channels(image, queue) == description.num_channels);
  syclex::free_image_mem(image, description.type, queue);
}

// Copies part of memory to part of an image, from there to part of another image, and back to
// memory. SYCL converts all offsets to bytes. This includes offsets in memory, although the SYCL
// headers specify that these are already in bytes.
static void parts(sycl::queue queue) {
  syclex::image_descriptor description{{width, height}, 4, sycl::image_channel_type::fp32};
  syclex::image_mem from{description, queue}, to{description, queue};
  std::vector<float> list = numbers(width * height * 4), zeros(list.size()), found(list.size());
  queue.ext_oneapi_copy(zeros.data(), to.get_handle(), description).wait();
  queue.ext_oneapi_copy(list.data(), {5, 2, 0}, {width, height, 0}, from.get_handle(), {10, 3, 0},
                        description, {20, 6, 1}).wait();
  queue.ext_oneapi_copy(from.get_handle(), {10, 3, 0}, description, to.get_handle(), {1, 0, 0}, description,
                        {20, 6, 1}).wait();
  queue.ext_oneapi_copy(to.get_handle(), {0, 0, 0}, description, found.data(), {2, 1, 0},
                        {width, height, 0}, {22, 6, 1}).wait();
  for (size_t y = 0; y < height; y++)
    for (size_t x = 0; x < width; x++)
      for (size_t channel = 0; channel < 4; channel++) {
        bool inside = y >= 1 && y < 7 && x >= 3 && x < 23;
        float wanted = inside ? list[4 * ((y + 1) * width + x + 2) + channel] : 0;
        float pixel = found[4 * (y * width + x) + channel];
        if (pixel != wanted)
          fail("pixel %zu, %zu, channel %zu is %g, not %g", x, y, channel, pixel, wanted);
      }
}

static void levels(sycl::queue queue) {
  syclex::image_descriptor description{{16, 8}, 4, sycl::image_channel_type::fp32,
                                       syclex::image_type::mipmap, 4};
  syclex::image_mem_handle image = syclex::alloc_image_mem(description, queue);
  for (unsigned level = 0; level < 4; level++) {
    syclex::image_descriptor own = description.get_mip_level_desc(level);
    syclex::image_mem_handle one = syclex::get_mip_level_mem_handle(image, level, queue);
    std::vector<float> list = numbers(own.width * own.height * 4), found(list.size());
    queue.ext_oneapi_copy(list.data(), one, own).wait();
    queue.ext_oneapi_copy(one, found.data(), own).wait();
    EXPECT(found == list);
    syclex::unsampled_image_handle written = syclex::create_image(one, own, queue);
    EXPECT(written.raw_handle != 0);
    syclex::destroy_image_handle(written, queue);
  }
  syclex::bindless_image_sampler between{sycl::addressing_mode::mirrored_repeat,
                                         sycl::coordinate_normalization_mode::normalized,
                                         sycl::filtering_mode::linear, sycl::filtering_mode::linear,
                                         0.0f, 3.0f, 4.0f};
  syclex::sampled_image_handle sampled = syclex::create_image(image, between, description, queue);
  EXPECT(sampled.raw_handle != 0);
  syclex::destroy_image_handle(sampled, queue);
  syclex::free_image_mem(image, syclex::image_type::mipmap, queue);
}

// Samples an image and memory. Also checks that errors are reported as exceptions.
static void views(sycl::queue queue) {
  syclex::image_descriptor description{{width, height}, 1, sycl::image_channel_type::unorm_int8};
  syclex::bindless_image_sampler sampler{sycl::addressing_mode::clamp_to_edge,
                                         sycl::coordinate_normalization_mode::unnormalized,
                                         sycl::filtering_mode::linear};
  {
    syclex::image_mem image{description, queue};
    syclex::sampled_image_handle sampled = syclex::create_image(image, sampler, description, queue);
    EXPECT(sampled.raw_handle != 0);
    syclex::destroy_image_handle(sampled, queue);
  }
  size_t pitch = 0;
  void *memory = syclex::pitched_alloc_device(&pitch, width, height, 4, queue);
  EXPECT(memory != nullptr && pitch >= width && pitch % 32 == 0);
  syclex::sampled_image_handle sampled = syclex::create_image(memory, pitch, sampler, description, queue);
  EXPECT(sampled.raw_handle != 0);
  syclex::destroy_image_handle(sampled, queue);
  bool is_refused = false;
  try {
    syclex::create_image(static_cast<char *>(memory) + 1, pitch, sampler, description, queue);
  } catch (const sycl::exception &) {
    is_refused = true;
  }
  EXPECT(is_refused);
  sycl::free(memory, queue);
}

int main() try {
  limit_life();
  sycl::device device;
  sycl::queue queue{device};
  bool has_images = device.has(sycl::aspect::ext_oneapi_bindless_images);
  if (!has_images) {
    puts("SKIPPED sycl_bindless: the device has no bindless images");
    return 0;
  }
  auto fp32 = sycl::image_channel_type::fp32;
  go_and_return(queue, {sycl::range<1>{width}, 4, fp32});
  go_and_return(queue, {{width, height}, 4, fp32});
  go_and_return(queue, {{width, height, depth}, 4, fp32});
  go_and_return(queue, {{width, height}, 2, fp32, syclex::image_type::array, 1, 3});
  parts(queue);
  levels(queue);
  views(queue);
  EXPECT(device.has(sycl::aspect::ext_oneapi_mipmap));
  EXPECT(!device.has(sycl::aspect::ext_oneapi_external_semaphore_import));
  puts("bindless images went to the device and back");
} catch (const std::exception &error) {
  fail("%s: %s", doing, error.what());
}
