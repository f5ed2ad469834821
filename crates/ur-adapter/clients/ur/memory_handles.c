/* Valid and invalid uses of memory handles, in one process and between two processes. */
#include "rows.h"
#include <pthread.h>

#define SIZE ((size_t)128 << 10)

/* The objects that the rows of the table use. */
struct fixture {
  struct runtime ur;
  char *memory;
  struct bytes handle;
};

static ur_result_t open_bytes(struct fixture *f, struct bytes handle, void **opened) {
  *opened = NULL;
  return urIPCOpenMemHandleExp(f->ur.context, f->ur.device, handle.data, handle.size, opened);
}

static ur_result_t close_pointer(struct fixture *f, void *memory) {
  return urIPCCloseMemHandleExp(f->ur.context, memory);
}

static void offsets(struct fixture *f) {
  static const size_t places[] = {0, 1, 3, 63, 64, 4095, 4096, SIZE / 2, SIZE - 2, SIZE - 1};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    size_t place = places[i];
    void *opened;
    WORKS(open_bytes(f, share_memory(&f->ur, f->memory + place), &opened));
    HOLDS(has_pattern(&f->ur, opened, SIZE - place, 1, place));
    WORKS(close_pointer(f, opened));
  }
}

static void repeated_opens(struct fixture *f) {
  enum { COUNT = 64 };
  void *opened[COUNT];
  for (int i = 0; i < COUNT; i++)
    WORKS(open_bytes(f, f->handle, &opened[i]));
  for (int i = 0; i < COUNT; i++) {
    HOLDS(has_pattern(&f->ur, opened[i], 64, 1, 0));
    WORKS(close_pointer(f, opened[i]));
  }
  FAILS(INVALID_ARGUMENT, close_pointer(f, opened[0]));
  FAILS(INVALID_ARGUMENT, close_pointer(f, opened[COUNT - 1]));
}

static void one_close_for_each_open(struct fixture *f) {
  void *first, *second;
  WORKS(open_bytes(f, f->handle, &first));
  WORKS(close_pointer(f, first));
  FAILS(INVALID_ARGUMENT, close_pointer(f, first));
  WORKS(open_bytes(f, f->handle, &first));
  WORKS(open_bytes(f, f->handle, &second));
  WORKS(close_pointer(f, first));
  HOLDS(has_pattern(&f->ur, second, SIZE, 1, 0));
  WORKS(close_pointer(f, second));
  FAILS(INVALID_ARGUMENT, close_pointer(f, second));
}

static void free_while_open(struct fixture *f) {
  void *memory = allocate(&f->ur, SIZE), *opened;
  write_pattern(&f->ur, memory, SIZE, 2);
  struct bytes handle = share_memory(&f->ur, memory);
  WORKS(open_bytes(f, handle, &opened));
  WORKS(urUSMFree(f->ur.context, memory));
  HOLDS(has_pattern(&f->ur, opened, SIZE, 2, 0));
  void *next = allocate(&f->ur, SIZE);
  write_pattern(&f->ur, next, SIZE, 3);
  HOLDS(has_pattern(&f->ur, opened, SIZE, 2, 0));
  WORKS(close_pointer(f, opened));
  FAILS(INVALID_VALUE, open_bytes(f, handle, &opened));
  HOLDS(has_pattern(&f->ur, next, SIZE, 3, 0));
  WORKS(urUSMFree(f->ur.context, next));
}

static void free_before_open(struct fixture *f) {
  void *memory = allocate(&f->ur, SIZE), *opened;
  struct bytes handle = share_memory(&f->ur, memory);
  WORKS(urUSMFree(f->ur.context, memory));
  FAILS(INVALID_VALUE, open_bytes(f, handle, &opened));
  void *next = allocate(&f->ur, SIZE);
  FAILS(INVALID_VALUE, open_bytes(f, handle, &opened));
  WORKS(urUSMFree(f->ur.context, next));
}

static void buffers_of_handles(struct fixture *f) {
  enum { COUNT = 300 };
  void *data[COUNT], *opened;
  size_t size = 0;
  for (int i = 0; i < COUNT; i++) {
    WORKS(urIPCGetMemHandleExp(f->ur.context, f->memory + i, &data[i], &size));
    HOLDS(size == f->handle.size);
  }
  for (int i = 0; i < COUNT; i += 7) {
    WORKS(open_bytes(f, bytes_of(data[i], size), &opened));
    HOLDS(has_pattern(&f->ur, opened, 64, 1, (size_t)i));
    WORKS(close_pointer(f, opened));
  }
  struct bytes copied = bytes_of(data[5], size);
  for (int i = 0; i < COUNT; i++)
    WORKS(urIPCPutMemHandleExp(f->ur.context, data[i]));
  /* Only the buffer with the handle's bytes was returned. The handle itself is still valid. */
  WORKS(open_bytes(f, copied, &opened));
  WORKS(close_pointer(f, opened));
  REFUSES(urIPCPutMemHandleExp(f->ur.context, data[0]));
  REFUSES(urIPCPutMemHandleExp(f->ur.context, &size));
  WORKS(urIPCGetMemHandleExp(f->ur.context, f->memory, &data[0], &size));
  REFUSES(urIPCPutMemHandleExp(f->ur.context, (char *)data[0] + 1));
  WORKS(urIPCPutMemHandleExp(f->ur.context, data[0]));
}

static void pointers_that_are_not_device_memory(struct fixture *f) {
  void *data = NULL, *host = NULL, *shared = NULL;
  size_t size = 0;
  ur_context_handle_t context = f->ur.context;
  WORKS(urUSMHostAlloc(context, NULL, NULL, SIZE, &host));
  WORKS(urUSMSharedAlloc(context, f->ur.device, NULL, NULL, SIZE, &shared));
  void *freed = allocate(&f->ur, SIZE);
  WORKS(urUSMFree(context, freed));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, freed, &data, &size));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, &data, &data, &size));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, host, &data, &size));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, shared, &data, &size));
  WORKS(urUSMFree(context, host));
  WORKS(urUSMFree(context, shared));

  FAILS(INVALID_ARGUMENT, close_pointer(f, &data));
  FAILS(INVALID_ARGUMENT, close_pointer(f, f->memory));
  void *opened;
  WORKS(open_bytes(f, f->handle, &opened));
  FAILS(INVALID_ARGUMENT, close_pointer(f, (char *)opened + 64));
  REFUSES(urUSMFree(context, opened));
  WORKS(close_pointer(f, opened));
}

static void other_contexts(struct fixture *f) {
  ur_context_handle_t other = NULL;
  void *data = NULL, *opened = NULL;
  size_t size = 0;
  WORKS(urContextCreate(1, &f->ur.device, NULL, &other));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(other, f->memory, &data, &size));
  WORKS(urIPCOpenMemHandleExp(other, f->ur.device, f->handle.data, f->handle.size, &opened));
  HOLDS(has_pattern(&f->ur, opened, SIZE, 1, 0));
  FAILS(INVALID_ARGUMENT, close_pointer(f, opened));
  WORKS(urIPCCloseMemHandleExp(other, opened));
  WORKS(urContextRelease(other));
}

static void wrong_sizes(struct fixture *f) {
  struct bytes handle = f->handle;
  void *opened;
  for (size_t size = 0; size < sizeof handle.data; size++) {
    handle.size = size;
    if (size != f->handle.size)
      FAILS(INVALID_VALUE, open_bytes(f, handle, &opened));
  }
}

static void information(struct fixture *f) {
  void *opened, *base = NULL;
  ur_usm_type_t type = UR_USM_TYPE_UNKNOWN;
  ur_device_handle_t device = NULL;
  size_t size = 0;
  ur_context_handle_t context = f->ur.context;
  WORKS(open_bytes(f, share_memory(&f->ur, f->memory + 4096), &opened));
  const char *inner = (char *)opened + 100;
#define INFO(name, value)                                                                          \
  urUSMGetMemAllocInfo(context, inner, UR_USM_ALLOC_INFO_##name, sizeof value, &value, NULL)
  WORKS(INFO(TYPE, type));
  HOLDS(type == UR_USM_TYPE_DEVICE);
  WORKS(INFO(DEVICE, device));
  HOLDS(device == f->ur.device);
  WORKS(INFO(BASE_PTR, base));
  WORKS(INFO(SIZE, size));
  HOLDS((char *)base <= inner && inner < (char *)base + size);
  HOLDS(size >= SIZE - 4096);
  WORKS(close_pointer(f, opened));
  if (opened < (void *)f->memory || opened >= (void *)(f->memory + SIZE)) {
    WORKS(INFO(TYPE, type));
    HOLDS(type == UR_USM_TYPE_UNKNOWN);
  }
}

static void *open_and_close(void *data) {
  struct fixture *f = data;
  void *opened;
  for (int i = 0; i < 2000; i++) {
    if (open_bytes(f, f->handle, &opened) || !has_pattern(&f->ur, opened, 4, 1, 0) ||
        close_pointer(f, opened))
      return f;
  }
  return NULL;
}

static void several_threads(struct fixture *f) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    EXPECT(pthread_create(&threads[i], NULL, open_and_close, f) == 0);
  for (int i = 0; i < 4; i++) {
    void *problem;
    pthread_join(threads[i], &problem);
    HOLDS(problem == NULL);
  }
}

/* Runs in the exporting process: shares memory with pattern 1 until the socket is closed. */
static void export_memory(void) {
  struct runtime ur = start_runtime();
  void *memory = allocate(&ur, SIZE);
  write_pattern(&ur, memory, SIZE, 1);
  say_bytes(PARENT, share_memory(&ur, memory));
  char nothing;
  hear_or_end(PARENT, &nothing, 1);
}

static void gone_exporters(struct fixture *f) {
  void *opened;
  struct peer ending = start_peer("exporter");
  struct bytes handle = hear_bytes(ending.link);
  end_peer(&ending);
  FAILS(INVALID_VALUE, open_bytes(f, handle, &opened));

  struct peer killed = start_peer("exporter");
  handle = hear_bytes(killed.link);
  kill_peer(&killed);
  FAILS(INVALID_VALUE, open_bytes(f, handle, &opened));

  struct peer open = start_peer("exporter");
  handle = hear_bytes(open.link);
  WORKS(open_bytes(f, handle, &opened));
  kill_peer(&open);
  HOLDS(has_pattern(&f->ur, opened, SIZE, 1, 0));
  WORKS(close_pointer(f, opened));
  /* Memory that is still mapped can be opened again until this process notices the exporter's
     death. */
  while (open_bytes(f, handle, &opened) == UR_RESULT_SUCCESS) {
    HOLDS(has_pattern(&f->ur, opened, SIZE, 1, 0));
    WORKS(close_pointer(f, opened));
  }
  FAILS(INVALID_VALUE, open_bytes(f, handle, &opened));
}

static const struct {
  const char *name;
  void (*run)(struct fixture *);
} cases[] = {
    {"offsets", offsets},
    {"repeated opens", repeated_opens},
    {"one close for each open", one_close_for_each_open},
    {"free while open", free_while_open},
    {"free before open", free_before_open},
    {"buffers of handles", buffers_of_handles},
    {"pointers that are not device memory", pointers_that_are_not_device_memory},
    {"other contexts", other_contexts},
    {"wrong sizes", wrong_sizes},
    {"information", information},
    {"several threads", several_threads},
    {"gone exporters", gone_exporters},
};

int main(int count, char **arguments) {
  limit_life();
  if (count > 1 && strcmp(arguments[1], "exporter") == 0) {
    export_memory();
    return 0;
  }
  struct fixture f = {.ur = start_runtime()};
  f.memory = allocate(&f.ur, SIZE);
  write_pattern(&f.ur, f.memory, SIZE, 1);
  f.handle = share_memory(&f.ur, f.memory);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    part = cases[i].name;
    cases[i].run(&f);
  }
  HERE("the end");
  UR(urUSMFree(f.ur.context, f.memory));
  stop_runtime(&f.ur);
  printf("%d rows, %d wrong\n", rows, wrong);
  return wrong != 0;
}
