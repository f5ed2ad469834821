/* Sub-devices. The client tests their properties, and computes on memory that another process has
   opened in a context on the whole device. If the device cannot be partitioned, the client checks
   that this is reported. */
#include "events.h"
#include "kernels.h"

enum { COUNT = 1 << 16, ROUNDS = 10 };

static uint32_t number_of(ur_device_handle_t device, ur_device_info_t what) {
  uint32_t answer = 0;
  UR(urDeviceGetInfo(device, what, sizeof answer, &answer, NULL));
  return answer;
}

static ur_device_handle_t parent_of(ur_device_handle_t device) {
  ur_device_handle_t answer = device;
  UR(urDeviceGetInfo(device, UR_DEVICE_INFO_PARENT_DEVICE, sizeof answer, &answer, NULL));
  return answer;
}

static uint32_t units_of(ur_device_handle_t device) {
  return number_of(device, UR_DEVICE_INFO_MAX_COMPUTE_UNITS);
}

static ur_device_partition_property_t equally(uint32_t units) {
  ur_device_partition_property_t way = {UR_DEVICE_PARTITION_EQUALLY, {.equally = units}};
  return way;
}

static ur_device_partition_property_t by_count(uint32_t units) {
  ur_device_partition_property_t way = {UR_DEVICE_PARTITION_BY_COUNTS, {.count = units}};
  return way;
}

static ur_result_t divide(ur_device_handle_t device, const ur_device_partition_property_t *ways,
                          size_t number, uint32_t count, ur_device_handle_t *parts,
                          uint32_t *available) {
  ur_device_partition_properties_t properties = {UR_STRUCTURE_TYPE_DEVICE_PARTITION_PROPERTIES,
                                                 NULL, ways, number};
  return urDevicePartition(device, &properties, count, parts, available);
}

static bool can(ur_device_handle_t device, ur_device_partition_t kind) {
  ur_device_partition_t kinds[8];
  size_t size = 0;
  UR(urDeviceGetInfo(device, UR_DEVICE_INFO_SUPPORTED_PARTITIONS, 0, NULL, &size));
  if (size == 0)
    return false;
  EXPECT(size <= sizeof kinds);
  UR(urDeviceGetInfo(device, UR_DEVICE_INFO_SUPPORTED_PARTITIONS, size, kinds, NULL));
  for (size_t i = 0; i < size / sizeof *kinds; i++)
    if (kinds[i] == kind)
      return true;
  return false;
}

/* Runs in the second process: multiplies the numbers that the sub-devices wrote, on the whole
   device. */
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

static void refuse(struct runtime *ur) {
  ur_device_handle_t part = NULL;
  uint32_t count = 0;
  ur_device_partition_property_t none = {(ur_device_partition_t)7, {.equally = 1}};
  ur_device_partition_property_t mixed[] = {equally(1), by_count(1)};
  ur_device_partition_property_t slices = {UR_DEVICE_PARTITION_BY_CSLICE, {.equally = 0}};
  ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER, divide(ur->device, NULL, 0, 1, &part, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_VALUE, divide(ur->device, mixed, 0, 1, &part, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_VALUE, divide(ur->device, mixed, 2, 1, &part, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_ENUMERATION, divide(ur->device, &none, 1, 1, &part, NULL));
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE, divide(ur->device, &slices, 1, 1, &part, NULL));
  uint32_t domains = number_of(ur->device, UR_DEVICE_INFO_PARTITION_AFFINITY_DOMAIN);
  for (uint32_t flag = 1; flag <= UR_DEVICE_AFFINITY_DOMAIN_FLAG_NEXT_PARTITIONABLE; flag *= 2) {
    ur_device_partition_property_t way = {UR_DEVICE_PARTITION_BY_AFFINITY_DOMAIN,
                                          {.affinity_domain = flag}};
    ANSWERS(domains & flag ? UR_RESULT_SUCCESS : UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
            divide(ur->device, &way, 1, 0, NULL, &count));
  }
  uint32_t units = units_of(ur->device);
  ur_device_partition_property_t bad[][2] = {{equally(0)}, {equally(units + 1)}, {by_count(0)},
                                             {by_count(units), by_count(1)}};
  for (int i = 0; i < 4; i++) {
    bool possible = can(ur->device, bad[i][0].type);
    ANSWERS(possible ? UR_RESULT_ERROR_INVALID_DEVICE_PARTITION_COUNT
                     : UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
            divide(ur->device, bad[i], i == 3 ? 2 : 1, 1, &part, NULL));
  }
  EXPECT(part == NULL && parent_of(ur->device) == NULL);
  size_t size = 1;
  UR(urDeviceGetInfo(ur->device, UR_DEVICE_INFO_PARTITION_TYPE, 0, NULL, &size));
  EXPECT(size == 0);
}

/* Checks the properties and the lifetime of sub-devices. */
static void ask(struct runtime *ur) {
  uint32_t units = units_of(ur->device), count = 0;
  EXPECT(number_of(ur->device, UR_DEVICE_INFO_PARTITION_MAX_SUB_DEVICES) == units);
  ur_device_partition_property_t way = equally(1), told[3];
  UR(divide(ur->device, &way, 1, 0, NULL, &count));
  EXPECT(count == units);
  ur_device_handle_t parts[2] = {NULL, NULL};
  UR(divide(ur->device, &way, 1, 2, parts, NULL));
  EXPECT(parts[0] != NULL && parts[1] != NULL && parts[0] != parts[1]);
  for (int i = 0; i < 2; i++) {
    EXPECT(units_of(parts[i]) == 1 && parent_of(parts[i]) == ur->device);
    size_t size = 0;
    UR(urDeviceGetInfo(parts[i], UR_DEVICE_INFO_PARTITION_TYPE, sizeof told, told, &size));
    EXPECT(size == sizeof *told && told->type == UR_DEVICE_PARTITION_EQUALLY &&
           told->value.equally == 1);
    EXPECT(!can(parts[i], UR_DEVICE_PARTITION_EQUALLY));
    EXPECT(number_of(parts[i], UR_DEVICE_INFO_PARTITION_MAX_SUB_DEVICES) == 0);
    EXPECT(number_of(parts[i], UR_DEVICE_INFO_REFERENCE_COUNT) == 1);
    UR(urDeviceRetain(parts[i]));
    EXPECT(number_of(parts[i], UR_DEVICE_INFO_REFERENCE_COUNT) == 2);
    UR(urDeviceRelease(parts[i]));
    /* The native handle is converted back to the same sub-device. */
    ur_native_handle_t native = 0;
    ur_device_handle_t again = NULL;
    UR(urDeviceGetNativeHandle(parts[i], &native));
    UR(urDeviceCreateWithNativeHandle(native, ur->adapter, NULL, &again));
    EXPECT(again == parts[i] && number_of(again, UR_DEVICE_INFO_REFERENCE_COUNT) == 2);
    UR(urDeviceRelease(again));
    UR(urDeviceRelease(parts[i]));
  }
  /* Partition the device by counts, in two steps. */
  ur_device_partition_property_t ways[] = {by_count(1), by_count(1)};
  ur_device_handle_t whole = NULL;
  ways[0].value.count = 2;
  UR(divide(ur->device, ways, 1, 1, &whole, &count));
  EXPECT(count == 1 && units_of(whole) == 2);
  size_t size = 0;
  UR(urDeviceGetInfo(whole, UR_DEVICE_INFO_PARTITION_TYPE, sizeof told, told, &size));
  EXPECT(size == sizeof *told && told->type == UR_DEVICE_PARTITION_BY_COUNTS &&
         told->value.count == 2);
  ways[0].value.count = 1;
  UR(divide(whole, ways, 2, 2, parts, &count));
  EXPECT(count == 2 && parent_of(parts[0]) == whole && parent_of(parts[1]) == whole);
  UR(urDeviceGetInfo(parts[1], UR_DEVICE_INFO_PARTITION_TYPE, sizeof told, told, &size));
  EXPECT(size == 2 * sizeof *told);
  /* Sub-devices keep their parent devices alive. */
  UR(urDeviceRelease(whole));
  EXPECT(units_of(parent_of(parts[0])) == 2);
  UR(urDeviceRelease(parts[0]));
  UR(urDeviceRelease(parts[1]));
}

/* Links programs with different images for two sub-devices. A program that was linked for one of
   them must not run on the other. */
static void link_apart(struct runtime *on, ur_device_handle_t *parts, void *memory) {
  const unsigned char *images[2];
  size_t sizes[2];
  static const char *const texts[2] = {
      "kernel void which(global uint *to, uint value, uint count) {"
      "  if (get_global_id(0) < count) to[get_global_id(0)] = value + 1;"
      "}",
      "kernel void which(global uint *to, uint value, uint count) {"
      "  if (get_global_id(0) < count) to[get_global_id(0)] = value + 2;"
      "}"};
  for (int i = 0; i < 2; i++) {
    images[i] = (const unsigned char *)texts[i];
    sizes[i] = strlen(texts[i]);
  }
  ur_program_handle_t program = NULL, linked = NULL;
  UR(urProgramCreateWithBinary(on->context, 2, parts, sizes, images, NULL, &program));
  UR(urProgramCompile(on->context, program, NULL));
  UR(urProgramLink(on->context, 1, &program, NULL, &linked));
  UR(urProgramDynamicLinkExp(on->context, 1, &program));
  ur_program_handle_t both[] = {linked, program};
  for (uint32_t way = 0; way < 2; way++) {
    ur_kernel_handle_t which = create_kernel(both[way], "which");
    for (uint32_t i = 0; i < 2; i++) {
      UR(launch(&on[i], which, memory, 10 * way, COUNT, NULL, 0, NULL, NULL));
      EXPECT(holds(&on[i], memory, COUNT, 10 * way + i + 1));
    }
    UR(urKernelRelease(which));
    UR(urProgramRelease(both[way]));
  }
}

/* Sub-devices fill memory in turns. The other process multiplies the memory on the whole device. */
static void compute_together(struct runtime *ur) {
  ur_device_partition_property_t way = equally(1);
  ur_device_handle_t parts[2];
  UR(divide(ur->device, &way, 1, 2, parts, NULL));
  struct runtime on[2] = {*ur, *ur};
  UR(urContextCreate(2, parts, NULL, &on[0].context));
  on[1].context = on[0].context;
  size_t size = 0, sizes[2];
  const unsigned char *bytes = image(&size), *images[] = {bytes, bytes};
  sizes[0] = sizes[1] = size;
  ur_program_handle_t program = NULL;
  UR(urProgramCreateWithBinary(on->context, 2, parts, sizes, images, NULL, &program));
  UR(urProgramBuild(on->context, program, NULL));
  ur_kernel_handle_t fill = create_kernel(program, "fill");
  /* The context's native handle gives a context on both sub-devices, even if the call names no
     devices. */
  ur_native_handle_t native = 0;
  UR(urContextGetNativeHandle(on->context, &native));
  for (uint32_t named = 0; named <= 2; named += 2) {
    ur_context_handle_t again = NULL;
    uint32_t devices = 0;
    UR(urContextCreateWithNativeHandle(native, ur->adapter, named, named == 0 ? NULL : parts, NULL,
                                       &again));
    UR(urContextGetInfo(again, UR_CONTEXT_INFO_NUM_DEVICES, sizeof devices, &devices, NULL));
    EXPECT(devices == 2);
    UR(urContextRelease(again));
  }
  ur_queue_handle_t refused = NULL;
  ANSWERS(UR_RESULT_ERROR_INVALID_DEVICE,
          urQueueCreate(on->context, ur->device, NULL, &refused));
  for (int i = 0; i < 2; i++) {
    on[i].device = parts[i];
    UR(urQueueCreate(on->context, parts[i], NULL, &on[i].queue));
    ur_device_handle_t told = NULL;
    UR(urQueueGetInfo(on[i].queue, UR_QUEUE_INFO_DEVICE, sizeof told, &told, NULL));
    EXPECT(told == parts[i]);
  }
  void *memory = allocate(&on[1], (size_t)COUNT * 4);
  ur_device_handle_t told = NULL;
  UR(urUSMGetMemAllocInfo(on->context, memory, UR_USM_ALLOC_INFO_DEVICE, sizeof told, &told, NULL));
  EXPECT(told == parts[1]);
  ur_event_handle_t filled = shared_event(on), scaled = shared_event(on);
  /* Contexts and queues keep the devices alive. */
  UR(urDeviceRelease(parts[0]));
  UR(urDeviceRelease(parts[1]));
  struct peer peer = start_peer("second");
  say_bytes(peer.link, share_memory(on, memory));
  say_bytes(peer.link, share_event(on, filled));
  say_bytes(peer.link, share_event(on, scaled));
  for (uint32_t round = 0; round < ROUNDS; round++) {
    struct runtime *here = &on[round % 2];
    UR(launch(here, fill, memory, round + 1, COUNT, NULL, 0, NULL, NULL));
    signal_event(here, filled);
    say_bytes(peer.link, bytes_of("signalled", 9));
    hear_bytes(peer.link);
    wait_for(here, scaled);
    EXPECT(holds(here, memory, COUNT, 3 * (round + 1) + round));
  }
  end_peer(&peer);

  /* All sub-devices can access a buffer. */
  ur_mem_handle_t buffer = NULL;
  uint32_t value = 11, count = COUNT, *read = (uint32_t *)malloc((size_t)COUNT * 4);
  size_t global = COUNT;
  UR(urMemBufferCreate(on->context, UR_MEM_FLAG_READ_WRITE, (size_t)COUNT * 4, NULL, &buffer));
  ur_exp_kernel_arg_properties_t with_buffer[] = {
      {UR_STRUCTURE_TYPE_EXP_KERNEL_ARG_PROPERTIES, NULL, UR_EXP_KERNEL_ARG_TYPE_MEM_OBJ, 0,
       sizeof buffer, {.memObjTuple = {buffer, UR_MEM_FLAG_WRITE_ONLY}}},
      number(1, &value), number(2, &count)};
  for (int i = 0; i < 2; i++) {
    value = 11 + (uint32_t)i;
    UR(urEnqueueKernelLaunchWithArgsExp(on[i].queue, fill, 1, NULL, &global, NULL, 3, with_buffer,
                                        NULL, 0, NULL, NULL));
    UR(urEnqueueMemBufferRead(on[i].queue, buffer, true, 0, (size_t)COUNT * 4, read, 0, NULL,
                              NULL));
    EXPECT(read[0] == value && read[COUNT - 1] == value);
  }
  free(read);
  UR(urMemRelease(buffer));
  link_apart(on, parts, memory);
  UR(urEventRelease(filled));
  UR(urEventRelease(scaled));
  UR(urUSMFree(on->context, memory));
  UR(urKernelRelease(fill));
  UR(urProgramRelease(program));
  UR(urQueueRelease(on[0].queue));
  UR(urQueueRelease(on[1].queue));
  UR(urContextRelease(on->context));
}

int main(int argc, char **argv) {
  limit_life();
  if (argc > 1 && strcmp(argv[1], "second") == 0)
    return second();
  struct runtime ur = start_runtime();
  refuse(&ur);
  bool divides = can(ur.device, UR_DEVICE_PARTITION_EQUALLY);
  EXPECT(divides == (number_of(ur.device, UR_DEVICE_INFO_PARTITION_MAX_SUB_DEVICES) > 0));
  if (divides) {
    ask(&ur);
    compute_together(&ur);
  }
  stop_runtime(&ur);
  puts(divides ? "parts compute with other processes" : "the device cannot be divided");
  return 0;
}
