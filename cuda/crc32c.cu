// Sums bytes of device memory on the GPU: folds them to a shorter text of the same CRC-32C, which the host sums.
//
// A text is a polynomial over GF(2), and its sum (without what the sum begins and ends with) the rest by the polynomial P of
// CRC-32C. Thread t of T takes the words t, t + T, t + 2T and so on: a polynomial in y = x^(32 T) whose coefficients are words, so
// that each bit of a word begins 32 polynomials over GF(2), in y. T is a power of two, and so is 32 T; then P(y) = P(x)^(32 T), which
// is 0 modulo P. So each of the 32 may be divided by P *in y*, with the sparse shift register that sums bit by bit in x, and one
// operation does so for all 32 of them: 17 exclusive ors a word, without tables and without memory that threads share. What
// is left, 32 words, is put together by Horner's rule. Each thread gives one word, and the T words are a text of the
// same rest as all that was read.
//
// Registers are words whose first bit is the highest power, as is usual for this sum. The structure is that of
// `crates/cuda/src/sum.rs`; what `__CUDACC__` guards is replaced where the text is compiled for a CPU.
//
// Not yet run on a GPU. Predicted for 4 MiB, 16 blocks of 256 threads on as many multiprocessors of an H100 (64 logical operations
// a clock each, 1.755 GHz: 1.8e12 a second). As sm_90 runs it, where one operation is two exclusive ors, 32 words are 306, and a
// step of Horner's rule 65. So the 256 words of a thread are 2,450, its 31 steps 2,000, together 4.4 a byte: 410 GB/s. With a
// gather at 500 GB/s before it, as docs/src/guide/bench.md predicts, that is 220 GB/s.

#ifdef __CUDACC__
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;
#define SUM_ENTRY extern "C" __global__ __launch_bounds__(256) void
#define PARAMETER const __grid_constant__
#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS (gridDim.x * blockDim.x)
#define LOOP _Pragma("unroll 1")
#define UNROLL _Pragma("unroll")
// What is summed was written a moment ago, and is read again in a moment.
#define LOAD(type, from) __ldcg((const type *)(from))
#define STORE(type, to, value) (*(type *)(to) = (value))
#endif

struct fold {
    // Where the text is, at a multiple of 4, and how many words and bytes behind them it has.
    u64 text;
    u32 words;
    u32 rest;
    // Where a word of each thread goes, and behind those the bytes of the rest.
    u64 folded;
    // How often each thread takes 32 words. Those before the first word count as 0, which changes no sum.
    u32 rounds;
    u32 unused;
    // x^31 y to x^0 y, modulo P: what the bits of a word stand for after a step of Horner's rule, from the lowest on.
    u32 powers[32];
};

// Whether P, x^32 + x^28 + x^27 + ... + 1, has this power.
#define TAP(power) ((0x1edc6f41u >> (power)) & 1)

SUM_ENTRY fold(PARAMETER struct fold fold)
{
    // Launched without a text, for the driver to load it.
    if (!fold.folded)
        return;
    // The coefficient of y^n is at place (n - words taken) modulo 32: the register shifts without being moved.
    u32 places[32];
    UNROLL
    for (u32 n = 0; n < 32; n++)
        places[n] = 0;
    // Wraps around 0 where it is before the first word.
    u32 word = fold.words - fold.rounds * 32 * THREADS + THREAD;
    LOOP
    for (u32 round = 0; round < fold.rounds; round++) {
        u32 next[32];
        UNROLL
        for (u32 n = 0; n < 32; n++) {
            next[n] = word < fold.words ? LOAD(u32, fold.text + (u64)word * sizeof(u32)) : 0;
            word += THREADS;
        }
        UNROLL
        for (u32 n = 0; n < 32; n++) {
            u32 highest = places[31 - n];
            places[31 - n] = highest ^ next[n];
            UNROLL
            for (u32 power = 1; power < 32; power++)
                if (TAP(power))
                    places[(power - 1 - n) & 31] ^= highest;
        }
    }
    u32 sum = places[31];
    LOOP
    for (u32 step = 1; step < 32; step++) {
        u32 product = places[30];
        UNROLL
        for (u32 bit = 0; bit < 32; bit++)
            product ^= fold.powers[bit] & (u32)((int)(sum << (31 - bit)) >> 31);
        UNROLL
        for (u32 n = 30; n > 0; n--)
            places[n] = places[n - 1];
        sum = product;
    }
    STORE(u32, fold.folded + (u64)THREAD * sizeof(u32), sum);
    if (THREAD < fold.rest) {
        u64 from = fold.text + (u64)fold.words * sizeof(u32) + THREAD;
        u64 to = fold.folded + (u64)THREADS * sizeof(u32) + THREAD;
        STORE(u8, to, LOAD(u8, from));
    }
}
