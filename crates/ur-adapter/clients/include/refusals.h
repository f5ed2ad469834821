/* Error codes that only a driver can return, and the corresponding Unified Runtime results. The
   simulated Level Zero driver returns each code from the calls that sharing depends on. */
#ifndef REFUSALS_H
#define REFUSALS_H

#include "rows.h"
#include <dlfcn.h>

/* A size in bytes that exceeds a shared segment, so the driver creates a separate allocation. */
#define LARGE ((size_t)96 << 20)

/* An error code from the driver, and the corresponding Unified Runtime result. */
struct refusal {
  const char *name;
  uint32_t code;
  ur_result_t result;
};

static const struct refusal codes[] = {
    {"DEVICE_LOST", 0x70000001, UR_RESULT_ERROR_DEVICE_LOST},
    {"OUT_OF_HOST_MEMORY", 0x70000002, UR_RESULT_ERROR_OUT_OF_HOST_MEMORY},
    {"OUT_OF_DEVICE_MEMORY", 0x70000003, UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY},
    {"INSUFFICIENT_PERMISSIONS", 0x70010000, UR_RESULT_ERROR_INVALID_OPERATION},
    {"NOT_AVAILABLE", 0x70010001, UR_RESULT_ERROR_INVALID_OPERATION},
    {"UNINITIALIZED", 0x78000001, UR_RESULT_ERROR_UNINITIALIZED},
    {"UNSUPPORTED_FEATURE", 0x78000003, UR_RESULT_ERROR_UNSUPPORTED_FEATURE},
    {"INVALID_ARGUMENT", 0x78000004, UR_RESULT_ERROR_INVALID_ARGUMENT},
    {"INVALID_NULL_POINTER", 0x78000007, UR_RESULT_ERROR_INVALID_VALUE},
    {"INVALID_SIZE", 0x78000008, UR_RESULT_ERROR_INVALID_VALUE},
    {"UNSUPPORTED_SIZE", 0x78000009, UR_RESULT_ERROR_INVALID_VALUE},
    {"UNSUPPORTED_ALIGNMENT", 0x7800000a, UR_RESULT_ERROR_INVALID_VALUE},
    {"INVALID_SYNCHRONIZATION_OBJECT", 0x7800000b, UR_RESULT_ERROR_INVALID_EVENT},
    {"INVALID_ENUMERATION", 0x7800000c, UR_RESULT_ERROR_INVALID_VALUE},
    {"UNKNOWN", 0x7ffffffe, UR_RESULT_ERROR_ADAPTER_SPECIFIC},
};

/* The objects that the following calls use. */
struct shared {
  struct runtime *ur;
  void *large, *other;
  struct bytes memory, physical;
  size_t unit;
};

static inline ur_result_t get_memory(struct shared *on) {
  void *data = NULL;
  size_t size = 0;
  ur_result_t result = urIPCGetMemHandleExp(on->ur->context, on->large, &data, &size);
  if (result == UR_RESULT_SUCCESS)
    UR(urIPCPutMemHandleExp(on->ur->context, data));
  return result;
}

static inline ur_result_t open_theirs(struct shared *on) {
  void *opened = NULL;
  struct bytes *handle = &on->memory;
  ur_result_t result = urIPCOpenMemHandleExp(on->ur->context, on->ur->device, handle->data,
                                             handle->size, &opened);
  if (result == UR_RESULT_SUCCESS)
    UR(urIPCCloseMemHandleExp(on->ur->context, opened));
  return result;
}

static inline ur_result_t open_their_physical(struct shared *on) {
  ur_physical_mem_handle_t opened = NULL;
  struct bytes *handle = &on->physical;
  ur_result_t result = urIPCOpenPhysMemHandleExp(on->ur->context, on->ur->device, handle->data,
                                                 handle->size, &opened);
  if (result == UR_RESULT_SUCCESS)
    UR(urIPCClosePhysMemHandleExp(on->ur->context, opened));
  return result;
}

static inline ur_result_t get_physical(struct shared *on) {
  ur_physical_mem_properties_t properties = {UR_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES, NULL,
                                             UR_PHYSICAL_MEM_FLAG_ENABLE_IPC};
  ur_physical_mem_handle_t made = NULL;
  void *data = NULL;
  size_t size = 0;
  ur_result_t result =
      urPhysicalMemCreate(on->ur->context, on->ur->device, on->unit, &properties, &made);
  if (result != UR_RESULT_SUCCESS)
    return result;
  result = urIPCGetPhysMemHandleExp(on->ur->context, made, &data, &size);
  if (result == UR_RESULT_SUCCESS)
    UR(urIPCPutPhysMemHandleExp(on->ur->context, data));
  UR(urPhysicalMemRelease(made));
  return result;
}

static inline ur_result_t allocate_large(struct shared *on) {
  void *made = NULL;
  ur_result_t result =
      urUSMDeviceAlloc(on->ur->context, on->ur->device, NULL, NULL, LARGE, &made);
  if (result == UR_RESULT_SUCCESS)
    UR(urUSMFree(on->ur->context, made));
  return result;
}

/* Runs a copy that the driver refuses. The queue reports the error when the copy is submitted or
   when the queue finishes. */
static inline ur_result_t run_copy(struct shared *on) {
  ur_queue_handle_t queue = NULL;
  UR(urQueueCreate(on->ur->context, on->ur->device, NULL, &queue));
  ur_result_t result = urEnqueueUSMMemcpy(queue, false, on->other, on->large, 64, 0, NULL, NULL);
  ur_result_t finished = urQueueFinish(queue);
  UR(urQueueRelease(queue));
  return result == UR_RESULT_SUCCESS ? finished : result;
}

static const struct {
  const char *function;
  const char *of;
  ur_result_t (*call)(struct shared *);
} calls[] = {
    {"zeMemGetIpcHandle", "urIPCGetMemHandleExp", get_memory},
    {"zeMemOpenIpcHandle", "urIPCOpenMemHandleExp", open_theirs},
    {"zeVirtualMemMap", "urIPCGetPhysMemHandleExp", get_physical},
    {"zePhysicalMemCreate", "urIPCOpenPhysMemHandleExp", open_their_physical},
    {"zePhysicalMemCreate", "urPhysicalMemCreate", get_physical},
    {"zeMemAllocDevice", "urUSMDeviceAlloc", allocate_large},
    {"zeCommandListCreateImmediate", "urEnqueueUSMMemcpy", run_copy},
    {"zeCommandListAppendMemoryCopy", "urEnqueueUSMMemcpy", run_copy},
    {"zeCommandListAppendSignalEvent", "urEnqueueUSMMemcpy", run_copy},
};

/* Runs in the other process: shares memory of both kinds until the socket is closed. */
static inline void export_for_refusals(struct runtime *ur) {
  size_t size = 0, unit = 0;
  void *data = NULL;
  ur_physical_mem_handle_t physical = NULL;
  say_bytes(PARENT, share_memory(ur, allocate(ur, LARGE)));
  UR(urVirtualMemGranularityGetInfo(ur->context, ur->device, 1,
                                    UR_VIRTUAL_MEM_GRANULARITY_INFO_MINIMUM, sizeof unit, &unit,
                                    NULL));
  ur_physical_mem_properties_t properties = {UR_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES, NULL,
                                             UR_PHYSICAL_MEM_FLAG_ENABLE_IPC};
  UR(urPhysicalMemCreate(ur->context, ur->device, unit, &properties, &physical));
  UR(urIPCGetPhysMemHandleExp(ur->context, physical, &data, &size));
  say_bytes(PARENT, bytes_of(data, size));
  say(PARENT, &unit, sizeof unit);
  char nothing;
  hear_or_end(PARENT, &nothing, 1);
}

/* Checks the results for the driver's error codes. Does nothing if this process has not loaded the
   simulated driver. */
static inline void refusals(struct runtime *ur) {
  const char *driver = getenv("ZE_ENABLE_ALT_DRIVERS");
  void *library = driver == NULL ? NULL : dlopen(driver, RTLD_NOW | RTLD_NOLOAD);
  if (library == NULL)
    return;
  void (*refuse)(const char *);
  EXPECT((*(void **)&refuse = dlsym(library, "crosshandle_sim_refuse")) != NULL);
  struct peer peer = start_peer("exporter");
  struct shared on = {.ur = ur, .memory = hear_bytes(peer.link)};
  on.physical = hear_bytes(peer.link);
  hear(peer.link, &on.unit, sizeof on.unit);
  on.other = allocate(ur, LARGE);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    part = calls[i].of;
    for (size_t j = 0; j < sizeof codes / sizeof *codes; j++) {
      char what[160], rule[100];
      snprintf(what, sizeof what, "the driver refuses %s with %s", calls[i].function,
               codes[j].name);
      snprintf(rule, sizeof rule, "%s:%x", calls[i].function, (unsigned)codes[j].code);
      on.large = allocate(ur, LARGE);
      HERE("a call that the driver refuses");
      refuse(rule);
      ur_result_t found = calls[i].call(&on);
      refuse(NULL);
      row(what, codes[j].result, found);
      /* The message must contain the driver's error code and the call that returned it. */
      const char *text = NULL;
      int32_t code = 0;
      UR(urAdapterGetLastError(ur->adapter, &text, &code));
      report((uint32_t)code == codes[j].code, what, "the driver's code is lost");
      char number[20];
      snprintf(number, sizeof number, "%u", (unsigned)codes[j].code);
      report(text != NULL && strstr(text, number) != NULL, what, "the message is another one");
      /* The refusal must have no effect on the next call. */
      row("the same when the driver does not refuse", UR_RESULT_SUCCESS, calls[i].call(&on));
      UR(urUSMFree(ur->context, on.large));
    }
  }
  UR(urUSMFree(ur->context, on.other));
  end_peer(&peer);
  dlclose(library);
}

#endif
