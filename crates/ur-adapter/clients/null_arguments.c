/* Each of the extension's eleven functions, with each of its arguments left out. */
#include "rows.h"

int main(void) {
  limit_life();
  struct runtime ur = start_runtime();
  ur_context_handle_t context = ur.context;
  ur_device_handle_t device = ur.device;
  void *data = NULL, *opened = NULL, *memory = allocate(&ur, 4096);
  size_t size = 0;

  part = "memory";
  FAILS(INVALID_NULL_HANDLE, urIPCGetMemHandleExp(NULL, memory, &data, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetMemHandleExp(context, NULL, &data, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetMemHandleExp(context, memory, NULL, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetMemHandleExp(context, memory, &data, NULL));
  WORKS(urIPCGetMemHandleExp(context, memory, &data, &size));
  FAILS(INVALID_NULL_HANDLE, urIPCOpenMemHandleExp(NULL, device, data, size, &opened));
  FAILS(INVALID_NULL_HANDLE, urIPCOpenMemHandleExp(context, NULL, data, size, &opened));
  FAILS(INVALID_NULL_POINTER, urIPCOpenMemHandleExp(context, device, NULL, size, &opened));
  FAILS(INVALID_NULL_POINTER, urIPCOpenMemHandleExp(context, device, data, size, NULL));
  WORKS(urIPCOpenMemHandleExp(context, device, data, size, &opened));
  FAILS(INVALID_NULL_HANDLE, urIPCCloseMemHandleExp(NULL, opened));
  FAILS(INVALID_NULL_POINTER, urIPCCloseMemHandleExp(context, NULL));
  WORKS(urIPCCloseMemHandleExp(context, opened));
  FAILS(INVALID_NULL_HANDLE, urIPCPutMemHandleExp(NULL, data));
  FAILS(INVALID_NULL_POINTER, urIPCPutMemHandleExp(context, NULL));
  WORKS(urIPCPutMemHandleExp(context, data));
  UR(urUSMFree(context, memory));

  part = "physical memory";
  size_t unit = 0;
  UR(urVirtualMemGranularityGetInfo(context, device, 1, UR_VIRTUAL_MEM_GRANULARITY_INFO_MINIMUM,
                                    sizeof unit, &unit, NULL));
  ur_physical_mem_properties_t properties = {UR_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES, NULL,
                                             UR_PHYSICAL_MEM_FLAG_ENABLE_IPC};
  ur_physical_mem_handle_t physical = NULL, private = NULL, other = NULL;
  UR(urPhysicalMemCreate(context, device, unit, &properties, &physical));
  UR(urPhysicalMemCreate(context, device, unit, NULL, &private));
  FAILS(INVALID_ARGUMENT, urIPCGetPhysMemHandleExp(context, private, &data, &size));
  FAILS(INVALID_NULL_HANDLE, urIPCGetPhysMemHandleExp(NULL, physical, &data, &size));
  FAILS(INVALID_NULL_HANDLE, urIPCGetPhysMemHandleExp(context, NULL, &data, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetPhysMemHandleExp(context, physical, NULL, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetPhysMemHandleExp(context, physical, &data, NULL));
  WORKS(urIPCGetPhysMemHandleExp(context, physical, &data, &size));
  FAILS(INVALID_NULL_HANDLE, urIPCOpenPhysMemHandleExp(NULL, device, data, size, &other));
  FAILS(INVALID_NULL_HANDLE, urIPCOpenPhysMemHandleExp(context, NULL, data, size, &other));
  FAILS(INVALID_NULL_POINTER, urIPCOpenPhysMemHandleExp(context, device, NULL, size, &other));
  FAILS(INVALID_NULL_POINTER, urIPCOpenPhysMemHandleExp(context, device, data, size, NULL));
  WORKS(urIPCOpenPhysMemHandleExp(context, device, data, size, &other));
  FAILS(INVALID_NULL_HANDLE, urIPCClosePhysMemHandleExp(NULL, other));
  FAILS(INVALID_NULL_HANDLE, urIPCClosePhysMemHandleExp(context, NULL));
  WORKS(urIPCClosePhysMemHandleExp(context, other));
  FAILS(INVALID_NULL_HANDLE, urIPCPutPhysMemHandleExp(NULL, data));
  FAILS(INVALID_NULL_POINTER, urIPCPutPhysMemHandleExp(context, NULL));
  WORKS(urIPCPutPhysMemHandleExp(context, data));
  UR(urPhysicalMemRelease(physical));
  UR(urPhysicalMemRelease(private));

  part = "event";
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL, 0};
  ur_event_handle_t local = NULL, event = NULL, same = NULL;
  UR(urEventCreateExp(context, device, &description, &local));
  description.flags = UR_EXP_EVENT_FLAG_IPC_EXP;
  UR(urEventCreateExp(context, device, &description, &event));
  FAILS(INVALID_EVENT, urIPCGetEventHandleExp(local, &data, &size));
  FAILS(INVALID_NULL_HANDLE, urIPCGetEventHandleExp(NULL, &data, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetEventHandleExp(event, NULL, &size));
  FAILS(INVALID_NULL_POINTER, urIPCGetEventHandleExp(event, &data, NULL));
  WORKS(urIPCGetEventHandleExp(event, &data, &size));
  FAILS(INVALID_NULL_HANDLE, urIPCOpenEventHandleExp(NULL, data, size, &same));
  FAILS(INVALID_NULL_POINTER, urIPCOpenEventHandleExp(context, NULL, size, &same));
  FAILS(INVALID_NULL_POINTER, urIPCOpenEventHandleExp(context, data, size, NULL));
  WORKS(urIPCOpenEventHandleExp(context, data, size, &same));
  WORKS(urEventRelease(same));
  FAILS(INVALID_NULL_HANDLE, urIPCPutEventHandleExp(NULL, data));
  FAILS(INVALID_NULL_POINTER, urIPCPutEventHandleExp(context, NULL));
  WORKS(urIPCPutEventHandleExp(context, data));
  UR(urEventRelease(event));
  UR(urEventRelease(local));

  stop_runtime(&ur);
  printf("%d rows, %d wrong\n", rows, wrong);
  return wrong != 0;
}
