/* Releases all objects while commands that use them are pending. The commands must still run, and
   their memory must be freed afterwards. */
#include "ur.h"
#include <sched.h>
#include <semaphore.h>

/* The semaphore for which the first command waits, and the one that the last command posts. */
static sem_t gate, done;

static void wait_for_gate(void *data) {
  (void)data;
  sem_wait(&gate);
}

static void say_done(void *data) {
  (void)data;
  sem_post(&done);
}

/* Maps physical memory at a reserved address. Only the context keeps the memory alive. */
static void *map_memory(struct runtime *ur, size_t size) {
  void *memory = NULL;
  ur_physical_mem_handle_t physical = NULL;
  UR(urVirtualMemReserve(ur->context, NULL, size, &memory));
  UR(urPhysicalMemCreate(ur->context, ur->device, size, NULL, &physical));
  UR(urVirtualMemMap(ur->context, memory, size, physical, 0, UR_VIRTUAL_MEM_ACCESS_FLAG_READ_WRITE));
  UR(urPhysicalMemRelease(physical));
  return memory;
}

/* Memory of the program, from which two buffers are created. */
#define HALF 4096
static unsigned char user[2 * HALF];

/* Creates a buffer over one half of the program's memory, fills it in a queue, and releases it. */
static void fill_half(struct runtime *ur, ur_queue_handle_t queue, unsigned char *half,
                      unsigned char byte, bool is_queue_first) {
  ur_buffer_properties_t properties = {UR_STRUCTURE_TYPE_BUFFER_PROPERTIES, NULL, half};
  ur_mem_handle_t buffer = NULL;
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_USE_HOST_POINTER, HALF, &properties, &buffer));
  UR(urEnqueueMemBufferFill(queue, buffer, &byte, 1, 0, HALF, 0, NULL, NULL));
  if (is_queue_first)
    UR(urQueueRelease(queue));
  UR(urMemRelease(buffer));
}

/* Waits until all bytes of one half have this value. */
static void wait_for_half(const unsigned char *half, unsigned char byte) {
  const volatile unsigned char *bytes = half;
  for (size_t i = 0; i < HALF; i++)
    while (bytes[i] != byte)
      sched_yield();
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
  ur_queue_handle_t other = NULL;
  UR(urQueueCreate(ur.context, ur.device, NULL, &other));
  UR(urEnqueueHostTaskExp(other, wait_for_gate, NULL, NULL, 0, NULL, NULL));
  fill_half(&ur, ur.queue, user, 8, false);
  fill_half(&ur, other, user + HALF, 9, true);
  stop_runtime(&ur);

  sem_post(&gate);
  sem_post(&gate);
  HERE("the last command runs");
  sem_wait(&done);
  HERE("contents of released buffers go back");
  wait_for_half(user, 8);
  wait_for_half(user + HALF, 9);
  return 0;
}
