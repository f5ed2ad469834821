/* Two processes compute on shared memory. One process fills device memory with a kernel and
   signals. The queue of the other process waits for the signal, continues the computation, and
   signals back. The client also tests other features of kernels, and objects that are released
   before their commands run. */
#include "events.h"
#include "kernels.h"
#include <semaphore.h>

enum { COUNT = 1 << 20, ROUNDS = 20 };

/* Runs in the second process: multiplies the numbers that the first process wrote. */
static int second(void) {
  struct runtime ur = start_runtime();
  struct kernels kernels = load(&ur);
  void *memory = open_memory(&ur, hear_bytes(PARENT));
  ur_event_handle_t filled = open_event(&ur, hear_bytes(PARENT));
  ur_event_handle_t scaled = open_event(&ur, hear_bytes(PARENT));
  for (uint32_t round = 0; round < ROUNDS; round++) {
    hear_bytes(PARENT);
    wait_for(&ur, filled);
    UR(launch(&ur, kernels.scale, memory, round, COUNT, NULL, 0, NULL, NULL));
    signal_event(&ur, scaled);
    say_bytes(PARENT, bytes_of("signalled", 9));
  }
  UR(urQueueFinish(ur.queue));
  UR(urEventRelease(filled));
  UR(urEventRelease(scaled));
  UR(urIPCCloseMemHandleExp(ur.context, memory));
  unload(&kernels);
  stop_runtime(&ur);
  return 0;
}

static void compute_together(struct runtime *ur, struct kernels *kernels) {
  void *memory = allocate(ur, (size_t)COUNT * 4);
  ur_event_handle_t filled = shared_event(ur), scaled = shared_event(ur);
  struct peer peer = start_peer("second");
  say_bytes(peer.link, share_memory(ur, memory));
  say_bytes(peer.link, share_event(ur, filled));
  say_bytes(peer.link, share_event(ur, scaled));
  for (uint32_t round = 0; round < ROUNDS; round++) {
    UR(launch(ur, kernels->fill, memory, round + 1, COUNT, NULL, 0, NULL, NULL));
    signal_event(ur, filled);
    say_bytes(peer.link, bytes_of("signalled", 9));
    hear_bytes(peer.link);
    wait_for(ur, scaled);
    EXPECT(holds(ur, memory, COUNT, 3 * (round + 1) + round));
  }
  end_peer(&peer);
  UR(urEventRelease(filled));
  UR(urEventRelease(scaled));
  UR(urUSMFree(ur->context, memory));
}

static void use_local_memory_offsets_and_variables(struct runtime *ur, struct kernels *kernels) {
  uint32_t words[512], read[512];
  void *memory = allocate(ur, sizeof words);
  for (uint32_t i = 0; i < 512; i++)
    words[i] = i;
  copy(ur, memory, words, sizeof words);
  ur_exp_kernel_arg_properties_t arguments[] = {pointer(0, memory), local(1, 256 * 4)};
  size_t global = 512, group = 256, offset = 1000;
  ur_event_handle_t event = NULL;
  UR(urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->reverse, 1, NULL, &global, &group, 2,
                                      arguments, NULL, 0, NULL, &event));
  UR(urEventWait(1, &event));
  UR(urEventRelease(event));
  copy(ur, read, memory, sizeof read);
  for (uint32_t i = 0; i < 512; i++)
    EXPECT(read[i] == (i < 256 ? 255 - i : 767 - i));

  UR(urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->number, 1, &offset, &global, NULL, 1,
                                      arguments, NULL, 0, NULL, NULL));
  copy(ur, read, memory, sizeof read);
  for (uint32_t i = 0; i < 512; i++)
    EXPECT(read[i] == i + 1000);

  uint32_t factor = 7, was = 0;
  UR(urEnqueueDeviceGlobalVariableRead(ur->queue, kernels->program, "factor", true, 4, 0, &was, 0,
                                       NULL, NULL));
  EXPECT(was == 3);
  UR(urEnqueueDeviceGlobalVariableWrite(ur->queue, kernels->program, "factor", true, 4, 0, &factor,
                                        0, NULL, NULL));
  UR(launch(ur, kernels->fill, memory, 5, 512, NULL, 0, NULL, NULL));
  UR(launch(ur, kernels->scale, memory, 1, 512, NULL, 0, NULL, NULL));
  EXPECT(holds(ur, memory, 512, 36));
  size_t size = 0;
  void *place = NULL;
  UR(urProgramGetGlobalVariablePointer(ur->device, kernels->program, "factor", &size, &place));
  EXPECT(size == 4 && place != NULL);
  copy(ur, &was, place, 4);
  EXPECT(was == 7);

  ur_mem_handle_t buffer = NULL;
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE, 2048, NULL, &buffer));
  uint32_t value = 11, count = 512;
  ur_exp_kernel_arg_properties_t with_buffer[] = {
      {UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_MEM_OBJ, 0,
       sizeof buffer, {.memObjTuple = {buffer, UR_MEM_FLAG_WRITE_ONLY}}},
      number(1, &value), number(2, &count)};
  UR(urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 1, NULL, &global, NULL, 3,
                                      with_buffer, NULL, 0, NULL, NULL));
  UR(urEnqueueMemBufferRead(ur->queue, buffer, true, 0, 2048, read, 0, NULL, NULL));
  EXPECT(read[0] == 11 && read[511] == 11);
  UR(urMemRelease(buffer));
  UR(urUSMFree(ur->context, memory));
}

/* Checks that memory that is freed while a kernel uses it stays valid until the kernel is
   complete. */
static void free_early(struct runtime *ur, struct kernels *kernels) {
  for (int round = 0; round < 100; round++) {
    void *memory = allocate(ur, (size_t)COUNT * 4);
    UR(launch(ur, kernels->fill, memory, 1, COUNT, NULL, 0, NULL, NULL));
    UR(launch(ur, kernels->scale, memory, 1, COUNT, NULL, 0, NULL, NULL));
    UR(urUSMFree(ur->context, memory));
  }
  UR(urQueueFinish(ur->queue));
}

static void wait_for_gate(void *gate) { sem_wait(gate); }

/* Checks that programs and kernels can be released before their launches run. */
static void unload_early(struct runtime *ur) {
  struct kernels kernels = load(ur);
  sem_t gate;
  EXPECT(sem_init(&gate, 0, 0) == 0);
  void *memory = allocate(ur, 4096);
  uint32_t factor = 5;
  UR(urEnqueueDeviceGlobalVariableWrite(ur->queue, kernels.program, "factor", true, 4, 0, &factor, 0,
                                        NULL, NULL));
  UR(urEnqueueHostTaskExp(ur->queue, wait_for_gate, &gate, NULL, 0, NULL, NULL));
  for (uint32_t round = 0; round < 100; round++)
    UR(launch(ur, kernels.fill, memory, round, 1024, NULL, 0, NULL, NULL));
  UR(launch(ur, kernels.scale, memory, 1, 1024, NULL, 0, NULL, NULL));
  unload(&kernels);
  sem_post(&gate);
  EXPECT(holds(ur, memory, 1024, 5 * 99 + 1));
  UR(urUSMFree(ur->context, memory));
  sem_destroy(&gate);
}

int main(int argc, char **argv) {
  limit_life();
  if (argc > 1 && strcmp(argv[1], "second") == 0)
    return second();
  struct runtime ur = start_runtime();
  struct kernels kernels = load(&ur);
  free_early(&ur, &kernels);
  unload_early(&ur);
  use_local_memory_offsets_and_variables(&ur, &kernels);
  unload(&kernels);
  kernels = load(&ur);
  compute_together(&ur, &kernels);
  unload(&kernels);
  stop_runtime(&ur);
  puts("two processes computed on what they share");
  return 0;
}
