/* The driver's own objects combined with those of Unified Runtime, in both directions. On a device
   without a driver, native handles are converted back to the same objects. */
#include "native.h"
#include <dlfcn.h>

/* `CUDA_MEMCPY3D` of `cuda.h`. */
struct copy_side {
  size_t x, y, z, level;
  int type;
  const void *host;
  uint64_t device;
  void *array, *reserved;
  size_t pitch, height;
};

struct copy_parameters {
  struct copy_side from, to;
  size_t width, height, depth;
};

/* The driver functions that the client calls. */
static struct {
  int (*cuInit)(unsigned);
  int (*cuCtxSetCurrent)(void *);
  int (*cuCtxGetCurrent)(void **);
  int (*cuCtxGetDevice)(int *);
  int (*cuCtxCreate_v2)(void **, unsigned, int);
  int (*cuCtxDestroy_v2)(void *);
  int (*cuStreamCreate)(void **, unsigned);
  int (*cuStreamQuery)(void *);
  int (*cuStreamSynchronize)(void *);
  int (*cuStreamDestroy_v2)(void *);
  int (*cuStreamWaitEvent)(void *, void *, unsigned);
  int (*cuEventCreate)(void **, unsigned);
  int (*cuEventRecord)(void *, void *);
  int (*cuEventSynchronize)(void *);
  int (*cuEventDestroy_v2)(void *);
  int (*cuGraphAddMemcpyNode)(void **, void *, const void *, size_t, const struct copy_parameters *,
                              void *);
  int (*cuMemsetD8Async)(uint64_t, unsigned char, size_t, void *);
} driver;

#define CU(call) EXPECT((call) == 0)

static bool load_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL)
    return false;
#define LOAD(name) EXPECT((*(void **)&driver.name = dlsym(library, #name)) != NULL)
  LOAD(cuInit);
  LOAD(cuCtxSetCurrent);
  LOAD(cuCtxGetCurrent);
  LOAD(cuCtxGetDevice);
  LOAD(cuCtxCreate_v2);
  LOAD(cuCtxDestroy_v2);
  LOAD(cuStreamCreate);
  LOAD(cuStreamQuery);
  LOAD(cuStreamSynchronize);
  LOAD(cuStreamDestroy_v2);
  LOAD(cuStreamWaitEvent);
  LOAD(cuEventCreate);
  LOAD(cuEventRecord);
  LOAD(cuEventSynchronize);
  LOAD(cuEventDestroy_v2);
  LOAD(cuGraphAddMemcpyNode);
  LOAD(cuMemsetD8Async);
  return driver.cuInit(0) == 0;
}

static void *native_of_context(ur_context_handle_t context) {
  ur_native_handle_t native = 0;
  UR(urContextGetNativeHandle(context, &native));
  return (void *)native;
}

static void *native_of_queue(ur_queue_handle_t queue) {
  ur_native_handle_t native = 0;
  UR(urQueueGetNativeHandle(queue, NULL, &native));
  return (void *)native;
}

static void *native_of_event(ur_event_handle_t event) {
  ur_native_handle_t native = 0;
  UR(urEventGetNativeHandle(event, &native));
  return (void *)native;
}

static ur_queue_handle_t adopt_queue(struct runtime *ur, void *stream, bool is_owned) {
  ur_queue_native_properties_t properties = {UR_STRUCTURE_TYPE_QUEUE_NATIVE_PROPERTIES, NULL,
                                             is_owned};
  ur_queue_handle_t queue = NULL;
  UR(urQueueCreateWithNativeHandle((ur_native_handle_t)stream, ur->context, ur->device, &properties,
                                   &queue));
  return queue;
}

static ur_event_handle_t adopt_event(struct runtime *ur, void *native, bool is_owned) {
  ur_event_native_properties_t properties = {UR_STRUCTURE_TYPE_EVENT_NATIVE_PROPERTIES, NULL,
                                             is_owned};
  ur_event_handle_t event = NULL;
  UR(urEventCreateWithNativeHandle((ur_native_handle_t)native, ur->context, &properties, &event));
  return event;
}

/* Checks that native handles are converted back to the same objects. */
static void same_objects(struct runtime *ur) {
  ur_native_handle_t native = 0;
  ur_device_handle_t device = NULL;
  UR(urDeviceGetNativeHandle(ur->device, &native));
  UR(urDeviceCreateWithNativeHandle(native, ur->adapter, NULL, &device));
  EXPECT(device == ur->device);
  ur_queue_handle_t same = adopt_queue(ur, native_of_queue(ur->queue), false);
  char byte = 1, *memory = allocate(ur, SIZE);
  UR(urEnqueueUSMFill(ur->queue, memory, 1, &byte, SIZE, 0, NULL, NULL));
  byte = 2;
  UR(urEnqueueUSMFill(same, memory, 1, &byte, SIZE, 0, NULL, NULL));
  UR(urQueueFinish(same));
  copy(ur, &byte, memory + SIZE - 1, 1);
  EXPECT(byte == 2);
  UR(urQueueRelease(same));
  ur_event_handle_t filled = NULL;
  UR(urEnqueueUSMFill(ur->queue, memory, 1, &byte, SIZE, 0, NULL, &filled));
  void *of_event = native_of_event(filled);
  for (int round = 0; round < 1000; round++)
    EXPECT(native_of_event(filled) == of_event);
  ur_event_handle_t again = adopt_event(ur, of_event, false);
  UR(urEventWait(1, &again));
  UR(urEventRelease(again));
  UR(urEventRelease(filled));
  UR(urUSMFree(ur->context, memory));
}

/* Submits native commands between the commands of a UR queue. */
static void their_commands_in_our_queue(struct runtime *ur, ur_queue_handle_t queue) {
  char *memory = allocate(ur, SIZE), byte = 1;
  void *stream = native_of_queue(queue);
  for (char round = 2; round < 50; round++) {
    UR(urEnqueueUSMFill(queue, memory, 1, &byte, SIZE, 0, NULL, NULL));
    CU(driver.cuMemsetD8Async((uint64_t)memory, (unsigned char)round, SIZE, stream));
    UR(urQueueFinish(queue));
    EXPECT(driver.cuStreamQuery(stream) == 0);
    EXPECT(last_byte(ur, memory) == round);
  }
  UR(urUSMFree(ur->context, memory));
}

/* Submits UR commands between native commands, in a native stream. */
static void our_commands_in_their_stream(struct runtime *ur) {
  char *memory = allocate(ur, SIZE);
  void *stream = NULL;
  CU(driver.cuStreamCreate(&stream, 1));
  ur_queue_handle_t queue = adopt_queue(ur, stream, false);
  EXPECT(native_of_queue(queue) == stream);
  for (char round = 1; round < 50; round++) {
    CU(driver.cuMemsetD8Async((uint64_t)memory, 100, SIZE, stream));
    UR(urEnqueueUSMFill(queue, memory, 1, &round, SIZE, 0, NULL, NULL));
    CU(driver.cuStreamSynchronize(stream));
    EXPECT(last_byte(ur, memory) == round);
  }
  UR(urQueueFinish(queue));
  UR(urQueueRelease(queue));
  CU(driver.cuStreamQuery(stream));
  /* The program transfers the ownership of the stream, and does not use the stream afterwards. */
  queue = adopt_queue(ur, stream, true);
  their_commands_in_our_queue(ur, queue);
  UR(urQueueRelease(queue));
  UR(urUSMFree(ur->context, memory));
}

/* Native commands wait for UR events, and UR commands wait for native events. */
static void events(struct runtime *ur) {
  char *memory = allocate(ur, SIZE);
  void *stream = NULL;
  CU(driver.cuStreamCreate(&stream, 1));
  for (char round = 1; round < 50; round++) {
    ur_event_handle_t filled = NULL;
    char byte = 0;
    UR(urEnqueueUSMFill(ur->queue, memory, 1, &byte, SIZE, 0, NULL, &filled));
    CU(driver.cuStreamWaitEvent(stream, native_of_event(filled), 0));
    CU(driver.cuMemsetD8Async((uint64_t)memory, (unsigned char)round, SIZE, stream));
    void *recorded = NULL;
    CU(driver.cuEventCreate(&recorded, 2));
    CU(driver.cuEventRecord(recorded, stream));
    bool is_owned = round % 2;
    ur_event_handle_t done = adopt_event(ur, recorded, is_owned);
    UR(urEnqueueEventsWait(ur->queue, 1, &done, NULL));
    EXPECT(last_byte(ur, memory) == round);
    UR(urEventWait(1, &done));
    UR(urEventRelease(done));
    UR(urEventRelease(filled));
    if (!is_owned)
      CU(driver.cuEventDestroy_v2(recorded));
  }
  CU(driver.cuStreamDestroy_v2(stream));
  UR(urUSMFree(ur->context, memory));
}

struct fill {
  char *memory;
  char byte;
};

static void submit_fill(ur_queue_handle_t queue, void *data) {
  struct fill *fill = data;
  void *stream = native_of_queue(queue);
  CU(driver.cuMemsetD8Async((uint64_t)fill->memory, (unsigned char)fill->byte, SIZE, stream));
}

/* UR functions that submit native commands, with events before and after them. */
static void native_commands(struct runtime *ur, ur_queue_handle_t queue) {
  struct fill fill = {allocate(ur, SIZE), 0};
  char other = 111;
  for (fill.byte = 1; fill.byte < 50; fill.byte++) {
    ur_event_handle_t before = NULL, after = NULL;
    UR(urEnqueueUSMFill(queue, fill.memory, 1, &other, SIZE, 0, NULL, &before));
    UR(urEnqueueNativeCommandExp(queue, submit_fill, &fill, 0, NULL, NULL, 1, &before, &after));
    UR(urEventWait(1, &after));
    EXPECT(last_byte(ur, fill.memory) == fill.byte);
    UR(urEventRelease(before));
    UR(urEventRelease(after));
  }
  UR(urUSMFree(ur->context, fill.memory));
}

/* Uses a native context that the program created. */
static void their_context(struct runtime *ur) {
  struct runtime inside = *ur;
  void *made = NULL, *current = NULL;
  ur_native_handle_t device = 0;
  UR(urDeviceGetNativeHandle(ur->device, &device));
  CU(driver.cuCtxCreate_v2(&made, 0, (int)device));
  UR(urContextCreateWithNativeHandle((ur_native_handle_t)made, ur->adapter, 1, &ur->device, NULL,
                                     &inside.context));
  EXPECT(native_of_context(inside.context) == made);
  UR(urQueueCreate(inside.context, inside.device, NULL, &inside.queue));
  their_commands_in_our_queue(&inside, inside.queue);
  our_commands_in_their_stream(&inside);
  events(&inside);
  CU(driver.cuCtxGetCurrent(&current));
  EXPECT(current == made);
  UR(urQueueRelease(inside.queue));
  UR(urContextRelease(inside.context));
  CU(driver.cuCtxSetCurrent(native_of_context(ur->context)));
  usleep(200000);
  CU(driver.cuCtxDestroy_v2(made));
}

/* Appends the copy to the `CUgraph` of a command buffer. */
static void append_native_copy(ur_native_handle_t native, const struct native_copy *copy) {
  struct copy_parameters parameters = {.from = {.type = 2, .device = (uint64_t)copy->from},
                                       .to = {.type = 2, .device = (uint64_t)copy->to},
                                       .width = SIZE,
                                       .height = 1,
                                       .depth = 1};
  void *node = NULL;
  CU(driver.cuGraphAddMemcpyNode(&node, (void *)native, NULL, 0, &parameters,
                                 native_of_context(copy->context)));
}

static void wait_natively(ur_event_handle_t event) {
  CU(driver.cuEventSynchronize(native_of_event(event)));
}

int main(void) {
  limit_life();
  struct runtime ur = start_runtime();
  same_objects(&ur);
  ur_backend_t backend;
  UR(urPlatformGetInfo(ur.platform, UR_PLATFORM_INFO_BACKEND, sizeof backend, &backend, NULL));
  if (backend == UR_BACKEND_CUDA && load_driver()) {
    int device = -1;
    ur_native_handle_t native = 0;
    CU(driver.cuCtxSetCurrent(native_of_context(ur.context)));
    CU(driver.cuCtxGetDevice(&device));
    UR(urDeviceGetNativeHandle(ur.device, &native));
    EXPECT((ur_native_handle_t)device == native);
    ur_queue_properties_t properties = {UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, NULL,
                                        UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE};
    ur_queue_handle_t free_order = NULL;
    UR(urQueueCreate(ur.context, ur.device, &properties, &free_order));
    their_commands_in_our_queue(&ur, ur.queue);
    our_commands_in_their_stream(&ur);
    events(&ur);
    shared_events_have_no_handle(&ur, wait_natively);
    native_commands_in_command_buffers(&ur, false);
    native_commands_in_command_buffers(&ur, true);
    native_commands(&ur, ur.queue);
    native_commands(&ur, free_order);
    their_context(&ur);
    UR(urQueueRelease(free_order));
  } else {
    printf("no driver\n");
  }
  stop_runtime(&ur);
  return 0;
}
