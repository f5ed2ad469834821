/* Direct Level Zero calls combined with Unified Runtime, in both directions. Drivers, devices,
   contexts, lists, events and memory are passed as native handles. */
#include "native.h"
#include "ze.h"

#define ROUNDS 24
/* Number of events in a chain. Each event waits for the next one. */
#define CHAIN 12

/* A gate that blocks a queue. Later commands in the queue stay pending until the gate is opened. */
struct gate {
  int ends[2];
};

static void pass(void *data) {
  struct gate *gate = data;
  char token;
  (void)!read(gate->ends[0], &token, 1);
}

static void close_gate(struct gate *gate, ur_queue_handle_t queue) {
  EXPECT(pipe(gate->ends) == 0);
  UR(urEnqueueHostTaskExp(queue, pass, gate, NULL, 0, NULL, NULL));
}

static void open_gate(struct gate *gate) { EXPECT(write(gate->ends[1], "o", 1) == 1); }

static void remove_gate(struct gate *gate) {
  close(gate->ends[0]);
  close(gate->ends[1]);
}

static ze_handle native_of_context(struct runtime *ur) {
  ur_native_handle_t native = 0;
  UR(urContextGetNativeHandle(ur->context, &native));
  return (ze_handle)native;
}

static ze_handle native_of_device(struct runtime *ur) {
  ur_native_handle_t native = 0;
  UR(urDeviceGetNativeHandle(ur->device, &native));
  return (ze_handle)native;
}

static ze_handle native_of_queue(ur_queue_handle_t queue) {
  ur_native_handle_t native = 0;
  int32_t is_immediate = -1;
  ur_queue_native_desc_t desc = {UR_STRUCTURE_TYPE_QUEUE_NATIVE_DESC, NULL, &is_immediate};
  UR(urQueueGetNativeHandle(queue, &desc, &native));
  EXPECT(is_immediate == 1);
  return (ze_handle)native;
}

static ze_handle native_of_event(ur_event_handle_t event) {
  ur_native_handle_t native = 0;
  UR(urEventGetNativeHandle(event, &native));
  return (ze_handle)native;
}

static ur_queue_handle_t adopt_list(struct runtime *ur, ze_handle list, bool is_owned) {
  int32_t is_immediate = 1;
  ur_queue_native_desc_t desc = {UR_STRUCTURE_TYPE_QUEUE_NATIVE_DESC, NULL, &is_immediate};
  ur_queue_native_properties_t properties = {UR_STRUCTURE_TYPE_QUEUE_NATIVE_PROPERTIES, &desc,
                                             is_owned};
  ur_queue_handle_t queue = NULL;
  UR(urQueueCreateWithNativeHandle((ur_native_handle_t)list, ur->context, ur->device, &properties,
                                   &queue));
  is_immediate = 0;
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
          urQueueCreateWithNativeHandle((ur_native_handle_t)list, ur->context, ur->device,
                                        &properties, &(ur_queue_handle_t){NULL}));
  return queue;
}

static ur_event_handle_t adopt_event(struct runtime *ur, ze_handle native, bool is_owned) {
  ur_event_native_properties_t properties = {UR_STRUCTURE_TYPE_EVENT_NATIVE_PROPERTIES, NULL,
                                             is_owned};
  ur_event_handle_t event = NULL;
  UR(urEventCreateWithNativeHandle((ur_native_handle_t)native, ur->context, &properties, &event));
  return event;
}

static bool is_complete(ur_event_handle_t event) {
  ur_event_status_t status = UR_EVENT_STATUS_FORCE_UINT32;
  UR(urEventGetInfo(event, UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
  return status == UR_EVENT_STATUS_COMPLETE;
}

/* Checks that the native driver and the native device are among those that Level Zero lists. */
static void platform_and_device(struct runtime *ur) {
  ze_handle drivers[8], devices[16];
  uint32_t drivers_count = 8, devices_count = 16;
  ur_native_handle_t native = 0;
  UR(urPlatformGetNativeHandle(ur->platform, &native));
  ZE(ze.zeDriverGet(&drivers_count, drivers));
  EXPECT(drivers_count > 0 && (ze_handle)native == drivers[0]);
  ur_platform_handle_t platform = NULL;
  UR(urPlatformCreateWithNativeHandle(native, ur->adapter, NULL, &platform));
  EXPECT(platform == ur->platform);
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urPlatformCreateWithNativeHandle(native + 64, ur->adapter, NULL, &platform));
  ZE(ze.zeDeviceGet(drivers[0], &devices_count, devices));
  EXPECT(devices_count > 0 && native_of_device(ur) == devices[0]);
  ur_device_handle_t device = NULL;
  UR(urDeviceCreateWithNativeHandle((ur_native_handle_t)devices[0], ur->adapter, NULL, &device));
  EXPECT(device == ur->device);
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urDeviceCreateWithNativeHandle(native, ur->adapter, NULL, &device));
}

/* Submits native commands between the commands of a UR queue, also after a command that waits for
   the host. */
static void their_commands_in_our_queue(struct runtime *ur, ur_queue_handle_t queue) {
  char *memory = allocate(ur, SIZE);
  for (char round = 2; round < ROUNDS; round++) {
    struct gate gate;
    char before = 1, after = (char)(round + 50);
    bool waits = round % 4 == 0;
    if (waits)
      close_gate(&gate, queue);
    ur_event_handle_t filled = NULL;
    UR(urEnqueueUSMFill(queue, memory, 1, &before, SIZE, 0, NULL, NULL));
    UR(urEnqueueEventsWaitWithBarrier(queue, 0, NULL, NULL));
    ze_handle list = native_of_queue(queue);
    EXPECT(list == native_of_queue(queue));
    ze_fill(list, memory, round, SIZE);
    if (round % 3 == 0) {
      UR(urEnqueueEventsWaitWithBarrier(queue, 0, NULL, NULL));
      UR(urEnqueueUSMFill(queue, memory, 1, &after, SIZE, 0, NULL, &filled));
    }
    if (waits) {
      ur_bool_t is_empty = true;
      UR(urQueueGetInfo(queue, UR_QUEUE_INFO_EMPTY, sizeof is_empty, &is_empty, NULL));
      EXPECT(!is_empty && (filled == NULL || !is_complete(filled)));
      open_gate(&gate);
    }
    UR(urQueueFinish(queue));
    EXPECT(last_byte(ur, memory) == (filled == NULL ? round : after));
    if (filled != NULL)
      UR(urEventRelease(filled));
    if (waits)
      remove_gate(&gate);
  }
  UR(urUSMFree(ur->context, memory));
}

/* Submits UR commands between native commands, in a native list. */
static void our_commands_in_their_list(struct runtime *ur) {
  char *memory = allocate(ur, SIZE), other = 100;
  ze_handle context = native_of_context(ur), list = ze_create_list(context, native_of_device(ur));
  ur_queue_handle_t queue = adopt_list(ur, list, false);
  EXPECT(native_of_queue(queue) == list);
  for (char round = 1; round < ROUNDS; round++) {
    struct gate gate;
    ur_event_handle_t before = NULL;
    close_gate(&gate, ur->queue);
    UR(urEnqueueUSMFill(ur->queue, memory, 1, &other, SIZE, 0, NULL, &before));
    ze_fill(list, memory, 99, SIZE);
    /* An odd length, and a pattern size that the driver does not support, so the adapter must
       submit several commands. */
    char pattern[3] = {round, round, round};
    UR(urEnqueueUSMFill(queue, memory + 1, 3, pattern, SIZE - 4, 1, &before, NULL));
    ze_fill(list, memory + SIZE - 3, (char)(round + 1), 3);
    open_gate(&gate);
    ze_finish(context, list);
    EXPECT(last_byte(ur, memory) == round + 1);
    char found = 0;
    copy(ur, &found, memory + SIZE - 4, 1);
    EXPECT(found == round);
    UR(urEventRelease(before));
    remove_gate(&gate);
  }
  UR(urQueueFinish(queue));
  UR(urQueueRelease(queue));
  ze_fill(list, memory, 7, SIZE);
  ze_finish(context, list);
  EXPECT(last_byte(ur, memory) == 7);
  /* The program transfers the ownership of the list, and does not use the list afterwards. */
  queue = adopt_list(ur, list, true);
  their_commands_in_our_queue(ur, queue);
  UR(urQueueRelease(queue));
  UR(urUSMFree(ur->context, memory));
}

/* Native commands wait for UR events, and UR commands wait for native events. */
static void events(struct runtime *ur) {
  char *memory = allocate(ur, SIZE), byte = 0;
  ze_handle context = native_of_context(ur), list = ze_create_list(context, native_of_device(ur));
  for (char round = 1; round < ROUNDS; round++) {
    struct gate gate;
    ur_event_handle_t filled = NULL;
    close_gate(&gate, ur->queue);
    UR(urEnqueueUSMFill(ur->queue, memory, 1, &byte, SIZE, 0, NULL, &filled));
    ze_handle native = native_of_event(filled);
    EXPECT(native == native_of_event(filled));
    EXPECT(ze.zeEventQueryStatus(native) == ZE_NOT_READY);
    ZE(ze.zeCommandListAppendWaitOnEvents(list, 1, &native));
    ze_fill(list, memory, round, SIZE);
    struct ze_event recorded = ze_create_event(context);
    ZE(ze.zeCommandListAppendSignalEvent(list, recorded.event));
    bool is_owned = round % 2;
    ur_event_handle_t done = adopt_event(ur, recorded.event, is_owned);
    EXPECT(!is_complete(done));
    open_gate(&gate);
    UR(urEnqueueEventsWait(ur->queue, 1, &done, NULL));
    EXPECT(last_byte(ur, memory) == round);
    UR(urEventWait(1, &done));
    ZE(ze.zeEventHostSynchronize(native, 0));
    ur_event_handle_t again = adopt_event(ur, native, false);
    UR(urEventWait(1, &again));
    UR(urEventRelease(again));
    UR(urEventRelease(done));
    UR(urEventRelease(filled));
    if (!is_owned)
      ZE(ze.zeEventDestroy(recorded.event));
    ZE(ze.zeEventPoolDestroy(recorded.pool));
    remove_gate(&gate);
  }
  ze_finish(context, list);
  ZE(ze.zeCommandListDestroy(list));
  UR(urUSMFree(ur->context, memory));
}

/* Creates a chain of events, each of which waits for the event that is created after it. */
static void chain(struct runtime *ur) {
  ze_handle context = native_of_context(ur), device = native_of_device(ur);
  struct ze_event first[CHAIN];
  ze_handle lists[CHAIN];
  ur_event_handle_t waiting[CHAIN], ours[CHAIN] = {NULL};
  ur_queue_handle_t queues[CHAIN];
  for (int i = 0; i < CHAIN; i++) {
    /* A UR event waits for a native event of the program, which waits for another UR event. */
    first[i] = ze_create_event(context);
    waiting[i] = adopt_event(ur, first[i].event, false);
    UR(urQueueCreate(ur->context, ur->device, NULL, &queues[i]));
    UR(urEnqueueEventsWait(queues[i], 1, &waiting[i], &ours[i]));
    lists[i] = ze_create_list(context, device);
    ze_handle native = native_of_event(ours[i]);
    ZE(ze.zeCommandListAppendWaitOnEvents(lists[i], 1, &native));
    if (i > 0)
      ZE(ze.zeCommandListAppendSignalEvent(lists[i], first[i - 1].event));
  }
  EXPECT(!is_complete(waiting[0]));
  ZE(ze.zeEventHostSignal(first[CHAIN - 1].event));
  UR(urEventWait(1, &ours[0]));
  for (int i = 0; i < CHAIN; i++) {
    EXPECT(is_complete(waiting[i]));
    ze_finish(context, lists[i]);
    UR(urQueueRelease(queues[i]));
    UR(urEventRelease(waiting[i]));
    UR(urEventRelease(ours[i]));
    ZE(ze.zeCommandListDestroy(lists[i]));
    ZE(ze.zeEventDestroy(first[i].event));
    ZE(ze.zeEventPoolDestroy(first[i].pool));
  }
}

struct fill {
  char *memory;
  char byte;
};

static void submit_fill(ur_queue_handle_t queue, void *data) {
  struct fill *fill = data;
  ze_fill(native_of_queue(queue), fill->memory, fill->byte, SIZE);
}

/* UR functions that submit native commands, with events before and after them. */
static void native_commands(struct runtime *ur, ur_queue_handle_t queue) {
  struct fill fill = {allocate(ur, SIZE), 0};
  char other = 111;
  for (fill.byte = 1; fill.byte < ROUNDS; fill.byte++) {
    struct gate gate;
    ur_event_handle_t before = NULL, after = NULL;
    close_gate(&gate, ur->queue);
    UR(urEnqueueUSMFill(ur->queue, fill.memory, 1, &other, SIZE, 0, NULL, &before));
    UR(urEnqueueNativeCommandExp(queue, submit_fill, &fill, 0, NULL, NULL, 1, &before, &after));
    EXPECT(!is_complete(after));
    open_gate(&gate);
    UR(urEventWait(1, &after));
    EXPECT(last_byte(ur, fill.memory) == fill.byte);
    UR(urEventRelease(before));
    UR(urEventRelease(after));
    remove_gate(&gate);
  }
  UR(urUSMFree(ur->context, fill.memory));
}

/* UR commands use native memory, and native commands use UR memory. */
static void memory(struct runtime *ur) {
  ze_handle context = native_of_context(ur), list = ze_create_list(context, native_of_device(ur));
  struct ze_description desc = {ZE_DEVICE_MEMORY_DESC, NULL, {0}};
  char *ours = allocate(ur, SIZE), byte = 3, found = 0;
  void *theirs = NULL;
  ZE(ze.zeMemAllocDevice(context, &desc, SIZE, 0, native_of_device(ur), &theirs));
  UR(urEnqueueUSMFill(ur->queue, ours, 1, &byte, SIZE, 0, NULL, NULL));
  UR(urQueueFinish(ur->queue));
  ZE(ze.zeCommandListAppendMemoryCopy(list, theirs, ours, SIZE, NULL, 0, NULL));
  ze_finish(context, list);
  copy(ur, &found, (char *)theirs + SIZE - 1, 1);
  EXPECT(found == byte);
  ur_mem_native_properties_t properties = {UR_STRUCTURE_TYPE_MEM_NATIVE_PROPERTIES, NULL, false};
  for (byte = 10; byte < 20; byte += 5) {
    ur_mem_handle_t buffer = NULL;
    ur_native_handle_t native = 0;
    UR(urMemBufferCreateWithNativeHandle((ur_native_handle_t)theirs, ur->context, &properties,
                                         &buffer));
    UR(urMemGetNativeHandle(buffer, ur->device, &native));
    EXPECT((void *)native == theirs);
    UR(urEnqueueMemBufferFill(ur->queue, buffer, &byte, 1, 0, SIZE, 0, NULL, NULL));
    UR(urEnqueueMemBufferRead(ur->queue, buffer, true, SIZE - 1, 1, &found, 0, NULL, NULL));
    EXPECT(found == byte);
    /* In the second round, the ownership of the memory is transferred. */
    UR(urMemRelease(buffer));
    properties.isNativeHandleOwned = true;
  }
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urMemBufferCreateWithNativeHandle((ur_native_handle_t)&byte, ur->context, &properties,
                                            &(ur_mem_handle_t){NULL}));
  ZE(ze.zeCommandListDestroy(list));
  UR(urUSMFree(ur->context, ours));
}

/* Uses a native context that the program created. */
static void their_context(struct runtime *ur) {
  struct runtime inside = *ur;
  struct ze_description desc = {ZE_CONTEXT_DESC, NULL, {0}};
  ur_native_handle_t driver = 0;
  ze_handle made = NULL;
  UR(urPlatformGetNativeHandle(ur->platform, &driver));
  ZE(ze.zeContextCreate((ze_handle)driver, &desc, &made));
  UR(urContextCreateWithNativeHandle((ur_native_handle_t)made, ur->adapter, 1, &ur->device, NULL,
                                     &inside.context));
  EXPECT(native_of_context(&inside) == made);
  UR(urQueueCreate(inside.context, inside.device, NULL, &inside.queue));
  their_commands_in_our_queue(&inside, inside.queue);
  our_commands_in_their_list(&inside);
  events(&inside);
  memory(&inside);
  /* Memory in this context can be shared like all other memory. */
  void *shared = allocate(&inside, SIZE);
  write_pattern(&inside, shared, SIZE, 1);
  struct bytes handle = share_memory(&inside, shared);
  void *opened = open_memory(ur, handle);
  EXPECT(has_pattern(ur, opened, SIZE, 1, 0));
  UR(urIPCCloseMemHandleExp(ur->context, opened));
  UR(urUSMFree(inside.context, shared));
  UR(urQueueRelease(inside.queue));
  UR(urContextRelease(inside.context));
  ZE(ze.zeContextDestroy(made));
}

/* Appends the copy to the command list of a command buffer. */
static void append_native_copy(ur_native_handle_t native, const struct native_copy *copy) {
  ZE(ze.zeCommandListAppendMemoryCopy((ze_handle)native, copy->to, copy->from, SIZE, NULL, 0, NULL));
}

static void wait_natively(ur_event_handle_t event) {
  ZE(ze.zeEventHostSynchronize(native_of_event(event), UINT64_MAX));
}

int main(void) {
  limit_life();
  struct runtime ur = start_runtime();
  load_ze();
  ur_queue_properties_t properties = {UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, NULL,
                                      UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE};
  ur_queue_handle_t in_order = NULL, free_order = NULL;
  UR(urQueueCreate(ur.context, ur.device, NULL, &in_order));
  UR(urQueueCreate(ur.context, ur.device, &properties, &free_order));
  platform_and_device(&ur);
  memory(&ur);
  their_commands_in_our_queue(&ur, in_order);
  their_commands_in_our_queue(&ur, free_order);
  native_commands(&ur, in_order);
  native_commands(&ur, free_order);
  our_commands_in_their_list(&ur);
  events(&ur);
  chain(&ur);
  shared_events_have_no_handle(&ur, wait_natively);
  native_commands_in_command_buffers(&ur, false);
  native_commands_in_command_buffers(&ur, true);
  their_context(&ur);
  UR(urQueueRelease(in_order));
  UR(urQueueRelease(free_order));
  stop_runtime(&ur);
  return 0;
}
