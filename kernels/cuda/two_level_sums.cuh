// Two-level accumulation of products in e4m3: in the tensor cores, and in fp32.
//
// Tensor cores add 8-bit products with about 14 bits, and cut off the rest (DeepSeek-V3,
// arXiv:2412.19437, section 3.5.2). After 16,384 positive values a fourth of a sum is missing. Of
// values of both signs little is, as their sums stay small. So a warpgroup looks at its sums now
// and then. Where one has grown large, it promotes all of them: it adds them to sums in fp32, and
// starts at zero again. `python -m benchmarks.e4m3_sums` emulates it.
//
// Included by attention_fwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// A named barrier that also says whether `condition` holds for any of the threads.
DEVICE bool named_barrier_any(int barrier, int threads, bool condition) {
    int any;
    asm volatile(
        "{ .reg .pred one, any; setp.ne.b32 one, %3, 0;\n"
        "bar.red.or.pred any, %1, %2, one;\n"
        "selp.b32 %0, 1, 0, any; }"
        : "=r"(any)
        : "r"(barrier), "r"(threads), "r"((int)condition)
        : "memory");
    return __any_sync(~0u, any);  // tells the compiler that it is the same in all lanes
}

// Adds four numbers to those in global memory, which no thread waits for.
DEVICE void red_add_v4(float4* to, const float* x) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
                 "f"(x[2]), "f"(x[3])
                 : "memory");
}

// Loads the 128 bytes of an address into the L1 cache.
DEVICE void prefetch_l1(const void* address) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}

// The second level: this thread's part of the sums of 64 rows in fp32, relative to maxima of
// the rows, which lie behind them. Up to 128 columns they lie in the output's buffer in
// shared memory, beyond that in global memory, which leaves room for more blocks of K and V.
struct PromotedSums {
    u32 shared;
    float4* global;

    // Four sums, or behind the last ones the maxima of both rows. Those of other threads lie side
    // by side.
    DEVICE float4 load(int four) const {
        return SUMS_IN_GLOBAL ? global[128 * four] : ld_shared_v4_f32(shared + 2048 * four);
    }
    DEVICE void store(int four, const float* x) const {
        if (SUMS_IN_GLOBAL)
            global[128 * four] = {x[0], x[1], x[2], x[3]};
        else
            st_shared_v4(shared + 2048 * four, x);
    }

    // Their factor for the maxima of now; the result is whether it is not 1.
    DEVICE bool get_scale(float (&scale)[2], const float (&max_log2)[2]) const {
        float4 then = load(V_COLUMNS / 8);
        // -inf - -inf would be NaN.
        scale[0] = then.x == max_log2[0] ? 1.0f : exp2_approx(then.x - max_log2[0]);
        scale[1] = then.y == max_log2[1] ? 1.0f : exp2_approx(then.y - max_log2[1]);
        return scale[0] != 1.0f || scale[1] != 1.0f;
    }

    // Adds them to the output.
    DEVICE void add_to(float (&out)[V_COLUMNS / 2], const float (&scale)[2]) const {
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i += 4) {
            float4 sum = load(i / 4);
            out[i] = fmaf(sum.x, scale[0], out[i]);
            out[i + 1] = fmaf(sum.y, scale[0], out[i + 1]);
            out[i + 2] = fmaf(sum.z, scale[1], out[i + 2]);
            out[i + 3] = fmaf(sum.w, scale[1], out[i + 3]);
        }
    }

    // Adds the output to them, which is zero then. `is_first`: none are there yet.
    DEVICE void promote(float (&out)[V_COLUMNS / 2], const float (&max_log2)[2],
                        bool is_first) const {
        float scale[2];
        bool has_grown = !is_first && get_scale(scale, max_log2);
        if (SUMS_IN_GLOBAL && !is_first && !__any_sync(~0u, has_grown)) {
            // Loads would wait for the L2 cache, one after the other, as few registers are free.
#pragma unroll
            for (int i = 0; i < V_COLUMNS / 2; i += 4) red_add_v4(global + 32 * i, out + i);
        } else {
            if (!is_first) add_to(out, scale);
#pragma unroll
            for (int i = 0; i < V_COLUMNS / 2; i += 4) store(i / 4, out + i);
            const float maxima[4] = {max_log2[0], max_log2[1]};
            store(V_COLUMNS / 8, maxima);
        }
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i++) out[i] = 0.0f;
    }
};

// The largest product of the two sums that this lane has of a column, over the square of the
// column's mean magnitude. A sum is judged together with another row's, as a single one may be
// large by chance.
//
// First if all columns had the magnitude of the smallest:
DEVICE float largest_product(const float (&out)[V_COLUMNS / 2], float inverse_magnitude) {
    float most[4] = {};
#pragma unroll
    for (int i = 0; i < V_COLUMNS / 2; i += 4)
        for (int j = 0; j < 2; j++) {
            float& each = most[i / 4 % 2 * 2 + j];
            each = fmaxf(each, fabsf(out[i + j] * out[i + j + 2]));
        }
    return fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])) *
           (inverse_magnitude * inverse_magnitude);
}
// ... and by the magnitude of each. A word of `inverse_magnitudes` has two of them in bf16; this
// lane has the first of each four words.
DEVICE float largest_product(const float (&out)[V_COLUMNS / 2], const u32* inverse_magnitudes) {
    float most[2] = {};
#pragma unroll
    for (int i = 0; i < V_COLUMNS / 2; i += 4) {
        u32 pair = inverse_magnitudes[i];
        float inverse[2] = {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
        // In this order the compiler does not keep the products of the first way in registers.
        for (int j = 0; j < 2; j++) {
            float product = inverse[j] * out[i + j] * (inverse[j] * out[i + j + 2]);
            most[j] = fmaxf(most[j], fabsf(product));
        }
    }
    return fmaxf(most[0], most[1]);
}
