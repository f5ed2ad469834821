/* Two processes compute in turns. Each has a command buffer on shared memory, and only the events
   of the command buffers order the runs. The client also tests updates, the order of runs, objects
   that command buffers keep alive, commands on buffers, and errors. */
#include "kernels.h"
#include <pthread.h>
#include <unistd.h>

enum { COUNT = 1 << 14, BLOCK = COUNT, ROUNDS = 12, REPLAYS = 301 };

static ur_event_handle_t shared_event(struct runtime *ur) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL, UR_EXP_EVENT_FLAG_IPC_EXP};
  ur_event_handle_t event = NULL;
  UR(urEventCreateExp(ur->context, ur->device, &description, &event));
  return event;
}

static struct bytes share_event(struct runtime *ur, ur_event_handle_t event) {
  void *data = NULL;
  size_t size = 0;
  UR(urIPCGetEventHandleExp(event, &data, &size));
  struct bytes bytes = bytes_of(data, size);
  UR(urIPCPutEventHandleExp(ur->context, data));
  return bytes;
}

static ur_event_handle_t open_event(struct runtime *ur, struct bytes handle) {
  ur_event_handle_t event = NULL;
  UR(urIPCOpenEventHandleExp(ur->context, handle.data, handle.size, &event));
  return event;
}

static ur_exp_command_buffer_handle_t begin(struct runtime *ur, bool updatable, bool in_order) {
  ur_exp_command_buffer_desc_t description = {UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC, NULL,
                                              updatable, in_order, false};
  ur_exp_command_buffer_handle_t buffer = NULL;
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &buffer));
  return buffer;
}

/* Records a copy of `size` bytes. In each run, the copy waits for `event`, unless it is null. */
static ur_exp_command_buffer_sync_point_t record_copy_after(ur_exp_command_buffer_handle_t buffer,
                                                            void *to, const void *from, size_t size,
                                                            ur_event_handle_t event) {
  ur_exp_command_buffer_sync_point_t point = 0;
  UR(urCommandBufferAppendUSMMemcpyExp(buffer, to, from, size, 0, NULL, event != NULL,
                                       event ? &event : NULL, &point, NULL, NULL));
  return point;
}

/* Records a copy of `size` bytes that follows the sync point `after`, unless it is null. Returns
   the sync point of the copy. */
static ur_exp_command_buffer_sync_point_t
record_copy(ur_exp_command_buffer_handle_t buffer, void *to, const void *from, size_t size,
            const ur_exp_command_buffer_sync_point_t *after) {
  ur_exp_command_buffer_sync_point_t point = 0;
  UR(urCommandBufferAppendUSMMemcpyExp(buffer, to, from, size, after != NULL, after, 0, NULL, &point,
                                       NULL, NULL));
  return point;
}

static void signal_event(struct runtime *ur, ur_event_handle_t event) {
  UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 0, NULL, &event));
}

/* Runs a command buffer several times. Each run waits inside for a signal of the other process, and
   signals `after`. */
static void run_times(struct runtime *ur, ur_exp_command_buffer_handle_t buffer,
                      ur_event_handle_t after, int times) {
  while (times-- > 0) {
    UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
    signal_event(ur, after);
  }
}

/* Runs in the second process: swaps the first two of three blocks, through memory of its own. */
static int second(void) {
  struct runtime ur = start_runtime();
  char *memory = (char *)open_memory(&ur, hear_bytes(PARENT));
  ur_event_handle_t rotated = open_event(&ur, hear_bytes(PARENT));
  ur_event_handle_t swapped = open_event(&ur, hear_bytes(PARENT));
  char *spare = (char *)allocate(&ur, BLOCK);
  ur_exp_command_buffer_handle_t swap = begin(&ur, false, false);
  /* In each run, the first command waits for the next signal from the other process. */
  ur_exp_command_buffer_sync_point_t point = record_copy_after(swap, spare, memory, BLOCK, rotated);
  point = record_copy(swap, memory, memory + BLOCK, BLOCK, &point);
  record_copy(swap, memory + BLOCK, spare, BLOCK, &point);
  UR(urCommandBufferFinalizeExp(swap));
  /* The signal for which the first run of the other process waits. */
  signal_event(&ur, swapped);
  char token;
  while (hear_or_end(PARENT, &token, 1)) {
    run_times(&ur, swap, swapped, token == 'w' ? REPLAYS : 1);
    say(PARENT, &token, 1);
  }
  UR(urQueueFinish(ur.queue));
  UR(urCommandBufferReleaseExp(swap));
  UR(urUSMFree(ur.context, spare));
  UR(urEventRelease(rotated));
  UR(urEventRelease(swapped));
  UR(urIPCCloseMemHandleExp(ur.context, memory));
  stop_runtime(&ur);
  return 0;
}

static void compute_in_turns(struct runtime *ur) {
  char *memory = (char *)allocate(ur, 3 * BLOCK), *spare = (char *)allocate(ur, BLOCK);
  ur_event_handle_t rotated = shared_event(ur), swapped = shared_event(ur);
  uint32_t order[3] = {1, 2, 3};
  for (int i = 0; i < 3; i++)
    write_pattern(ur, memory + i * BLOCK, BLOCK, order[i]);
  /* The command buffer is in-order, so its commands need no sync points. */
  ur_exp_command_buffer_handle_t rotate = begin(ur, false, true);
  record_copy_after(rotate, spare, memory, BLOCK, swapped);
  record_copy(rotate, memory, memory + BLOCK, BLOCK, NULL);
  record_copy(rotate, memory + BLOCK, memory + 2 * BLOCK, BLOCK, NULL);
  record_copy(rotate, memory + 2 * BLOCK, spare, BLOCK, NULL);
  UR(urCommandBufferFinalizeExp(rotate));
  struct peer peer = start_peer("second");
  say_bytes(peer.link, share_memory(ur, memory));
  say_bytes(peer.link, share_event(ur, rotated));
  say_bytes(peer.link, share_event(ur, swapped));
  /* Single runs and waves alternate. In a wave, both processes submit all runs at once. */
  for (int round = 0; round < ROUNDS; round++) {
    char token = round % 4 == 1 ? 'w' : 'r';
    say(peer.link, &token, 1);
    run_times(ur, rotate, rotated, token == 'w' ? REPLAYS : 1);
    hear(peer.link, &token, 1);
    uint32_t first = order[0];
    order[0] = order[2], order[2] = first;
    /* The blocks were rotated to (2, 3, 1) and then swapped to (3, 2, 1), an odd number of times. */
  }
  UR(urEventWait(1, &swapped));
  for (int i = 0; i < 3; i++)
    EXPECT(has_pattern(ur, memory + i * BLOCK, BLOCK, order[i], 0));
  end_peer(&peer);
  UR(urCommandBufferReleaseExp(rotate));
  UR(urEventRelease(rotated));
  UR(urEventRelease(swapped));
  UR(urUSMFree(ur->context, spare));
  UR(urUSMFree(ur->context, memory));
}

/* Checks that the runs of one command buffer execute one after another, even in different queues.
   Also checks that a command buffer keeps the objects alive that it uses. */
static void run_in_several_queues(struct runtime *ur) {
  ur_queue_properties_t properties = {UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, NULL,
                                      UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE};
  ur_queue_handle_t queues[2] = {ur->queue, NULL};
  UR(urQueueCreate(ur->context, ur->device, &properties, &queues[1]));
  char *memory = (char *)allocate(ur, 3 * BLOCK), *seen = (char *)allocate(ur, 3 * BLOCK);
  for (uint32_t i = 0; i < 3; i++)
    write_pattern(ur, memory + i * BLOCK, BLOCK, i);
  ur_exp_command_buffer_handle_t rotate = begin(ur, false, true);
  UR(urCommandBufferRetainExp(rotate));
  char *spare = (char *)allocate(ur, BLOCK);
  record_copy(rotate, spare, memory, BLOCK, NULL);
  record_copy(rotate, memory, memory + BLOCK, 2 * BLOCK, NULL);
  record_copy(rotate, memory + 2 * BLOCK, spare, BLOCK, NULL);
  record_copy(rotate, seen, memory, 3 * BLOCK, NULL);
  UR(urCommandBufferFinalizeExp(rotate));
  uint32_t references = 0;
  UR(urCommandBufferGetInfoExp(rotate, UR_EXP_COMMAND_BUFFER_INFO_REFERENCE_COUNT, sizeof references,
                               &references, NULL));
  EXPECT(references == 2);
  ur_exp_command_buffer_desc_t description;
  UR(urCommandBufferGetInfoExp(rotate, UR_EXP_COMMAND_BUFFER_INFO_DESCRIPTOR, sizeof description,
                               &description, NULL));
  EXPECT(description.stype == UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC);
  EXPECT(!description.isUpdatable && description.isInOrder && !description.enableProfiling);
  ur_event_handle_t last = NULL;
  for (int run = 0; run < 20; run++) {
    if (last != NULL)
      UR(urEventRelease(last));
    UR(urEnqueueCommandBufferExp(queues[run % 2], rotate, 0, NULL, &last));
  }
  ur_command_t kind;
  UR(urEventGetInfo(last, UR_EVENT_INFO_COMMAND_TYPE, sizeof kind, &kind, NULL));
  EXPECT(kind == UR_COMMAND_ENQUEUE_COMMAND_BUFFER_EXP);
  /* The memory and the command buffer are kept alive until the last run is complete. */
  UR(urUSMFree(ur->context, spare));
  UR(urCommandBufferReleaseExp(rotate));
  UR(urCommandBufferReleaseExp(rotate));
  UR(urEventWait(1, &last));
  UR(urEventRelease(last));
  /* Twenty rotations of three blocks move each block by two places. */
  for (uint32_t i = 0; i < 3; i++)
    EXPECT(has_pattern(ur, seen + i * BLOCK, BLOCK, (i + 2) % 3, 0));
  UR(urQueueFinish(queues[1]));
  UR(urQueueRelease(queues[1]));
  UR(urUSMFree(ur->context, memory));
  UR(urUSMFree(ur->context, seen));
}

/* Records all commands on buffers and all hints, and checks their effects. */
static void record_buffer_commands(struct runtime *ur) {
  enum { SIZE = 256 };
  ur_mem_handle_t one = NULL, two = NULL;
  unsigned char input[SIZE], output[SIZE], rows[SIZE];
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE, SIZE, NULL, &one));
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE, SIZE, NULL, &two));
  for (int i = 0; i < SIZE; i++)
    input[i] = (unsigned char)i, output[i] = rows[i] = 0;
  void *memory = allocate(ur, SIZE);
  ur_exp_command_buffer_handle_t buffer = begin(ur, false, true);
  uint16_t pattern = 0x0201;
  ur_rect_offset_t start = {0, 0, 0}, inside = {4, 2, 0}, lower = {4, 1, 0};
  ur_rect_region_t region = {8, 3, 1};
  UR(urCommandBufferAppendMemBufferWriteExp(buffer, one, 0, SIZE, input, 0, NULL, 0, NULL, NULL, NULL,
                                            NULL));
  UR(urCommandBufferAppendMemBufferFillExp(buffer, one, &pattern, 2, 16, 32, 0, NULL, 0, NULL, NULL,
                                           NULL, NULL));
  UR(urCommandBufferAppendMemBufferCopyExp(buffer, one, two, 0, 64, 128, 0, NULL, 0, NULL, NULL, NULL,
                                           NULL));
  UR(urCommandBufferAppendMemBufferCopyRectExp(buffer, one, two, inside, start, region, 16, 0, 16, 0, 0,
                                               NULL, 0, NULL, NULL, NULL, NULL));
  UR(urCommandBufferAppendMemBufferWriteRectExp(buffer, two, lower, start, region, 64, 0, 8, 0, input, 0,
                                                NULL, 0, NULL, NULL, NULL, NULL));
  UR(urCommandBufferAppendMemBufferReadRectExp(buffer, two, lower, start, region, 64, 0, 8, 0, rows, 0,
                                               NULL, 0, NULL, NULL, NULL, NULL));
  UR(urCommandBufferAppendMemBufferReadExp(buffer, two, 0, SIZE, output, 0, NULL, 0, NULL, NULL, NULL,
                                           NULL));
  UR(urCommandBufferAppendUSMFillExp(buffer, memory, &pattern, 2, SIZE, 0, NULL, 0, NULL, NULL, NULL,
                                     NULL));
  UR(urCommandBufferAppendUSMPrefetchExp(buffer, memory, SIZE, UR_USM_MIGRATION_FLAG_HOST_TO_DEVICE, 0,
                                         NULL, 0, NULL, NULL, NULL, NULL));
  UR(urCommandBufferAppendUSMAdviseExp(buffer, memory, SIZE, 0, 0, NULL, 0, NULL, NULL, NULL, NULL));
  UR(urCommandBufferFinalizeExp(buffer));
  for (int run = 0; run < 2; run++) {
    memset(output, 0, SIZE), memset(rows, 0, SIZE);
    UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
    UR(urQueueFinish(ur->queue));
    /* The first rows of the copied rectangle start at the offsets 36, 52 and 68. The bytes 36 to 47
       were filled before the copy. */
    EXPECT(output[0] == 1 && output[1] == 2 && output[16] == 52 && output[39] == 75);
    EXPECT(output[64] == 0 && output[64 + 15] == 15 && output[64 + 16] == 1 && output[64 + 17] == 2);
    EXPECT(output[64 + 4] == 0 && output[64 + 11] == 7 && output[3 * 64 + 11] == 23);
    EXPECT(memcmp(rows, input, 24) == 0);
    unsigned char filled[SIZE];
    copy(ur, filled, memory, SIZE);
    EXPECT(filled[0] == 1 && filled[SIZE - 1] == 2);
  }
  UR(urCommandBufferReleaseExp(buffer));
  UR(urMemRelease(one));
  UR(urMemRelease(two));
  UR(urUSMFree(ur->context, memory));
}

/* Updates the arguments, sizes and kernels of recorded launches. Runs that were already enqueued
   use the previous values. */
static void update_launches(struct runtime *ur) {
  struct kernels kernels = load(ur);
  void *memory = allocate(ur, (size_t)COUNT * 4), *other = allocate(ur, (size_t)COUNT * 4);
  void *seen = allocate(ur, (size_t)COUNT * 4);
  ur_exp_command_buffer_handle_t buffer = begin(ur, true, true);
  uint32_t value = 5, count = COUNT;
  size_t global = COUNT, half = COUNT / 2;
  ur_exp_kernel_arg_properties_t arguments[] = {pointer(0, memory), number(1, &value),
                                                number(2, &count)};
  ur_exp_command_buffer_command_handle_t command = NULL, copied = NULL;
  UR(urCommandBufferAppendKernelLaunchWithArgsExp(buffer, kernels.fill, 1, NULL, &global, NULL, 3,
                                                  arguments, 1, &kernels.scale, 0, NULL, 0, NULL, NULL,
                                                  NULL, &command));
  EXPECT(command != NULL);
  UR(urCommandBufferAppendUSMMemcpyExp(buffer, seen, memory, (size_t)COUNT * 4, 0, NULL, 0, NULL, NULL,
                                       NULL, &copied));
  uint32_t next = 7;
  ur_exp_command_buffer_update_value_arg_desc_t new_value = {
      UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_UPDATE_VALUE_ARG_DESC, NULL, 1, sizeof next, NULL, &next};
  ur_exp_command_buffer_update_kernel_launch_desc_t update;
  memset(&update, 0, sizeof update);
  update.stype = UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_UPDATE_KERNEL_LAUNCH_DESC;
  update.hCommand = command;
  update.newWorkDim = 1;
  update.numNewValueArgs = 1;
  update.pNewValueArgList = &new_value;
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION,
          urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  UR(urCommandBufferFinalizeExp(buffer));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  EXPECT(holds(ur, memory, COUNT, 5) && holds(ur, seen, COUNT, 5));
  UR(urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  EXPECT(holds(ur, memory, COUNT, 7) && holds(ur, seen, COUNT, 7));
  /* Update the pointer to the memory. */
  ur_exp_command_buffer_update_pointer_arg_desc_t new_pointer = {
      UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_UPDATE_POINTER_ARG_DESC, NULL, 0, NULL, &other};
  update.numNewPointerArgs = 1;
  update.pNewPointerArgList = &new_pointer;
  next = 9;
  UR(urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  EXPECT(holds(ur, other, COUNT, 9) && holds(ur, memory, COUNT, 7));
  /* Update the size: half of the words. */
  update.pNewGlobalWorkSize = &half;
  next = 10;
  UR(urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  EXPECT(holds(ur, other, COUNT / 2, 10));
  EXPECT(holds(ur, (char *)other + COUNT * 2, COUNT / 2, 9));
  /* Update the kernel and all its arguments. */
  ur_exp_command_buffer_update_value_arg_desc_t values[2] = {new_value, new_value};
  values[1].argIndex = 2;
  values[1].pNewValueArg = &count;
  update.hNewKernel = kernels.scale;
  update.pNewGlobalWorkSize = &global;
  update.numNewValueArgs = 2;
  update.pNewValueArgList = values;
  next = 1;
  UR(urEnqueueUSMFill(ur->queue, other, sizeof value, &value, (size_t)COUNT * 4, 0, NULL, NULL));
  UR(urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  EXPECT(holds(ur, other, COUNT, 16));
  /* Return to the first kernel with one new value, and then to the second kernel without new
     values. Each kernel keeps its latest values for the other arguments. */
  update.numNewPointerArgs = 0;
  update.pNewPointerArgList = NULL;
  update.hNewKernel = kernels.fill;
  update.numNewValueArgs = 1;
  update.pNewValueArgList = &new_value;
  next = 12;
  UR(urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  EXPECT(holds(ur, other, COUNT, 12));
  update.hNewKernel = kernels.scale;
  update.numNewValueArgs = 0;
  update.pNewValueArgList = NULL;
  UR(urEnqueueUSMFill(ur->queue, other, sizeof value, &value, (size_t)COUNT * 4, 0, NULL, NULL));
  UR(urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  EXPECT(holds(ur, other, COUNT, 16));
  update.hNewKernel = kernels.reverse;
  ANSWERS(UR_RESULT_ERROR_INVALID_VALUE, urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  update.hNewKernel = NULL;
  update.newWorkDim = 2;
  update.pNewGlobalWorkSize = NULL;
  ANSWERS(UR_RESULT_ERROR_INVALID_VALUE, urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  update.newWorkDim = 1;
  update.hCommand = copied;
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION, urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  update.hCommand = NULL;
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_HANDLE, urCommandBufferUpdateKernelLaunchExp(buffer, 1, &update));
  ur_exp_command_buffer_handle_t stranger = begin(ur, true, false);
  UR(urCommandBufferFinalizeExp(stranger));
  update.hCommand = command;
  ANSWERS(UR_RESULT_ERROR_INVALID_COMMAND_BUFFER_COMMAND_HANDLE_EXP,
          urCommandBufferUpdateKernelLaunchExp(stranger, 1, &update));
  UR(urCommandBufferReleaseExp(stranger));
  /* The command buffer keeps its kernels alive. */
  unload(&kernels);
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  EXPECT(holds(ur, other, COUNT, 49));
  UR(urCommandBufferReleaseExp(buffer));
  UR(urUSMFree(ur->context, memory));
  UR(urUSMFree(ur->context, other));
  UR(urUSMFree(ur->context, seen));
}

/* One of two threads that update the same command. They update different arguments. */
struct updater {
  ur_exp_command_buffer_handle_t buffer;
  ur_exp_command_buffer_update_kernel_launch_desc_t update;
  pthread_barrier_t *start;
};

static void *update_often(void *of) {
  struct updater *updater = of;
  pthread_barrier_wait(updater->start);
  for (int i = 0; i < 200; i++)
    UR(urCommandBufferUpdateKernelLaunchExp(updater->buffer, 1, &updater->update));
  return NULL;
}

/* Two threads update one command at the same time. No update may be lost, and no thread may wait
   forever. */
static void update_in_threads(struct runtime *ur) {
  struct kernels kernels = load(ur);
  void *memory = allocate(ur, (size_t)COUNT * 4);
  ur_mem_handle_t object = NULL;
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE, (size_t)COUNT * 4, NULL, &object));
  ur_exp_command_buffer_handle_t buffer = begin(ur, true, true);
  uint32_t value = 5, next = 6, count = COUNT;
  size_t global = COUNT;
  ur_exp_kernel_arg_properties_t arguments[] = {pointer(0, memory), number(1, &value),
                                                number(2, &count)};
  ur_exp_command_buffer_command_handle_t command = NULL;
  UR(urCommandBufferAppendKernelLaunchWithArgsExp(buffer, kernels.fill, 1, NULL, &global, NULL, 3,
                                                  arguments, 0, NULL, 0, NULL, 0, NULL, NULL, NULL,
                                                  &command));
  UR(urCommandBufferFinalizeExp(buffer));
  ur_exp_command_buffer_update_value_arg_desc_t new_value = {
      UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_UPDATE_VALUE_ARG_DESC, NULL, 1, sizeof next, NULL, &next};
  ur_exp_command_buffer_update_memobj_arg_desc_t new_object;
  memset(&new_object, 0, sizeof new_object);
  new_object.stype = UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_UPDATE_MEMOBJ_ARG_DESC;
  new_object.hNewMemObjArg = object;
  pthread_barrier_t start;
  EXPECT(pthread_barrier_init(&start, NULL, 2) == 0);
  struct updater updaters[2];
  memset(updaters, 0, sizeof updaters);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    updaters[i].buffer = buffer;
    updaters[i].start = &start;
    updaters[i].update.stype = UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_UPDATE_KERNEL_LAUNCH_DESC;
    updaters[i].update.hCommand = command;
    updaters[i].update.newWorkDim = 1;
  }
  updaters[0].update.numNewValueArgs = 1;
  updaters[0].update.pNewValueArgList = &new_value;
  updaters[1].update.numNewMemObjArgs = 1;
  updaters[1].update.pNewMemObjArgList = &new_object;
  for (int i = 0; i < 2; i++)
    EXPECT(pthread_create(&threads[i], NULL, update_often, &updaters[i]) == 0);
  for (int i = 0; i < 2; i++)
    EXPECT(pthread_join(threads[i], NULL) == 0);
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  UR(urQueueFinish(ur->queue));
  static uint32_t found[COUNT];
  UR(urEnqueueMemBufferRead(ur->queue, object, true, 0, sizeof found, found, 0, NULL, NULL));
  for (int i = 0; i < COUNT; i++)
    EXPECT(found[i] == next);
  EXPECT(pthread_barrier_destroy(&start) == 0);
  UR(urCommandBufferReleaseExp(buffer));
  UR(urMemRelease(object));
  UR(urUSMFree(ur->context, memory));
  unload(&kernels);
}

static void read_gate(void *of) {
  char byte;
  if (read(*(int *)of, &byte, 1) != 1)
    fail("the gate was not opened");
}

static bool is_complete(ur_event_handle_t event) {
  ur_event_status_t status;
  UR(urEventGetInfo(event, UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
  return status == UR_EVENT_STATUS_COMPLETE;
}

static void record_fill(ur_exp_command_buffer_handle_t buffer, void *memory, uint32_t value,
                        ur_event_handle_t after, ur_event_handle_t *event,
                        ur_exp_command_buffer_command_handle_t *command) {
  UR(urCommandBufferAppendUSMFillExp(buffer, memory, &value, sizeof value, BLOCK, 0, NULL, after != NULL,
                                     after ? &after : NULL, NULL, event, command));
}

/* Commands within a command buffer wait for events and signal events. Updates replace these
   events. */
static void wait_and_signal_inside(struct runtime *ur) {
  int gate[2];
  EXPECT(pipe(gate) == 0);
  char *memory = (char *)allocate(ur, 3 * BLOCK);
  ur_queue_properties_t properties = {UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, NULL,
                                      UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE};
  ur_queue_handle_t queue = NULL;
  UR(urQueueCreate(ur->context, ur->device, &properties, &queue));
  ur_event_handle_t opened = NULL, first = NULL, next = NULL, done = NULL, old = NULL;
  ur_exp_command_buffer_handle_t buffer = begin(ur, true, true);
  ur_exp_command_buffer_command_handle_t filled = NULL, copied = NULL, plain = NULL;
  UR(urEnqueueHostTaskExp(queue, (ur_exp_host_task_function_t)read_gate, &gate[0], NULL, 0, NULL,
                          &opened));
  record_fill(buffer, memory, 1, NULL, &first, &plain);
  record_fill(buffer, memory + BLOCK, 2, opened, &next, &filled);
  UR(urCommandBufferAppendUSMMemcpyExp(buffer, memory + 2 * BLOCK, memory + BLOCK, BLOCK, 0, NULL, 1,
                                       &next, NULL, NULL, &copied));
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION, urCommandBufferUpdateSignalEventExp(filled, &old));
  UR(urCommandBufferFinalizeExp(buffer));
  EXPECT(is_complete(first) && is_complete(next));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, &done));
  UR(urEventWait(1, &first));
  EXPECT(!is_complete(next) && !is_complete(done));
  EXPECT(write(gate[1], "o", 1) == 1);
  UR(urEventWait(1, &next));
  UR(urEventWait(1, &done));
  EXPECT(holds(ur, memory, BLOCK / 4, 1) && holds(ur, memory + BLOCK, BLOCK / 2, 2));
  /* Replace the event to wait for and the event to signal. */
  ur_event_handle_t again = NULL, changed = NULL, two[2];
  UR(urEnqueueHostTaskExp(queue, (ur_exp_host_task_function_t)read_gate, &gate[0], NULL, 0, NULL,
                          &again));
  two[0] = two[1] = again;
  ANSWERS(UR_RESULT_ERROR_INVALID_EVENT_WAIT_LIST, urCommandBufferUpdateWaitEventsExp(filled, 2, two));
  ANSWERS(UR_RESULT_ERROR_INVALID_EVENT_WAIT_LIST, urCommandBufferUpdateWaitEventsExp(filled, 0, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_EVENT_WAIT_LIST, urCommandBufferUpdateWaitEventsExp(plain, 1, two));
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION, urCommandBufferUpdateSignalEventExp(copied, &old));
  UR(urCommandBufferUpdateWaitEventsExp(filled, 1, &again));
  UR(urCommandBufferUpdateSignalEventExp(filled, &changed));
  UR(urCommandBufferUpdateWaitEventsExp(copied, 1, &changed));
  UR(urEventRelease(done));
  /* The next run is enqueued in the first queue, because the waiting command may block the other
     queue. */
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, &done));
  UR(urEventWait(1, &first));
  EXPECT(is_complete(next) && !is_complete(changed) && !is_complete(done));
  EXPECT(write(gate[1], "o", 1) == 1);
  UR(urEventWait(1, &done));
  EXPECT(is_complete(changed));
  /* A graph cannot wait for events or signal events between its nodes. */
  ur_exp_graph_handle_t graph = NULL;
  UR(urQueueBeginGraphCaptureExp(queue));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED,
          urEnqueueCommandBufferExp(queue, buffer, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED, urQueueEndGraphCaptureExp(queue, &graph));
  /* Each of many runs follows the previous run. */
  for (int run = 0; run < 50; run++)
    UR(urEnqueueCommandBufferExp(run % 2 ? queue : ur->queue, buffer, 0, NULL, NULL));
  UR(urCommandBufferReleaseExp(buffer));
  UR(urQueueFinish(queue));
  UR(urQueueFinish(ur->queue));
  EXPECT(holds(ur, memory + 2 * BLOCK, BLOCK / 4, 2));
  ur_event_handle_t events[] = {opened, first, next, done, again, changed};
  for (size_t i = 0; i < sizeof events / sizeof *events; i++)
    UR(urEventRelease(events[i]));
  UR(urQueueRelease(queue));
  UR(urUSMFree(ur->context, memory));
  close(gate[0]);
  close(gate[1]);
}

/* Checks the profiling times of a run with several parts. The run starts before the events of the
   later parts are signalled. */
static void profile_parts(struct runtime *ur) {
  int gate[2];
  EXPECT(pipe(gate) == 0);
  char *memory = (char *)allocate(ur, 2 * BLOCK);
  ur_queue_handle_t queue = NULL;
  UR(urQueueCreate(ur->context, ur->device, NULL, &queue));
  ur_exp_command_buffer_desc_t description = {UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC, NULL, false, true,
                                              true};
  ur_exp_command_buffer_handle_t buffer = NULL;
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &buffer));
  ur_event_handle_t opened = NULL, first = NULL, done = NULL;
  UR(urEnqueueHostTaskExp(queue, (ur_exp_host_task_function_t)read_gate, &gate[0], NULL, 0, NULL,
                          &opened));
  record_fill(buffer, memory, 1, NULL, &first, NULL);
  record_fill(buffer, memory + BLOCK, 2, opened, NULL, NULL);
  UR(urCommandBufferFinalizeExp(buffer));
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, &done));
  UR(urEventWait(1, &first));
  uint64_t middle = 0, begin = 0, end = 0;
  UR(urDeviceGetGlobalTimestamps(ur->device, &middle, NULL));
  EXPECT(write(gate[1], "o", 1) == 1);
  UR(urEventWait(1, &done));
  UR(urEventGetProfilingInfo(done, UR_PROFILING_INFO_COMMAND_START, sizeof begin, &begin, NULL));
  UR(urEventGetProfilingInfo(done, UR_PROFILING_INFO_COMMAND_END, sizeof end, &end, NULL));
  EXPECT(begin <= middle && middle <= end);
  UR(urQueueFinish(queue));
  ur_event_handle_t events[] = {opened, first, done};
  for (size_t i = 0; i < sizeof events / sizeof *events; i++)
    UR(urEventRelease(events[i]));
  UR(urCommandBufferReleaseExp(buffer));
  UR(urQueueRelease(queue));
  UR(urUSMFree(ur->context, memory));
  close(gate[0]);
  close(gate[1]);
}

/* Checks that a queue of another context is refused before any command is recorded. */
static void refuse_other_contexts(struct runtime *ur, ur_exp_command_buffer_handle_t buffer) {
  ur_context_handle_t context = NULL;
  ur_queue_handle_t queue = NULL;
  ur_exp_graph_handle_t graph = NULL;
  UR(urContextCreate(1, &ur->device, NULL, &context));
  UR(urQueueCreate(context, ur->device, NULL, &queue));
  ANSWERS(UR_RESULT_ERROR_INVALID_QUEUE, urEnqueueCommandBufferExp(queue, buffer, 0, NULL, NULL));
  UR(urQueueBeginGraphCaptureExp(queue));
  ANSWERS(UR_RESULT_ERROR_INVALID_QUEUE, urEnqueueCommandBufferExp(queue, buffer, 0, NULL, NULL));
  UR(urQueueEndGraphCaptureExp(queue, &graph));
  UR(urGraphDestroyExp(graph));
  UR(urQueueRelease(queue));
  UR(urContextRelease(context));
}

static void answer_errors(struct runtime *ur) {
  char *memory = (char *)allocate(ur, 64);
  ur_exp_command_buffer_handle_t buffer = begin(ur, false, false);
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION,
          urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
  ur_exp_command_buffer_sync_point_t point = 3;
  ANSWERS(UR_RESULT_ERROR_INVALID_COMMAND_BUFFER_SYNC_POINT_EXP,
          urCommandBufferAppendUSMMemcpyExp(buffer, memory, memory + 32, 32, 1, &point, 0, NULL, NULL,
                                            NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_SIZE,
          urCommandBufferAppendUSMMemcpyExp(buffer, memory, memory + 32, 64, 0, NULL, 0, NULL, NULL,
                                            NULL, NULL));
  ur_exp_command_buffer_command_handle_t command = NULL;
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION,
          urCommandBufferAppendUSMMemcpyExp(buffer, memory, memory + 32, 32, 0, NULL, 0, NULL, NULL,
                                            NULL, &command));
  ur_event_handle_t event = NULL;
  UR(urCommandBufferFinalizeExp(buffer));
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION, urCommandBufferFinalizeExp(buffer));
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION,
          urCommandBufferAppendUSMMemcpyExp(buffer, memory, memory + 32, 32, 0, NULL, 0, NULL, NULL,
                                            NULL, NULL));
  /* A run of an empty command buffer only waits for events and signals its event. */
  UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, &event));
  UR(urEventWait(1, &event));
  UR(urEventRelease(event));
  refuse_other_contexts(ur, buffer);
  UR(urCommandBufferReleaseExp(buffer));
  UR(urUSMFree(ur->context, memory));
}

static void count_call(void *of) { ++*(int *)of; }

/* A native command's function is called while the command is appended. If it appends nothing, the
   command only orders others. `native.c` and `native_level_zero.c` append work of a driver. */
static void call_native_functions(struct runtime *ur) {
  char *memory = (char *)allocate(ur, 2 * BLOCK);
  ur_exp_command_buffer_desc_t description = {UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC, NULL, false,
                                              false, false};
  ur_exp_command_buffer_handle_t buffer = NULL;
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &buffer));
  ur_native_handle_t native = 0;
  ur_result_t result = urCommandBufferGetNativeHandleExp(buffer, &native);
  EXPECT(native != 0 ? result == UR_RESULT_SUCCESS : result == UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
  uint32_t value = 3;
  int calls = 0;
  ur_exp_command_buffer_sync_point_t filled, called;
  UR(urCommandBufferAppendUSMFillExp(buffer, memory, &value, sizeof value, BLOCK, 0, NULL, 0, NULL,
                                     &filled, NULL, NULL));
  UR(urCommandBufferAppendNativeCommandExp(buffer, count_call, &calls, NULL, 1, &filled, &called));
  EXPECT(calls == 1);
  UR(urCommandBufferAppendUSMMemcpyExp(buffer, memory + BLOCK, memory, BLOCK, 1, &called, 0, NULL, NULL,
                                       NULL, NULL));
  UR(urCommandBufferFinalizeExp(buffer));
  for (int round = 0; round < 2; round++) {
    UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
    UR(urQueueFinish(ur->queue));
    EXPECT(holds(ur, memory, 2 * BLOCK / sizeof value, 3));
  }
  EXPECT(calls == 1);
  UR(urCommandBufferReleaseExp(buffer));
  UR(urUSMFree(ur->context, memory));
}

int main(int count, char **words) {
  limit_life();
  if (count == 2 && strcmp(words[1], "second") == 0)
    return second();
  struct runtime ur = start_runtime();
  EXPECT(supports(&ur, UR_DEVICE_INFO_COMMAND_BUFFER_SUPPORT_EXP));
  EXPECT(supports(&ur, UR_DEVICE_INFO_COMMAND_BUFFER_EVENT_SUPPORT_EXP));
  compute_in_turns(&ur);
  run_in_several_queues(&ur);
  record_buffer_commands(&ur);
  wait_and_signal_inside(&ur);
  profile_parts(&ur);
  call_native_functions(&ur);
  /* The test sets this variable if the device supports kernels. */
  if (getenv("KERNELS_PTX") != NULL) {
    update_launches(&ur);
    update_in_threads(&ur);
  }
  answer_errors(&ur);
  stop_runtime(&ur);
  return 0;
}
