/* Everything is released while commands that use it wait for their turn: they run all the same,
   and the memory that they use goes after them. */
#include "ur.h"
#include <semaphore.h>

/* The event that the first command waits for, and the flag that the last one sets. */
static sem_t gate, done;

static void wait_for_gate(void *data) {
  (void)data;
  sem_wait(&gate);
}

static void say_done(void *data) {
  (void)data;
  sem_post(&done);
}

/* Physical memory at a reserved address, which only the context keeps. */
static void *map_memory(struct runtime *ur, size_t size) {
  void *memory = NULL;
  ur_physical_mem_handle_t physical = NULL;
  UR(urVirtualMemReserve(ur->context, NULL, size, &memory));
  UR(urPhysicalMemCreate(ur->context, ur->device, size, NULL, &physical));
  UR(urVirtualMemMap(ur->context, memory, size, physical, 0, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE));
  UR(urPhysicalMemRelease(physical));
  return memory;
}

int main(void) {
  limit_life();
  struct runtime ur = start_runtime();
  EXPECT(sem_init(&gate, 0, 0) == 0 && sem_init(&done, 0, 0) == 0);
  size_t size = 0;
  UR(urVirtualMemGranularityGetInfo(ur.context, ur.device, 0,
                                    UR_VIRTUAL_MEM_GRANULARITY_INFO_RECOMMENDED, sizeof size, &size,
                                    NULL));
  size *= 64;
  void *mapped = map_memory(&ur, size);
  void *copy = allocate(&ur, size);
  char byte = 7;

  UR(urEnqueueHostTaskExp(ur.queue, wait_for_gate, NULL, NULL, 0, NULL, NULL));
  UR(urEnqueueUSMFill(ur.queue, mapped, 1, &byte, size, 0, NULL, NULL));
  UR(urEnqueueUSMMemcpy(ur.queue, false, copy, mapped, size, 0, NULL, NULL));
  UR(urEnqueueHostTaskExp(ur.queue, say_done, NULL, NULL, 0, NULL, NULL));
  stop_runtime(&ur);

  sem_post(&gate);
  HERE("the last command runs");
  sem_wait(&done);
  return 0;
}
