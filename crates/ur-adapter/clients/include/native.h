/* Native commands in command buffers, and native handles of shared events. The clients of CUDA, Level
   Zero and OpenCL include this file. */
#ifndef NATIVE_H
#define NATIVE_H

#include "events.h"
#include "ur.h"

#define SIZE ((size_t)64 << 10)

static inline char last_byte(struct runtime *ur, const char *memory) {
  char byte = 0;
  copy(ur, &byte, memory + SIZE - 1, 1);
  return byte;
}

/* What a function of the program appends to the native handle of a command buffer: a copy. */
struct native_copy {
  ur_exp_command_buffer_handle_t buffer;
  ur_context_handle_t context;
  char *from, *to;
  int calls;
};

/* Appends the copy to an object of the driver. Each client defines this function. */
static void append_native_copy(ur_native_handle_t native, const struct native_copy *copy);

static void append_copy(void *of) {
  struct native_copy *copy = (struct native_copy *)of;
  ur_native_handle_t native = 0, same = 0;
  UR(urCommandBufferGetNativeHandleExp(copy->buffer, &native));
  UR(urCommandBufferGetNativeHandleExp(copy->buffer, &same));
  EXPECT(native != 0 && native == same);
  append_native_copy(native, copy);
  copy->calls++;
}

static void append_nothing(void *of) { ++*(int *)of; }

/* Native commands of a command buffer run between its other commands, once in each run. The
   functions are called while the commands are appended. */
static inline void native_commands_in_command_buffers(struct runtime *ur, bool in_order) {
  char *memory = (char *)allocate(ur, 4 * SIZE);
  ur_exp_command_buffer_desc_t description = {UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC, NULL, false,
                                              in_order, false};
  ur_exp_command_buffer_handle_t buffer = NULL, child = NULL;
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &buffer));
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &child));
  ur_exp_command_buffer_sync_point_t points[4];
  uint32_t count = in_order ? 0 : 1;
#define AFTER(index) count, count ? &points[index] : NULL
  char byte = 5;
  int calls = 0;
  UR(urCommandBufferAppendUSMFillExp(buffer, memory, &byte, 1, SIZE, 0, NULL, 0, NULL, &points[0], NULL,
                                     NULL));
  struct native_copy first = {child, ur->context, memory, memory + SIZE, 0};
  UR(urCommandBufferAppendNativeCommandExp(buffer, append_copy, &first, child, AFTER(0), &points[1]));
  /* Without a child, the function appends to the command buffer itself. */
  struct native_copy second = {buffer, ur->context, memory + SIZE, memory + 2 * SIZE, 0};
  UR(urCommandBufferAppendNativeCommandExp(buffer, append_copy, &second, NULL, AFTER(1), &points[2]));
  UR(urCommandBufferAppendNativeCommandExp(buffer, append_nothing, &calls, NULL, AFTER(2), &points[3]));
  EXPECT(first.calls == 1 && second.calls == 1 && calls == 1);
  UR(urCommandBufferAppendUSMMemcpyExp(buffer, memory + 3 * SIZE, memory + 2 * SIZE, SIZE, AFTER(3), 0,
                                       NULL, NULL, NULL, NULL));
#undef AFTER
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER,
          urCommandBufferAppendNativeCommandExp(buffer, NULL, NULL, NULL, 0, NULL, NULL));
  UR(urCommandBufferFinalizeExp(buffer));
  UR(urCommandBufferReleaseExp(child));
  ur_native_handle_t native = 0;
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION, urCommandBufferGetNativeHandleExp(buffer, &native));
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION,
          urCommandBufferAppendNativeCommandExp(buffer, append_nothing, &calls, NULL, 0, NULL, NULL));
  EXPECT(native == 0 && calls == 1);
  for (int round = 0; round < 3; round++) {
    byte = 6;
    UR(urEnqueueUSMFill(ur->queue, memory, 1, &byte, 4 * SIZE, 0, NULL, NULL));
    UR(urEnqueueCommandBufferExp(ur->queue, buffer, 0, NULL, NULL));
    UR(urQueueFinish(ur->queue));
    for (int block = 0; block < 4; block++)
      EXPECT(last_byte(ur, memory + block * SIZE) == 5);
  }
  UR(urCommandBufferReleaseExp(buffer));
  /* A child with other commands, and an unused native handle. */
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &buffer));
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &child));
  UR(urCommandBufferAppendUSMFillExp(child, memory, &byte, 1, SIZE, 0, NULL, 0, NULL, NULL, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
          urCommandBufferAppendNativeCommandExp(buffer, append_nothing, &calls, child, 0, NULL, NULL));
  EXPECT(calls == 1);
  UR(urCommandBufferGetNativeHandleExp(buffer, &native));
  EXPECT(native != 0);
  UR(urCommandBufferReleaseExp(buffer));
  UR(urCommandBufferReleaseExp(child));
  UR(urUSMFree(ur->context, memory));
}

/* A shared event gives no native handle, because its native signals would not reach the other
   processes. A program waits natively for the event of a barrier instead. `wait` does that. */
static inline void shared_events_have_no_handle(struct runtime *ur, void (*wait)(ur_event_handle_t)) {
  ur_event_handle_t created = shared_event(ur), opened = open_event(ur, share_event(ur, created));
  ur_event_handle_t barrier = NULL;
  ur_native_handle_t native = 7;
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE, urEventGetNativeHandle(created, &native));
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE, urEventGetNativeHandle(opened, &native));
  EXPECT(native == 7);
  signal_event(ur, opened);
  UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 1, &created, &barrier));
  wait(barrier);
  UR(urEventWait(1, &created));
  UR(urEventRelease(barrier));
  UR(urEventRelease(opened));
  UR(urEventRelease(created));
}

#endif
