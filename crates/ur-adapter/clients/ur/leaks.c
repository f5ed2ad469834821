/* Creates and releases objects of each kind in ten thousand rounds. Afterwards, the number of
   descriptors, the number of mappings and the memory use must be the same as before. */
#include "ur.h"
#include <dirent.h>
#include <malloc.h>

#define ROUNDS 10000

/* Number of rounds after which all objects that are cached or created only once exist. */
#define WARM_UP 500

/* The objects that the rounds use. */
struct fixture {
  struct runtime ur;
  void *memory;
  ur_physical_mem_handle_t physical;
  ur_event_handle_t event;
  /* Handles that another process exported. */
  struct bytes foreign_memory, foreign_event;
  size_t unit;
};

/* The resources that this process uses. */
struct usage {
  long descriptors, mappings, resident_kib;
  /* Number of bytes that are allocated from the heap. */
  long heap;
};

static long entries_of(const char *directory) {
  long count = 0;
  DIR *entries = opendir(directory);
  EXPECT(entries != NULL);
  while (readdir(entries) != NULL)
    count++;
  closedir(entries);
  return count;
}

static struct usage measure(void) {
  struct usage usage = {0};
  char line[512];
  usage.heap = (long)mallinfo2().uordblks;
  usage.descriptors = entries_of("/proc/self/fd");
  FILE *maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps))
    usage.mappings++;
  fclose(maps);
  FILE *status = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, status))
    sscanf(line, "VmRSS: %ld", &usage.resident_kib);
  fclose(status);
  return usage;
}

static void memory_handle(struct fixture *f) {
  struct bytes handle = share_memory(&f->ur, f->memory);
  void *opened = open_memory(&f->ur, handle);
  UR(urIPCCloseMemHandleExp(f->ur.context, opened));
}

static void foreign_memory_handle(struct fixture *f) {
  void *opened = open_memory(&f->ur, f->foreign_memory);
  UR(urIPCCloseMemHandleExp(f->ur.context, opened));
}

static void shared_and_freed(struct fixture *f) {
  void *memory = allocate(&f->ur, 8192);
  void *opened = open_memory(&f->ur, share_memory(&f->ur, memory));
  UR(urUSMFree(f->ur.context, memory));
  UR(urIPCCloseMemHandleExp(f->ur.context, opened));
}

static void refused_handle(struct fixture *f) {
  struct bytes handle = f->foreign_memory;
  handle.data[70] ^= 1;
  void *opened = NULL;
  ANSWERS(UR_RESULT_ERROR_INVALID_VALUE,
          urIPCOpenMemHandleExp(f->ur.context, f->ur.device, handle.data, handle.size, &opened));
}

static void physical_handle(struct fixture *f) {
  void *data = NULL;
  size_t size = 0;
  ur_physical_mem_handle_t opened = NULL;
  UR(urIPCGetPhysMemHandleExp(f->ur.context, f->physical, &data, &size));
  UR(urIPCOpenPhysMemHandleExp(f->ur.context, f->ur.device, data, size, &opened));
  UR(urIPCClosePhysMemHandleExp(f->ur.context, opened));
  UR(urIPCPutPhysMemHandleExp(f->ur.context, data));
}

static void mapped_memory(struct fixture *f) {
  ur_physical_mem_handle_t memory = NULL;
  void *start = NULL;
  UR(urPhysicalMemCreate(f->ur.context, f->ur.device, f->unit, NULL, &memory));
  UR(urVirtualMemReserve(f->ur.context, NULL, f->unit, &start));
  UR(urVirtualMemMap(f->ur.context, start, f->unit, memory, 0,
                     UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE));
  UR(urVirtualMemUnmap(f->ur.context, start, f->unit));
  UR(urVirtualMemFree(f->ur.context, start, f->unit));
  UR(urPhysicalMemRelease(memory));
}

static void event_handle(struct fixture *f) {
  void *data = NULL;
  size_t size = 0;
  ur_event_handle_t opened = NULL;
  UR(urIPCGetEventHandleExp(f->event, &data, &size));
  UR(urIPCOpenEventHandleExp(f->ur.context, data, size, &opened));
  UR(urEventWait(1, &opened));
  UR(urEventRelease(opened));
  UR(urIPCPutEventHandleExp(f->ur.context, data));
}

static void foreign_event_handle(struct fixture *f) {
  ur_event_handle_t opened = NULL;
  UR(urIPCOpenEventHandleExp(f->ur.context, f->foreign_event.data, f->foreign_event.size, &opened));
  UR(urEnqueueEventsWaitWithBarrierExt(f->ur.queue, NULL, 0, NULL, &opened));
  UR(urEventWait(1, &opened));
  UR(urEventRelease(opened));
}

static ur_event_handle_t create_event(struct fixture *f) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL,
                                     UR_EXP_EVENT_FLAG_IPC_EXP};
  ur_event_handle_t event = NULL;
  UR(urEventCreateExp(f->ur.context, f->ur.device, &description, &event));
  return event;
}

static void reusable_event(struct fixture *f) {
  ur_event_handle_t event = create_event(f);
  UR(urEnqueueEventsWaitWithBarrierExt(f->ur.queue, NULL, 0, NULL, &event));
  UR(urEventWait(1, &event));
  UR(urEventRelease(event));
}

static void shared_event(struct fixture *f) {
  ur_event_handle_t event = create_event(f), opened = NULL;
  void *data = NULL;
  size_t size = 0;
  UR(urIPCGetEventHandleExp(event, &data, &size));
  UR(urIPCOpenEventHandleExp(f->ur.context, data, size, &opened));
  UR(urEventRelease(event));
  UR(urIPCPutEventHandleExp(f->ur.context, data));
  UR(urEventRelease(opened));
}

static void command_with_event(struct fixture *f) {
  uint32_t pattern = 7;
  ur_event_handle_t filled = NULL, after = NULL;
  UR(urEnqueueUSMFill(f->ur.queue, f->memory, sizeof pattern, &pattern, 4096, 0, NULL, &filled));
  UR(urEnqueueEventsWait(f->ur.queue, 1, &filled, &after));
  UR(urEventWait(1, &after));
  UR(urEventRelease(after));
  UR(urEventRelease(filled));
}

static void device_memory(struct fixture *f) {
  UR(urUSMFree(f->ur.context, allocate(&f->ur, 4096)));
}

static void host_and_shared_memory(struct fixture *f) {
  void *host = NULL, *shared = NULL;
  UR(urUSMHostAlloc(f->ur.context, NULL, NULL, 4096, &host));
  UR(urUSMSharedAlloc(f->ur.context, f->ur.device, NULL, NULL, 4096, &shared));
  UR(urUSMFree(f->ur.context, host));
  UR(urUSMFree(f->ur.context, shared));
}

static void buffer(struct fixture *f) {
  ur_mem_handle_t memory = NULL;
  UR(urMemBufferCreate(f->ur.context, UR_MEM_FLAG_READ_WRITE, 4096, NULL, &memory));
  UR(urMemRelease(memory));
}

static void queue(struct fixture *f) {
  ur_queue_handle_t queue = NULL;
  UR(urQueueCreate(f->ur.context, f->ur.device, NULL, &queue));
  UR(urEnqueueEventsWaitWithBarrier(queue, 0, NULL, NULL));
  UR(urQueueFinish(queue));
  UR(urQueueRelease(queue));
}

static void context(struct fixture *f) {
  ur_context_handle_t context = NULL;
  UR(urContextCreate(1, &f->ur.device, NULL, &context));
  UR(urContextRelease(context));
}

/* Exports physical memory from a separate context, while an importer has the memory open. */
static void exporting_context(struct fixture *f) {
  struct fixture own = *f;
  UR(urContextCreate(1, &f->ur.device, NULL, &own.ur.context));
  void *memory = allocate(&own.ur, 4096);
  UR(urIPCCloseMemHandleExp(f->ur.context, open_memory(&f->ur, share_memory(&own.ur, memory))));
  UR(urUSMFree(own.ur.context, memory));
  UR(urContextRelease(own.ur.context));
}

/* Runs calls that create objects but fail, because the address for the result is null. */
static void refused_calls(struct fixture *f) {
  ur_context_handle_t context = f->ur.context;
  ur_device_handle_t device = f->ur.device;
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL, 0};
  struct bytes memory = f->foreign_memory, event = f->foreign_event;
  void *data = NULL;
  size_t size = 0;
#define NOWHERE(call) ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER, call)
  NOWHERE(urContextCreate(1, &device, NULL, NULL));
  NOWHERE(urQueueCreate(context, device, NULL, NULL));
  NOWHERE(urEventCreateExp(context, device, &description, NULL));
  NOWHERE(urPhysicalMemCreate(context, device, f->unit, NULL, NULL));
  NOWHERE(urVirtualMemReserve(context, NULL, f->unit, NULL));
  NOWHERE(urMemBufferCreate(context, UR_MEM_FLAG_READ_WRITE, 4096, NULL, NULL));
  NOWHERE(urUSMDeviceAlloc(context, device, NULL, NULL, 4096, NULL));
  NOWHERE(urUSMHostAlloc(context, NULL, NULL, 4096, NULL));
  NOWHERE(urUSMSharedAlloc(context, device, NULL, NULL, 4096, NULL));
  NOWHERE(urIPCGetMemHandleExp(context, f->memory, &data, NULL));
  /* Without a place for the data, this call returns only the size. */
  UR(urIPCGetMemHandleExp(context, f->memory, NULL, &size));
  NOWHERE(urIPCGetPhysMemHandleExp(context, f->physical, &data, NULL));
  NOWHERE(urIPCGetPhysMemHandleExp(context, f->physical, NULL, &size));
  NOWHERE(urIPCGetEventHandleExp(f->event, &data, NULL));
  NOWHERE(urIPCGetEventHandleExp(f->event, NULL, &size));
  NOWHERE(urIPCOpenMemHandleExp(context, device, memory.data, memory.size, NULL));
  NOWHERE(urIPCOpenEventHandleExp(context, event.data, event.size, NULL));
}

static const struct {
  const char *name;
  void (*round)(struct fixture *);
  int rounds;
} cases[] = {
    {"memory handle", memory_handle, ROUNDS},
    {"memory handle of another process", foreign_memory_handle, ROUNDS},
    {"memory freed while open", shared_and_freed, ROUNDS},
    {"memory handle that is refused", refused_handle, ROUNDS},
    {"physical memory handle", physical_handle, ROUNDS},
    {"physical memory, mapped", mapped_memory, ROUNDS},
    {"event handle", event_handle, ROUNDS},
    {"event handle of another process", foreign_event_handle, ROUNDS},
    {"reusable event", reusable_event, ROUNDS},
    {"shared event", shared_event, ROUNDS},
    {"commands and their events", command_with_event, ROUNDS},
    {"device memory", device_memory, ROUNDS},
    {"host and shared memory", host_and_shared_memory, ROUNDS},
    {"buffer", buffer, ROUNDS},
    {"queue", queue, ROUNDS},
    {"calls that are refused", refused_calls, ROUNDS},
    {"context", context, ROUNDS},
    {"context that exports", exporting_context, ROUNDS / 10},
};

/* Returns whether the rounds leaked a resource. A leak is expected to occur in every round. */
static bool leaks(const char *name, struct fixture *f, void (*round)(struct fixture *),
                  int rounds) {
  for (int i = 0; i < WARM_UP; i++)
    round(f);
  usleep(200000);
  struct usage before = measure();
  for (int i = 0; i < rounds; i++)
    round(f);
  /* Some resources of a queue or a context are released a little later. */
  usleep(200000);
  struct usage after = measure();
  long descriptors = after.descriptors - before.descriptors;
  long mappings = after.mappings - before.mappings;
  long resident_kib = after.resident_kib - before.resident_kib;
  long heap = after.heap - before.heap;
  bool leaks = descriptors > 4 || mappings > 8 || resident_kib > 2048 || heap > 4 * (long)rounds;
  printf("%-32s descriptors %+ld, mappings %+ld, resident %+ld KiB, heap %+ld%s\n", name,
         descriptors, mappings, resident_kib, heap, leaks ? " LEAK" : "");
  fflush(stdout);
  return leaks;
}

static void create_exports(struct fixture *f) {
  f->memory = allocate(&f->ur, 64 << 10);
  f->event = create_event(f);
  ur_physical_mem_properties_t properties = {UR_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES, NULL,
                                             UR_PHYSICAL_MEM_FLAG_ENABLE_IPC};
  UR(urVirtualMemGranularityGetInfo(f->ur.context, f->ur.device, 1,
                                    UR_VIRTUAL_MEM_GRANULARITY_INFO_MINIMUM, sizeof f->unit,
                                    &f->unit, NULL));
  UR(urPhysicalMemCreate(f->ur.context, f->ur.device, f->unit, &properties, &f->physical));
}

static void export_objects(struct fixture *f) {
  void *data = NULL;
  size_t size = 0;
  say_bytes(PARENT, share_memory(&f->ur, f->memory));
  UR(urIPCGetEventHandleExp(f->event, &data, &size));
  say_bytes(PARENT, bytes_of(data, size));
  char nothing;
  hear_or_end(PARENT, &nothing, 1);
}

int main(int count, char **arguments) {
  limit_life();
  struct fixture f = {.ur = start_runtime()};
  create_exports(&f);
  if (count > 1 && strcmp(arguments[1], "exporter") == 0) {
    export_objects(&f);
    return 0;
  }
  struct peer peer = start_peer("exporter");
  f.foreign_memory = hear_bytes(peer.link);
  f.foreign_event = hear_bytes(peer.link);
  int leaking = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    leaking += leaks(cases[i].name, &f, cases[i].round, cases[i].rounds);
  end_peer(&peer);
  UR(urPhysicalMemRelease(f.physical));
  UR(urEventRelease(f.event));
  UR(urUSMFree(f.ur.context, f.memory));
  stop_runtime(&f.ur);
  return leaking != 0;
}
