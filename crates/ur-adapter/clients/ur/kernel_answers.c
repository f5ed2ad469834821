/* Checks the results of the entry points for programs and kernels, with valid and invalid
   arguments. */
#include "kernels.h"
#include <pthread.h>

/* These results are deprecated, but the specification still requires them. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Returns whether the device is the host. Only the host supports launch offsets of any size. */
static bool is_host(struct runtime *ur) {
  ur_device_type_t type = UR_DEVICE_TYPE_GPU;
  UR(urDeviceGetInfo(ur->device, UR_DEVICE_INFO_TYPE, sizeof type, &type, NULL));
  return type == UR_DEVICE_TYPE_CPU;
}

/* Returns whether the device accepts SPIR-V. The host and Level Zero accept SPIR-V and their
   drivers' own binary formats. */
static bool takes_spirv(struct runtime *ur) {
  char languages[256] = "";
  UR(urDeviceGetInfo(ur->device, UR_DEVICE_INFO_IL_VERSION, sizeof languages, languages, NULL));
  return strlen(languages) > 0;
}

static void refuse(struct runtime *ur, struct kernels *kernels) {
  void *memory = allocate(ur, 4096);
  ur_program_handle_t program = NULL;
  ur_kernel_handle_t kernel = NULL;
  const unsigned char nothing[] = {0, 1, 2, 3, 4}, *bytes = nothing;
  size_t size = sizeof nothing;
  const bool on_host = is_host(ur), spirv = takes_spirv(ur);
  if (!spirv)
    ANSWERS(UR_RESULT_ERROR_INVALID_BINARY,
            urProgramCreateWithBinary(ur->context, 1, &ur->device, &size, &bytes, NULL, &program));
  ANSWERS(UR_RESULT_ERROR_INVALID_BINARY,
          urProgramCreateWithIL(ur->context, bytes, size, NULL, &program));
  program = create_program(ur, (const unsigned char *)".version 7.0\nno assembly", 24, NULL);
  ANSWERS(UR_RESULT_ERROR_INVALID_PROGRAM_EXECUTABLE, urKernelCreate(program, "fill", &kernel));
  ur_native_handle_t native = 0;
  /* The query builds the program. After a failed build, the query does not build it again. */
  ANSWERS(UR_RESULT_ERROR_PROGRAM_BUILD_FAILURE, urProgramGetNativeHandle(program, &native));
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE, urProgramGetNativeHandle(program, &native));
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

  size_t odd = 7, large = 1 << 20, group = 128;
  ANSWERS(UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
          launch(ur, kernels->fill, memory, 1, 1024, &odd, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
          launch(ur, kernels->fill, memory, 1, large * 4, &large, 0, NULL, NULL));
  size_t global = 1024;
  uint32_t groups = 9;
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

  /* Local memory that exceeds the device's, and sizes that overflow. */
  ur_exp_kernel_arg_properties_t reversed[] = {pointer(0, memory), local(1, 0)};
  const size_t absurd[] = {(size_t)1 << 20, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 2, SIZE_MAX};
  for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
    reversed[1].size = absurd[i];
    ANSWERS(UR_RESULT_ERROR_OUT_OF_RESOURCES,
            urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->reverse, 1, NULL, &global, &group, 2,
                                             reversed, NULL, 0, NULL, NULL));
  }
  ur_kernel_launch_workgroup_property_t before = {
      UR_STRUCTURE_TYPE_KERNEL_LAUNCH_WORKGROUP_PROPERTY, NULL, SIZE_MAX};
  ur_kernel_launch_ext_properties_t properties = {
      UR_STRUCTURE_TYPE_KERNEL_LAUNCH_EXT_PROPERTIES, &before, 0};
  reversed[1].size = 512;
  ANSWERS(UR_RESULT_ERROR_OUT_OF_RESOURCES,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->reverse, 1, NULL, &global, &group, 2,
                                           reversed, &properties, 0, NULL, NULL));

  ur_exp_kernel_arg_properties_t values[] = {one, number(1, &groups), number(2, &groups)};
  for (int i = 0; i < 2; i++) {
    values[1].size = i == 0 ? SIZE_MAX : 3;
    ANSWERS(i == 0 ? UR_RESULT_ERROR_INVALID_SIZE : UR_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE,
            urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 1, NULL, &global, &group, 3,
                                             values, NULL, 0, NULL, NULL));
  }

  /* A value that is longer than its parameter must be truncated. */
  uint64_t wide = 0x100000005;
  values[1].size = sizeof wide;
  values[1].value.value = &wide;
  uint32_t words = 1024;
  values[2] = number(2, &words);
  UR(urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->fill, 1, NULL, &global, &group, 3, values,
                                      NULL, 0, NULL, NULL));
  EXPECT(holds(ur, memory, words, 5));

  /* Sizes and offsets that exceed 32 bits, and groups with no work-items. */
  size_t endless = SIZE_MAX, beyond = (size_t)1 << 32, none = 0;
  ANSWERS(UR_RESULT_ERROR_OUT_OF_RESOURCES,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->number, 1, NULL, &endless, NULL, 1, &one,
                                           NULL, 0, NULL, NULL));
  if (!on_host)
    ANSWERS(UR_RESULT_ERROR_INVALID_VALUE,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->number, 1, &beyond, &global, &group, 1,
                                           &one, NULL, 0, NULL, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
          urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->number, 1, NULL, &global, &none, 1, &one,
                                           NULL, 0, NULL, NULL));
  UR(urKernelSuggestMaxCooperativeGroupCount(kernels->number, ur->device, 1, &none, 0, &groups));
  EXPECT(groups == 0);
  /* The query returns the number of groups that can wait for each other. On the host, the number is
     1. */
  UR(urKernelSuggestMaxCooperativeGroupCount(kernels->number, ur->device, 1, &group, 0, &groups));
  EXPECT(groups > 0);
  ur_kernel_launch_ext_properties_t together = {UR_STRUCTURE_TYPE_KERNEL_LAUNCH_EXT_PROPERTIES, NULL,
                                                UR_KERNEL_LAUNCH_FLAG_COOPERATIVE};
  UR(urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->number, 1, NULL, &group, &group, 1, &one,
                                      &together, 0, NULL, NULL));
  UR(urQueueFinish(ur->queue));
  if (on_host)
    ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION,
            urEnqueueKernelLaunchWithArgsExp(ur->queue, kernels->number, 1, NULL, &global, &group, 1,
                                             &one, &together, 0, NULL, NULL));
  UR(urUSMFree(ur->context, memory));
}

/* Checks null pointers. Null handles are not tested, because the loader may dereference them. */
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
  EXPECT(arguments == 3 && group >= 256 && required[0] == 0);
  EXPECT(takes_spirv(ur) ? sub_group > 0 : sub_group == 32);
  EXPECT(groups > 0);
  EXPECT(suggested > 0 && global % suggested == 0);
  printf("groups of %zu items, %zu suggested for %zu, %u cooperative groups\n", group, suggested,
         global, groups);

  /* The limits that the compiler reports apply too. */
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

/* Checks that the compiler options of a program apply when the program is linked. This requires a
   driver that compiles text. */
static void link_with_options(struct runtime *ur) {
  const char *text = "kernel void put(global uint *to, uint value, uint count) {"
                     "  if (get_global_id(0) < count) to[get_global_id(0)] = value + MORE; }";
  ur_program_handle_t program = create_program(ur, (const unsigned char *)text, strlen(text), NULL);
  ur_program_handle_t linked = NULL;
  UR(urProgramCompile(ur->context, program, "-DMORE=5"));
  UR(urProgramLink(ur->context, 1, &program, NULL, &linked));
  ur_kernel_handle_t put = create_kernel(linked, "put");
  void *memory = allocate(ur, 4096);
  UR(launch(ur, put, memory, 1, 1024, NULL, 0, NULL, NULL));
  EXPECT(holds(ur, memory, 1024, 6));
  UR(urUSMFree(ur->context, memory));
  UR(urKernelRelease(put));
  UR(urProgramRelease(linked));
  UR(urProgramRelease(program));
}

/* Checks that specialization constants that change after a build apply to the next build, and do
   not affect existing kernels. */
static void change_constants(struct runtime *ur) {
  size_t size = 0;
  const unsigned char *bytes = image(&size);
  ur_program_handle_t program = NULL;
  UR(urProgramCreateWithIL(ur->context, bytes, size, NULL, &program));
  UR(urProgramBuild(ur->context, program, NULL));
  ur_kernel_handle_t before = create_kernel(program, "scale");
  uint32_t ten = 10;
  ur_specialization_constant_info_t constant = {0, sizeof ten, &ten};
  UR(urProgramSetSpecializationConstants(program, 1, &constant));
  UR(urProgramBuild(ur->context, program, NULL));
  ur_kernel_handle_t after = create_kernel(program, "scale"), fill = create_kernel(program, "fill");
  void *memory = allocate(ur, 4096);
  UR(launch(ur, fill, memory, 2, 1024, NULL, 0, NULL, NULL));
  UR(launch(ur, before, memory, 1, 1024, NULL, 0, NULL, NULL));
  EXPECT(holds(ur, memory, 1024, 3 * 2 + 1));
  UR(launch(ur, after, memory, 1, 1024, NULL, 0, NULL, NULL));
  EXPECT(holds(ur, memory, 1024, 30 * 7 + 1));
  UR(urUSMFree(ur->context, memory));
  UR(urKernelRelease(before));
  UR(urKernelRelease(after));
  UR(urKernelRelease(fill));
  UR(urProgramRelease(program));
}

/* Returns whether the query `asked` reports this group size for a kernel. The query is for the
   required or the maximum size. */
static bool has_size(struct runtime *ur, ur_kernel_handle_t kernel, ur_kernel_group_info_t asked,
                     size_t x, size_t y, size_t z) {
  size_t size[3] = {9, 9, 9};
  UR(urKernelGetGroupInfo(kernel, ur->device, asked, sizeof size, size, NULL));
  return size[0] == x && size[1] == y && size[2] == z;
}

/* Checks that PTX is accepted as an intermediate language, and that its directives for group sizes
   apply. */
static void read_assembly(struct runtime *ur) {
  const char *text = "// groups that are fixed, and groups that are limited\n"
                     ".version 7.0\n.target sm_70\n.address_size 64\n"
                     ".visible .entry fixed() .reqntid 2, 4, 8 { ret; }\n"
                     ".visible .entry limited() .maxntid 8, 8 { ret; }\n";
  ur_program_handle_t program = NULL;
  UR(urProgramCreateWithIL(ur->context, text, strlen(text), NULL, &program));
  uint32_t value = 1;
  ur_specialization_constant_info_t constant = {0, sizeof value, &value};
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
          urProgramSetSpecializationConstants(program, 1, &constant));
  UR(urProgramBuild(ur->context, program, NULL));
  ur_kernel_handle_t fixed = create_kernel(program, "fixed");
  ur_kernel_handle_t limited = create_kernel(program, "limited");
  EXPECT(has_size(ur, fixed, UR_KERNEL_GROUP_INFO_COMPILE_WORK_GROUP_SIZE, 2, 4, 8));
  EXPECT(has_size(ur, limited, UR_KERNEL_GROUP_INFO_COMPILE_MAX_WORK_GROUP_SIZE, 8, 8, 1));
  const size_t global[3] = {64, 64, 8}, other[3] = {8, 8, 8}, flat[3] = {64, 1, 1};
  UR(urEnqueueKernelLaunchWithArgsExp(ur->queue, fixed, 3, NULL, global, NULL, 0, NULL, NULL, 0, NULL,
                                      NULL));
  /* Only the product of the three extents is a limit. */
  UR(urEnqueueKernelLaunchWithArgsExp(ur->queue, limited, 3, NULL, global, flat, 0, NULL, NULL, 0,
                                      NULL, NULL));
  for (int i = 0; i < 2; i++)
    ANSWERS(UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
            urEnqueueKernelLaunchWithArgsExp(ur->queue, i == 0 ? fixed : limited, 3, NULL, global, other,
                                             0, NULL, NULL, 0, NULL, NULL));
  UR(urQueueFinish(ur->queue));
  UR(urKernelRelease(fixed));
  UR(urKernelRelease(limited));
  UR(urProgramRelease(program));
}

enum { BUILDERS = 4 };

/* A program that several threads build at the same time. */
struct building {
  struct runtime *ur;
  ur_program_handle_t program;
  pthread_barrier_t start;
};

/* Runs in a thread: builds the program and stores the driver's handle. */
static void *build(void *data) {
  struct building *building = (struct building *)data;
  ur_native_handle_t native = 0;
  pthread_barrier_wait(&building->start);
  UR(urProgramBuild(building->ur->context, building->program, NULL));
  UR(urProgramGetNativeHandle(building->program, &native));
  return (void *)native;
}

/* Builds one program in several threads at the same time. A loaded program must not be replaced by
   another build, because variables and kernels belong to it. */
static void build_at_once(struct runtime *ur) {
  size_t size = 0;
  const unsigned char *bytes = image(&size);
  struct building building = {ur, NULL, {{0}}};
  EXPECT(pthread_barrier_init(&building.start, NULL, BUILDERS) == 0);
  for (int round = 0; round < 20; round++) {
    building.program = create_program(ur, bytes, size, NULL);
    pthread_t threads[BUILDERS];
    void *natives[BUILDERS];
    for (int i = 0; i < BUILDERS; i++)
      EXPECT(pthread_create(&threads[i], NULL, build, &building) == 0);
    for (int i = 0; i < BUILDERS; i++)
      EXPECT(pthread_join(threads[i], &natives[i]) == 0 && natives[i] == natives[0]);
    UR(urProgramRelease(building.program));
  }
  pthread_barrier_destroy(&building.start);
}

int main(void) {
  limit_life();
  struct runtime ur = start_runtime();
  struct kernels kernels = load(&ur);
  ask(&ur, &kernels);
  refuse(&ur, &kernels);
  leave_out(&ur, &kernels);
  build_at_once(&ur);
  if (is_host(&ur))
    link_with_options(&ur);
  if (takes_spirv(&ur))
    change_constants(&ur);
  else
    read_assembly(&ur);
  unload(&kernels);
  stop_runtime(&ur);
  return 0;
}
