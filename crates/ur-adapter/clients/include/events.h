/* Helpers for clients that use shared events to order the work of several processes. */
#ifndef EVENTS_H
#define EVENTS_H

#include "ur.h"

/* Returns a new event that can be shared. */
static inline ur_event_handle_t shared_event(struct runtime *ur) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL, UR_EXP_EVENT_FLAG_IPC_EXP};
  ur_event_handle_t event = NULL;
  UR(urEventCreateExp(ur->context, ur->device, &description, &event));
  return event;
}

/* Returns the bytes of a handle for an event. The adapter's buffer for the handle is returned
   before this function ends. */
static inline struct bytes share_event(struct runtime *ur, ur_event_handle_t event) {
  void *data = NULL;
  size_t size = 0;
  UR(urIPCGetEventHandleExp(event, &data, &size));
  struct bytes bytes = bytes_of(data, size);
  UR(urIPCPutEventHandleExp(ur->context, data));
  return bytes;
}

static inline ur_event_handle_t open_event(struct runtime *ur, struct bytes handle) {
  ur_event_handle_t event = NULL;
  UR(urIPCOpenEventHandleExp(ur->context, handle.data, handle.size, &event));
  return event;
}

/* Signals an event after all earlier commands in the queue. */
static inline void signal_event(struct runtime *ur, ur_event_handle_t event) {
  UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 0, NULL, &event));
}

/* Makes the queue wait for an event's latest signal. */
static inline void wait_for(struct runtime *ur, ur_event_handle_t event) {
  UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 1, &event, NULL));
}

#endif
