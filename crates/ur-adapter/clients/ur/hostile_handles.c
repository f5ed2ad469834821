/* Invalid bytes, stale handles, and handles of the wrong kind. Each must give an error, and none
   may crash the process. docs/handles.md describes the layout of a handle and its integrity tag. */
#include "rows.h"

#define SIZE ((size_t)128 << 10)
/* Offsets of fields. Only memory has the last four. */
enum { GENERATION = 48, RECORD = 56, SEGMENT = 60, DEVICE = 64, OFFSET = 80, LENGTH = 88, RESERVED = 96 };

/* The functions that open an object from bytes, and that close it. */
struct opener {
  const char *name;
  ur_result_t (*open)(struct runtime *, struct bytes);
};

static ur_result_t as_memory(struct runtime *ur, struct bytes handle) {
  void *memory = NULL;
  ur_result_t result =
      urIPCOpenMemHandleExp(ur->context, ur->device, handle.data, handle.size, &memory);
  if (result == UR_RESULT_SUCCESS)
    UR(urIPCCloseMemHandleExp(ur->context, memory));
  return result;
}

static ur_result_t as_physical_memory(struct runtime *ur, struct bytes handle) {
  ur_physical_mem_handle_t memory = NULL;
  ur_result_t result =
      urIPCOpenPhysMemHandleExp(ur->context, ur->device, handle.data, handle.size, &memory);
  if (result == UR_RESULT_SUCCESS)
    UR(urIPCClosePhysMemHandleExp(ur->context, memory));
  return result;
}

static ur_result_t as_event(struct runtime *ur, struct bytes handle) {
  ur_event_handle_t event = NULL;
  ur_result_t result = urIPCOpenEventHandleExp(ur->context, handle.data, handle.size, &event);
  if (result == UR_RESULT_SUCCESS)
    UR(urEventRelease(event));
  return result;
}

enum { MEMORY, PHYSICAL_MEMORY, EVENT, KINDS };

static const struct opener openers[KINDS] = {
    {"memory", as_memory},
    {"physical memory", as_physical_memory},
    {"event", as_event},
};

/* Exports one object of each kind. The handles are valid until the process exits. */
static void export_all(struct runtime *ur, struct bytes handles[KINDS]) {
  size_t size = 0;
  void *data = NULL, *memory = allocate(ur, SIZE);
  write_pattern(ur, memory, SIZE, 1);
  UR(urIPCGetMemHandleExp(ur->context, memory, &data, &size));
  handles[MEMORY] = bytes_of(data, size);

  size_t unit = 0;
  UR(urVirtualMemGranularityGetInfo(ur->context, ur->device, 1,
                                    UR_VIRTUAL_MEM_GRANULARITY_INFO_MINIMUM, sizeof unit, &unit,
                                    NULL));
  ur_physical_mem_properties_t properties = {UR_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES, NULL,
                                             UR_PHYSICAL_MEM_FLAG_ENABLE_IPC};
  ur_physical_mem_handle_t physical = NULL;
  UR(urPhysicalMemCreate(ur->context, ur->device, unit, &properties, &physical));
  UR(urIPCGetPhysMemHandleExp(ur->context, physical, &data, &size));
  handles[PHYSICAL_MEMORY] = bytes_of(data, size);

  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL,
                                     UR_EXP_EVENT_FLAG_IPC_EXP};
  ur_event_handle_t event = NULL;
  UR(urEventCreateExp(ur->context, ur->device, &description, &event));
  UR(urIPCGetEventHandleExp(event, &data, &size));
  handles[EVENT] = bytes_of(data, size);
}

/* Computes the integrity tag of a handle, which is a CRC-32C. */
static uint32_t tag_of(const unsigned char *data, size_t size) {
  uint32_t tag = ~0u;
  for (size_t i = 0; i < size; i++) {
    tag ^= data[i];
    for (int bit = 0; bit < 8; bit++)
      tag = tag >> 1 ^ (tag & 1 ? 0x82f63b78u : 0);
  }
  return ~tag;
}

static void set_tag(struct bytes *handle) {
  size_t tag_at = handle->size - sizeof(uint32_t);
  uint32_t tag = tag_of(handle->data, tag_at);
  memcpy(handle->data + tag_at, &tag, sizeof tag);
}

/* Returns a handle in which some bytes are replaced, with a correct integrity tag. */
static struct bytes forged(struct bytes handle, size_t at, uint64_t value, size_t size) {
  memcpy(handle.data + at, &value, size);
  set_tag(&handle);
  return handle;
}

/* Returns a handle in which some bits of one byte are flipped, with a correct integrity tag. */
static struct bytes with_other(struct bytes handle, size_t at, unsigned char bits) {
  return forged(handle, at, handle.data[at] ^ bits, 1);
}

/* Returns the next number of a fixed pseudo-random sequence, so failures are reproducible. */
static uint64_t next_random(void) {
  static uint64_t state = 0x9e3779b97f4a7c15;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static void randomise(struct bytes *handle, size_t from, size_t to) {
  for (size_t i = from; i < to; i++)
    handle->data[i] = (unsigned char)(next_random() >> 32);
}

static void damaged(struct runtime *ur, const struct opener *as, struct bytes good) {
  struct bytes bad = good;
  for (size_t bit = 0; bit < 8 * good.size; bit++) {
    bad.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    FAILS(INVALID_VALUE, as->open(ur, bad));
    bad.data[bit / 8] = good.data[bit / 8];
  }
  for (size_t size = 0; size < sizeof bad.data; size++) {
    bad.size = size;
    if (size != good.size)
      FAILS(INVALID_VALUE, as->open(ur, bad));
  }
  bad = good;
  memset(bad.data, 0, bad.size);
  FAILS(INVALID_VALUE, as->open(ur, bad));
  memset(bad.data, 0xff, bad.size);
  FAILS(INVALID_VALUE, as->open(ur, bad));
  for (int i = 0; i < 2000; i++) {
    randomise(&bad, 0, bad.size);
    FAILS(INVALID_VALUE, as->open(ur, bad));
  }
}

static void forgeries(struct runtime *ur, const struct opener *as, struct bytes good) {
  WORKS(as->open(ur, forged(good, 4, good.data[4], 1)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 0, 'Y', 1)));
  /* Fields: version, kind, backend, flags. */
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 4, 1, 1)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 4, 2, 1)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 5, 0, 1)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 5, 9, 1)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 6, 7, 1)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 7, 0x80, 1)));
  /* Fields: host, exporter, context, key. */
  /* The host number 1 means that the host is unknown. The sockets then decide whether the exporter
     is reachable. */
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 8, 2, 8)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 8, 0, 8)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 16, 0, 8)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 16, 1, 8)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 28, 0, 4)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, 28, 77777, 4)));
  FAILS(INVALID_VALUE, as->open(ur, forged(forged(good, 32, 0, 8), 40, 0, 8)));
  /* If the object is still open in this process, its key is not checked. */
  if (as->open == as_physical_memory)
    FAILS(INVALID_VALUE, as->open(ur, forged(good, 32, 1, 8)));
  /* Fields: generation, record. */
  FAILS(INVALID_VALUE, as->open(ur, forged(good, GENERATION, 0, 8)));
  FAILS(INVALID_VALUE, as->open(ur, with_other(good, GENERATION, 1)));
  FAILS(INVALID_VALUE, as->open(ur, with_other(good, GENERATION, 0x80)));
  FAILS(INVALID_VALUE, as->open(ur, with_other(good, GENERATION + 4, 1)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, RECORD, 0xffff0, 4)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, RECORD, 0xfffff0, 4)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, RECORD, ~0u, 4)));
  if (as->open == as_event) {
    /* An event belongs to the host. Its backend is not checked. */
    WORKS(as->open(ur, forged(good, 6, good.data[6] == 1 ? 2 : 1, 1)));
    /* The flag 2 requests an arena for this event alone, which the event does not have. The other
       flags are invalid. */
    REFUSES(as->open(ur, forged(good, 7, 2, 1)));
    FAILS(INVALID_VALUE, as->open(ur, forged(good, 7, 1, 1)));
    /* An event's handle of version 2 had the size of memory's. */
    struct bytes old = good;
    old.size = 104;
    old.data[4] = 2;
    FAILS(INVALID_VALUE, as->open(ur, old));
    return;
  }
  FAILS(INVALID_VALUE, as->open(ur, forged(good, RESERVED, 1, 4)));
  FAILS(INVALID_VALUE, as->open(ur, with_other(good, 6, 3)));
  FAILS(INVALID_DEVICE, as->open(ur, forged(good, DEVICE, ~0ull, 8)));
  FAILS(INVALID_DEVICE, as->open(ur, with_other(good, DEVICE + 15, 0x80)));
  /* Fields: offset, length. */
  FAILS(INVALID_VALUE, as->open(ur, forged(good, OFFSET, 1ull << 40, 8)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, OFFSET, ~0ull, 8)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, LENGTH, 0, 8)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, LENGTH, 1ull << 40, 8)));
  FAILS(INVALID_VALUE, as->open(ur, forged(good, LENGTH, ~0ull, 8)));
}

/* Opens well-formed handles that contain the key of a real object and random values in all other
   fields. */
static void random_claims(struct runtime *ur, const struct opener *as, struct bytes good) {
  for (int i = 0; i < 500; i++) {
    struct bytes bad = good;
    randomise(&bad, GENERATION, RECORD + 4);
    if (as->open != as_event) {
      randomise(&bad, SEGMENT, DEVICE);
      randomise(&bad, OFFSET, RESERVED);
    }
    bad.data[GENERATION] = (unsigned char)((bad.data[GENERATION] & ~3u) | (good.data[GENERATION] & 3u));
    if (i % 2)
      memset(bad.data + RECORD + 2, 0, 2);
    set_tag(&bad);
    REFUSES(as->open(ur, bad));
  }
}

static void try_all(struct runtime *ur, struct bytes handles[KINDS]) {
  for (int kind = 0; kind < KINDS; kind++) {
    const struct opener *as = &openers[kind];
    part = as->name;
    WORKS(as->open(ur, handles[kind]));
    damaged(ur, as, handles[kind]);
    for (int other = 0; other < KINDS; other++)
      if (other != kind)
        FAILS(INVALID_VALUE, as->open(ur, handles[other]));
    forgeries(ur, as, handles[kind]);
    random_claims(ur, as, handles[kind]);
    WORKS(as->open(ur, handles[kind]));
  }
}

int main(int count, char **arguments) {
  limit_life();
  struct runtime ur = start_runtime();
  struct bytes handles[KINDS];
  if (count > 1 && strcmp(arguments[1], "exporter") == 0) {
    export_all(&ur, handles);
    for (int kind = 0; kind < KINDS; kind++)
      say_bytes(PARENT, handles[kind]);
    char nothing;
    hear_or_end(PARENT, &nothing, 1);
    return 0;
  }
  struct peer peer = start_peer("exporter");
  for (int kind = 0; kind < KINDS; kind++)
    handles[kind] = hear_bytes(peer.link);
  try_all(&ur, handles);
  end_peer(&peer);
  export_all(&ur, handles);
  try_all(&ur, handles);
  printf("%d rows, %d wrong\n", rows, wrong);
  return wrong != 0;
}
