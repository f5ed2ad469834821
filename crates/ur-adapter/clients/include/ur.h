/* Unified Runtime for the C clients, and helpers that check each call. */
#ifndef UR_H
#define UR_H

#include "peer.h"
#include <stdint.h>
#include <unified-runtime/ur_api.h>
#include <unified-runtime/ur_print.h>

/* Fails the program unless the call returns the expected result. */
#define ANSWERS(expected, call) (HERE(#call), check(expected, (call), PLACE(#call)))

/* Fails the program unless the call succeeds. */
#define UR(call) (HERE(#call), check(UR_RESULT_SUCCESS, (call), PLACE(#call)))

/* Returns the name of a result. The text is valid until the next call. */
static inline const char *name_of(ur_result_t result) {
  static char name[96];
  if (urPrintResult(result, name, sizeof name, NULL) != UR_RESULT_SUCCESS)
    snprintf(name, sizeof name, "%#x", (unsigned)result);
  return name;
}

static inline void check(ur_result_t expected, ur_result_t result, const char *where) {
  if (result == expected)
    return;
  char name[96];
  snprintf(name, sizeof name, "%s", name_of(result));
  fail("%s: %s instead of %s", where, name, name_of(expected));
}

/* An adapter, its first device, and a context and an in-order queue on that device. */
struct runtime {
  ur_adapter_handle_t adapter;
  ur_platform_handle_t platform;
  ur_device_handle_t device;
  ur_context_handle_t context;
  ur_queue_handle_t queue;
};

static inline struct runtime start_runtime(void) {
  struct runtime ur;
  UR(urLoaderInit(0, NULL));
  uint32_t count = 0;
  UR(urAdapterGet(0, NULL, &count));
  EXPECT(count == 1);
  UR(urAdapterGet(1, &ur.adapter, NULL));
  UR(urPlatformGet(ur.adapter, 1, &ur.platform, NULL));
  UR(urDeviceGet(ur.platform, UR_DEVICE_TYPE_ALL, 1, &ur.device, NULL));
  UR(urContextCreate(1, &ur.device, NULL, &ur.context));
  UR(urQueueCreate(ur.context, ur.device, NULL, &ur.queue));
  return ur;
}

static inline void stop_runtime(struct runtime *ur) {
  UR(urQueueRelease(ur->queue));
  UR(urContextRelease(ur->context));
  UR(urDeviceRelease(ur->device));
  UR(urAdapterRelease(ur->adapter));
  UR(urLoaderTearDown());
}

static inline bool supports(struct runtime *ur, ur_device_info_t what) {
  ur_bool_t answer = false;
  UR(urDeviceGetInfo(ur->device, what, sizeof answer, &answer, NULL));
  return answer;
}

static inline ur_device_type_t device_type_of(struct runtime *ur) {
  ur_device_type_t type;
  UR(urDeviceGetInfo(ur->device, UR_DEVICE_INFO_TYPE, sizeof type, &type, NULL));
  return type;
}

static inline void *allocate(struct runtime *ur, size_t size) {
  void *memory = NULL;
  UR(urUSMDeviceAlloc(ur->context, ur->device, NULL, NULL, size, &memory));
  return memory;
}

/* Copies bytes to or from a device, and waits until the copy is complete. */
static inline void copy(struct runtime *ur, void *to, const void *from, size_t size) {
  UR(urEnqueueUSMMemcpy(ur->queue, true, to, from, size, 0, NULL, NULL));
}

/* Returns one word of a pattern. Different pattern numbers or different indexes give different
   words. */
static inline uint32_t word_of(uint32_t number, size_t index) {
  return (uint32_t)(index + 1) * 2654435761u ^ number * 40503u;
}

/* Fills device memory with the pattern that has this number. */
static inline void write_pattern(struct runtime *ur, void *memory, size_t size, uint32_t number) {
  uint32_t *words = (uint32_t *)malloc(size);
  for (size_t i = 0; i < size / sizeof *words; i++)
    words[i] = word_of(number, i);
  copy(ur, memory, words, size);
  free(words);
}

/* Returns whether memory contains a pattern. The comparison starts `skip` bytes after the start of
   the pattern. */
static inline bool has_pattern(struct runtime *ur, const void *memory, size_t size, uint32_t number,
                               size_t skip) {
  unsigned char *found = (unsigned char *)malloc(size);
  copy(ur, found, memory, size);
  bool same = true;
  for (size_t i = 0; same && i < size; i++) {
    uint32_t word = word_of(number, (skip + i) / sizeof word);
    same = found[i] == ((unsigned char *)&word)[(skip + i) % sizeof word];
  }
  free(found);
  return same;
}

/* Exports the memory at an address, and returns the bytes of its handle. The adapter's buffer for
   the handle is returned before this function ends. */
static inline struct bytes share_memory(struct runtime *ur, void *memory) {
  void *data = NULL;
  size_t size = 0;
  UR(urIPCGetMemHandleExp(ur->context, memory, &data, &size));
  struct bytes bytes = bytes_of(data, size);
  UR(urIPCPutMemHandleExp(ur->context, data));
  return bytes;
}

static inline void *open_memory(struct runtime *ur, struct bytes handle) {
  void *memory = NULL;
  UR(urIPCOpenMemHandleExp(ur->context, ur->device, handle.data, handle.size, &memory));
  return memory;
}

#endif
