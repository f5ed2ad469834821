/* Helpers for clients that run kernels.

   The environment variable KERNELS_PTX contains the path of the kernel image. For NVIDIA GPUs, it
   is crates/crosshandle-cuda/src/kernels.ptx. For other devices, it is a SPIR-V module. */
#ifndef KERNELS_H
#define KERNELS_H

#include "ur.h"

struct kernels {
  ur_program_handle_t program;
  ur_kernel_handle_t fill, scale, reverse, number;
};

/* Returns the bytes of a file, followed by a zero byte. */
static inline unsigned char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    fail("%s cannot be read", path);
  unsigned char *bytes = (unsigned char *)calloc(1, 1 << 20);
  *size = fread(bytes, 1, (1 << 20) - 1, file);
  fclose(file);
  return bytes;
}

static inline const unsigned char *image(size_t *size) {
  const char *path = getenv("KERNELS_PTX");
  return read_file(path != NULL ? path : "kernels.ptx", size);
}

static inline ur_program_handle_t create_program(struct runtime *ur, const unsigned char *bytes,
                                                 size_t size,
                                                 const ur_program_properties_t *properties) {
  ur_program_handle_t program = NULL;
  UR(urProgramCreateWithBinary(ur->context, 1, &ur->device, &size, &bytes, properties, &program));
  return program;
}

static inline ur_kernel_handle_t create_kernel(ur_program_handle_t program, const char *name) {
  ur_kernel_handle_t kernel = NULL;
  UR(urKernelCreate(program, name, &kernel));
  return kernel;
}

static inline struct kernels load(struct runtime *ur) {
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

static inline void unload(struct kernels *all) {
  UR(urKernelRelease(all->fill));
  UR(urKernelRelease(all->scale));
  UR(urKernelRelease(all->reverse));
  UR(urKernelRelease(all->number));
  UR(urProgramRelease(all->program));
}

static inline ur_exp_kernel_arg_properties_t pointer(uint32_t index, const void *value) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_POINTER, index,
      sizeof value, {.pointer = value}};
  return argument;
}

static inline ur_exp_kernel_arg_properties_t number(uint32_t index, const uint32_t *value) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_VALUE, index,
      sizeof *value, {.value = value}};
  return argument;
}

static inline ur_exp_kernel_arg_properties_t local(uint32_t index, size_t size) {
  ur_exp_kernel_arg_properties_t argument = {
      UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_LOCAL, index, size,
      {.value = NULL}};
  return argument;
}

/* Launches the kernel `fill` or `scale`. Its arguments are the memory, a value and the number of
   words. */
static inline ur_result_t launch(struct runtime *ur, ur_kernel_handle_t kernel, void *memory,
                                 uint32_t value, uint32_t count, const size_t *group,
                                 uint32_t waits, const ur_event_handle_t *wait,
                                 ur_event_handle_t *event) {
  ur_exp_kernel_arg_properties_t arguments[] = {pointer(0, memory), number(1, &value),
                                                number(2, &count)};
  size_t global = count;
  return urEnqueueKernelLaunchWithArgsExp(ur->queue, kernel, 1, NULL, &global, group, 3, arguments,
                                          NULL, waits, wait, event);
}

static inline bool holds(struct runtime *ur, const void *memory, uint32_t count, uint32_t value) {
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

#endif
