/* Freeing memory waits for the commands that use the memory. A function that runs in a queue may
   also free memory. In this case the call does not wait, and the memory is freed after the commands
   are complete. */
#include "ur.h"
#include <pthread.h>
#include <semaphore.h>

static struct runtime ur;
static sem_t gate, freeing;
static void *memory, *other;

static void wait_for_gate(void *data) {
  (void)data;
  sem_wait(&gate);
}

static ur_usm_type_t type_of(const void *pointer) {
  ur_usm_type_t type = UR_USM_TYPE_FORCE_UINT32;
  UR(urUSMGetMemAllocInfo(ur.context, pointer, UR_USM_ALLOC_INFO_TYPE, sizeof type, &type, NULL));
  return type;
}

/* Opens the gate while the main thread is freeing the memory. */
static void *open_gate(void *data) {
  (void)data;
  sem_wait(&freeing);
  while (type_of(memory) != UR_USM_TYPE_UNKNOWN)
    sched_yield();
  sem_post(&gate);
  return NULL;
}

static void free_other(void *data) {
  (void)data;
  UR(urUSMFree(ur.context, other));
}

int main(void) {
  limit_life();
  ur = start_runtime();
  EXPECT(sem_init(&gate, 0, 0) == 0 && sem_init(&freeing, 0, 0) == 0);
  static char bytes[1 << 20];
  char seven = 7;
  memory = allocate(&ur, sizeof bytes);
  UR(urEnqueueUSMFill(ur.queue, memory, 1, &seven, sizeof bytes, 0, NULL, NULL));
  UR(urEnqueueHostTaskExp(ur.queue, wait_for_gate, NULL, NULL, 0, NULL, NULL));
  UR(urEnqueueUSMMemcpy(ur.queue, false, bytes, memory, sizeof bytes, 0, NULL, NULL));
  pthread_t opener;
  EXPECT(pthread_create(&opener, NULL, open_gate, NULL) == 0);
  sem_post(&freeing);
  UR(urUSMFree(ur.context, memory));
  EXPECT(bytes[0] == 7 && bytes[sizeof bytes - 1] == 7);
  EXPECT(pthread_join(opener, NULL) == 0);

  other = allocate(&ur, sizeof bytes);
  UR(urEnqueueHostTaskExp(ur.queue, free_other, NULL, NULL, 0, NULL, NULL));
  UR(urEnqueueUSMFill(ur.queue, other, 1, &seven, sizeof bytes, 0, NULL, NULL));
  UR(urQueueFinish(ur.queue));
  EXPECT(type_of(other) == UR_USM_TYPE_UNKNOWN);
  stop_runtime(&ur);
  return 0;
}
