/* The error table of the extension, row by row. For each wrong argument, the client checks the
   result of eleven functions and two related ones, and what the call leaves unchanged. With the
   simulated Level Zero driver, it also checks error codes that only a driver can return. The output
   names each row. */
#include "events.h"
#include "refusals.h"
#include "rows.h"

#define SIZE ((size_t)128 << 10)

static struct runtime ur;

static ur_result_t open_memory_bytes(struct bytes handle, void **opened) {
  return urIPCOpenMemHandleExp(ur.context, ur.device, handle.data, handle.size, opened);
}

static ur_result_t open_physical_bytes(struct bytes handle, ur_physical_mem_handle_t *opened) {
  return urIPCOpenPhysMemHandleExp(ur.context, ur.device, handle.data, handle.size, opened);
}

static ur_result_t open_event_bytes(struct bytes handle, ur_event_handle_t *opened) {
  return urIPCOpenEventHandleExp(ur.context, handle.data, handle.size, opened);
}

static struct bytes resized(struct bytes handle, int by) {
  handle.size = (size_t)((long)handle.size + by);
  return handle;
}

static struct bytes garbage(struct bytes handle) {
  for (size_t i = 0; i < handle.size; i++)
    handle.data[i] = (unsigned char)(i * 37 + 11);
  return handle;
}

static ur_event_handle_t create_event(ur_exp_event_flags_t flags) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL, flags};
  ur_event_handle_t event = NULL;
  UR(urEventCreateExp(ur.context, ur.device, &description, &event));
  return event;
}

static ur_event_status_t status_of(ur_event_handle_t event) {
  ur_event_status_t status = UR_EVENT_STATUS_FORCE_UINT32;
  UR(urEventGetInfo(event, UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
  return status;
}

static ur_result_t time_of(ur_event_handle_t event, ur_profiling_info_t name, uint64_t *time) {
  return urEventGetProfilingInfo(event, name, sizeof *time, time, NULL);
}

static void memory(struct bytes *handle) {
  ur_context_handle_t context = ur.context;
  ur_device_handle_t device = ur.device;
  char *start = allocate(&ur, SIZE), *freed = allocate(&ur, SIZE);
  void *data = NULL, *again = NULL, *opened = NULL, *second = NULL, *host = NULL;
  size_t size = 0;
  write_pattern(&ur, start, SIZE, 1);
  UR(urUSMFree(context, freed));
  UR(urUSMHostAlloc(context, NULL, NULL, SIZE, &host));

  part = "urUSMHostAllocRegisterExp";
  FAILS(INVALID_NULL_POINTER, urUSMHostAllocRegisterExp(context, NULL, SIZE, NULL));
  FAILS(INVALID_VALUE, urUSMHostAllocRegisterExp(context, host, 0, NULL));

  part = "urIPCGetMemHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCGetMemHandleExp(NULL, start, &data, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetMemHandleExp(context, NULL, &data, &size));
  if (getenv("UR_ENABLE_LAYERS"))
    FAILS(INVALID_NULL_POINTER, urIPCGetMemHandleExp(context, start, NULL, &size));
  else {
    WORKS(urIPCGetMemHandleExp(context, start, NULL, &size));
    HOLDS(size == 104);
    FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, freed, NULL, &size));
  }
  FAILS(INVALID_NULL_POINTER, urIPCGetMemHandleExp(context, start, &data, NULL));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, &size, &data, &size));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, freed, &data, &size));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, host, &data, &size));
  FAILS(INVALID_ARGUMENT, urIPCGetMemHandleExp(context, start + SIZE, &data, &size));
  WORKS(urIPCGetMemHandleExp(context, start, &data, &size));
  *handle = bytes_of(data, size);
  WORKS(urIPCGetMemHandleExp(context, start + SIZE - 4, &again, &size));
  WORKS(open_memory_bytes(bytes_of(again, size), &opened));
  HOLDS(has_pattern(&ur, opened, 4, 1, SIZE - 4));
  WORKS(urIPCCloseMemHandleExp(context, opened));

  part = "urIPCOpenMemHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCOpenMemHandleExp(NULL, device, data, size, &opened));
  FAILS(INVALID_NULL_HANDLE, urIPCOpenMemHandleExp(context, NULL, data, size, &opened));
  FAILS(INVALID_NULL_POINTER, urIPCOpenMemHandleExp(context, device, NULL, size, &opened));
  FAILS(INVALID_NULL_POINTER, urIPCOpenMemHandleExp(context, device, data, size, NULL));
  FAILS(INVALID_VALUE, open_memory_bytes(resized(*handle, -1), &opened));
  FAILS(INVALID_VALUE, open_memory_bytes(resized(*handle, 1), &opened));
  FAILS(INVALID_VALUE, urIPCOpenMemHandleExp(context, device, data, 0, &opened));
  FAILS(INVALID_VALUE, open_memory_bytes(garbage(*handle), &opened));
  WORKS(open_memory_bytes(*handle, &opened));
  WORKS(open_memory_bytes(*handle, &second));

  part = "urIPCPutMemHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCPutMemHandleExp(NULL, data));
  FAILS(INVALID_NULL_POINTER, urIPCPutMemHandleExp(context, NULL));
  FAILS(INVALID_VALUE, urIPCPutMemHandleExp(context, &size));
  WORKS(urIPCPutMemHandleExp(context, again));
  WORKS(urIPCPutMemHandleExp(context, data));
  FAILS(INVALID_VALUE, urIPCPutMemHandleExp(context, data));
  HOLDS(has_pattern(&ur, start, SIZE, 1, 0));
  HOLDS(has_pattern(&ur, opened, SIZE, 1, 0));

  part = "urIPCCloseMemHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCCloseMemHandleExp(NULL, opened));
  FAILS(INVALID_NULL_POINTER, urIPCCloseMemHandleExp(context, NULL));
  FAILS(INVALID_ARGUMENT, urIPCCloseMemHandleExp(context, &size));
  FAILS(INVALID_ARGUMENT, urIPCCloseMemHandleExp(context, start));
  WORKS(urIPCCloseMemHandleExp(context, opened));
  HOLDS(has_pattern(&ur, second, SIZE, 1, 0));
  WORKS(urIPCCloseMemHandleExp(context, second));
  FAILS(INVALID_ARGUMENT, urIPCCloseMemHandleExp(context, second));
  UR(urUSMFree(context, start));
  UR(urUSMFree(context, host));
  FAILS(INVALID_VALUE, open_memory_bytes(*handle, &opened));
}

static void physical_memory(struct bytes other_kind) {
  ur_context_handle_t context = ur.context;
  ur_device_handle_t device = ur.device;
  void *data = NULL;
  size_t size = 0, unit = 0;
  UR(urVirtualMemGranularityGetInfo(context, device, 1, UR_VIRTUAL_MEM_GRANULARITY_INFO_MINIMUM,
                                    sizeof unit, &unit, NULL));
  ur_physical_mem_properties_t properties = {UR_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES, NULL,
                                             UR_PHYSICAL_MEM_FLAG_ENABLE_IPC};
  ur_physical_mem_handle_t made = NULL, private = NULL, opened = NULL, second = NULL;
  UR(urPhysicalMemCreate(context, device, unit, &properties, &made));
  UR(urPhysicalMemCreate(context, device, unit, NULL, &private));

  part = "urIPCGetPhysMemHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCGetPhysMemHandleExp(NULL, made, &data, &size));
  FAILS(INVALID_NULL_HANDLE, urIPCGetPhysMemHandleExp(context, NULL, &data, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetPhysMemHandleExp(context, made, NULL, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetPhysMemHandleExp(context, made, &data, NULL));
  FAILS(INVALID_ARGUMENT, urIPCGetPhysMemHandleExp(context, private, &data, &size));
  WORKS(urIPCGetPhysMemHandleExp(context, made, &data, &size));
  struct bytes handle = bytes_of(data, size);

  part = "urIPCOpenPhysMemHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCOpenPhysMemHandleExp(NULL, device, data, size, &opened));
  FAILS(INVALID_NULL_HANDLE, urIPCOpenPhysMemHandleExp(context, NULL, data, size, &opened));
  FAILS(INVALID_NULL_POINTER, urIPCOpenPhysMemHandleExp(context, device, NULL, size, &opened));
  FAILS(INVALID_NULL_POINTER, urIPCOpenPhysMemHandleExp(context, device, data, size, NULL));
  FAILS(INVALID_VALUE, open_physical_bytes(resized(handle, -1), &opened));
  FAILS(INVALID_VALUE, open_physical_bytes(resized(handle, 1), &opened));
  FAILS(INVALID_VALUE, open_physical_bytes(garbage(handle), &opened));
  FAILS(INVALID_VALUE, open_physical_bytes(other_kind, &opened));
  WORKS(open_physical_bytes(handle, &opened));
  WORKS(open_physical_bytes(handle, &second));
  FAILS(INVALID_ARGUMENT, urIPCGetPhysMemHandleExp(context, opened, &data, &size));

  part = "urIPCPutPhysMemHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCPutPhysMemHandleExp(NULL, data));
  FAILS(INVALID_NULL_POINTER, urIPCPutPhysMemHandleExp(context, NULL));
  WORKS(urIPCPutPhysMemHandleExp(context, data));
  FAILS(INVALID_VALUE, urIPCPutPhysMemHandleExp(context, data));

  part = "urIPCClosePhysMemHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCClosePhysMemHandleExp(NULL, opened));
  FAILS(INVALID_NULL_HANDLE, urIPCClosePhysMemHandleExp(context, NULL));
  FAILS(INVALID_ARGUMENT, urIPCClosePhysMemHandleExp(context, made));
  WORKS(urIPCClosePhysMemHandleExp(context, opened));
  WORKS(urIPCClosePhysMemHandleExp(context, second));
  UR(urPhysicalMemRelease(made));
  UR(urPhysicalMemRelease(private));
}

static void event_creation(void) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL, 0};
  ur_event_handle_t event = NULL;
#define CREATE(set)                                                                                \
  (description.flags = (set), urEventCreateExp(ur.context, ur.device, &description, &event))

  part = "urEventCreateExp";
  FAILS(INVALID_NULL_HANDLE, urEventCreateExp(NULL, ur.device, &description, &event));
  FAILS(INVALID_NULL_HANDLE, urEventCreateExp(ur.context, NULL, &description, &event));
  FAILS(INVALID_NULL_POINTER, urEventCreateExp(ur.context, ur.device, NULL, &event));
  FAILS(INVALID_NULL_POINTER, urEventCreateExp(ur.context, ur.device, &description, NULL));
  FAILS(INVALID_VALUE, CREATE(UR_EXP_EVENT_FLAG_IPC_EXP | UR_EXP_EVENT_FLAG_ENABLE_PROFILING));
  for (int bit = 2; bit < 31; bit++)
    FAILS(INVALID_ENUMERATION, CREATE(1u << bit));
  FAILS(INVALID_ENUMERATION, CREATE(UR_EXP_EVENT_FLAG_IPC_EXP | 4u));
  WORKS(CREATE(UR_EXP_EVENT_FLAG_ENABLE_PROFILING));
  HOLDS(status_of(event) == UR_EVENT_STATUS_COMPLETE);
  WORKS(urEventRelease(event));
  WORKS(CREATE(0));
  HOLDS(status_of(event) == UR_EVENT_STATUS_COMPLETE);
  WORKS(urEventRelease(event));
}

static void read_gate(void *of) {
  char byte;
  HOLDS(read(*(int *)of, &byte, 1) == 1);
}

static void events(struct bytes other_kind) {
  ur_event_handle_t local = create_event(0), shared = create_event(UR_EXP_EVENT_FLAG_IPC_EXP);
  ur_event_handle_t timed = create_event(UR_EXP_EVENT_FLAG_ENABLE_PROFILING), opened = NULL;
  ur_event_handle_t recorded = NULL, of_command = NULL, second = NULL;
  void *data = NULL;
  size_t size = 0;
  int gate[2];
  HOLDS(pipe(gate) == 0);
  UR(urEnqueueHostTaskExp(ur.queue, (ur_exp_host_task_function_t)read_gate, &gate[0], NULL, 0, NULL,
                          NULL));
  UR(urEnqueueTimestampRecordingExp(ur.queue, false, 0, NULL, &recorded));
  part = "urEventGetProfilingInfo of a pending tag";
  uint64_t queued = 0;
  WORKS(time_of(recorded, UR_PROFILING_INFO_COMMAND_QUEUED, &queued));
  HOLDS(queued != 0);
  FAILS(PROFILING_INFO_NOT_AVAILABLE, time_of(recorded, UR_PROFILING_INFO_COMMAND_SUBMIT, &queued));
  HOLDS(write(gate[1], "o", 1) == 1);
  UR(urEnqueueEventsWait(ur.queue, 0, NULL, &of_command));
  HOLDS(status_of(shared) == UR_EVENT_STATUS_COMPLETE);

  part = "urIPCGetEventHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCGetEventHandleExp(NULL, &data, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetEventHandleExp(shared, NULL, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetEventHandleExp(shared, &data, NULL));
  FAILS(INVALID_EVENT, urIPCGetEventHandleExp(local, &data, &size));
  FAILS(INVALID_EVENT, urIPCGetEventHandleExp(of_command, &data, &size));
  FAILS(UNSUPPORTED_FEATURE, urIPCGetEventHandleExp(timed, &data, &size));
  FAILS(UNSUPPORTED_FEATURE, urIPCGetEventHandleExp(recorded, &data, &size));
  WORKS(urIPCGetEventHandleExp(shared, &data, &size));
  struct bytes handle = bytes_of(data, size);
  HOLDS(size == 64);

  part = "urEventGetProfilingInfo of a tag";
  uint64_t times[3] = {0};
  UR(urEventWait(1, &recorded));
  WORKS(time_of(recorded, UR_PROFILING_INFO_COMMAND_SUBMIT, &times[0]));
  WORKS(time_of(recorded, UR_PROFILING_INFO_COMMAND_START, &times[1]));
  WORKS(time_of(recorded, UR_PROFILING_INFO_COMMAND_END, &times[2]));
  HOLDS(times[0] != 0 && times[0] == times[1] && times[1] == times[2]);
  WORKS(time_of(recorded, UR_PROFILING_INFO_COMMAND_QUEUED, &queued));
  HOLDS(queued == times[0]);
  part = "urEventGetProfilingInfo of an event to share";
  FAILS(PROFILING_INFO_NOT_AVAILABLE, time_of(shared, UR_PROFILING_INFO_COMMAND_SUBMIT, &times[0]));
  signal_event(&ur, shared);
  UR(urEventWait(1, &shared));
  FAILS(PROFILING_INFO_NOT_AVAILABLE, time_of(shared, UR_PROFILING_INFO_COMMAND_END, &times[0]));

  part = "urIPCOpenEventHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCOpenEventHandleExp(NULL, data, size, &opened));
  FAILS(INVALID_NULL_POINTER, urIPCOpenEventHandleExp(ur.context, NULL, size, &opened));
  FAILS(INVALID_NULL_POINTER, urIPCOpenEventHandleExp(ur.context, data, size, NULL));
  FAILS(INVALID_VALUE, open_event_bytes(resized(handle, -1), &opened));
  FAILS(INVALID_VALUE, open_event_bytes(resized(handle, 1), &opened));
  FAILS(INVALID_VALUE, open_event_bytes(garbage(handle), &opened));
  FAILS(INVALID_VALUE, open_event_bytes(other_kind, &opened));
  WORKS(open_event_bytes(handle, &opened));
  WORKS(open_event_bytes(handle, &second));
  HOLDS(opened != second);
  uint32_t references = 0;
  WORKS(urEventGetInfo(opened, UR_EVENT_INFO_REFERENCE_COUNT, sizeof references, &references, NULL));
  HOLDS(references == 1);
  WORKS(urEventRelease(second));
  part = "urIPCGetEventHandleExp of an opened event";
  FAILS(INVALID_EVENT, urIPCGetEventHandleExp(opened, &data, &size));

  part = "urIPCPutEventHandleExp";
  FAILS(INVALID_NULL_HANDLE, urIPCPutEventHandleExp(NULL, data));
  FAILS(INVALID_NULL_POINTER, urIPCPutEventHandleExp(ur.context, NULL));
  WORKS(urIPCPutEventHandleExp(ur.context, data));
  FAILS(INVALID_VALUE, urIPCPutEventHandleExp(ur.context, data));

  part = "urEnqueueEventsWaitWithBarrierExt";
  ur_event_handle_t same = opened, made = NULL;
  FAILS(INVALID_NULL_HANDLE, urEnqueueEventsWaitWithBarrierExt(NULL, NULL, 0, NULL, &made));
  FAILS(INVALID_EVENT_WAIT_LIST,
        urEnqueueEventsWaitWithBarrierExt(ur.queue, NULL, 1, NULL, &made));
  WORKS(urEnqueueEventsWaitWithBarrierExt(ur.queue, NULL, 0, NULL, &same));
  HOLDS(same == opened);
  WORKS(urEventWait(1, &shared));
  same = shared;
  WORKS(urEnqueueEventsWaitWithBarrierExt(ur.queue, NULL, 1, &opened, &same));
  HOLDS(same == shared);
  WORKS(urEventWait(1, &opened));
  same = local;
  WORKS(urEnqueueEventsWaitWithBarrierExt(ur.queue, NULL, 0, NULL, &same));
  HOLDS(same == local);
  WORKS(urEnqueueEventsWaitWithBarrierExt(ur.queue, NULL, 1, &local, &made));
  HOLDS(made != NULL && made != local);
  WORKS(urEnqueueEventsWaitWithBarrierExt(ur.queue, NULL, 1, &made, NULL));
  WORKS(urQueueFinish(ur.queue));
  ur_event_handle_t all[] = {local, shared, timed, opened, recorded, of_command, made};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    UR(urEventRelease(all[i]));
}

int main(int count, char **arguments) {
  limit_life();
  ur = start_runtime();
  if (count > 1 && strcmp(arguments[1], "exporter") == 0) {
    export_for_refusals(&ur);
    return 0;
  }
  setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
  names_rows = true;
  struct bytes handle;
  memory(&handle);
  physical_memory(handle);
  event_creation();
  events(handle);
  refusals(&ur);
  stop_runtime(&ur);
  printf("%d rows, %d wrong\n", rows, wrong);
  return wrong != 0;
}
