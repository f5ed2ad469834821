/* Physical memory that two processes share. Each process maps it into a virtual address range. */
#include "ur.h"

#define ROUNDS 2

/* A reserved address range. */
struct range {
  char *start;
  size_t size;
};

static size_t granularity_of(struct runtime *ur) {
  size_t size = 0;
  UR(urVirtualMemGranularityGetInfo(ur->context, ur->device, 1,
                                    UR_VIRTUAL_MEM_GRANULARITY_INFO_MINIMUM, sizeof size, &size,
                                    NULL));
  return size;
}

static struct range reserve(struct runtime *ur, size_t size) {
  void *start = NULL;
  UR(urVirtualMemReserve(ur->context, NULL, size, &start));
  return (struct range){start, size};
}

static void map(struct runtime *ur, struct range range, size_t at, size_t size,
                ur_physical_mem_handle_t memory, size_t offset,
                ur_virtual_mem_access_flag_t access) {
  UR(urVirtualMemMap(ur->context, range.start + at, size, memory, offset, access));
  ur_virtual_mem_access_flags_t found = 0;
  UR(urVirtualMemGetInfo(ur->context, range.start + at, size, UR_VIRTUAL_MEM_INFO_ACCESS_MODE,
                         sizeof found, &found, NULL));
  EXPECT(found == (ur_virtual_mem_access_flags_t)access);
}

/* Returns whether part of the physical memory can be mapped. Some devices can map only the whole
   memory. */
static bool maps_parts(struct runtime *ur, ur_physical_mem_handle_t memory, size_t unit) {
  struct range range = reserve(ur, unit);
  ur_result_t result = urVirtualMemMap(ur->context, range.start, unit, memory, unit,
                                       UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE);
  if (result == UR_RESULT_SUCCESS)
    UR(urVirtualMemUnmap(ur->context, range.start, unit));
  else
    EXPECT(result == UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
  UR(urVirtualMemFree(ur->context, range.start, unit));
  return result == UR_RESULT_SUCCESS;
}

static void unmap_and_free(struct runtime *ur, struct range range) {
  UR(urVirtualMemUnmap(ur->context, range.start, range.size));
  UR(urVirtualMemFree(ur->context, range.start, range.size));
}

static void produce(void) {
  struct peer peer = start_peer("consumer");
  struct runtime ur = start_runtime();
  EXPECT(supports(&ur, UR_DEVICE_INFO_IPC_PHYSICAL_MEMORY_SUPPORT_EXP));
  size_t unit = granularity_of(&ur);
  for (uint32_t round = 0; round < ROUNDS; round++) {
    ur_physical_mem_properties_t properties = {UR_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES, NULL,
                                               UR_PHYSICAL_MEM_FLAG_ENABLE_IPC};
    ur_physical_mem_handle_t memory = NULL;
    UR(urPhysicalMemCreate(ur.context, ur.device, 2 * unit, &properties, &memory));
    struct range range = reserve(&ur, 2 * unit);
    map(&ur, range, 0, 2 * unit, memory, 0, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE);
    write_pattern(&ur, range.start, unit, round);
    write_pattern(&ur, range.start + unit, unit, round + 10);

    void *data = NULL;
    size_t size = 0;
    UR(urIPCGetPhysMemHandleExp(ur.context, memory, &data, &size));
    say_bytes(peer.link, bytes_of(data, size));
    MEET(peer.link);
    /* The consumer has opened the memory, so the handle may be returned. */
    UR(urIPCPutPhysMemHandleExp(ur.context, data));
    MEET(peer.link);
    EXPECT(has_pattern(&ur, range.start, unit, round + 20, 0));
    EXPECT(has_pattern(&ur, range.start + unit, unit, round + 30, 0));
    /* The producer releases all its objects. The consumer still has the memory open. */
    unmap_and_free(&ur, range);
    UR(urPhysicalMemRelease(memory));
    MEET(peer.link);
  }
  stop_runtime(&ur);
  end_peer(&peer);
}

static void consume(void) {
  struct runtime ur = start_runtime();
  size_t unit = granularity_of(&ur);
  for (uint32_t round = 0; round < ROUNDS; round++) {
    struct bytes handle = hear_bytes(PARENT);
    ur_physical_mem_handle_t memory = NULL;
    UR(urIPCOpenPhysMemHandleExp(ur.context, ur.device, handle.data, handle.size, &memory));
    MEET(PARENT);
    size_t size = 0;
    UR(urPhysicalMemGetInfo(memory, UR_PHYSICAL_MEM_INFO_SIZE, sizeof size, &size, NULL));
    EXPECT(size == 2 * unit);
    struct range range = reserve(&ur, 2 * unit);
    char *first = range.start, *second = range.start + unit;
    if (maps_parts(&ur, memory, unit)) {
      /* The two halves are mapped in reverse order. */
      second = range.start;
      first = range.start + unit;
      map(&ur, range, 0, unit, memory, unit, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE);
      map(&ur, range, unit, unit, memory, 0, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE);
    } else {
      map(&ur, range, 0, 2 * unit, memory, 0, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE);
    }
    EXPECT(has_pattern(&ur, second, unit, round + 10, 0));
    EXPECT(has_pattern(&ur, first, unit, round, 0));
    write_pattern(&ur, first, unit, round + 20);
    write_pattern(&ur, second, unit, round + 30);
    MEET(PARENT);
    MEET(PARENT);
    unmap_and_free(&ur, range);
    /* The memory is mapped a second time. At this point, only this process has it open. */
    range = reserve(&ur, 2 * unit);
    map(&ur, range, 0, 2 * unit, memory, 0, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_ONLY);
    EXPECT(has_pattern(&ur, range.start, unit, round + 20, 0));
    EXPECT(has_pattern(&ur, range.start + unit, unit, round + 30, 0));
    /* The mapping keeps the memory alive. */
    UR(urIPCClosePhysMemHandleExp(ur.context, memory));
    EXPECT(has_pattern(&ur, range.start, unit, round + 20, 0));
    unmap_and_free(&ur, range);
  }
  stop_runtime(&ur);
}

int main(int count, char **arguments) {
  limit_life();
  if (count > 1 && strcmp(arguments[1], "consumer") == 0)
    consume();
  else
    produce();
  return 0;
}
