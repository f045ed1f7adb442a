// Two-level accumulation of e4m3: the second level of a warpgroup's sums, in shared memory.
//
// Tensor cores add 8-bit products with about 14 bits, and cut off the rest (DeepSeek-V3,
// arXiv:2412.19437, section 3.5.2): after 16,384 keys a fourth of a sum can be missing. So the sums
// of the tensor cores are promoted, slice by slice, while they compute the scores of a block:
//
//      block       0        1        2        3        4        5        6        7
//      promotes    -     slice 0     -     slice 1     -     slice 2     -     slice 3    and again
//                  <------------------- BLOCKS, here with SLICES = 4 ------------------>
//
// The larger a sum is, the more is cut off. So of a sum x 1.5 x is promoted and -0.5 x is left,
// which passes through zero on its way to the next promotion. In the mean it is half as large as a
// sum that starts at zero, and 13 / 8 as many keys make the same error.
//
// Included by attention_fwd_cuda_sm90.cu, whose sizes it uses.
#pragma once

#include "cuda/ptx.cuh"

// The second level of `out`, the sums of 64 rows in the registers of a warpgroup. Each thread has
// places of its own in the output's buffer, whose first is `at`.
struct PromotedSums {
    // An enum takes no memory of the device, which other dtypes would have, too.
    enum : int {
        REGISTERS = V_COLUMNS / 2,
        BITS = SUM_BITS,  // of a promoted sum: 32, or 16 (bf16)
        BLOCKS = larger(SUM_KEYS * 13 / 8 / BLOCK_N, 1),
        // A slice's registers, of which 8 are promoted at a time.
        SLICE = padded(larger(16, ceil_div(REGISTERS, BLOCKS)), 8),
        SLICES = ceil_div(REGISTERS, SLICE),
        NONE = -2,    // of `block`: the tile promotes nothing,
        BEGINS = -1,  // or its first block, which has no sums yet, comes next
    };

    int block;       // of BLOCKS, the one that comes next
    int first_time;  // that it comes: 1, then 0
    float units[2];  // the factor from the units of `out` to those of promoted sums, of two rows

    DEVICE void init() {
        block = NONE;
        first_time = 1;
        units[0] = units[1] = 1.0f;
    }
    DEVICE void begin() { block = BEGINS; }

    // Promotes a slice of `out`, if it is the block's turn. Sums that start at zero are promoted
    // after half as many keys: each block then has the turn of the next, too.
    DEVICE void promote(float (&out)[REGISTERS], u32 at) {
        if (block < 0) {
            if (block == BEGINS) block = 0;
            return;
        }
        do {
            promote_in_block<0, BLOCKS>(out, at);
            if (++block == BLOCKS) block = first_time = 0;
        } while (block & first_time);
    }

    // Does it in `block`, which is in [BEGIN, END): registers have no index that is computed.
    template <int BEGIN, int END>
    DEVICE void promote_in_block(float (&out)[REGISTERS], u32 at) const {
        constexpr int MIDDLE = (BEGIN + END) / 2, NUMBER = BEGIN * SLICES / BLOCKS;
        if constexpr (END - BEGIN > 1) {
            if (block < MIDDLE)
                promote_in_block<BEGIN, MIDDLE>(out, at);
            else
                promote_in_block<MIDDLE, END>(out, at);
        } else if constexpr (END * SLICES / BLOCKS > NUMBER) {
            promote_slice<NUMBER>(out, at);
        }
    }

    template <int NUMBER>
    DEVICE void promote_slice(float (&out)[REGISTERS], u32 at) const {
        constexpr int BEGIN = NUMBER * SLICE, END = BEGIN + SLICE;
#pragma unroll
        for (int i = BEGIN; i < END && i < REGISTERS; i += 8) {
            float before[8] = {}, after[8];
            if (!first_time) load(at, i, before);
            for (int j = 0; j < 8; j++)
                after[j] = fmaf(out[i + j], units[j / 2 % 2], before[j]);
            store(at, i, after);
            for (int j = 0; j < 8; j++) {
                // What 16 bits cannot hold stays in `out` as well.
                float taken = (before[j] - after[j]) * scale(j / 2 % 2);
                out[i + j] = BITS == 32 ? -0.5f * out[i + j] : out[i + j] + taken;
            }
        }
    }

    // Maxima have grown, and the units of `out` with them, by 1 / row_scale. Promoted sums keep
    // theirs, until these are 2^64 times as small.
    DEVICE void rescale(const float (&row_scale)[2], u32 at) {
        if (block < 0) return;
        bool is_far = false;
        for (int half = 0; half < 2; half++) {
            units[half] *= reciprocal_approx(row_scale[half]);
            is_far |= units[half] > 0x1p64f;
        }
        if (!__any_sync(~0u, is_far)) return;
#pragma unroll 1
        for (int i = 0; i < REGISTERS; i += 8) {
            float sums[8];
            load(at, i, sums);
            for (int j = 0; j < 8; j++) sums[j] *= reciprocal_approx(units[j / 2 % 2]);
            store(at, i, sums);
        }
        units[0] = units[1] = 1.0f;
    }

    // Adds the promoted sums to `out`, at the end of a tile.
    DEVICE void add_to(float (&out)[REGISTERS], u32 at) const {
        int slices = block < 0 ? 0 : first_time ? block * SLICES / BLOCKS : SLICES;
#pragma unroll
        for (int i = 0; i < REGISTERS; i += 8) {
            if (i / SLICE >= slices) return;
            float sums[8];
            load(at, i, sums);
            for (int j = 0; j < 8; j++) out[i + j] = fmaf(sums[j], scale(j / 2 % 2), out[i + j]);
        }
    }

    // The factor of promoted sums in `out`. 1.5 makes x of x, as -0.5 x is left.
    DEVICE float scale(int half) const { return 1.5f * reciprocal_approx(units[half]); }

    // The place of the sum of out[i]; those of other threads lie side by side, 16 bytes each.
    static DEVICE u32 place(u32 at, int i) { return at + i * 16 * BITS; }

    // Loads the sums of out[i] to out[i + 7].
    static DEVICE void load(u32 at, int i, float (&sums)[8]) {
        for (int j = 0; j < 8; j += BITS == 32 ? 4 : 8) {
            uint4 x = ld_shared_v4_u32(place(at, i + j));
            const u32 words[4] = {x.x, x.y, x.z, x.w};
            for (int k = 0; k < 4; k++) {
                if (BITS == 32)
                    sums[j + k] = __uint_as_float(words[k]);
                else
                    unpack(words[k], sums + 2 * k);
            }
        }
    }

    // Stores them, rounded.
    static DEVICE void store(u32 at, int i, float (&sums)[8]) {
        if (BITS == 32) {
            st_shared_v4(place(at, i), sums);
            st_shared_v4(place(at, i + 4), sums + 4);
            return;
        }
        float words[4];
        for (int k = 0; k < 4; k++) {
            u32 word = cvt_16bit_x2<true>(sums[2 * k], sums[2 * k + 1]);
            words[k] = __uint_as_float(word);
            unpack(word, sums + 2 * k);
        }
        st_shared_v4(place(at, i), words);
    }

    static DEVICE void unpack(u32 word, float* pair) {
        pair[0] = __uint_as_float(word << 16);
        pair[1] = __uint_as_float(word & 0xffff0000);
    }
};
