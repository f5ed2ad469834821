/* The parts of Level Zero that the clients call directly. They are declared here because the Level
   Zero headers may not be installed. */
#ifndef ZE_H
#define ZE_H

#include "peer.h"
#include <dlfcn.h>
#include <stdint.h>

typedef void *ze_handle;

/* A Level Zero description with its structure type. All members that are not set are zero. */
struct ze_description {
  uint32_t stype;
  const void *next;
  uint32_t words[6];
};

enum {
  ZE_CONTEXT_DESC = 0xd,
  ZE_QUEUE_DESC = 0xe,
  ZE_EVENT_POOL_DESC = 0x10,
  ZE_EVENT_DESC = 0x11,
  ZE_DEVICE_MEMORY_DESC = 0x15,
  ZE_NOT_READY = 1,
};

static struct {
  int (*zeDriverGet)(uint32_t *, ze_handle *);
  int (*zeDeviceGet)(ze_handle, uint32_t *, ze_handle *);
  int (*zeContextCreate)(ze_handle, const void *, ze_handle *);
  int (*zeContextDestroy)(ze_handle);
  int (*zeMemAllocDevice)(ze_handle, const void *, size_t, size_t, ze_handle, void **);
  int (*zeMemFree)(ze_handle, void *);
  int (*zeCommandListCreateImmediate)(ze_handle, ze_handle, const void *, ze_handle *);
  int (*zeCommandListDestroy)(ze_handle);
  int (*zeCommandListAppendMemoryCopy)(ze_handle, void *, const void *, size_t, ze_handle, uint32_t,
                                       ze_handle *);
  int (*zeCommandListAppendMemoryFill)(ze_handle, void *, const void *, size_t, size_t, ze_handle,
                                       uint32_t, ze_handle *);
  int (*zeCommandListAppendSignalEvent)(ze_handle, ze_handle);
  int (*zeCommandListAppendWaitOnEvents)(ze_handle, uint32_t, ze_handle *);
  int (*zeEventPoolCreate)(ze_handle, const void *, uint32_t, ze_handle *, ze_handle *);
  int (*zeEventPoolDestroy)(ze_handle);
  int (*zeEventCreate)(ze_handle, const void *, ze_handle *);
  int (*zeEventDestroy)(ze_handle);
  int (*zeEventHostSignal)(ze_handle);
  int (*zeEventHostSynchronize)(ze_handle, uint64_t);
  int (*zeEventQueryStatus)(ze_handle);
} ze;

#define ZE(call) EXPECT((call) == 0)

static inline void load_ze(void) {
  void *library = dlopen("libze_loader.so.1", RTLD_NOW);
  EXPECT(library != NULL);
#define ZE_LOAD(name) EXPECT((*(void **)&ze.name = dlsym(library, #name)) != NULL)
  ZE_LOAD(zeDriverGet);
  ZE_LOAD(zeDeviceGet);
  ZE_LOAD(zeContextCreate);
  ZE_LOAD(zeContextDestroy);
  ZE_LOAD(zeMemAllocDevice);
  ZE_LOAD(zeMemFree);
  ZE_LOAD(zeCommandListCreateImmediate);
  ZE_LOAD(zeCommandListDestroy);
  ZE_LOAD(zeCommandListAppendMemoryCopy);
  ZE_LOAD(zeCommandListAppendMemoryFill);
  ZE_LOAD(zeCommandListAppendSignalEvent);
  ZE_LOAD(zeCommandListAppendWaitOnEvents);
  ZE_LOAD(zeEventPoolCreate);
  ZE_LOAD(zeEventPoolDestroy);
  ZE_LOAD(zeEventCreate);
  ZE_LOAD(zeEventDestroy);
  ZE_LOAD(zeEventHostSignal);
  ZE_LOAD(zeEventHostSynchronize);
  ZE_LOAD(zeEventQueryStatus);
#undef ZE_LOAD
}

/* Creates an immediate, in-order command list. */
static inline ze_handle ze_create_list(ze_handle context, ze_handle device) {
  /* Values: ordinal, index, flags (in-order), mode (asynchronous), priority. */
  struct ze_description desc = {ZE_QUEUE_DESC, NULL, {0, 0, 2, 2, 0, 0}};
  ze_handle list = NULL;
  ZE(ze.zeCommandListCreateImmediate(context, device, &desc, &list));
  return list;
}

/* An event, and the pool that contains only this event. */
struct ze_event {
  ze_handle pool, event;
};

static inline struct ze_event ze_create_event(ze_handle context) {
  /* Values: flags (visible to the host), count. */
  struct ze_description pool = {ZE_EVENT_POOL_DESC, NULL, {1, 1, 0, 0, 0, 0}};
  /* Values: index, scope of signals (host), scope of waits (host). */
  struct ze_description desc = {ZE_EVENT_DESC, NULL, {0, 4, 4, 0, 0, 0}};
  struct ze_event made = {NULL, NULL};
  ZE(ze.zeEventPoolCreate(context, &pool, 0, NULL, &made.pool));
  ZE(ze.zeEventCreate(made.pool, &desc, &made.event));
  return made;
}

static inline void ze_fill(ze_handle list, void *memory, char byte, size_t size) {
  ZE(ze.zeCommandListAppendMemoryFill(list, memory, &byte, 1, size, NULL, 0, NULL));
}

/* Waits until the commands that are now in the list are complete. */
static inline void ze_finish(ze_handle context, ze_handle list) {
  struct ze_event done = ze_create_event(context);
  ZE(ze.zeCommandListAppendSignalEvent(list, done.event));
  ZE(ze.zeEventHostSynchronize(done.event, UINT64_MAX));
  ZE(ze.zeEventDestroy(done.event));
  ZE(ze.zeEventPoolDestroy(done.pool));
}

#endif
