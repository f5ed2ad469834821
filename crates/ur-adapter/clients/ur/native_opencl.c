/* Calls of the OpenCL runtime combined with Unified Runtime. The adapter reports OpenCL, so the native
   handles of command buffers and buffers are OpenCL objects. */
#include "native.h"
#include <dlfcn.h>

/* Objects and functions of `CL/cl.h` and `CL/cl_ext.h`. */
typedef void *cl_object;
static void *(*clGetExtensionFunctionAddressForPlatform)(cl_object, const char *);
static int (*clGetMemObjectInfo)(cl_object, uint32_t, size_t, void *, size_t *);
static int (*clCommandSVMMemcpyKHR)(cl_object, cl_object, const void *, void *, const void *, size_t,
                                    uint32_t, const uint32_t *, uint32_t *, cl_object *);
static int (*clCommandCopyBufferKHR)(cl_object, cl_object, const void *, cl_object, cl_object, size_t,
                                     size_t, size_t, uint32_t, const uint32_t *, uint32_t *,
                                     cl_object *);
enum { CL_MEM_SIZE = 0x1102, CL_MEM_HOST_PTR = 0x1103 };

#define CL(call) EXPECT((call) == 0)

static void load_opencl(struct runtime *ur) {
  void *library = dlopen("libOpenCL.so.1", RTLD_NOW);
  EXPECT(library != NULL);
  ur_native_handle_t platform = 0;
  UR(urPlatformGetNativeHandle(ur->platform, &platform));
#define LOAD(name, from) EXPECT((*(void **)&name = from) != NULL)
  LOAD(clGetExtensionFunctionAddressForPlatform,
       dlsym(library, "clGetExtensionFunctionAddressForPlatform"));
  LOAD(clGetMemObjectInfo, dlsym(library, "clGetMemObjectInfo"));
#define LOAD_EXTENSION(name)                                                                             \
  LOAD(name, clGetExtensionFunctionAddressForPlatform((cl_object)platform, #name))
  LOAD_EXTENSION(clCommandSVMMemcpyKHR);
  LOAD_EXTENSION(clCommandCopyBufferKHR);
}

/* Appends the copy to the `cl_command_buffer_khr` of a command buffer. */
static void append_native_copy(ur_native_handle_t native, const struct native_copy *copy) {
  CL(clCommandSVMMemcpyKHR((cl_object)native, NULL, NULL, copy->to, copy->from, SIZE, 0, NULL, NULL,
                           NULL));
}

struct buffers {
  ur_exp_command_buffer_handle_t commands;
  cl_object from, to;
};

static void append_buffer_copy(void *of) {
  struct buffers *copy = (struct buffers *)of;
  ur_native_handle_t native = 0;
  UR(urCommandBufferGetNativeHandleExp(copy->commands, &native));
  CL(clCommandCopyBufferKHR((cl_object)native, NULL, NULL, copy->from, copy->to, 0, 0, SIZE, 0, NULL,
                            NULL, NULL));
}

static cl_object native_of_buffer(struct runtime *ur, ur_mem_handle_t buffer, size_t size) {
  ur_native_handle_t native = 0, same = 0;
  UR(urMemGetNativeHandle(buffer, ur->device, &native));
  UR(urMemGetNativeHandle(buffer, ur->device, &same));
  size_t found = 0;
  CL(clGetMemObjectInfo((cl_object)native, CL_MEM_SIZE, sizeof found, &found, NULL));
  EXPECT(native == same && found == size);
  return (cl_object)native;
}

/* A native command copies a half of a buffer to another buffer, between commands of UR on both. */
static void buffers(struct runtime *ur) {
  ur_mem_handle_t whole = NULL, half = NULL, target = NULL, again = NULL;
  ur_buffer_region_t region = {UR_STRUCTURE_TYPE_BUFFER_REGION, NULL, SIZE, SIZE};
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE, 2 * SIZE, NULL, &whole));
  UR(urMemBufferPartition(whole, UR_MEM_FLAG_READ_WRITE, UR_BUFFER_CREATE_TYPE_REGION, &region, &half));
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE, SIZE, NULL, &target));
  ur_exp_command_buffer_desc_t description = {UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC, NULL, false, true,
                                              false};
  struct buffers copy = {NULL, native_of_buffer(ur, half, SIZE), native_of_buffer(ur, target, SIZE)};
  native_of_buffer(ur, whole, 2 * SIZE);
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &copy.commands));
  UR(urCommandBufferAppendNativeCommandExp(copy.commands, append_buffer_copy, &copy, NULL, 0, NULL, NULL));
  UR(urCommandBufferFinalizeExp(copy.commands));
  for (char round = 1; round < 20; round++) {
    char bytes[2] = {0, (char)-round}, found = 0;
    UR(urEnqueueMemBufferFill(ur->queue, whole, &bytes[1], 1, 0, 2 * SIZE, 0, NULL, NULL));
    UR(urEnqueueMemBufferFill(ur->queue, half, &round, 1, 0, SIZE, 0, NULL, NULL));
    UR(urEnqueueCommandBufferExp(ur->queue, copy.commands, 0, NULL, NULL));
    UR(urEnqueueMemBufferRead(ur->queue, target, true, SIZE - 1, 1, &found, 0, NULL, NULL));
    EXPECT(found == round);
  }
  /* The handle is found again, with its part of the memory. */
  ur_mem_native_properties_t properties = {UR_STRUCTURE_TYPE_MEM_NATIVE_PROPERTIES, NULL, false};
  UR(urMemBufferCreateWithNativeHandle((ur_native_handle_t)copy.from, ur->context, &properties, &again));
  char found = 0;
  UR(urEnqueueMemBufferRead(ur->queue, again, true, 0, 1, &found, 0, NULL, NULL));
  EXPECT(found == 19);
  UR(urMemRelease(again));
  UR(urCommandBufferReleaseExp(copy.commands));
  UR(urMemRelease(half));
  UR(urMemRelease(whole));
  UR(urMemRelease(target));
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT,
          urMemBufferCreateWithNativeHandle((ur_native_handle_t)copy.from, ur->context, &properties,
                                            &again));
}

int main(void) {
  limit_life();
  struct runtime ur = start_runtime();
  load_opencl(&ur);
  native_commands_in_command_buffers(&ur, false);
  native_commands_in_command_buffers(&ur, true);
  buffers(&ur);
  stop_runtime(&ur);
  return 0;
}
