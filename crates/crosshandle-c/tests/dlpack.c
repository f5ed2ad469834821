/* Arrays in DLPack's form. The structures are those of dlpack.h, which this test does not need. */

#include "check.h"

#include <string.h>

typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct DLManagedTensorVersioned *);
    uint64_t flags;
    tensor tensor;
};

static int deleted;

static void delete_tensor(struct DLManagedTensorVersioned *self)
{
    (void)self;
    deleted++;
}

int main(void)
{
    crosshandle_context *context = create_context(NULL);
    crosshandle_memory *memory, *read_only;
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_allocate(context, 4096, NULL, &memory));
    crosshandle_memory_handle handle;
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_get_handle(memory, CROSSHANDLE_READ_ONLY, &handle));
    EXPECT(CROSSHANDLE_OK,
           crosshandle_memory_open(context, &handle, CROSSHANDLE_READ_ONLY, 0, &read_only));

    /* Out: an array of 4 x 6 floats from byte 64. */
    int64_t shape[2] = {4, 6}, strides[2] = {8, 1};
    crosshandle_layout layout = {
        .size = sizeof layout, .offset = 64, .type_code = 2, .type_bits = 32, .dimensions = 2, .shape = shape};
    DLManagedTensorVersioned *made;
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_to_dlpack(memory, context, &layout, &made));
    CHECK(made->major == 1 && made->flags == 0 && made->tensor.device_type == 1);
    CHECK(made->tensor.data == (char *)crosshandle_memory_data(memory) + 64);
    CHECK(made->tensor.ndim == 2 && made->tensor.shape[0] == 4 && made->tensor.shape[1] == 6);
    CHECK(made->tensor.strides[0] == 6 && made->tensor.strides[1] == 1);
    CHECK(made->tensor.code == 2 && made->tensor.bits == 32 && made->tensor.lanes == 1);
    DLManagedTensorVersioned *pitched;
    layout.strides = strides;
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_to_dlpack(read_only, context, &layout, &pitched));
    CHECK(pitched->tensor.strides[0] == 8 && pitched->flags == 1);

    /* The tensor keeps the bytes when the memory is closed. */
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_write(memory, 64, "kept", 5));
    EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(read_only));
    CHECK(((char *)pitched->tensor.data)[3] == 't');
    pitched->deleter(pitched);

    /* Arrays that are not inside the memory. */
    shape[0] = 127;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_to_dlpack(memory, context, &layout, &pitched));
    shape[0] = INT64_MAX;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_to_dlpack(memory, context, &layout, &pitched));
    layout.strides = NULL;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_to_dlpack(memory, context, &layout, &pitched));
    shape[0] = -1;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_to_dlpack(memory, context, &layout, &pitched));
    shape[0] = 0;
    shape[1] = -5;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_to_dlpack(memory, context, &layout, &pitched));
    shape[0] = 4;
    shape[1] = 6;
    layout.type_bits = 4;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_to_dlpack(memory, context, &layout, &pitched));
    layout.dimensions = 1000;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_to_dlpack(memory, context, &layout, &pitched));

    /* In: ordinary memory of the host cannot be shared, and the caller keeps the tensor. */
    static float elements[24];
    DLManagedTensorVersioned own = {.major = 1, .deleter = delete_tensor};
    own.tensor = (tensor){.data = elements, .device_type = 1, .ndim = 2, .code = 2, .bits = 32, .lanes = 1, .shape = shape};
    crosshandle_memory *shared;
    EXPECT(CROSSHANDLE_UNSUPPORTED, crosshandle_memory_from_dlpack(context, &own, &shared));
    own.flags = 1;
    EXPECT(CROSSHANDLE_UNSUPPORTED, crosshandle_memory_from_dlpack(context, &own, &shared));
    CHECK(strstr(crosshandle_error_message(), "the tensor is read-only"));
    own.flags = 0;
    own.tensor.device_type = 2;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_from_dlpack(context, &own, &shared));
    own.major = 2;
    EXPECT(CROSSHANDLE_INVALID_ARGUMENT, crosshandle_memory_from_dlpack(context, &own, &shared));
    EXPECT(CROSSHANDLE_NULL, crosshandle_memory_from_dlpack(context, NULL, &shared));
    CHECK(deleted == 0);

    EXPECT(CROSSHANDLE_OK, crosshandle_memory_close(memory));
    CHECK(((char *)made->tensor.data)[0] == 'k');
    made->deleter(made);
    EXPECT(CROSSHANDLE_OK, crosshandle_context_close(context));
    puts("arrays cross");
    return 0;
}
