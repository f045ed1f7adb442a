// From dQ's accumulator to dQ, in the attention backward: a warp at a time, through registers alone.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
//
// The accumulator has the order of the registers of dQ^T. A lane loads numbers of two adjacent rows at a
// time, and `movmatrix` transposes them: then it has two adjacent columns of a row. Which columns it loads
// is chosen so that it has eight adjacent ones of a row after four transpositions, and stores 16 bytes.
#pragma once

#include "cuda/backward_blocks.cuh"

// A tile of 8 rows and 32 columns is transposed at a time. A part of a block has two beside each other.
constexpr int TRANSPOSED_ROWS = 8, TRANSPOSED_TILES = 2 * (DQ_ROWS / TRANSPOSED_ROWS);

// Where dQ goes.
struct DqOutput {
    unsigned short* to;
    Strides strides;
    float scale;
};

// A lane's share of dQ = scale * its accumulator, of one part of a block of rows.
struct PartOfDq {
    const float* from;   // the lane's first number
    unsigned short* to;  // the lane's columns of its row of the first tile
    int rows, units;     // from the lane's on: how many there are
    const DqOutput& output;

    DEVICE PartOfDq(const float* dq_sum, const DqOutput& output, const Block& block, int part, int lane)
        : output(output) {
        const int row = lane / 4 + (CHUNKS == 1 ? part * DQ_ROWS : 0);
        const int unit = lane % 4 + (CHUNKS == 1 ? 0 : part * 8);
        from = dq_sum + ((long long)block.number * DQ_PARTS + part) * DQ_FLOATS +
               lane / 16 * 128 + lane / 4 % 2 * 16 + lane % 4 * 4 + lane / 8 % 2 * 2;
        to = block.at(output.to, output.strides, block.begin + block.first + row) + 8 * unit;
        rows = min(BLOCK_M, block.length - block.first) - row;
        units = UNITS - unit;
    }

    // Writes so many tiles from one on. Where no CTA has added, no row sees a key.
    template <int TILES>
    DEVICE void write(int first, bool is_there) const {
        float2 x[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[i][j] = is_there ? ld_global_v2_f32(from + (first + i) * 256 + j * 32)
                                   : float2{0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            u32 made[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                made[j] = movmatrix_trans(cvt_16bit_x2<IS_BF16>(x[i][j].x * output.scale,
                                                                x[i][j].y * output.scale));
            const int row = (first + i) / 2 * TRANSPOSED_ROWS, unit = (first + i) % 2 * 4;
            if (row < rows && (UNITS % 8 == 0 || unit < units))
                st_global_v4(to + row * output.strides.row + 8 * unit, made);
        }
    }
};
