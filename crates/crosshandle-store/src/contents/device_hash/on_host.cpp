// Runs the kernels of `kernels.cu` on the host, each thread of a block as a thread. Hashes the
// bytes of standard input. Arguments: the number of the first chunk, and whether the bytes are the
// whole contents. Prints the hash of each piece.

#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

struct alignas(16) uint4 {
    std::uint32_t x, y, z, w;
};
struct Index {
    unsigned x;
};
static thread_local Index threadIdx;
static Index blockIdx;
static std::barrier<> *threads_of_block;

#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __syncthreads() threads_of_block->arrive_and_wait()

#include "kernels.cu"

template <typename Kernel> static void launch(unsigned blocks, unsigned threads, Kernel kernel) {
    std::barrier barrier(threads);
    threads_of_block = &barrier;
    std::vector<std::thread> all;
    for (unsigned number = 0; number < threads; number++)
        all.emplace_back([=] {
            threadIdx.x = number;
            for (unsigned block = 0; block < blocks; block++) {
                if (number == 0) blockIdx.x = block;
                __syncthreads();
                kernel();
                __syncthreads();
            }
        });
    for (auto &thread : all) thread.join();
}

int main(int, char **arguments) {
    std::vector<uint4> words;
    std::size_t len = 0;
    for (;;) {
        words.resize(len / 16 + 65536);
        std::size_t got = fread((char *)words.data() + len, 1, words.size() * 16 - len, stdin);
        if (got == 0) break;
        len += got;
    }
    const u64 first_chunk = strtoull(arguments[1], nullptr, 10);
    const u32 is_whole = arguments[2][0] == '1';
    const std::size_t group_bytes = CHUNK_BYTES * GROUP_CHUNKS;
    const unsigned groups = len == 0 ? 1 : (len + group_bytes - 1) / group_bytes;
    const unsigned pieces = (groups + PIECE_GROUPS - 1) / PIECE_GROUPS;
    std::vector<u32> of_groups(8 * groups), of_pieces(8 * pieces);
    const unsigned char *bytes = (const unsigned char *)words.data();
    launch(groups, GROUP_CHUNKS, [&] {
        hash_groups(of_groups.data(), bytes, len, first_chunk, is_whole);
    });
    launch(pieces, PIECE_GROUPS, [&] {
        combine_groups(of_pieces.data(), of_groups.data(), groups, is_whole);
    });
    for (unsigned at = 0; at < of_pieces.size(); at++)
        for (unsigned byte = 0; byte < 4; byte++)
            printf("%02x%s", of_pieces[at] >> 8 * byte & 255, at % 8 == 7 && byte == 3 ? "\n" : "");
}
