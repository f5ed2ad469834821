/* Images and samplers. Two processes compute on pixels that they exchange through shared memory.
   Shared events order the work. The client also tests all kinds of images, graphs of image
   commands, objects that commands keep alive, and errors. */
#include "events.h"
#include "kernels.h"

enum { WIDTH = 48, HEIGHT = 20, PIXELS = WIDTH * HEIGHT, ROUNDS = 10, GAP = 24 };

struct scene {
  struct runtime ur;
  ur_program_handle_t program;
  ur_kernel_handle_t shift;
  ur_sampler_handle_t sampler;
};

static const ur_image_format_t rgba32 = {UR_IMAGE_CHANNEL_ORDER_RGBA,
                                         UR_IMAGE_CHANNEL_TYPE_UNSIGNED_INT32};

static ur_image_desc_t describe(ur_mem_type_t type, size_t width, size_t height, size_t depth,
                                size_t layers) {
  ur_image_desc_t description = {UR_STRUCTURE_TYPE_IMAGE_DESC, NULL, type, width, height, depth,
                                 layers, 0, 0, 0, 0};
  return description;
}

static ur_mem_handle_t create_image(struct runtime *ur, const ur_image_format_t *format,
                                    const ur_image_desc_t *description) {
  ur_mem_handle_t image = NULL;
  UR(urMemImageCreate(ur->context, UR_MEM_FLAG_READ_WRITE, format, description, NULL, &image));
  return image;
}

static const ur_rect_offset_t start = {0, 0, 0};
static const ur_rect_region_t all = {WIDTH, HEIGHT, 1};

static struct scene start_scene(void) {
  struct scene scene = {.ur = start_runtime()};
  struct runtime *ur = &scene.ur;
  /* The kernels are PTX assembly for NVIDIA GPUs, and a SPIR-V module for other devices. */
  const char *assembly = getenv("IMAGES_PTX"), *path = getenv("IMAGES_SPV");
  size_t size = 0;
  unsigned char *bytes = read_file(assembly != NULL ? assembly : path != NULL ? path : "images.spv", &size);
  if (assembly != NULL)
    scene.program = create_program(ur, bytes, size, NULL);
  else
    UR(urProgramCreateWithIL(ur->context, bytes, size, NULL, &scene.program));
  UR(urProgramBuildExp(scene.program, 1, &ur->device, 0, NULL));
  scene.shift = create_kernel(scene.program, "shift");
  ur_sampler_desc_t description = {UR_STRUCTURE_TYPE_SAMPLER_DESC, NULL, false,
                                   UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE,
                                   UR_SAMPLER_FILTER_MODE_NEAREST};
  UR(urSamplerCreate(ur->context, &description, &scene.sampler));
  return scene;
}

static void end_scene(struct scene *scene) {
  UR(urSamplerRelease(scene->sampler));
  UR(urKernelRelease(scene->shift));
  UR(urProgramRelease(scene->program));
  stop_runtime(&scene->ur);
}

static ur_exp_kernel_arg_properties_t image_argument(uint32_t index, ur_mem_handle_t image,
                                                     ur_mem_flag_t access) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_MEM_OBJ, index,
      sizeof image, {.memObjTuple = {image, access}}};
  return argument;
}

static ur_exp_kernel_arg_properties_t sampler_argument(uint32_t index, ur_sampler_handle_t sampler) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_SAMPLER, index,
      sizeof sampler, {.sampler = sampler}};
  return argument;
}

/* Launches the kernel that computes to[x, y] = from[x + 1, y] + addend. In the last column, from[x,
   y] is used. */
static ur_result_t shift(struct scene *scene, ur_mem_handle_t from, ur_mem_handle_t to,
                         uint32_t addend) {
  ur_exp_kernel_arg_properties_t arguments[] = {
      image_argument(0, from, UR_MEM_FLAG_READ_ONLY), image_argument(1, to, UR_MEM_FLAG_WRITE_ONLY),
      sampler_argument(2, scene->sampler), number(3, &addend)};
  size_t global[] = {WIDTH, HEIGHT};
  return urEnqueueKernelLaunchWithArgsExp(scene->ur.queue, scene->shift, 2, NULL, global, NULL, 4,
                                          arguments, NULL, 0, NULL, NULL);
}

/* Returns the expected channel value of a pixel from the pattern with this number, after `shifts`
   shifts. */
static uint32_t shifted(uint32_t number, uint32_t shifts, uint32_t addends, size_t x, size_t y,
                        size_t channel) {
  size_t from = x + shifts < WIDTH ? x + shifts : WIDTH - 1;
  return word_of(number, 4 * (y * WIDTH + from) + channel) + addends;
}

static void expect_shifted(const uint32_t *words, uint32_t number, uint32_t shifts,
                           uint32_t addends) {
  for (size_t y = 0; y < HEIGHT; y++)
    for (size_t x = 0; x < WIDTH; x++)
      for (size_t channel = 0; channel < 4; channel++) {
        uint32_t found = words[4 * (y * WIDTH + x) + channel];
        uint32_t wanted = shifted(number, shifts, addends, x, y, channel);
        if (found != wanted)
          fail("pixel %zu, %zu, channel %zu is %u, not %u", x, y, channel, found, wanted);
      }
}

/* Alternates with another process. In each turn, a process waits for the other process's pixels in
   shared memory, shifts them, writes them back and signals. A message tells the other process that
   the turn has been submitted. The turn may still be running then. */
static void take_turns(struct scene *scene, int link, bool is_first, void *memory,
                       ur_event_handle_t after, ur_event_handle_t done, uint32_t addend) {
  struct runtime *ur = &scene->ur;
  ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 1, 1);
  for (uint32_t round = 0; round < ROUNDS; round++) {
    ur_mem_handle_t from = create_image(ur, &rgba32, &description);
    ur_mem_handle_t to = create_image(ur, &rgba32, &description);
    if (!is_first || round > 0)
      hear_bytes(link);
    wait_for(ur, after);
    UR(urEnqueueMemImageWrite(ur->queue, from, false, start, all, 0, 0, memory, 0, NULL, NULL));
    UR(shift(scene, from, to, addend));
    UR(urEnqueueMemImageRead(ur->queue, to, false, start, all, 0, 0, memory, 0, NULL, NULL));
    signal_event(ur, done);
    /* Pending commands keep the images alive. */
    UR(urMemRelease(from));
    UR(urMemRelease(to));
    say_bytes(link, bytes_of("turn", 4));
  }
}

static int second(void) {
  struct scene scene = start_scene();
  void *memory = open_memory(&scene.ur, hear_bytes(PARENT));
  ur_event_handle_t first = open_event(&scene.ur, hear_bytes(PARENT));
  ur_event_handle_t own = open_event(&scene.ur, hear_bytes(PARENT));
  take_turns(&scene, PARENT, false, memory, first, own, 1000);
  UR(urQueueFinish(scene.ur.queue));
  UR(urEventRelease(first));
  UR(urEventRelease(own));
  UR(urIPCCloseMemHandleExp(scene.ur.context, memory));
  end_scene(&scene);
  return 0;
}

/* Pixels travel between the images of two processes. Only events order the commands. */
static void compute_together(struct scene *scene) {
  struct runtime *ur = &scene->ur;
  size_t size = PIXELS * 16;
  void *memory = allocate(ur, size);
  write_pattern(ur, memory, size, 5);
  ur_event_handle_t own = shared_event(ur), other = shared_event(ur);
  struct peer peer = start_peer("second");
  say_bytes(peer.link, share_memory(ur, memory));
  say_bytes(peer.link, share_event(ur, own));
  say_bytes(peer.link, share_event(ur, other));
  take_turns(scene, peer.link, true, memory, other, own, 7);
  hear_bytes(peer.link);
  wait_for(ur, other);
  uint32_t *words = (uint32_t *)malloc(size);
  copy(ur, words, memory, size);
  expect_shifted(words, 5, 2 * ROUNDS, 1007 * ROUNDS);
  free(words);
  end_peer(&peer);
  UR(urEventRelease(own));
  UR(urEventRelease(other));
  UR(urUSMFree(ur->context, memory));
}

/* Captures pixel copies in a graph. Each run must execute them, even after the program has released
   the images. */
static void capture(struct scene *scene) {
  struct runtime *ur = &scene->ur;
  size_t size = PIXELS * 16;
  void *memory = allocate(ur, size);
  write_pattern(ur, memory, size, 5);
  ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 1, 1);
  ur_mem_handle_t from = create_image(ur, &rgba32, &description);
  ur_mem_handle_t middle = create_image(ur, &rgba32, &description);
  ur_mem_handle_t to = create_image(ur, &rgba32, &description);
  ur_exp_graph_handle_t graph = NULL;
  ur_exp_executable_graph_handle_t executable = NULL;

  /* A blocking read would wait for a command that does not run during a capture. */
  UR(urQueueBeginGraphCaptureExp(ur->queue));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED,
          urEnqueueMemImageRead(ur->queue, to, true, start, all, 0, 0, memory, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED, urQueueEndGraphCaptureExp(ur->queue, &graph));

  UR(urQueueBeginGraphCaptureExp(ur->queue));
  UR(urEnqueueMemImageWrite(ur->queue, from, false, start, all, 0, 0, memory, 0, NULL, NULL));
  UR(shift(scene, from, middle, 7));
  UR(urEnqueueMemImageCopy(ur->queue, middle, to, start, start, all, 0, NULL, NULL));
  UR(urEnqueueMemImageRead(ur->queue, to, false, start, all, 0, 0, memory, 0, NULL, NULL));
  UR(urQueueEndGraphCaptureExp(ur->queue, &graph));
  UR(urGraphInstantiateGraphExp(graph, &executable));
  UR(urGraphDestroyExp(graph));
  UR(urMemRelease(from));
  UR(urMemRelease(middle));
  UR(urMemRelease(to));

  uint32_t *words = (uint32_t *)malloc(size);
  for (uint32_t runs = 0; runs <= 3; runs++) {
    if (runs > 0)
      UR(urEnqueueGraphExp(ur->queue, executable, 0, NULL, NULL));
    copy(ur, words, memory, size);
    expect_shifted(words, 5, runs, 7 * runs);
  }
  free(words);
  UR(urGraphExecutableGraphDestroyExp(executable));
  UR(urUSMFree(ur->context, memory));
}

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

/* Copies parts of images to another image, and from there to memory with gaps. */
static void copy_parts(struct runtime *ur, ur_image_desc_t description, size_t y, size_t z) {
  const size_t x = description.width;
  const ur_rect_region_t whole = {x, y, z};
  const ur_rect_region_t part = {x / 2, most(y / 2, 1), most(z / 2, 1)};
  const ur_rect_offset_t middle = {x / 2, y > 1 ? y / 2 : 0, z > 1 ? z / 2 : 0};
  ur_mem_handle_t from = create_image(ur, &rgba32, &description);
  ur_mem_handle_t to = create_image(ur, &rgba32, &description);
  uint32_t *words = (uint32_t *)malloc(x * y * z * 16);
  for (size_t i = 0; i < 4 * x * y * z; i++)
    words[i] = word_of(9, i);
  ur_event_handle_t events[3];
  UR(urEnqueueMemImageWrite(ur->queue, from, false, start, whole, 0, 0, words, 0, NULL, &events[0]));
  UR(urEnqueueMemImageCopy(ur->queue, from, to, middle, start, part, 1, &events[0], &events[1]));
  size_t row = part.width * 16 + GAP, slice = part.height * row;
  /* In an array of one-dimensional images, the distance between rows is the slice pitch. */
  bool has_rows = description.type == UR_MEM_TYPE_IMAGE1D_ARRAY;
  unsigned char *found = (unsigned char *)calloc(part.depth, slice);
  UR(urEnqueueMemImageRead(ur->queue, to, false, start, part, has_rows ? 0 : row,
                           has_rows ? row : slice, found, 1, &events[1], &events[2]));
  UR(urEventWait(1, &events[2]));
  for (size_t k = 0; k < part.depth; k++)
    for (size_t j = 0; j < part.height; j++) {
      size_t first = ((k + middle.z) * y + j + middle.y) * x + middle.x;
      EXPECT(memcmp(found + k * slice + j * row, words + 4 * first, part.width * 16) == 0);
      for (size_t i = part.width * 16; i < row; i++)
        EXPECT(found[k * slice + j * row + i] == 0);
    }
  ur_command_t kinds[] = {UR_COMMAND_MEM_IMAGE_WRITE, UR_COMMAND_MEM_IMAGE_COPY,
                          UR_COMMAND_MEM_IMAGE_READ};
  for (int i = 0; i < 3; i++) {
    ur_command_t kind;
    UR(urEventGetInfo(events[i], UR_EVENT_INFO_COMMAND_TYPE, sizeof kind, &kind, NULL));
    EXPECT(kind == kinds[i]);
    UR(urEventRelease(events[i]));
  }
  free(found);
  free(words);
  UR(urMemRelease(from));
  UR(urMemRelease(to));
}

/* Checks that an image that is created from memory contains the pixels of that memory, also if its
   rows have gaps. The image does not use the memory afterwards. */
static void make_of_memory(struct runtime *ur) {
  size_t row = WIDTH * 16 + GAP;
  unsigned char *pixels = (unsigned char *)calloc(HEIGHT, row);
  for (size_t y = 0; y < HEIGHT; y++)
    for (size_t i = 0; i < WIDTH * 16; i++)
      pixels[y * row + i] = (unsigned char)(7 * y + i);
  unsigned char *found = (unsigned char *)malloc(PIXELS * 16);
  ur_mem_flags_t flags[] = {UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER, UR_MEM_FLAG_USE_HOST_POINTER};
  for (int i = 0; i < 2; i++) {
    ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 1, 1);
    description.rowPitch = row;
    ur_mem_handle_t image = NULL;
    UR(urMemImageCreate(ur->context, flags[i], &rgba32, &description, pixels, &image));
    UR(urEnqueueMemImageRead(ur->queue, image, true, start, all, 0, 0, found, 0, NULL, NULL));
    for (size_t y = 0; y < HEIGHT; y++)
      EXPECT(memcmp(found + y * WIDTH * 16, pixels + y * row, WIDTH * 16) == 0);
    UR(urMemRelease(image));
    description.rowPitch = WIDTH * 16 - 1;
    ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_FORMAT_DESCRIPTOR,
            urMemImageCreate(ur->context, flags[i], &rgba32, &description, pixels, &image));
  }
  free(found);
  free(pixels);
}

/* Checks that calls with invalid arguments fail and have no effect. */
static void refuse(struct scene *scene) {
  struct runtime *ur = &scene->ur;
  ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 1, 1);
  ur_mem_handle_t image = create_image(ur, &rgba32, &description), buffer = NULL, none = NULL;
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE, PIXELS * 16, NULL, &buffer));
  static uint32_t words[4 * PIXELS];
  const ur_rect_offset_t far = {UINT64_MAX, 1, 0}, one = {1, 0, 0};
  const ur_rect_region_t huge = {UINT64_MAX, UINT64_MAX, 1}, empty = {WIDTH, 0, 1};
  const ur_rect_region_t half = {WIDTH / 2, HEIGHT, 1};

  ANSWERS(UR_RESULT_ERROR_INVALID_MEM_OBJECT,
          urEnqueueMemImageRead(ur->queue, buffer, true, start, all, 0, 0, words, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_MEM_OBJECT,
          urEnqueueMemBufferRead(ur->queue, image, true, 0, 16, words, 0, NULL, NULL));
  size_t size = 0;
  ANSWERS(UR_RESULT_ERROR_INVALID_MEM_OBJECT,
          urMemImageGetInfo(buffer, UR_IMAGE_INFO_WIDTH, 0, NULL, &size));
  ANSWERS(UR_RESULT_ERROR_INVALID_SIZE,
          urEnqueueMemImageWrite(ur->queue, image, true, far, all, 0, 0, words, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_SIZE,
          urEnqueueMemImageWrite(ur->queue, image, true, start, huge, 0, 0, words, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_SIZE,
          urEnqueueMemImageWrite(ur->queue, image, true, start, empty, 0, 0, words, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_SIZE,
          urEnqueueMemImageRead(ur->queue, image, true, start, all, 1, 0, words, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_OVERLAPPING_REGIONS,
          urEnqueueMemImageCopy(ur->queue, image, image, start, one, half, 0, NULL, NULL));
  const ur_image_format_t signed32 = {UR_IMAGE_CHANNEL_ORDER_RGBA, UR_IMAGE_CHANNEL_TYPE_SIGNED_INT32};
  ur_mem_handle_t unlike = create_image(ur, &signed32, &description);
  ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_FORMAT_DESCRIPTOR,
          urEnqueueMemImageCopy(ur->queue, image, unlike, start, start, half, 0, NULL, NULL));
  UR(urMemRelease(unlike));

  ur_image_format_t format = {UR_IMAGE_CHANNEL_ORDER_RGB, UR_IMAGE_CHANNEL_TYPE_FLOAT};
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT,
          urMemImageCreate(ur->context, 0, &format, &description, NULL, &none));
  format.channelOrder = (ur_image_channel_order_t)77;
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT,
          urMemImageCreate(ur->context, 0, &format, &description, NULL, &none));
  description.height = SIZE_MAX;
  ANSWERS(UR_RESULT_ERROR_INVALID_IMAGE_SIZE,
          urMemImageCreate(ur->context, 0, &rgba32, &description, NULL, &none));
  description.height = HEIGHT;
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urMemImageCreateWithNativeHandle(1, ur->context, &rgba32, &description, NULL, &none));
  EXPECT(none == NULL);

  /* A kernel accepts only images of its own context that match its parameters. */
  ur_context_handle_t other = NULL;
  UR(urContextCreate(1, &ur->device, NULL, &other));
  ur_mem_handle_t foreign = NULL;
  UR(urMemImageCreate(other, 0, &rgba32, &description, NULL, &foreign));
  ANSWERS(UR_RESULT_ERROR_INVALID_MEM_OBJECT, shift(scene, foreign, image, 1));
  EXPECT(urEnqueueMemImageRead(ur->queue, foreign, true, start, all, 0, 0, words, 0, NULL, NULL) !=
         UR_RESULT_SUCCESS);
  ANSWERS(UR_RESULT_ERROR_INVALID_MEM_OBJECT,
          urEnqueueMemImageCopy(ur->queue, foreign, image, start, start, all, 0, NULL, NULL));
  /* During a capture, the same arguments are refused, and the capture continues. */
  ur_exp_graph_handle_t graph = NULL;
  UR(urQueueBeginGraphCaptureExp(ur->queue));
  EXPECT(urEnqueueMemImageRead(ur->queue, foreign, false, start, all, 0, 0, words, 0, NULL, NULL) !=
         UR_RESULT_SUCCESS);
  UR(urQueueEndGraphCaptureExp(ur->queue, &graph));
  UR(urGraphDestroyExp(graph));
  /* A PTX kernel cannot distinguish an image from any other 64-bit value. */
  if (getenv("IMAGES_PTX") == NULL)
    EXPECT(shift(scene, buffer, image, 1) != UR_RESULT_SUCCESS);
  UR(urMemRelease(foreign));

  /* Create a second UR handle for the same image in the image's context. */
  ur_native_handle_t native = 0;
  UR(urMemGetNativeHandle(image, ur->device, &native));
  ANSWERS(UR_RESULT_ERROR_INVALID_CONTEXT,
          urMemImageCreateWithNativeHandle(native, other, &rgba32, &description, NULL, &none));
  UR(urContextRelease(other));
  UR(urMemImageCreateWithNativeHandle(native, ur->context, &rgba32, &description, NULL, &none));
  for (size_t i = 0; i < 4 * PIXELS; i++)
    words[i] = word_of(3, i);
  UR(urEnqueueMemImageWrite(ur->queue, image, true, start, all, 0, 0, words, 0, NULL, NULL));
  UR(urMemRelease(image));
  memset(words, 0, sizeof words);
  UR(urEnqueueMemImageRead(ur->queue, none, true, start, all, 0, 0, words, 0, NULL, NULL));
  expect_shifted(words, 3, 0, 0);
  UR(urMemRelease(none));
  UR(urMemRelease(buffer));
}

int main(int argc, char **argv) {
  limit_life();
  if (argc > 1 && strcmp(argv[1], "second") == 0)
    return second();
  struct runtime ur = start_runtime();
  bool has_images = supports(&ur, UR_DEVICE_INFO_IMAGE_SUPPORT);
  if (!has_images) {
    ur_image_desc_t description = describe(UR_MEM_TYPE_IMAGE2D, WIDTH, HEIGHT, 1, 1);
    ur_mem_handle_t none = NULL;
    size_t width = 1;
    UR(urDeviceGetInfo(ur.device, UR_DEVICE_INFO_IMAGE2D_MAX_WIDTH, sizeof width, &width, NULL));
    EXPECT(width == 0);
    ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
            urMemImageCreate(ur.context, 0, &rgba32, &description, NULL, &none));
  }
  stop_runtime(&ur);
  if (!has_images) {
    puts("SKIPPED images: the device has none");
    return 0;
  }
  struct scene scene = start_scene();
  copy_parts(&scene.ur, describe(UR_MEM_TYPE_IMAGE1D, 30, 0, 0, 0), 1, 1);
  copy_parts(&scene.ur, describe(UR_MEM_TYPE_IMAGE2D, 30, 10, 0, 0), 10, 1);
  copy_parts(&scene.ur, describe(UR_MEM_TYPE_IMAGE3D, 30, 10, 6, 0), 10, 6);
  /* The loader's validation layer treats the layers of an image array as pixels outside the
     image. */
  if (getenv("UR_ENABLE_LAYERS") == NULL) {
    copy_parts(&scene.ur, describe(UR_MEM_TYPE_IMAGE1D_ARRAY, 30, 0, 0, 8), 8, 1);
    copy_parts(&scene.ur, describe(UR_MEM_TYPE_IMAGE2D_ARRAY, 30, 10, 0, 6), 10, 6);
  }
  make_of_memory(&scene.ur);
  capture(&scene);
  refuse(&scene);
  compute_together(&scene);
  end_scene(&scene);
  puts("two processes computed on images");
  return 0;
}
