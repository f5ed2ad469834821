/* Bindless images. Pixels are copied to images. Kernels read them through sampled images and write
   them through unsampled images. Then the pixels are copied back. The client also tests images with
   several levels and layers, memory as an image, and errors.

   The environment variable IMAGES_PTX contains the path of the kernels, which are
   crates/crosshandle-cuda/src/images.ptx. */
#include "kernels.h"
#include <sys/mman.h>

enum { WIDTH = 48, HEIGHT = 20, PIXELS = WIDTH * HEIGHT };

static const ur_image_format_t rgba32 = {UR_IMAGE_CHANNEL_ORDER_RGBA,
                                         UR_IMAGE_CHANNEL_TYPE_UNSIGNED_INT32};
static const ur_image_format_t r32 = {UR_IMAGE_CHANNEL_ORDER_R, UR_IMAGE_CHANNEL_TYPE_UNSIGNED_INT32};
static const ur_image_format_t r_float = {UR_IMAGE_CHANNEL_ORDER_R, UR_IMAGE_CHANNEL_TYPE_FLOAT};
static const ur_image_format_t r_fraction = {UR_IMAGE_CHANNEL_ORDER_R, UR_IMAGE_CHANNEL_TYPE_UNORM_INT8};

typedef ur_exp_image_mem_native_handle_t image_memory;
typedef ur_exp_image_native_handle_t image_number;

static ur_image_desc_t describe(ur_mem_type_t type, size_t width, size_t height, size_t depth,
                                size_t layers) {
  ur_image_desc_t description = {UR_STRUCTURE_TYPE_IMAGE_DESC, NULL, type, width, height, depth,
                                 layers, 0, 0, 0, 0};
  return description;
}

static image_memory allocate_image(struct runtime *ur, const ur_image_format_t *format,
                                   const ur_image_desc_t *description) {
  image_memory image = 0;
  UR(urBindlessImagesImageAllocateExp(ur->context, ur->device, format, description, &image));
  EXPECT(image != 0);
  return image;
}

static void free_image(struct runtime *ur, image_memory image) {
  UR(urBindlessImagesImageFreeExp(ur->context, ur->device, image));
}

static ur_sampler_desc_t sampler(bool normalized, ur_sampler_addressing_mode_t addressing,
                                 ur_sampler_filter_mode_t filter) {
  ur_sampler_desc_t description = {UR_STRUCTURE_TYPE_SAMPLER_DESC, NULL, normalized, addressing, filter};
  return description;
}

static image_number sample_by(struct runtime *ur, image_memory image, const ur_image_format_t *format,
                              const ur_image_desc_t *description, const ur_sampler_desc_t *how) {
  image_number number = 0;
  UR(urBindlessImagesSampledImageCreateExp(ur->context, ur->device, image, format, description, how,
                                           &number));
  EXPECT(number != 0);
  return number;
}

/* Creates a view that samples the nearest pixel by its index. Indexes outside the image are
   clamped. */
static image_number sample_nearest(struct runtime *ur, image_memory image,
                                   const ur_image_format_t *format,
                                   const ur_image_desc_t *description) {
  ur_sampler_desc_t how = sampler(false, UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE,
                                  UR_SAMPLER_FILTER_MODE_NEAREST);
  return sample_by(ur, image, format, description, &how);
}

static void end_sampling(struct runtime *ur, image_number number) {
  UR(urBindlessImagesSampledImageHandleDestroyExp(ur->context, ur->device, number));
}

static ur_exp_image_copy_region_t all_of(size_t bytes, size_t rows, size_t slices) {
  ur_exp_image_copy_region_t region = {UR_STRUCTURE_TYPE_EXP_IMAGE_COPY_REGION, NULL, {0, 0, 0},
                                       {0, 0, 0}, {bytes, rows, slices}};
  return region;
}

static void put(struct runtime *ur, image_memory to, const void *from, const ur_image_format_t *format,
                const ur_image_desc_t *description, ur_exp_image_copy_region_t region) {
  UR(urBindlessImagesImageCopyExp(ur->queue, from, (void *)to, description, description, format, format,
                                  &region, UR_EXP_IMAGE_COPY_FLAG_HOST_TO_DEVICE,
                                  UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_IMAGE, 0, NULL, NULL));
}

static void get(struct runtime *ur, void *to, image_memory from, const ur_image_format_t *format,
                const ur_image_desc_t *description, ur_exp_image_copy_region_t region) {
  UR(urBindlessImagesImageCopyExp(ur->queue, (const void *)from, to, description, description, format,
                                  format, &region, UR_EXP_IMAGE_COPY_FLAG_DEVICE_TO_HOST,
                                  UR_EXP_IMAGE_COPY_INPUT_TYPES_IMAGE_TO_MEM, 0, NULL, NULL));
  UR(urQueueFinish(ur->queue));
}

static ur_exp_kernel_arg_properties_t value(uint32_t index, const void *bytes, size_t size) {
  ur_exp_kernel_arg_properties_t argument = {UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL,
                                             UR_EXP_KERNEL_ARG_TYPE_VALUE, index, size,
                                             {.value = bytes}};
  return argument;
}

static void launch_2d(struct runtime *ur, ur_kernel_handle_t kernel, size_t width, size_t height,
                      uint32_t count, const ur_exp_kernel_arg_properties_t *arguments) {
  size_t global[] = {width, height};
  UR(urEnqueueKernelLaunchWithArgsExp(ur->queue, kernel, 2, NULL, global, NULL, count, arguments, NULL,
                                      0, NULL, NULL));
}

/* Copies pixels to an image, runs a kernel that samples this image and writes another one, and
   copies the pixels back. */
static void compute(struct runtime *ur, ur_program_handle_t program) {
  ur_kernel_handle_t kernel = create_kernel(program, "sample");
  ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 0, 1);
  image_memory from = allocate_image(ur, &rgba32, &description);
  image_memory to = allocate_image(ur, &rgba32, &description);
  EXPECT(from != to);
  image_number sampled = sample_nearest(ur, from, &rgba32, &description), written = 0;
  UR(urBindlessImagesUnsampledImageCreateExp(ur->context, ur->device, to, &rgba32, &description,
                                             &written));
  static uint32_t words[4 * PIXELS], found[4 * PIXELS];
  for (size_t i = 0; i < 4 * PIXELS; i++)
    words[i] = word_of(5, i);
  ur_exp_image_copy_region_t whole = all_of(WIDTH * 16, HEIGHT, 1);
  put(ur, from, words, &rgba32, &description, whole);
  uint32_t addend = 7;
  ur_exp_kernel_arg_properties_t arguments[] = {value(0, &sampled, sizeof sampled),
                                                value(1, &written, sizeof written),
                                                number(2, &addend)};
  launch_2d(ur, kernel, WIDTH, HEIGHT, 3, arguments);
  get(ur, found, to, &rgba32, &description, whole);
  for (size_t y = 0; y < HEIGHT; y++)
    for (size_t x = 0; x < WIDTH; x++)
      for (size_t channel = 0; channel < 4; channel++) {
        size_t right = x + 1 < WIDTH ? x + 1 : x;
        uint32_t wanted = words[4 * (y * WIDTH + right) + channel] + addend;
        uint32_t pixel = found[4 * (y * WIDTH + x) + channel];
        if (pixel != wanted)
          fail("pixel %zu, %zu, channel %zu is %u, not %u", x, y, channel, pixel, wanted);
      }

  /* Copy part of one image to another image, with an event, and then to memory with gaps between
     rows. */
  ur_event_handle_t event = NULL;
  ur_exp_image_copy_region_t part = {UR_STRUCTURE_TYPE_EXP_IMAGE_COPY_REGION, NULL, {8 * 16, 5, 0},
                                     {0, 1, 0}, {10 * 16, 6, 1}};
  UR(urBindlessImagesImageCopyExp(ur->queue, (const void *)from, (void *)to, &description, &description,
                                  &rgba32, &rgba32, &part, UR_EXP_IMAGE_COPY_FLAG_DEVICE_TO_DEVICE,
                                  UR_EXP_IMAGE_COPY_INPUT_TYPES_IMAGE_TO_IMAGE, 0, NULL, &event));
  ur_command_t kind;
  UR(urEventGetInfo(event, UR_EVENT_INFO_COMMAND_TYPE, sizeof kind, &kind, NULL));
  EXPECT(kind == UR_COMMAND_MEM_IMAGE_COPY);
  ur_image_desc_t wide = description;
  wide.rowPitch = WIDTH * 16 + 32;
  unsigned char *rows = (unsigned char *)calloc(HEIGHT, wide.rowPitch);
  ur_exp_image_copy_region_t back = {UR_STRUCTURE_TYPE_EXP_IMAGE_COPY_REGION, NULL, {0, 1, 0},
                                     {3 * 16, 2, 0}, {10 * 16, 6, 1}};
  UR(urBindlessImagesImageCopyExp(ur->queue, (const void *)to, rows, &description, &wide, &rgba32,
                                  &rgba32, &back, UR_EXP_IMAGE_COPY_FLAG_DEVICE_TO_HOST,
                                  UR_EXP_IMAGE_COPY_INPUT_TYPES_IMAGE_TO_MEM, 1, &event, NULL));
  UR(urQueueFinish(ur->queue));
  UR(urEventRelease(event));
  for (size_t y = 0; y < HEIGHT; y++)
    for (size_t i = 0; i < wide.rowPitch; i++) {
      bool inside = y >= 2 && y < 8 && i >= 3 * 16 && i < 13 * 16;
      unsigned char wanted = 0;
      if (inside)
        wanted = ((unsigned char *)words)[((y + 3) * WIDTH + 5) * 16 + i];
      if (rows[y * wide.rowPitch + i] != wanted)
        fail("byte %zu of row %zu is %u, not %u", i, y, rows[y * wide.rowPitch + i], wanted);
    }

  /* Copy memory to memory as images: from rows with gaps to rows without gaps, to device memory and
     back. */
  unsigned char *device = (unsigned char *)allocate(ur, PIXELS * 16);
  ur_exp_image_copy_region_t middle = {UR_STRUCTURE_TYPE_EXP_IMAGE_COPY_REGION, NULL, {3 * 16, 2, 0},
                                       {0, 0, 0}, {10 * 16, 6, 1}};
  UR(urBindlessImagesImageCopyExp(ur->queue, rows, device, &wide, &description, &rgba32, &rgba32,
                                  &middle, UR_EXP_IMAGE_COPY_FLAG_HOST_TO_DEVICE,
                                  UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_MEM, 0, NULL, NULL));
  copy(ur, found, device, PIXELS * 16);
  for (size_t y = 0; y < 6; y++)
    EXPECT(memcmp(found + 4 * y * WIDTH, words + 4 * ((y + 5) * WIDTH + 8), 10 * 16) == 0);
  UR(urUSMFree(ur->context, device));
  free(rows);

  size_t width = 0, height = 0, depth = 1, size = 0;
  ur_image_format_t format;
  UR(urBindlessImagesImageGetInfoExp(ur->context, from, UR_IMAGE_INFO_WIDTH, &width, &size));
  EXPECT(width == WIDTH && size == sizeof width);
  UR(urBindlessImagesImageGetInfoExp(ur->context, from, UR_IMAGE_INFO_HEIGHT, &height, NULL));
  UR(urBindlessImagesImageGetInfoExp(ur->context, from, UR_IMAGE_INFO_DEPTH, &depth, NULL));
  UR(urBindlessImagesImageGetInfoExp(ur->context, from, UR_IMAGE_INFO_FORMAT, &format, NULL));
  EXPECT(height == HEIGHT && depth == 0 && format.channelOrder == rgba32.channelOrder &&
         format.channelType == rgba32.channelType);

  end_sampling(ur, sampled);
  UR(urBindlessImagesUnsampledImageHandleDestroyExp(ur->context, ur->device, written));
  free_image(ur, from);
  free_image(ur, to);
  UR(urKernelRelease(kernel));
}

/* Runs the kernel `blend`. For each x and y, it samples the first channel of a level at the
   position ((x + right) / across, (y + 1/2) / down). */
static void blend(struct runtime *ur, ur_kernel_handle_t kernel, image_number from, float *to,
                  size_t width, size_t height, float right, float across, float down, float level) {
  float *memory = (float *)allocate(ur, width * height * sizeof *memory);
  ur_exp_kernel_arg_properties_t arguments[] = {
      value(0, &from, sizeof from),     pointer(1, memory),           value(2, &right, sizeof right),
      value(3, &across, sizeof across), value(4, &down, sizeof down), value(5, &level, sizeof level)};
  launch_2d(ur, kernel, width, height, 6, arguments);
  copy(ur, to, memory, width * height * sizeof *memory);
  UR(urUSMFree(ur->context, memory));
}

static bool is_near(float found, float wanted) {
  return found - wanted < 0.01f && wanted - found < 0.01f;
}

/* Checks filters, normalized coordinates and levels, which are properties of the sampler. */
static void sample_fractions(struct runtime *ur, ur_program_handle_t program) {
  enum { EDGE = 16 };
  ur_kernel_handle_t kernel = create_kernel(program, "blend");
  ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, EDGE, EDGE, 0, 1);
  float found[EDGE * EDGE], floats[EDGE * EDGE];
  for (size_t i = 0; i < EDGE * EDGE; i++)
    floats[i] = (float)(3 * i);

  /* Linear filtering returns the mean of two neighbouring pixels, and the edge pixel outside the
     image. */
  image_memory image = allocate_image(ur, &r_float, &description);
  put(ur, image, floats, &r_float, &description, all_of(EDGE * sizeof(float), EDGE, 1));
  ur_sampler_desc_t linear = sampler(false, UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE,
                                     UR_SAMPLER_FILTER_MODE_LINEAR);
  image_number number = sample_by(ur, image, &r_float, &description, &linear);
  blend(ur, kernel, number, found, EDGE, EDGE, 1, 1, 1, 0);
  for (size_t y = 0; y < EDGE; y++)
    for (size_t x = 0; x < EDGE; x++) {
      float wanted = floats[y * EDGE + x] + (x + 1 < EDGE ? 1.5f : 0);
      EXPECT(is_near(found[y * EDGE + x], wanted));
    }
  end_sampling(ur, number);

  /* Coordinates are normalized. Outside the image, the first dimension uses the black border, and
     the second dimension repeats the image. */
  ur_exp_sampler_addr_modes_t modes = {UR_STRUCTURE_TYPE_EXP_SAMPLER_ADDR_MODES, NULL,
                                       {UR_SAMPLER_ADDRESSING_MODE_CLAMP,
                                        UR_SAMPLER_ADDRESSING_MODE_REPEAT,
                                        UR_SAMPLER_ADDRESSING_MODE_REPEAT}};
  ur_sampler_desc_t each = sampler(true, UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE,
                                   UR_SAMPLER_FILTER_MODE_NEAREST);
  each.pNext = &modes;
  number = sample_by(ur, image, &r_float, &description, &each);
  blend(ur, kernel, number, found, EDGE, EDGE, EDGE / 2 + 0.5f, EDGE, EDGE / 2, 0);
  for (size_t y = 0; y < EDGE; y++)
    for (size_t x = 0; x < EDGE; x++) {
      size_t from = x + EDGE / 2, row = (size_t)(((float)y + 0.5f) * 2) % EDGE;
      EXPECT(is_near(found[y * EDGE + x], from < EDGE ? floats[row * EDGE + from] : 0));
    }
  end_sampling(ur, number);
  free_image(ur, image);

  /* A byte is read as a fraction of 255. */
  unsigned char bytes[EDGE * EDGE];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (unsigned char)i;
  image = allocate_image(ur, &r_fraction, &description);
  put(ur, image, bytes, &r_fraction, &description, all_of(EDGE, EDGE, 1));
  number = sample_nearest(ur, image, &r_fraction, &description);
  blend(ur, kernel, number, found, EDGE, EDGE, 0.5f, 1, 1, 0);
  for (size_t i = 0; i < sizeof bytes; i++)
    EXPECT(is_near(found[i], (float)i / 255));
  end_sampling(ur, number);
  free_image(ur, image);

  /* Each level can also be used as a separate image. */
  description.numMipLevel = 3;
  image = allocate_image(ur, &r_float, &description);
  uint32_t levels = 0;
  UR(urBindlessImagesImageGetInfoExp(ur->context, image, UR_IMAGE_INFO_NUM_MIP_LEVELS, &levels, NULL));
  EXPECT(levels == 3);
  for (uint32_t level = 0; level < 3; level++) {
    image_memory one = 0;
    UR(urBindlessImagesMipmapGetLevelExp(ur->context, ur->device, image, level, &one));
    size_t edge = EDGE >> level, width = 0;
    UR(urBindlessImagesImageGetInfoExp(ur->context, one, UR_IMAGE_INFO_WIDTH, &width, NULL));
    EXPECT(width == edge);
    for (size_t i = 0; i < edge * edge; i++)
      floats[i] = 10.0f * (float)(level + 1);
    ur_image_desc_t smaller = describe(UR_MEM_TYPE_IMAGE2D, edge, edge, 0, 1);
    put(ur, one, floats, &r_float, &smaller, all_of(edge * sizeof(float), edge, 1));
    UR(urQueueFinish(ur->queue));
    ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
            urBindlessImagesImageFreeExp(ur->context, ur->device, one));
  }
  image_memory none = 0;
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesMipmapGetLevelExp(ur->context, ur->device, image, 3, &none));
  ur_exp_sampler_mip_properties_t between = {UR_STRUCTURE_TYPE_EXP_SAMPLER_MIP_PROPERTIES, NULL, 0, 2, 0,
                                             UR_SAMPLER_FILTER_MODE_LINEAR};
  ur_sampler_desc_t how = sampler(true, UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE,
                                  UR_SAMPLER_FILTER_MODE_LINEAR);
  how.pNext = &between;
  number = sample_by(ur, image, &r_float, &description, &how);
  for (int step = 0; step <= 4; step++) {
    blend(ur, kernel, number, found, EDGE, EDGE, 0.5f, EDGE, EDGE, (float)step / 2);
    for (size_t i = 0; i < EDGE * EDGE; i++)
      if (!is_near(found[i], 10 + 5 * (float)step))
        fail("pixel %zu at level %g is %g", i, step / 2.0, found[i]);
  }
  end_sampling(ur, number);
  UR(urBindlessImagesMipmapFreeExp(ur->context, ur->device, image));
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesMipmapFreeExp(ur->context, ur->device, image));
  UR(urKernelRelease(kernel));
}

/* Samples memory as an image: a single row, and rows with gaps. */
static void sample_memory(struct runtime *ur, ur_program_handle_t program) {
  ur_kernel_handle_t fetch = create_kernel(program, "fetch"), kernel = create_kernel(program, "blend");
  enum { LENGTH = 1024 };
  ur_image_desc_t row = describe(UR_MEM_TYPE_IMAGE1D, LENGTH, 0, 0, 1);
  uint32_t *memory = NULL, *to = (uint32_t *)allocate(ur, LENGTH * 4);
  size_t pitch = 0;
  UR(urUSMPitchedAllocExp(ur->context, ur->device, NULL, NULL, LENGTH * 4, 1, 4, (void **)&memory, &pitch));
  write_pattern(ur, memory, LENGTH * 4, 8);
  image_number number = sample_nearest(ur, (image_memory)memory, &r32, &row);
  ur_exp_kernel_arg_properties_t arguments[] = {value(0, &number, sizeof number), pointer(1, to)};
  launch_2d(ur, fetch, LENGTH, 1, 2, arguments);
  EXPECT(has_pattern(ur, to, LENGTH * 4, 8, 0));
  end_sampling(ur, number);
  UR(urUSMFree(ur->context, to));
  UR(urUSMFree(ur->context, memory));

  unsigned char *pitched = NULL;
  UR(urUSMPitchedAllocExp(ur->context, ur->device, NULL, NULL, WIDTH * sizeof(float), HEIGHT,
                          sizeof(float), (void **)&pitched, &pitch));
  static float floats[PIXELS], found[PIXELS];
  for (size_t i = 0; i < PIXELS; i++)
    floats[i] = (float)i;
  ur_image_desc_t rows = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 0, 1), tight = rows;
  rows.rowPitch = pitch;
  ur_exp_image_copy_region_t whole = all_of(WIDTH * sizeof(float), HEIGHT, 1);
  UR(urBindlessImagesImageCopyExp(ur->queue, floats, pitched, &tight, &rows, &r_float, &r_float, &whole,
                                  UR_EXP_IMAGE_COPY_FLAG_HOST_TO_DEVICE,
                                  UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_MEM, 0, NULL, NULL));
  number = sample_nearest(ur, (image_memory)pitched, &r_float, &rows);
  blend(ur, kernel, number, found, WIDTH, HEIGHT, 0.5f, 1, 1, 0);
  EXPECT(memcmp(found, floats, sizeof floats) == 0);
  end_sampling(ur, number);

  /* Rows outside the memory, and row pitches that the device does not support. */
  ur_sampler_desc_t how = sampler(false, UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE,
                                  UR_SAMPLER_FILTER_MODE_NEAREST);
  ur_image_desc_t wrong = rows;
  wrong.height = 1000 * HEIGHT;
  ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_SIZE,
          urBindlessImagesSampledImageCreateExp(ur->context, ur->device, (image_memory)pitched, &r_float,
                                                &wrong, &how, &number));
  wrong = rows;
  wrong.rowPitch = pitch + 1;
  ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_SIZE,
          urBindlessImagesSampledImageCreateExp(ur->context, ur->device, (image_memory)pitched, &r_float,
                                                &wrong, &how, &number));
  ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_SIZE,
          urBindlessImagesSampledImageCreateExp(ur->context, ur->device, (image_memory)(pitched + 4),
                                                &r_float, &rows, &how, &number));
  UR(urUSMFree(ur->context, pitched));
  UR(urKernelRelease(fetch));
  UR(urKernelRelease(kernel));
}

/* Samples images with layers, which are addressed by an additional coordinate. */
static void sample_layers(struct runtime *ur, ur_program_handle_t program) {
  enum { LAYERS = 3 };
  ur_kernel_handle_t kernel = create_kernel(program, "layer");
  ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D_ARRAY, WIDTH, HEIGHT, 0, LAYERS);
  image_memory image = allocate_image(ur, &r32, &description);
  static uint32_t words[LAYERS * PIXELS];
  for (size_t i = 0; i < LAYERS * PIXELS; i++)
    words[i] = word_of(6, i);
  put(ur, image, words, &r32, &description, all_of(WIDTH * 4, HEIGHT, LAYERS));
  image_number number_of = sample_nearest(ur, image, &r32, &description);
  uint32_t *to = (uint32_t *)allocate(ur, PIXELS * 4);
  for (uint32_t layer = 0; layer < LAYERS; layer++) {
    ur_exp_kernel_arg_properties_t arguments[] = {value(0, &number_of, sizeof number_of), pointer(1, to),
                                                  number(2, &layer)};
    launch_2d(ur, kernel, WIDTH, HEIGHT, 3, arguments);
    EXPECT(has_pattern(ur, to, PIXELS * 4, 6, layer * PIXELS * 4));
  }
  UR(urUSMFree(ur->context, to));
  end_sampling(ur, number_of);
  free_image(ur, image);

  /* An array of one-dimensional images, and a cube, whose faces are layers. */
  description = describe(UR_MEM_TYPE_IMAGE1D_ARRAY, WIDTH, 0, 0, HEIGHT);
  image = allocate_image(ur, &r32, &description);
  static uint32_t found[LAYERS * PIXELS];
  put(ur, image, words, &r32, &description, all_of(WIDTH * 4, 1, HEIGHT));
  get(ur, found, image, &r32, &description, all_of(WIDTH * 4, 1, HEIGHT));
  EXPECT(memcmp(found, words, PIXELS * 4) == 0);
  free_image(ur, image);
  description = describe(UR_MEM_TYPE_IMAGE_CUBEMAP_EXP, 16, 16, 0, 6);
  image = allocate_image(ur, &r32, &description);
  put(ur, image, words, &r32, &description, all_of(16 * 4, 16, 6));
  get(ur, found, image, &r32, &description, all_of(16 * 4, 16, 6));
  EXPECT(memcmp(found, words, 16 * 16 * 6 * 4) == 0);
  number_of = sample_nearest(ur, image, &r32, &description);
  end_sampling(ur, number_of);
  free_image(ur, image);
  description = describe(UR_MEM_TYPE_IMAGE3D, 16, 8, 4, 1);
  image = allocate_image(ur, &r32, &description);
  put(ur, image, words, &r32, &description, all_of(16 * 4, 8, 4));
  get(ur, found, image, &r32, &description, all_of(16 * 4, 8, 4));
  EXPECT(memcmp(found, words, 16 * 8 * 4 * 4) == 0);
  free_image(ur, image);
  UR(urKernelRelease(kernel));
}

static bool answer(struct runtime *ur,
                   ur_result_t (*ask)(ur_context_handle_t, ur_device_handle_t, const ur_image_desc_t *,
                                      const ur_image_format_t *, ur_exp_image_mem_type_t, ur_bool_t *),
                   const ur_image_desc_t *description, const ur_image_format_t *format,
                   ur_exp_image_mem_type_t memory) {
  ur_bool_t found = false;
  UR(ask(ur->context, ur->device, description, format, memory, &found));
  return found;
}

/* Checks that calls with invalid arguments fail and have no effect. */
static void refuse(struct runtime *ur) {
  const ur_exp_image_mem_type_t opaque = UR_EXP_IMAGE_MEM_TYPE_OPAQUE_HANDLE,
                                usm = UR_EXP_IMAGE_MEM_TYPE_USM_POINTER;
  ur_image_format_t three = {UR_IMAGE_CHANNEL_ORDER_RGB, UR_IMAGE_CHANNEL_TYPE_FLOAT};
  ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 0, 1), large = description;
  large.width = SIZE_MAX / 2;
  ur_image_desc_t deep = describe(UR_MEM_TYPE_IMAGE3D, 4, 4, 4, 1), gathered = description;
  gathered.type = UR_MEM_TYPE_IMAGE_GATHER_EXP;
  image_memory none = 0;
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT,
          urBindlessImagesImageAllocateExp(ur->context, ur->device, &three, &description, &none));
  ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_SIZE,
          urBindlessImagesImageAllocateExp(ur->context, ur->device, &rgba32, &large, &none));
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
          urBindlessImagesImageAllocateExp(ur->context, ur->device, &rgba32, &gathered, &none));
  ur_image_desc_t many = description;
  many.numMipLevel = 99;
  ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_SIZE,
          urBindlessImagesImageAllocateExp(ur->context, ur->device, &rgba32, &many, &none));
  EXPECT(answer(ur, urBindlessImagesGetImageMemoryHandleTypeSupportExp, &description, &rgba32, opaque));
  EXPECT(answer(ur, urBindlessImagesGetImageMemoryHandleTypeSupportExp, &description, &rgba32, usm));
  EXPECT(!answer(ur, urBindlessImagesGetImageMemoryHandleTypeSupportExp, &deep, &rgba32, usm));
  EXPECT(!answer(ur, urBindlessImagesGetImageMemoryHandleTypeSupportExp, &description, &three, opaque));
  EXPECT(answer(ur, urBindlessImagesGetImageSampledHandleSupportExp, &description, &rgba32, usm));
  EXPECT(answer(ur, urBindlessImagesGetImageUnsampledHandleSupportExp, &description, &rgba32, opaque));
  EXPECT(!answer(ur, urBindlessImagesGetImageUnsampledHandleSupportExp, &description, &rgba32, usm));
  EXPECT(!answer(ur, urBindlessImagesGetImageSampledHandleSupportExp, &large, &rgba32, opaque));

  image_memory image = allocate_image(ur, &rgba32, &description);
  ur_sampler_desc_t linear = sampler(false, UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE,
                                     UR_SAMPLER_FILTER_MODE_LINEAR);
  image_number number = 0;
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesSampledImageCreateExp(ur->context, ur->device, image, &rgba32, &description,
                                                &linear, &number));
  ur_image_desc_t other = describe(UR_MEM_TYPE_IMAGE2D, WIDTH + 1, HEIGHT, 0, 1);
  ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_FORMAT_DESCRIPTOR,
          urBindlessImagesUnsampledImageCreateExp(ur->context, ur->device, image, &rgba32, &other,
                                                  &number));
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesUnsampledImageCreateExp(ur->context, ur->device, image + 1, &rgba32,
                                                  &description, &number));
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesSampledImageHandleDestroyExp(ur->context, ur->device, 12345));
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesUnsampledImageHandleDestroyExp(ur->context, ur->device, 12345));
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT, urBindlessImagesMipmapFreeExp(ur->context, ur->device, image));
  static uint32_t words[4 * PIXELS];
  ur_exp_image_copy_region_t regions[] = {all_of(WIDTH * 16 + 16, HEIGHT, 1), all_of(WIDTH * 16, HEIGHT + 1, 1),
                                          all_of(WIDTH * 16, HEIGHT, 2), all_of(15, 1, 1), all_of(0, 1, 1)};
  for (size_t i = 0; i < sizeof regions / sizeof *regions; i++)
    ANSWERS(UR_RESULT_ERROR_INVALID_SIZE,
            urBindlessImagesImageCopyExp(ur->queue, words, (void *)image, &description, &description,
                                         &rgba32, &rgba32, &regions[i],
                                         UR_EXP_IMAGE_COPY_FLAG_HOST_TO_DEVICE,
                                         UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_IMAGE, 0, NULL, NULL));
  ur_exp_image_copy_region_t whole = all_of(WIDTH * 16, HEIGHT, 1);
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesImageCopyExp(ur->queue, words, words, &description, &description, &rgba32,
                                       &rgba32, &whole, UR_EXP_IMAGE_COPY_FLAG_HOST_TO_DEVICE,
                                       UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_IMAGE, 0, NULL, NULL));
  free_image(ur, image);
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesImageFreeExp(ur->context, ur->device, image));
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urBindlessImagesImageCopyExp(ur->queue, words, (void *)image, &description, &description, &rgba32,
                                       &rgba32, &whole, UR_EXP_IMAGE_COPY_FLAG_HOST_TO_DEVICE,
                                       UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_IMAGE, 0, NULL, NULL));
}

/* Checks that a part of memory that starts after the end of its allocation is refused. All devices
   support such copies between memory. */
static void refuse_outside(struct runtime *ur) {
  enum { LENGTH = 4096 };
  unsigned char *memory = (unsigned char *)allocate(ur, LENGTH);
  static unsigned char row[WIDTH * 16];
  ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 0, 1);
  ur_exp_image_copy_region_t region = all_of(WIDTH * 16, 1, 1);
  region.srcOffset.y = HEIGHT / 2;
  EXPECT(HEIGHT / 2 * WIDTH * 16 > LENGTH);
  ANSWERS(UR_RESULT_ERROR_INVALID_SIZE,
          urBindlessImagesImageCopyExp(ur->queue, memory, row, &description, &description, &rgba32, &rgba32,
                                       &region, UR_EXP_IMAGE_COPY_FLAG_DEVICE_TO_HOST,
                                       UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_MEM, 0, NULL, NULL));
  UR(urUSMFree(ur->context, memory));
}

/* Checks the import of external memory and semaphores, or that the device refuses it. */
static void import(struct runtime *ur) {
  ur_bool_t found = true;
  UR(urBindlessImagesSupportsImportingHandleTypeExp(ur->device, UR_EXP_EXTERNAL_MEM_TYPE_OPAQUE_FD, &found));
  EXPECT(found == supports(ur, UR_DEVICE_INFO_EXTERNAL_MEMORY_IMPORT_SUPPORT_EXP));
  ur_exp_file_descriptor_t file = {UR_STRUCTURE_TYPE_EXP_FILE_DESCRIPTOR, NULL, 0};
  ur_exp_external_mem_desc_t description = {UR_STRUCTURE_TYPE_EXP_EXTERNAL_MEM_DESC, &file};
  ur_exp_external_mem_handle_t memory = NULL;
  ur_exp_external_semaphore_desc_t signals = {UR_STRUCTURE_TYPE_EXP_EXTERNAL_SEMAPHORE_DESC, &file};
  ur_exp_external_semaphore_handle_t semaphore = NULL;
  EXPECT(!supports(ur, UR_DEVICE_INFO_EXTERNAL_SEMAPHORE_IMPORT_SUPPORT_EXP));
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
          urBindlessImagesImportExternalSemaphoreExp(ur->context, ur->device,
                                                     UR_EXP_EXTERNAL_SEMAPHORE_TYPE_OPAQUE_FD, &signals,
                                                     &semaphore));
  if (found) {
    /* A regular file and a closed descriptor are not external memory. The program still owns the
       file's descriptor after the refusal. */
    file.fd = memfd_create("no memory of a GPU", MFD_CLOEXEC);
    EXPECT(file.fd >= 0 && ftruncate(file.fd, 1 << 21) == 0);
    EXPECT(urBindlessImagesImportExternalMemoryExp(ur->context, ur->device, 1 << 21,
                                                   UR_EXP_EXTERNAL_MEM_TYPE_OPAQUE_FD, &description,
                                                   &memory) != UR_RESULT_SUCCESS);
    EXPECT(close(file.fd) == 0);
    ANSWERS(UR_RESULT_ERROR_INVALID_VALUE,
            urBindlessImagesImportExternalMemoryExp(ur->context, ur->device, 1 << 21,
                                                    UR_EXP_EXTERNAL_MEM_TYPE_OPAQUE_FD, &description,
                                                    &memory));
    file.fd = -1;
    ANSWERS(UR_RESULT_ERROR_INVALID_VALUE,
            urBindlessImagesImportExternalMemoryExp(ur->context, ur->device, 1 << 21,
                                                    UR_EXP_EXTERNAL_MEM_TYPE_OPAQUE_FD, &description,
                                                    &memory));
    ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
            urBindlessImagesImportExternalMemoryExp(ur->context, ur->device, 1 << 21,
                                                    UR_EXP_EXTERNAL_MEM_TYPE_DMA_BUF, &description,
                                                    &memory));
    EXPECT(memory == NULL);
    return;
  }
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
          urBindlessImagesImportExternalMemoryExp(ur->context, ur->device, 4096,
                                                  UR_EXP_EXTERNAL_MEM_TYPE_OPAQUE_FD, &description, &memory));
}

int main(void) {
  limit_life();
  struct runtime ur = start_runtime();
  import(&ur);
  refuse_outside(&ur);
  if (!supports(&ur, UR_DEVICE_INFO_BINDLESS_IMAGES_SUPPORT_EXP)) {
    ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 0, 1);
    image_memory none = 0;
    ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
            urBindlessImagesImageAllocateExp(ur.context, ur.device, &rgba32, &description, &none));
    EXPECT(!answer(&ur, urBindlessImagesGetImageMemoryHandleTypeSupportExp, &description, &rgba32,
                   UR_EXP_IMAGE_MEM_TYPE_OPAQUE_HANDLE));
    EXPECT(!supports(&ur, UR_DEVICE_INFO_MIPMAP_SUPPORT_EXP));
    ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT, urBindlessImagesImageFreeExp(ur.context, ur.device, 1));
    stop_runtime(&ur);
    puts("SKIPPED bindless: the device has no bindless images");
    return 0;
  }
  const char *path = getenv("IMAGES_PTX");
  size_t size = 0;
  unsigned char *bytes = read_file(path != NULL ? path : "images.ptx", &size);
  ur_program_handle_t program = create_program(&ur, bytes, size, NULL);
  free(bytes);
  UR(urProgramBuildExp(program, 1, &ur.device, 0, NULL));
  compute(&ur, program);
  puts("kernels computed on bindless images");
  sample_fractions(&ur, program);
  sample_memory(&ur, program);
  sample_layers(&ur, program);
  refuse(&ur);
  UR(urProgramRelease(program));
  stop_runtime(&ur);
  puts("kernels sampled levels, layers and memory");
  return 0;
}
