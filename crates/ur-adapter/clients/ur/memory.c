/* USM memory that two processes share. The client tests offsets, contents in both directions,
   memory that is opened several times, and memory that outlives its exporter. */
#include "ur.h"

#define ROUNDS 2
#define SIZE ((size_t)3 << 20)
#define REPLY_AT ((size_t)64 << 10)
#define REPLY_SIZE ((size_t)1 << 20)

/* Offsets in the allocation at which handles are requested. */
static const size_t offsets[] = {0, 1, 64, 4096, 12345, SIZE / 2, SIZE - 1};
#define OFFSETS (sizeof offsets / sizeof *offsets)

/* Checks that a process that uses no kernels on the host loads no kernel runtime. */
static void expect_no_kernel_runtime(struct runtime *ur) {
  void *memory = NULL;
  size_t pitch = 0;
  UR(urUSMPitchedAllocExp(ur->context, ur->device, NULL, NULL, 100, 7, 4, &memory, &pitch));
  UR(urUSMFree(ur->context, memory));
  supports(ur, UR_DEVICE_INFO_BINDLESS_IMAGES_SUPPORT_EXP);
  if (device_type_of(ur) != UR_DEVICE_TYPE_CPU)
    return;
  char line[4096];
  FILE *maps = fopen("/proc/self/maps", "r");
  EXPECT(maps != NULL);
  while (fgets(line, sizeof line, maps))
    EXPECT(strstr(line, "intelocl") == NULL);
  fclose(maps);
}

static void produce(void) {
  struct peer peer = start_peer("consumer");
  struct runtime ur = start_runtime();
  EXPECT(supports(&ur, UR_DEVICE_INFO_IPC_MEMORY_SUPPORT_EXP));
  for (uint32_t round = 0; round < ROUNDS; round++) {
    char *memory = allocate(&ur, SIZE);
    write_pattern(&ur, memory, SIZE, round);
    for (size_t i = 0; i < OFFSETS; i++)
      say_bytes(peer.link, share_memory(&ur, memory + offsets[i]));
    MEET(peer.link);
    /* The consumer has written its reply. All other bytes must be unchanged. */
    MEET(peer.link);
    EXPECT(has_pattern(&ur, memory, REPLY_AT, round, 0));
    EXPECT(has_pattern(&ur, memory + REPLY_AT, REPLY_SIZE, round + 100, 0));
    EXPECT(has_pattern(&ur, memory + REPLY_AT + REPLY_SIZE, SIZE - REPLY_AT - REPLY_SIZE, round,
                       REPLY_AT + REPLY_SIZE));
    /* The memory is freed while another process has it open, so the next allocation must use
       different memory. */
    UR(urUSMFree(ur.context, memory));
    void *other = allocate(&ur, SIZE);
    write_pattern(&ur, other, SIZE, 77);
    MEET(peer.link);
    MEET(peer.link);
    EXPECT(has_pattern(&ur, other, SIZE, 77, 0));
    UR(urUSMFree(ur.context, other));
  }
  expect_no_kernel_runtime(&ur);
  stop_runtime(&ur);
  end_peer(&peer);
}

static void consume(void) {
  struct runtime ur = start_runtime();
  for (uint32_t round = 0; round < ROUNDS; round++) {
    char *opened[OFFSETS];
    struct bytes whole = {0};
    for (size_t i = 0; i < OFFSETS; i++) {
      struct bytes handle = hear_bytes(PARENT);
      if (i == 0)
        whole = handle;
      opened[i] = open_memory(&ur, handle);
    }
    char *again = open_memory(&ur, whole);
    MEET(PARENT);
    for (size_t i = 0; i < OFFSETS; i++)
      EXPECT(has_pattern(&ur, opened[i], SIZE - offsets[i], round, offsets[i]));
    EXPECT(has_pattern(&ur, again, SIZE, round, 0));

    write_pattern(&ur, opened[0] + REPLY_AT, REPLY_SIZE, round + 100);
    EXPECT(has_pattern(&ur, again + REPLY_AT, REPLY_SIZE, round + 100, 0));
    /* Closing the memory once does not affect the other times that it was opened. */
    UR(urIPCCloseMemHandleExp(ur.context, opened[0]));
    for (size_t i = 2; i < OFFSETS; i++)
      UR(urIPCCloseMemHandleExp(ur.context, opened[i]));
    MEET(PARENT);
    MEET(PARENT);
    /* The producer has freed the memory, but the memory is still open in this process. */
    EXPECT(has_pattern(&ur, again, REPLY_AT, round, 0));
    EXPECT(has_pattern(&ur, again + REPLY_AT, REPLY_SIZE, round + 100, 0));
    EXPECT(has_pattern(&ur, opened[1], REPLY_AT - 1, round, 1));
    write_pattern(&ur, again, SIZE, 55);
    MEET(PARENT);
    UR(urIPCCloseMemHandleExp(ur.context, again));
    UR(urIPCCloseMemHandleExp(ur.context, opened[1]));
  }
  stop_runtime(&ur);
}

/* Shares many small adjacent allocations, each by its own handle. */
static void share_many(void) {
  enum { COUNT = 500, BYTES = 100 };
  struct peer peer = start_peer("exporter of many");
  struct runtime ur = start_runtime();
  void *opened[COUNT];
  for (uint32_t i = 0; i < COUNT; i++)
    opened[i] = open_memory(&ur, hear_bytes(peer.link));
  for (uint32_t i = 0; i < COUNT; i++)
    EXPECT(has_pattern(&ur, opened[i], BYTES, i, 0));
  for (uint32_t i = 0; i < COUNT; i++)
    write_pattern(&ur, opened[i], BYTES, i + COUNT);
  for (uint32_t i = 0; i < COUNT; i++)
    EXPECT(has_pattern(&ur, opened[i], BYTES, i + COUNT, 0));
  /* The exporter exits without freeing anything. Importers keep the memory that they have
     opened. */
  end_peer(&peer);
  for (uint32_t i = COUNT; i-- > 0;) {
    EXPECT(has_pattern(&ur, opened[i], BYTES, i + COUNT, 0));
    UR(urIPCCloseMemHandleExp(ur.context, opened[i]));
  }
  stop_runtime(&ur);
}

static void export_many(void) {
  struct runtime ur = start_runtime();
  for (uint32_t i = 0; i < 500; i++) {
    void *memory = allocate(&ur, 100);
    write_pattern(&ur, memory, 100, i);
    say_bytes(PARENT, share_memory(&ur, memory));
  }
  char nothing;
  hear_or_end(PARENT, &nothing, 1);
}

int main(int count, char **arguments) {
  limit_life();
  const char *role = count > 1 ? arguments[1] : "";
  if (strcmp(role, "consumer") == 0) {
    consume();
  } else if (strcmp(role, "exporter of many") == 0) {
    export_many();
  } else {
    produce();
    share_many();
  }
  return 0;
}
