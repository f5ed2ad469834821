/* Two processes compute on what they share: one fills device memory with a kernel and signals, the
   other's queue waits and computes further, and signals back. Then what the entry points for
   programs and kernels answer.

   The image is the file that the variable KERNELS_PTX names: kernels.ptx of the library's tests. */
#include "ur.h"

/* Deprecated, but what the specification still says. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

enum { COUNT = 1 << 20, ROUNDS = 20 };

struct kernels {
  ur_program_handle_t program;
  ur_kernel_handle_t fill, scale, reverse, number;
};

/* A file's bytes and a zero. */
static unsigned char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    fail("%s cannot be read", path);
  unsigned char *bytes = (unsigned char *)calloc(1, 1 << 20);
  *size = fread(bytes, 1, (1 << 20) - 1, file);
  fclose(file);
  return bytes;
}

static const unsigned char *image(size_t *size) {
  const char *path = getenv("KERNELS_PTX");
  return read_file(path != NULL ? path : "kernels.ptx", size);
}

static ur_program_handle_t create_program(struct runtime *ur, const unsigned char *bytes,
                                          size_t size, const ur_program_properties_t *properties) {
  ur_program_handle_t program = NULL;
  UR(urProgramCreateWithBinary(ur->context, 1, &ur->device, &size, &bytes, properties, &program));
  return program;
}

static ur_kernel_handle_t create_kernel(ur_program_handle_t program, const char *name) {
  ur_kernel_handle_t kernel = NULL;
  UR(urKernelCreate(program, name, &kernel));
  return kernel;
}

static struct kernels load(struct runtime *ur) {
  size_t size = 0;
  const unsigned char *bytes = image(&size);
  struct kernels all;
  all.program = create_program(ur, bytes, size, NULL);
  UR(urProgramBuildExp(all.program, 1, &ur->device, 0, NULL));
  all.fill = create_kernel(all.program, "fill");
  all.scale = create_kernel(all.program, "scale");
  all.reverse = create_kernel(all.program, "reverse");
  all.number = create_kernel(all.program, "number");
  return all;
}

static void unload(struct kernels *all) {
  UR(urKernelRelease(all->fill));
  UR(urKernelRelease(all->scale));
  UR(urKernelRelease(all->reverse));
  UR(urKernelRelease(all->number));
  UR(urProgramRelease(all->program));
}

static ur_exp_kernel_arg_properties_t pointer(uint32_t index, const void *value) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_POINTER, index,
      sizeof value, {.pointer = value}};
  return argument;
}

static ur_exp_kernel_arg_properties_t number(uint32_t index, const uint32_t *value) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_VALUE, index,
      sizeof *value, {.value = value}};
  return argument;
}

static ur_exp_kernel_arg_properties_t local(uint32_t index, size_t size) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_LOCAL, index, size,
      {.value = NULL}};
  return argument;
}

/* `fill` or `scale`: memory, a number, and how many words. */
static ur_result_t launch(struct runtime *ur, ur_kernel_handle_t kernel, void *memory,
                          uint32_t value, uint32_t count, const size_t *group, uint32_t waits,
                          const ur_event_handle_t *wait, ur_event_handle_t *event) {
  ur_exp_kernel_arg_properties_t arguments[] = {pointer(0, memory), number(1, &value),
                                                number(2, &count)};
  size_t global = count;
  return urEnqueueKernelLaunchWithArgsExp(ur->queue, kernel, 1, NULL, &global, group, 3, arguments,
                                          NULL, waits, wait, event);
}

static ur_event_handle_t shared_event(struct runtime *ur) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL, UR_EXP_EVENT_FLAG_IPC_EXP};
  ur_event_handle_t event = NULL;
  UR(urEventCreateExp(ur->context, ur->device, &description, &event));
  return event;
}

static struct bytes share_event(struct runtime *ur, ur_event_handle_t event) {
  void *data = NULL;
  size_t size = 0;
  UR(urIPCGetEventHandleExp(event, &data, &size));
  struct bytes bytes = bytes_of(data, size);
  UR(urIPCPutEventHandleExp(ur->context, data));
  return bytes;
}

static ur_event_handle_t open_event(struct runtime *ur, struct bytes handle) {
  ur_event_handle_t event = NULL;
  UR(urIPCOpenEventHandleExp(ur->context, handle.data, handle.size, &event));
  return event;
}

/* Signals an event after all that the queue was given. */
static void signal_event(struct runtime *ur, ur_event_handle_t event) {
  UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 0, NULL, &event));
}

/* Lets the queue wait for an event's latest signal. */
static void wait_for(struct runtime *ur, ur_event_handle_t event) {
  UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 1, &event, NULL));
}

static bool holds(struct runtime *ur, const void *memory, uint32_t count, uint32_t value) {
  uint32_t *words = (uint32_t *)malloc((size_t)count * 4);
  copy(ur, words, memory, (size_t)count * 4);
  uint32_t same = 0;
  while (same < count && words[same] == value)
    same++;
  if (same < count)
    fprintf(stderr, "word %u is %u, not %u\n", same, words[same], value);
  free(words);
  return same == count;
}

/* The second process: multiplies what the first one filled. */
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

static void refuse(struct runtime *ur, struct kernels *kernels) {
  void *memory = allocate(ur, 4096);
  ur_program_handle_t program = NULL;
  ur_kernel_handle_t kernel = NULL;
  const unsigned char nothing[] = {0, 1, 2, 3, 4}, *bytes = nothing;
  size_t size = sizeof nothing;
  ANSWERS(UR_RESULT_ERROR_INVALID_BINARY,
          urProgramCreateWithBinary(ur->context, 1, &ur->device, &size, &bytes, NULL, &program));
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
          urProgramCreateWithIL(ur->context, bytes, size, NULL, &program));
  program = create_program(ur, (const unsigned char *)".version 7.0\nno assembly", 24, NULL);
  ANSWERS(UR_RESULT_ERROR_INVALID_PROGRAM_EXECUTABLE, urKernelCreate(program, "fill", &kernel));
  ANSWERS(UR_RESULT_ERROR_PROGRAM_BUILD_FAILURE, urProgramBuild(ur->context, program, "-O2"));
  char text[4096] = "";
  UR(urProgramGetBuildInfo(program, ur->device, UR_PROGRAM_BUILD_INFO_LOG, sizeof text, text, NULL));
  EXPECT(strlen(text) > 0);
  printf("the log of what is no program: %s\n", text);
  ur_program_build_status_t status = UR_PROGRAM_BUILD_STATUS_NONE;
  UR(urProgramGetBuildInfo(program, ur->device, UR_PROGRAM_BUILD_INFO_STATUS, sizeof status, &status,
                           NULL));
  EXPECT(status == UR_PROGRAM_BUILD_STATUS_ERROR);
  UR(urProgramRelease(program));
  ANSWERS(UR_RESULT_ERROR_INVALID_KERNEL_NAME, urKernelCreate(kernels->program, "none", &kernel));

  size_t odd = 7, large = 4096, group = 128;
  ANSWERS(UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
          launch(ur, kernels->fill, memory, 1, 1024, &odd, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
          launch(ur, kernels->fill, memory, 1, 4096, &large, 0, NULL, NULL));
  size_t global = 1024;
  ur_exp_kernel_arg_properties_t one = pointer(0, memory), far = pointer(3, memory);
  ANSWERS(UR_RESULT_ERROR_INVALID_WORK_DIMENSION,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 4, NULL, &global, NULL, 0, NULL,
                                           NULL, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_KERNEL_ARGS,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 1, NULL, &global, &group, 1,
                                           &one, NULL, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 1, NULL, &global, &group, 1,
                                           &far, NULL, 0, NULL, NULL));
  UR(urUSMFree(ur->context, memory));
}

/* Pointers left out. (Handles left out are for the loader too, which may follow them.) */
static void leave_out(struct runtime *ur, struct kernels *kernels) {
  size_t size = 5, global = 64, group = 0;
  const unsigned char text[] = ".text", *bytes = text;
  ur_program_handle_t program = NULL;
  ur_kernel_handle_t kernel = NULL;
  ur_program_properties_t counted = {UR_STRUCTURE_TYPE_PROGRAM_PROPERTIES, NULL, 1, NULL};
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER,
          urProgramCreateWithBinary(ur->context, 1, &ur->device, &size, NULL, NULL, &program));
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER,
          urProgramCreateWithBinary(ur->context, 1, &ur->device, &size, &bytes, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER,
          urProgramCreateWithBinary(ur->context, 1, &ur->device, &size, &bytes, &counted, &program));
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER, urKernelCreate(kernels->program, NULL, &kernel));
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER, urKernelCreate(kernels->program, "fill", NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 1, NULL, NULL, NULL, 0, NULL, NULL,
                                           0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 1, NULL, &global, NULL, 3, NULL,
                                           NULL, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_EVENT_WAIT_LIST,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 1, NULL, &global, NULL, 0, NULL,
                                           NULL, 1, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER,
          urKernelGetSuggestedLocalWorkSize(kernels->fill, ur->queue, 1, NULL, &global, &group));
  ANSWERS(UR_RESULT_ERROR_INVALID_SIZE, urProgramLink(ur->context, 0, &kernels->program, NULL, &program));
  EXPECT(program == NULL);
  UR(urProgramLink(ur->context, 1, &kernels->program, NULL, &program));
  UR(urKernelCreate(program, "fill", &kernel));
  UR(urKernelRelease(kernel));
  UR(urProgramRelease(program));
  UR(urProgramCompile(ur->context, kernels->program, NULL));
  UR(urProgramBuild(ur->context, kernels->program, NULL));
}

/* Memory that is freed while a kernel uses it stays until the kernel is done. */
static void free_early(struct runtime *ur, struct kernels *kernels) {
  for (int round = 0; round < 100; round++) {
    void *memory = allocate(ur, (size_t)COUNT * 4);
    UR(launch(ur, kernels->fill, memory, 1, COUNT, NULL, 0, NULL, NULL));
    UR(launch(ur, kernels->scale, memory, 1, COUNT, NULL, 0, NULL, NULL));
    UR(urUSMFree(ur->context, memory));
  }
  UR(urQueueFinish(ur->queue));
}

static void ask(struct runtime *ur, struct kernels *kernels) {
  size_t group = 0, required[3] = {9, 9, 9};
  uint32_t arguments = 0, sub_group = 0, groups = 0;
  UR(urKernelGetInfo(kernels->fill, UR_KERNEL_INFO_NUM_ARGS, sizeof arguments, &arguments, NULL));
  UR(urKernelGetGroupInfo(kernels->fill, ur->device, UR_KERNEL_GROUP_INFO_WORK_GROUP_SIZE,
                          sizeof group, &group, NULL));
  UR(urKernelGetGroupInfo(kernels->fill, ur->device, UR_KERNEL_GROUP_INFO_COMPILE_WORK_GROUP_SIZE,
                          sizeof required, required, NULL));
  UR(urKernelGetSubGroupInfo(kernels->fill, ur->device, UR_KERNEL_SUB_GROUP_INFO_MAX_SUB_GROUP_SIZE,
                             sizeof sub_group, &sub_group, NULL));
  size_t local = 256, offset = 0, global = 3000, suggested = 0;
  UR(urKernelSuggestMaxCooperativeGroupCount(kernels->fill, ur->device, 1, &local, 0, &groups));
  UR(urKernelGetSuggestedLocalWorkSize(kernels->fill, ur->queue, 1, &offset, &global, &suggested));
  EXPECT(arguments == 3 && group >= 256 && required[0] == 0 && sub_group == 32 && groups > 0);
  EXPECT(suggested > 0 && global % suggested == 0);
  printf("groups of %zu items, %zu suggested for %zu, %u cooperative groups\n", group, suggested,
         global, groups);

  /* The compiler's word counts too. */
  size_t size = 0;
  const unsigned char *bytes = image(&size);
  struct {
    uint64_t bits;
    uint32_t sizes[2];
  } wanted = {64, {64, 1}};
  ur_program_metadata_t entry = {"fill@reqd_work_group_size", UR_PROGRAM_METADATA_TYPE_BYTE_ARRAY,
                                 sizeof wanted, {.pData = &wanted}};
  ur_program_properties_t properties = {UR_STRUCTURE_TYPE_PROGRAM_PROPERTIES, NULL, 1, &entry};
  ur_program_handle_t program = create_program(ur, bytes, size, &properties);
  UR(urProgramBuild(ur->context, program, NULL));
  ur_kernel_handle_t fill = create_kernel(program, "fill");
  UR(urKernelGetGroupInfo(fill, ur->device, UR_KERNEL_GROUP_INFO_COMPILE_WORK_GROUP_SIZE,
                          sizeof required, required, NULL));
  EXPECT(required[0] == 64 && required[1] == 1 && required[2] == 1);
  void *memory = allocate(ur, 4096);
  size_t other = 128;
  ANSWERS(UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
          launch(ur, fill, memory, 3, 1024, &other, 0, NULL, NULL));
  UR(launch(ur, fill, memory, 3, 1024, NULL, 0, NULL, NULL));
  EXPECT(holds(ur, memory, 1024, 3));
  UR(urUSMFree(ur->context, memory));
  UR(urKernelRelease(fill));
  UR(urProgramRelease(program));
}

int main(int argc, char **argv) {
  limit_life();
  if (argc > 1 && strcmp(argv[1], "second") == 0)
    return second();
  struct runtime ur = start_runtime();
  struct kernels kernels = load(&ur);
  ask(&ur, &kernels);
  refuse(&ur, &kernels);
  leave_out(&ur, &kernels);
  free_early(&ur, &kernels);
  use_local_memory_offsets_and_variables(&ur, &kernels);
  unload(&kernels);
  kernels = load(&ur);
  compute_together(&ur, &kernels);
  unload(&kernels);
  stop_runtime(&ur);
  puts("two processes computed on what they share");
  return 0;
}
