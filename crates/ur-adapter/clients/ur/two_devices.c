/* A context of two devices. Buffers and images are used on both devices, in queues that wait for no
   events of each other. The contents must follow. */
#include "events.h"
#include "kernels.h"
#include <pthread.h>
#include <semaphore.h>

enum { COUNT = 1 << 14, SIZE = COUNT * 4, HALF = SIZE / 2, ROUNDS = 20 };
enum { WIDTH = 48, HEIGHT = 20, PIXELS = WIDTH * HEIGHT };

/* One context of two devices, with a queue on each of them. `of[i]` describes device i. */
struct pair {
  struct runtime of[2];
  ur_context_handle_t context;
  ur_program_handle_t program;
  ur_kernel_handle_t fill, scale;
};

static struct pair start_pair(void) {
  struct pair pair;
  struct runtime ur;
  UR(urLoaderInit(0, NULL));
  UR(urAdapterGet(1, &ur.adapter, NULL));
  UR(urPlatformGet(ur.adapter, 1, &ur.platform, NULL));
  uint32_t count = 0;
  UR(urDeviceGet(ur.platform, UR_DEVICE_TYPE_ALL, 0, NULL, &count));
  EXPECT(count >= 2);
  ur_device_handle_t devices[2];
  UR(urDeviceGet(ur.platform, UR_DEVICE_TYPE_ALL, 2, devices, NULL));
  UR(urContextCreate(2, devices, NULL, &pair.context));
  for (int i = 0; i < 2; i++) {
    ur.context = pair.context;
    ur.device = devices[i];
    UR(urQueueCreate(ur.context, ur.device, NULL, &ur.queue));
    pair.of[i] = ur;
  }
  size_t size = 0;
  const unsigned char *bytes = image(&size);
  size_t sizes[] = {size, size};
  const unsigned char *images[] = {bytes, bytes};
  UR(urProgramCreateWithBinary(pair.context, 2, devices, sizes, images, NULL, &pair.program));
  UR(urProgramBuildExp(pair.program, 2, devices, 0, NULL));
  pair.fill = create_kernel(pair.program, "fill");
  pair.scale = create_kernel(pair.program, "scale");
  return pair;
}

static void stop_pair(struct pair *pair) {
  UR(urKernelRelease(pair->fill));
  UR(urKernelRelease(pair->scale));
  UR(urProgramRelease(pair->program));
  for (int i = 0; i < 2; i++) {
    UR(urQueueRelease(pair->of[i].queue));
    UR(urDeviceRelease(pair->of[i].device));
  }
  UR(urContextRelease(pair->context));
  UR(urAdapterRelease(pair->of[0].adapter));
  UR(urLoaderTearDown());
}

static ur_mem_handle_t create_buffer(struct pair *pair, ur_mem_flags_t flags, void *pointer) {
  ur_buffer_properties_t properties = {UR_STRUCTURE_TYPE_BUFFER_PROPERTIES, NULL, pointer};
  ur_mem_handle_t buffer = NULL;
  UR(urMemBufferCreate(pair->context, flags, SIZE, pointer ? &properties : NULL, &buffer));
  return buffer;
}

static ur_exp_kernel_arg_properties_t memory_argument(uint32_t index, ur_mem_handle_t memory,
                                                      ur_mem_flag_t access) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_MEM_OBJ, index,
      sizeof memory, {.memObjTuple = {memory, access}}};
  return argument;
}

/* Launches `fill` or `scale` on the words of a buffer. */
static ur_result_t compute(struct runtime *ur, ur_kernel_handle_t kernel, ur_mem_handle_t buffer,
                           uint32_t value, uint32_t count, uint32_t waits,
                           const ur_event_handle_t *wait, ur_event_handle_t *event) {
  ur_exp_kernel_arg_properties_t arguments[] = {memory_argument(0, buffer, UR_MEM_FLAG_READ_WRITE),
                                                number(1, &value), number(2, &count)};
  size_t global = count;
  return urEnqueueKernelLaunchWithArgsExp(ur->queue, kernel, 1, NULL, &global, NULL, 3, arguments,
                                          NULL, waits, wait, event);
}

/* Fails unless all words of a part of a buffer have a value. */
static void expect_words(struct runtime *ur, ur_mem_handle_t buffer, size_t offset, size_t size,
                         uint32_t value) {
  static uint32_t words[COUNT];
  UR(urEnqueueMemBufferRead(ur->queue, buffer, true, offset, size, words, 0, NULL, NULL));
  for (size_t i = 0; i < size / 4; i++)
    if (words[i] != value)
      fail("%s: word %zu is %u, not %u", doing, i, words[i], value);
}

static void finish(struct pair *pair) {
  UR(urQueueFinish(pair->of[0].queue));
  UR(urQueueFinish(pair->of[1].queue));
}

/* Kernels on alternating devices change a buffer. `first` is the device that writes it first. */
static void alternate(struct pair *pair, int first) {
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  uint32_t wanted = 5;
  UR(compute(&pair->of[first], pair->fill, buffer, wanted, COUNT, 0, NULL, NULL));
  for (uint32_t round = 0; round < ROUNDS; round++) {
    UR(compute(&pair->of[round % 2], pair->scale, buffer, round, COUNT, 0, NULL, NULL));
    wanted = 3 * wanted + round;
  }
  expect_words(&pair->of[0], buffer, 0, SIZE, wanted);
  expect_words(&pair->of[1], buffer, 0, SIZE, wanted);
  UR(urMemRelease(buffer));
}

/* The same with queues that run their commands out of order, where events order each step. */
static void alternate_out_of_order(struct pair *pair) {
  ur_queue_properties_t properties = {UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, NULL,
                                      UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE};
  struct runtime of[2] = {pair->of[0], pair->of[1]};
  for (int i = 0; i < 2; i++)
    UR(urQueueCreate(pair->context, of[i].device, &properties, &of[i].queue));
  static uint32_t words[COUNT];
  for (uint32_t i = 0; i < COUNT; i++)
    words[i] = 2;
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  ur_event_handle_t last = NULL;
  uint32_t wanted = 2;
  UR(urEnqueueMemBufferWrite(of[0].queue, buffer, false, 0, SIZE, words, 0, NULL, &last));
  for (uint32_t round = 0; round < ROUNDS; round++) {
    ur_event_handle_t next = NULL;
    /* Two steps on each device, so that an event also orders two commands of one queue. */
    UR(compute(&of[round / 2 % 2], pair->scale, buffer, round, COUNT, 1, &last, &next));
    UR(urEventRelease(last));
    last = next;
    wanted = 3 * wanted + round;
  }
  UR(urEventWait(1, &last));
  UR(urEventRelease(last));
  expect_words(&of[1], buffer, 0, SIZE, wanted);
  UR(urMemRelease(buffer));
  for (int i = 0; i < 2; i++)
    UR(urQueueRelease(of[i].queue));
}

/* Each device computes on one half of a buffer. No event orders the two halves. */
static void divide(struct pair *pair) {
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL), half[2];
  for (int i = 0; i < 2; i++) {
    ur_buffer_region_t region = {UR_STRUCTURE_TYPE_BUFFER_REGION, NULL, (size_t)i * HALF, HALF};
    UR(urMemBufferPartition(buffer, 0, UR_BUFFER_CREATE_TYPE_REGION, &region, &half[i]));
  }
  uint32_t wanted[2] = {1, 2};
  for (uint32_t i = 0; i < 2; i++)
    UR(compute(&pair->of[i], pair->fill, half[i], wanted[i], COUNT / 2, 0, NULL, NULL));
  for (uint32_t round = 0; round < ROUNDS; round++)
    for (uint32_t i = 0; i < 2; i++) {
      UR(compute(&pair->of[(i + round) % 2], pair->scale, half[i], round, COUNT / 2, 0, NULL, NULL));
      wanted[i] = 3 * wanted[i] + round;
    }
  for (int i = 0; i < 2; i++) {
    expect_words(&pair->of[i], buffer, 0, HALF, wanted[0]);
    expect_words(&pair->of[1 - i], buffer, HALF, HALF, wanted[1]);
    UR(urMemRelease(half[i]));
  }
  UR(urMemRelease(buffer));
}

/* Buffers over the host's memory. */
static void use_host_memory(struct pair *pair) {
  static uint32_t words[COUNT];
  for (int flag = 0; flag < 2; flag++) {
    for (uint32_t i = 0; i < COUNT; i++)
      words[i] = 7;
    bool is_used = flag == 1;
    ur_mem_handle_t buffer = create_buffer(
        pair, is_used ? UR_MEM_FLAG_USE_HOST_POINTER : UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER, words);
    /* A buffer that uses the memory sees what the host writes before the first command. */
    for (uint32_t i = 0; is_used && i < COUNT; i++)
      words[i] = 8;
    uint32_t first = is_used ? 8 : 7;
    UR(compute(&pair->of[1], pair->scale, buffer, 1, COUNT, 0, NULL, NULL));
    UR(urQueueFinish(pair->of[1].queue));
    UR(compute(&pair->of[0], pair->scale, buffer, 2, COUNT, 0, NULL, NULL));
    expect_words(&pair->of[0], buffer, 0, SIZE, 3 * (3 * first + 1) + 2);
    UR(urMemRelease(buffer));
    EXPECT(words[COUNT - 1] == (is_used ? 3 * (3 * 8 + 1) + 2 : 7));
  }
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_ALLOC_HOST_POINTER, NULL);
  UR(compute(&pair->of[1], pair->fill, buffer, 9, COUNT, 0, NULL, NULL));
  UR(urQueueFinish(pair->of[1].queue));
  UR(compute(&pair->of[0], pair->scale, buffer, 2, COUNT, 0, NULL, NULL));
  expect_words(&pair->of[0], buffer, 0, SIZE, 29);
  UR(urMemRelease(buffer));
}

/* One device writes a buffer, the host changes it through the queue of the other device. */
static void map(struct pair *pair) {
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  UR(compute(&pair->of[0], pair->fill, buffer, 3, COUNT, 0, NULL, NULL));
  void *mapped = NULL;
  UR(urEnqueueMemBufferMap(pair->of[1].queue, buffer, true, UR_MAP_FLAG_READ | UR_MAP_FLAG_WRITE,
                           HALF, HALF, 0, NULL, NULL, &mapped));
  uint32_t *words = mapped;
  for (int i = 0; i < COUNT / 2; i++) {
    EXPECT(words[i] == 3);
    words[i] = 4;
  }
  UR(urEnqueueMemUnmap(pair->of[1].queue, buffer, mapped, 0, NULL, NULL));
  UR(compute(&pair->of[0], pair->scale, buffer, 0, COUNT, 0, NULL, NULL));
  expect_words(&pair->of[0], buffer, 0, HALF, 9);
  expect_words(&pair->of[1], buffer, HALF, HALF, 12);
  UR(urMemRelease(buffer));
}

/* Commands on one device use buffers that are on different devices. */
static void copy_between(struct pair *pair) {
  ur_mem_handle_t of[2];
  for (int i = 0; i < 2; i++)
    of[i] = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  UR(compute(&pair->of[0], pair->fill, of[0], 6, COUNT, 0, NULL, NULL));
  UR(compute(&pair->of[1], pair->fill, of[1], 8, COUNT, 0, NULL, NULL));
  UR(urEnqueueMemBufferCopy(pair->of[1].queue, of[0], of[1], 0, HALF, HALF, 0, NULL, NULL));
  expect_words(&pair->of[0], of[1], 0, HALF, 8);
  expect_words(&pair->of[0], of[1], HALF, HALF, 6);
  uint32_t pattern = 1;
  UR(urEnqueueMemBufferFill(pair->of[1].queue, of[0], &pattern, 4, 0, SIZE, 0, NULL, NULL));
  ur_rect_offset_t start = {0, 0, 0}, place = {4, 1, 0};
  ur_rect_region_t region = {8, 2, 1};
  UR(urEnqueueMemBufferCopyRect(pair->of[0].queue, of[0], of[1], start, place, region, 64, 0, 64, 0,
                                0, NULL, NULL));
  uint32_t words[64];
  UR(urEnqueueMemBufferRead(pair->of[1].queue, of[1], true, 0, sizeof words, words, 0, NULL, NULL));
  for (int i = 0; i < 64; i++) {
    int row = i / 16, column = i % 16;
    bool is_inside = (row == 1 || row == 2) && (column == 1 || column == 2);
    EXPECT(words[i] == (is_inside ? 1 : 8));
  }
  for (int i = 0; i < 2; i++)
    UR(urMemRelease(of[i]));
}

/* One device only reads, and the other one then writes. The reader sees the contents before. */
static void read_before_write(struct pair *pair) {
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  static uint32_t found[ROUNDS][COUNT];
  for (uint32_t round = 0; round < ROUNDS; round++) {
    UR(compute(&pair->of[0], pair->fill, buffer, round, COUNT, 0, NULL, NULL));
    UR(urEnqueueMemBufferRead(pair->of[1].queue, buffer, false, 0, SIZE, found[round], 0, NULL,
                              NULL));
  }
  finish(pair);
  for (uint32_t round = 0; round < ROUNDS; round++)
    for (int i = 0; i < COUNT; i++)
      if (found[round][i] != round)
        fail("round %u: word %d is %u", round, i, found[round][i]);
  UR(urMemRelease(buffer));
}

static void wait_for_gate(void *gate) { sem_wait(gate); }

/* A command waits for the commands that used its buffer before, on the other device. It does not
   wait for other commands there. */
static void wait_for_no_more(struct pair *pair) {
  sem_t before, after;
  EXPECT(sem_init(&before, 0, 0) == 0 && sem_init(&after, 0, 0) == 0);
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  UR(compute(&pair->of[1], pair->fill, buffer, 1, COUNT, 0, NULL, NULL));
  UR(urEnqueueHostTaskExp(pair->of[0].queue, wait_for_gate, &before, NULL, 0, NULL, NULL));
  UR(compute(&pair->of[0], pair->fill, buffer, 2, COUNT, 0, NULL, NULL));
  UR(urEnqueueHostTaskExp(pair->of[0].queue, wait_for_gate, &after, NULL, 0, NULL, NULL));
  ur_event_handle_t scaled = NULL;
  UR(compute(&pair->of[1], pair->scale, buffer, 3, COUNT, 0, NULL, &scaled));
  ur_event_status_t status;
  UR(urEventGetInfo(scaled, UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
  EXPECT(status != UR_EVENT_STATUS_COMPLETE);
  sem_post(&before);
  /* The second gate is still closed. */
  UR(urEventWait(1, &scaled));
  expect_words(&pair->of[1], buffer, 0, SIZE, 9);
  sem_post(&after);
  finish(pair);
  UR(urEventRelease(scaled));
  UR(urMemRelease(buffer));
  sem_destroy(&before);
  sem_destroy(&after);
}

/* A released buffer keeps its memory for the commands that move it and use it. */
static void release_early(struct pair *pair) {
  for (uint32_t round = 0; round < ROUNDS; round++) {
    ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
    UR(compute(&pair->of[0], pair->fill, buffer, 1, COUNT, 0, NULL, NULL));
    UR(compute(&pair->of[1], pair->scale, buffer, 1, COUNT, 0, NULL, NULL));
    UR(compute(&pair->of[0], pair->scale, buffer, 1, COUNT, 0, NULL, NULL));
    UR(urMemRelease(buffer));
  }
  finish(pair);
}

struct worker {
  struct pair *pair;
  struct runtime ur;
  ur_mem_handle_t buffer;
  uint32_t *turns;
  pthread_mutex_t *lock;
};

static void *work(void *data) {
  struct worker *worker = data;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    pthread_mutex_lock(worker->lock);
    UR(compute(&worker->ur, worker->pair->scale, worker->buffer, 1, COUNT, 0, NULL, NULL));
    ++*worker->turns;
    pthread_mutex_unlock(worker->lock);
  }
  return NULL;
}

/* Four threads, each with a queue of its own, use one buffer. */
static void use_from_threads(struct pair *pair) {
  enum { THREADS = 4 };
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_t threads[THREADS];
  struct worker workers[THREADS];
  uint32_t turns = 0, wanted = 1;
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  UR(compute(&pair->of[0], pair->fill, buffer, 1, COUNT, 0, NULL, NULL));
  UR(urQueueFinish(pair->of[0].queue));
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (struct worker){pair, pair->of[i % 2], buffer, &turns, &lock};
    /* Commands of one device are not ordered by the adapter, so each device has one queue. */
    EXPECT(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++)
    EXPECT(pthread_join(threads[i], NULL) == 0);
  EXPECT(turns == THREADS * ROUNDS);
  while (turns-- > 0)
    wanted = 3 * wanted + 1;
  expect_words(&pair->of[1], buffer, 0, SIZE, wanted);
  UR(urMemRelease(buffer));
}

/* A recorded launch on one device uses a buffer that the other device writes between the runs. */
static void record(struct pair *pair) {
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  struct runtime *near = &pair->of[0], *far = &pair->of[1];
  ur_exp_command_buffer_desc_t description = {UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC, NULL,
                                              false, true, false};
  ur_exp_command_buffer_handle_t commands = NULL;
  UR(urCommandBufferCreateExp(pair->context, far->device, &description, &commands));
  uint32_t one = 1, count = COUNT;
  ur_exp_kernel_arg_properties_t arguments[] = {memory_argument(0, buffer, UR_MEM_FLAG_READ_WRITE),
                                                number(1, &one), number(2, &count)};
  size_t global = COUNT;
  UR(urCommandBufferAppendKernelLaunchWithArgsExp(commands, pair->scale, 1, NULL, &global, NULL, 3,
                                                  arguments, 0, NULL, 0, NULL, 0, NULL, NULL, NULL,
                                                  NULL));
  UR(urCommandBufferFinalizeExp(commands));
  ur_exp_graph_handle_t graph = NULL;
  ur_exp_executable_graph_handle_t executable = NULL;
  UR(urGraphCreateExp(pair->context, &graph));
  UR(urQueueBeginCaptureIntoGraphExp(far->queue, graph));
  UR(compute(far, pair->scale, buffer, 2, COUNT, 0, NULL, NULL));
  UR(urQueueEndGraphCaptureExp(far->queue, &graph));
  UR(urGraphInstantiateGraphExp(graph, &executable));
  uint32_t wanted = 1;
  UR(compute(near, pair->fill, buffer, wanted, COUNT, 0, NULL, NULL));
  for (uint32_t round = 0; round < ROUNDS; round++) {
    UR(urEnqueueCommandBufferExp(far->queue, commands, 0, NULL, NULL));
    UR(compute(near, pair->scale, buffer, round, COUNT, 0, NULL, NULL));
    UR(urEnqueueGraphExp(far->queue, executable, 0, NULL, NULL));
    wanted = 3 * (3 * (3 * wanted + 1) + round) + 2;
    expect_words(round % 2 ? near : far, buffer, 0, SIZE, wanted);
  }
  /* The recorded commands cannot follow a buffer that is pinned to the other device. */
  ur_native_handle_t native = 0;
  UR(urMemGetNativeHandle(buffer, near->device, &native));
  ANSWERS(UR_RESULT_ERROR_INVALID_MEM_OBJECT,
          urEnqueueCommandBufferExp(far->queue, commands, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_MEM_OBJECT,
          urEnqueueGraphExp(far->queue, executable, 0, NULL, NULL));
  expect_words(near, buffer, 0, SIZE, wanted);
  UR(urMemRelease(buffer));
  UR(urGraphExecutableGraphDestroyExp(executable));
  UR(urGraphDestroyExp(graph));
  UR(urCommandBufferReleaseExp(commands));
}

/* A native handle keeps the contents on its device. */
static void pin(struct pair *pair) {
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL), same = NULL;
  UR(compute(&pair->of[0], pair->fill, buffer, 4, COUNT, 0, NULL, NULL));
  ur_native_handle_t native = 0, again = 0;
  UR(urMemGetNativeHandle(buffer, pair->of[1].device, &native));
  UR(urMemGetNativeHandle(buffer, pair->of[0].device, &again));
  EXPECT(native != 0 && native == again);
  UR(urMemBufferCreateWithNativeHandle(native, pair->context, NULL, &same));
  UR(compute(&pair->of[1], pair->scale, same, 1, COUNT, 0, NULL, NULL));
  UR(urQueueFinish(pair->of[1].queue));
  int32_t reaches = 0;
  UR(urUsmP2PPeerAccessGetInfoExp(pair->of[0].device, pair->of[1].device,
                                  UR_EXP_PEER_INFO_UR_PEER_ACCESS_SUPPORT, sizeof reaches, &reaches,
                                  NULL));
  ur_result_t result = compute(&pair->of[0], pair->scale, buffer, 0, COUNT, 0, NULL, NULL);
  EXPECT(result == (reaches ? UR_RESULT_SUCCESS : UR_RESULT_ERROR_INVALID_MEM_OBJECT));
  UR(urQueueFinish(pair->of[0].queue));
  expect_words(&pair->of[1], buffer, 0, SIZE, reaches ? 39 : 13);
  UR(urMemRelease(same));
  UR(urMemRelease(buffer));
}

/* A program that is built for one device after the other, and its binaries. */
static void use_binaries(struct pair *pair) {
  struct runtime *of = pair->of;
  ur_device_handle_t devices[] = {of[0].device, of[1].device};
  size_t size = 0, sizes[2];
  const unsigned char *bytes = image(&size);
  ur_program_handle_t program = NULL, native = NULL, refused = NULL;
  UR(urProgramCreateWithIL(pair->context, bytes, size, NULL, &program));
  UR(urProgramGetInfo(program, UR_PROGRAM_INFO_BINARY_SIZES, sizeof sizes, sizes, NULL));
  EXPECT(sizes[0] == 0 && sizes[1] == 0);
  UR(urProgramBuildExp(program, 1, &devices[1], 0, NULL));
  UR(urProgramGetInfo(program, UR_PROGRAM_INFO_BINARY_SIZES, sizeof sizes, sizes, NULL));
  EXPECT(sizes[0] == 0 && sizes[1] != 0);
  UR(urProgramBuild(pair->context, program, NULL));
  UR(urProgramGetInfo(program, UR_PROGRAM_INFO_BINARY_SIZES, sizeof sizes, sizes, NULL));
  EXPECT(sizes[0] != 0 && sizes[1] != 0);
  unsigned char *binaries[] = {malloc(sizes[0]), malloc(sizes[1])};
  UR(urProgramGetInfo(program, UR_PROGRAM_INFO_BINARIES, sizeof binaries, binaries, NULL));
  const unsigned char *given[] = {binaries[0], binaries[1]}, *incomplete[] = {binaries[0], NULL};
  ANSWERS(UR_RESULT_ERROR_INVALID_VALUE,
          urProgramCreateWithBinary(pair->context, 2, devices, sizes, incomplete, NULL, &refused));
  UR(urProgramCreateWithBinary(pair->context, 2, devices, sizes, given, NULL, &native));
  ur_backend_t backend;
  UR(urPlatformGetInfo(of[0].platform, UR_PLATFORM_INFO_BACKEND, sizeof backend, &backend, NULL));
  if (backend == UR_BACKEND_LEVEL_ZERO) {
    ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION, urProgramCompile(pair->context, native, NULL));
    ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION,
            urProgramLink(pair->context, 1, &native, NULL, &refused));
  }
  UR(urProgramBuild(pair->context, native, NULL));
  ur_kernel_handle_t fill = create_kernel(native, "fill");
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  for (uint32_t i = 0; i < 2; i++) {
    UR(compute(&of[i], fill, buffer, i + 1, COUNT, 0, NULL, NULL));
    expect_words(&of[1 - i], buffer, 0, SIZE, i + 1);
  }
  UR(urMemRelease(buffer));
  UR(urKernelRelease(fill));
  UR(urProgramRelease(native));
  UR(urProgramRelease(program));
  for (int i = 0; i < 2; i++)
    free(binaries[i]);
}

/* Runs in the second process, which is killed before it signals its event. */
static int second(void) {
  struct runtime ur = start_runtime();
  ur_event_handle_t event = shared_event(&ur);
  say_bytes(PARENT, share_event(&ur, event));
  /* The signal is submitted behind a host task that never ends. */
  sem_t never;
  EXPECT(sem_init(&never, 0, 0) == 0);
  UR(urEnqueueHostTaskExp(ur.queue, wait_for_gate, &never, NULL, 0, NULL, NULL));
  signal_event(&ur, event);
  say_bytes(PARENT, bytes_of("submitted", 9));
  for (;;)
    pause();
}

/* A command waits for a process that is killed. The buffer stays usable on both devices. */
static void survive(struct pair *pair) {
  struct peer peer = start_peer("second");
  ur_event_handle_t event = open_event(&pair->of[0], hear_bytes(peer.link));
  hear_bytes(peer.link);
  ur_mem_handle_t buffer = create_buffer(pair, UR_MEM_FLAG_READ_WRITE, NULL);
  UR(compute(&pair->of[0], pair->fill, buffer, 1, COUNT, 0, NULL, NULL));
  UR(compute(&pair->of[1], pair->scale, buffer, 1, COUNT, 1, &event, NULL));
  ur_event_handle_t moved = NULL;
  UR(compute(&pair->of[0], pair->scale, buffer, 1, COUNT, 0, NULL, &moved));
  kill_peer(&peer);
  /* The commands fail or run, depending on the device. In both cases they end. */
  urEventWait(1, &moved);
  urQueueFinish(pair->of[0].queue);
  urQueueFinish(pair->of[1].queue);
  uint32_t wanted = 2;
  UR(compute(&pair->of[1], pair->fill, buffer, wanted, COUNT, 0, NULL, NULL));
  for (uint32_t round = 0; round < 4; round++) {
    UR(compute(&pair->of[round % 2], pair->scale, buffer, round, COUNT, 0, NULL, NULL));
    wanted = 3 * wanted + round;
  }
  expect_words(&pair->of[0], buffer, 0, SIZE, wanted);
  UR(urEventRelease(moved));
  UR(urEventRelease(event));
  UR(urMemRelease(buffer));
}

/* Images: commands and kernels of both devices use the same pixels. */
static void use_images(struct pair *pair) {
  const char *assembly = getenv("IMAGES_PTX"), *path = getenv("IMAGES_SPV");
  if (assembly == NULL && path == NULL)
    return;
  size_t size = 0;
  const unsigned char *bytes = read_file(assembly != NULL ? assembly : path, &size);
  ur_program_handle_t program = NULL;
  ur_device_handle_t devices[] = {pair->of[0].device, pair->of[1].device};
  UR(urProgramCreateWithIL(pair->context, bytes, size, NULL, &program));
  UR(urProgramBuildExp(program, 2, devices, 0, NULL));
  ur_kernel_handle_t shift = create_kernel(program, "shift");
  ur_sampler_desc_t sampling = {UR_STRUCTURE_TYPE_SAMPLER_DESC, NULL, false,
                                UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE,
                                UR_SAMPLER_FILTER_MODE_NEAREST};
  ur_sampler_handle_t sampler = NULL;
  UR(urSamplerCreate(pair->context, &sampling, &sampler));
  ur_image_format_t format = {UR_IMAGE_CHANNEL_ORDER_RGBA, UR_IMAGE_CHANNEL_TYPE_UNSIGNED_INT32};
  ur_image_desc_t description = {UR_STRUCTURE_TYPE_IMAGE_DESC, NULL, UR_MEM_TYPE_IMAGE2D, WIDTH,
                                 HEIGHT, 1, 1, 0, 0, 0, 0};
  ur_mem_handle_t images[2];
  for (int i = 0; i < 2; i++)
    UR(urMemImageCreate(pair->context, UR_MEM_FLAG_READ_WRITE, &format, &description, NULL,
                        &images[i]));
  static uint32_t words[PIXELS * 4], found[PIXELS * 4];
  for (int i = 0; i < PIXELS * 4; i++)
    words[i] = word_of(1, (size_t)i);
  ur_rect_offset_t start = {0, 0, 0};
  ur_rect_region_t all = {WIDTH, HEIGHT, 1};
  UR(urEnqueueMemImageWrite(pair->of[0].queue, images[0], false, start, all, 0, 0, words, 0, NULL,
                            NULL));
  UR(urEnqueueMemImageRead(pair->of[1].queue, images[0], true, start, all, 0, 0, found, 0, NULL,
                           NULL));
  EXPECT(memcmp(words, found, sizeof found) == 0);
  uint32_t addend = 1;
  for (uint32_t round = 0; round < 4; round++) {
    ur_exp_kernel_arg_properties_t sampled = {
        UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_SAMPLER, 2,
        sizeof sampler, {.sampler = sampler}};
    ur_exp_kernel_arg_properties_t arguments[] = {
        memory_argument(0, images[round % 2], UR_MEM_FLAG_READ_ONLY),
        memory_argument(1, images[1 - round % 2], UR_MEM_FLAG_WRITE_ONLY), sampled,
        number(3, &addend)};
    size_t global[] = {WIDTH, HEIGHT};
    UR(urEnqueueKernelLaunchWithArgsExp(pair->of[(round + 1) % 2].queue, shift, 2, NULL, global,
                                        NULL, 4, arguments, NULL, 0, NULL, NULL));
  }
  UR(urEnqueueMemImageCopy(pair->of[1].queue, images[0], images[1], start, start, all, 0, NULL,
                           NULL));
  UR(urEnqueueMemImageRead(pair->of[0].queue, images[1], true, start, all, 0, 0, found, 0, NULL,
                           NULL));
  for (int y = 0; y < HEIGHT; y++)
    for (int x = 0; x < WIDTH; x++) {
      int from = x + 4 < WIDTH ? x + 4 : WIDTH - 1;
      EXPECT(found[4 * (y * WIDTH + x)] == words[4 * (y * WIDTH + from)] + 4);
    }
  for (int i = 0; i < 2; i++)
    UR(urMemRelease(images[i]));
  UR(urSamplerRelease(sampler));
  UR(urKernelRelease(shift));
  UR(urProgramRelease(program));
}

int main(int argc, char **argv) {
  limit_life();
  if (argc > 1 && strcmp(argv[1], "second") == 0)
    return second();
  struct pair pair = start_pair();
  alternate(&pair, 0);
  alternate(&pair, 1);
  alternate_out_of_order(&pair);
  divide(&pair);
  use_host_memory(&pair);
  map(&pair);
  copy_between(&pair);
  read_before_write(&pair);
  wait_for_no_more(&pair);
  release_early(&pair);
  use_from_threads(&pair);
  record(&pair);
  pin(&pair);
  use_images(&pair);
  use_binaries(&pair);
  survive(&pair);
  stop_pair(&pair);
  puts("two devices computed on the same memory objects");
  return 0;
}
