// The sum of two parts of a softmax, in the same bits wherever it is computed, and the end of a row.
// Both kernels of attention_decode_cuda_sm90 use them.
#pragma once

#include "cuda/numbers.cuh"
#include "cuda/ptx.cuh"

// Returns x * a + y * b, rounded in the same way wherever it is.
DEVICE float weighted_sum(float x, float a, float y, float b) {
    return __fmaf_rn(x, a, __fmul_rn(y, b));
}

// The weights of two parts of a softmax with these maxima, in units of log2; `left` becomes the
// greater one. A part that has seen no key has -inf and weighs nothing.
struct Weights {
    float left, right;

    DEVICE Weights(float& left_max, float right_max) {
        const float new_max = fmaxf(left_max, right_max);
        const float shift = new_max == MINUS_INFINITY ? 0.0f : new_max;
        left = exp2_approx(left_max - shift);
        right = exp2_approx(right_max - shift);
        left_max = new_max;
    }
};

// The end of a row: its output is multiplied by `scale`.
struct RowEnd {
    float scale, lse;

    // From the maximum and the sum of a row, and the logit of its head without a value, if it has
    // one. A row that has seen nothing gives 0 and -inf.
    DEVICE RowEnd(float max_log2, float sum, const float* sink) {
        float of_rest = 1.0f;
        if (sink != nullptr) {
            const Weights weights(max_log2, *sink * 1.4426950408889634f);
            of_rest = weights.left;
            sum = weighted_sum(sum, weights.left, 1.0f, weights.right);
        }
        scale = sum > 0.0f ? __fdiv_rn(of_rest, sum) : 0.0f;
        lse = sum > 0.0f ? (max_log2 + log2_approx(sum)) * LN_2 : MINUS_INFINITY;
    }
};
