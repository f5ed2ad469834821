// The BLAKE3 hash of memory that only the device can access.
//
// `compile_ptx.py` compiles this file to `kernels.ptx`. A test without a GPU compiles it as C++,
// together with `on_host.cpp`.
//
// BLAKE3 divides its input into chunks of 1,024 bytes. It combines the chunks' chaining values in
// pairs, level by level. A value without a partner moves to the next level unchanged. A block of
// threads hashes a group of chunks to one value. A second kernel combines the groups of a piece.

typedef unsigned int u32;
typedef unsigned long long u64;

#define CHUNK_BYTES 1024
// Chunks in a group, each hashed by one thread. It is a power of two, so that a group is a subtree.
#define GROUP_CHUNKS 256
// Groups in a piece, which has 16 MiB.
#define PIECE_GROUPS 64
#define BLOCK_BYTES 64

#define CHUNK_START 1u
#define CHUNK_END 2u
#define PARENT 4u
#define ROOT 8u

__device__ __forceinline__ u32 rotate(u32 word, u32 count) {
    return word >> count | word << (32 - count);
}

__device__ __forceinline__ void mix(u32 &a, u32 &b, u32 &c, u32 &d, u32 x, u32 y) {
    a += b + x;
    d = rotate(d ^ a, 16);
    c += d;
    b = rotate(b ^ c, 12);
    a += b + y;
    d = rotate(d ^ a, 8);
    c += d;
    b = rotate(b ^ c, 7);
}

__device__ __forceinline__ void start(u32 value[8]) {
    value[0] = 0x6A09E667, value[1] = 0xBB67AE85, value[2] = 0x3C6EF372, value[3] = 0xA54FF53A;
    value[4] = 0x510E527F, value[5] = 0x9B05688C, value[6] = 0x1F83D9AB, value[7] = 0x5BE0CD19;
}

// Replaces a chaining value by its compression with the 16 words of a block.
__device__ __forceinline__ void compress(u32 value[8], u32 m[16], u64 counter, u32 len, u32 flags) {
    u32 v[16];
    start(v + 8);
    for (u32 i = 0; i < 8; i++) v[i] = value[i];
    v[12] = (u32)counter, v[13] = (u32)(counter >> 32), v[14] = len, v[15] = flags;
    // An unrolled loop would be slightly faster, but the driver compiles it several times longer.
    #pragma unroll 1
    for (u32 round = 0; round < 7; round++) {
        mix(v[0], v[4], v[8], v[12], m[0], m[1]);
        mix(v[1], v[5], v[9], v[13], m[2], m[3]);
        mix(v[2], v[6], v[10], v[14], m[4], m[5]);
        mix(v[3], v[7], v[11], v[15], m[6], m[7]);
        mix(v[0], v[5], v[10], v[15], m[8], m[9]);
        mix(v[1], v[6], v[11], v[12], m[10], m[11]);
        mix(v[2], v[7], v[8], v[13], m[12], m[13]);
        mix(v[3], v[4], v[9], v[14], m[14], m[15]);
        // The permutation of the words between rounds has two cycles of eight words.
        u32 first = m[0], second = m[1];
        m[0] = m[2], m[2] = m[3], m[3] = m[10], m[10] = m[12];
        m[12] = m[9], m[9] = m[11], m[11] = m[5], m[5] = first;
        m[1] = m[6], m[6] = m[4], m[4] = m[7], m[7] = m[13];
        m[13] = m[14], m[14] = m[15], m[15] = m[8], m[8] = second;
    }
    for (u32 i = 0; i < 8; i++) value[i] = v[i] ^ v[i + 8];
}

// Loads the block at `at`, of which `len` bytes exist, and fills it up with zeros.
__device__ __forceinline__ void load(u32 m[16], const unsigned char *at, u32 len) {
    if (len == BLOCK_BYTES) {
        for (u32 i = 0; i < 4; i++) {
            uint4 words = ((const uint4 *)at)[i];
            m[4 * i] = words.x, m[4 * i + 1] = words.y, m[4 * i + 2] = words.z, m[4 * i + 3] = words.w;
        }
    } else {
        for (u32 i = 0; i < 16; i++) {
            m[i] = 0;
            for (u32 j = 0; j < 4; j++)
                if (4 * i + j < len) m[i] |= (u32)at[4 * i + j] << (8 * j);
        }
    }
}

// Hashes a chunk of `len` bytes. `flags` are added to those of its last block.
__device__ __forceinline__ void hash_chunk(
    u32 value[8], const unsigned char *bytes, u32 len, u64 number, u32 flags
) {
    start(value);
    u32 blocks = len == 0 ? 1 : (len + BLOCK_BYTES - 1) / BLOCK_BYTES;
    #pragma unroll 1
    for (u32 block = 0; block < blocks; block++) {
        u32 rest = len - block * BLOCK_BYTES;
        u32 taken = rest < BLOCK_BYTES ? rest : BLOCK_BYTES;
        u32 own = block == 0 ? CHUNK_START : 0;
        if (block == blocks - 1) own |= CHUNK_END | flags;
        u32 m[16];
        load(m, bytes + block * BLOCK_BYTES, taken);
        compress(value, m, number, taken, own);
    }
}

// Combines the `count` values of `tree` to `tree[0]`. All threads of the block call this function.
// `flags` are added to those of the last combination.
__device__ __forceinline__ void combine(u32 (*tree)[8], u32 count, u32 flags) {
    u32 thread = threadIdx.x;
    #pragma unroll 1
    while (count > 1) {
        u32 pairs = count / 2;
        u32 value[8];
        __syncthreads();
        if (thread < pairs) {
            u32 m[16];
            for (u32 i = 0; i < 16; i++) m[i] = tree[2 * thread + i / 8][i % 8];
            start(value);
            compress(value, m, 0, BLOCK_BYTES, PARENT | (count == 2 ? flags : 0));
        } else if (thread == pairs && count % 2 == 1) {
            for (u32 i = 0; i < 8; i++) value[i] = tree[2 * thread][i];
        }
        count -= pairs;
        __syncthreads();
        if (thread < count)
            for (u32 i = 0; i < 8; i++) tree[thread][i] = value[i];
    }
    __syncthreads();
}

// Hashes `len` bytes, of which the first begins chunk `first_chunk`, and stores a value for each
// group. Block number n hashes group number n. `is_whole` is 1 if there are no other bytes.
extern "C" __global__ void hash_groups(
    u32 *groups, const unsigned char *bytes, u64 len, u64 first_chunk, u32 is_whole
) {
    __shared__ u32 tree[GROUP_CHUNKS][8];
    u64 chunks = len == 0 ? 1 : (len + CHUNK_BYTES - 1) / CHUNK_BYTES;
    u64 first = (u64)blockIdx.x * GROUP_CHUNKS;
    u64 rest = chunks - first;
    u32 count = rest < GROUP_CHUNKS ? (u32)rest : GROUP_CHUNKS;
    u32 flags = is_whole && chunks <= GROUP_CHUNKS ? ROOT : 0;
    if (threadIdx.x < count) {
        u64 begin = (first + threadIdx.x) * CHUNK_BYTES;
        u32 taken = len - begin < CHUNK_BYTES ? (u32)(len - begin) : CHUNK_BYTES;
        u32 value[8];
        u64 number = first_chunk + first + threadIdx.x;
        hash_chunk(value, bytes + begin, taken, number, count == 1 ? flags : 0);
        for (u32 i = 0; i < 8; i++) tree[threadIdx.x][i] = value[i];
    }
    combine(tree, count, flags);
    if (threadIdx.x < 8) groups[8 * (u64)blockIdx.x + threadIdx.x] = tree[0][threadIdx.x];
}

// Combines the values of `count` groups, and stores a value for each piece. Block number n combines
// the groups of piece number n. `is_whole` is 1 if there are no other groups.
extern "C" __global__ void combine_groups(u32 *pieces, const u32 *groups, u64 count, u32 is_whole) {
    __shared__ u32 tree[PIECE_GROUPS][8];
    u64 first = (u64)blockIdx.x * PIECE_GROUPS;
    u32 own = count - first < PIECE_GROUPS ? (u32)(count - first) : PIECE_GROUPS;
    if (threadIdx.x < own)
        for (u32 i = 0; i < 8; i++) tree[threadIdx.x][i] = groups[8 * (first + threadIdx.x) + i];
    combine(tree, own, is_whole ? ROOT : 0);
    if (threadIdx.x < 8) pieces[8 * (u64)blockIdx.x + threadIdx.x] = tree[0][threadIdx.x];
}
