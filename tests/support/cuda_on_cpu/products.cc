// Conversions, ldmatrix and stmatrix, and matrix products: mma.sync of a warp, wgmma of a
// warpgroup. Sums are in fp32; tensor cores keep fewer bits of a sum of e4m3 products.
#pragma GCC optimize("O3")  // its loops take most of the time of a test

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "machine.h"

using namespace machine;

// ------------------------------------------------------------------------------------- numbers

static float from_bits(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static float e4m3_value(u32 bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7f) == 0x7f) return NAN;
    const float size = exponent ? std::ldexp(float(8 + mantissa), exponent - 10)
                                : std::ldexp(float(mantissa), -9);
    return bits & 0x80 ? -size : size;
}

static float e4m3(u32 bits) {
    static float all[256];
    if (all[1] == 0)
        for (u32 each = 0; each < 256; ++each) all[each] = e4m3_value(each);
    return all[bits];
}

// 'b'f16, 'f'16 and 'e'4m3.
static float widened(u32 bits, char type) {
    if (type == 'b') return from_bits(bits << 16);
    if (type == 'e') return e4m3(bits);
    _Float16 half;
    const unsigned short low = bits;
    std::memcpy(&half, &low, 2);
    return half;
}

static u32 narrowed_bf16(float value) {
    u32 bits;
    std::memcpy(&bits, &value, 4);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static u32 narrowed_fp16(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
// Rounds to nearest even, and saturates at 448.
static u32 narrowed_e4m3(float value) {
    if (value != value) return 0x7f;
    const float size = std::min(std::fabs(value), 448.0f);
    u32 of_size;
    std::memcpy(&of_size, &size, 4);
    const int exponent = int(of_size >> 23) - 127;  // size in [2^exponent, 2^(exponent + 1))
    const int unit = std::max(exponent, -6) - 3;
    const float units = size * from_bits(u32(127 - unit) << 23);  // the right factor is 2^-unit
    const float rounded = std::nearbyint(units);                  // 0 to 16
    u32 bits = rounded;
    bits = bits < 8 ? bits : bits == 16 ? u32(unit + 11) << 3 : u32(unit + 10) << 3 | (bits - 8);
    return bits | (std::signbit(value) ? 0x80 : 0);
}

// Here, as a program is linked without the C library, and would get the slow ones of old programs.
void ptx::tanh_approx_f32(float &to, float x) { to = std::tanh(x); }
void ptx::ex2_approx_ftz_f32(float &to, float x) { to = std::exp2(x); }
void ptx::lg2_approx_ftz_f32(float &to, float x) { to = std::log2(x); }

void ptx::cvt_rn_bf16x2_f32(u32 &to, float high, float low) {
    to = narrowed_bf16(low) | narrowed_bf16(high) << 16;
}
void ptx::cvt_rn_f16x2_f32(u32 &to, float high, float low) {
    to = narrowed_fp16(low) | narrowed_fp16(high) << 16;
}
void ptx::add_rn_f16x2(u32 &to, u32 a, u32 b) {
    u32 sums = 0;
    for (int at = 0; at < 32; at += 16)
        sums |= narrowed_fp16(widened(a >> at & 0xffff, 'f') + widened(b >> at & 0xffff, 'f')) << at;
    to = sums;
}
void ptx::cvt_f32_f16(float &to, unsigned short from) { to = widened(from, 'f'); }
void ptx::cvt_rn_satfinite_e4m3x2_f32(unsigned short &to, float high, float low) {
    to = narrowed_e4m3(low) | narrowed_e4m3(high) << 8;
}

void ptx::cvt_rn_f16x2_e4m3x2(u32 &to, unsigned short from) {
    to = narrowed_fp16(e4m3(from & 0xff)) | narrowed_fp16(e4m3(from >> 8)) << 16;
}

// ------------------------------------------------------------- matrices of 8 x 8 x 16 bits

// Eight rows of 16 bytes must lie in different banks: kernels are laid out so.
static void check_banks(const Shown *rows, int matrix) {
    u32 banks = 0;
    for (int row = 0; row < 8; ++row)
        banks |= 1 << rows[8 * matrix + row].words[0] / 16 % 8;
    if (banks != 0xff) fail("ldmatrix or stmatrix has a bank conflict");
}

void ptx::load_matrices(u32 *const *to, int count, u32 row, bool transposed) {
    const Shown *all = machine::show({{row}});
    const int lane = this_thread().index % WARP;
    for (int matrix = 0; matrix < count; ++matrix) {
        check_banks(all, matrix);
        unsigned short both[2];
        for (int i = 0; i < 2; ++i) {
            const int line = transposed ? lane % 4 * 2 + i : lane / 4;
            const int column = transposed ? lane / 4 : lane % 4 * 2 + i;
            const u32 from = all[8 * matrix + line].words[0];
            if (from % 16) fail("ldmatrix: %u is no multiple of 16", from);
            machine::read(&both[i], from + 2 * column, 2);
        }
        std::memcpy(to[matrix], both, 4);
    }
}

void ptx::movmatrix_sync_aligned_m8n8_trans_b16(u32 &to, u32 from) {
    const Shown *all = machine::show({{from}});
    const int lane = this_thread().index % WARP, column = lane / 4;
    to = 0;
    for (int i = 0; i < 2; ++i) {
        const u32 both = all[(lane % 4 * 2 + i) * 4 + column / 2].words[0];
        to |= (column % 2 ? both >> 16 : both & 0xffff) << 16 * i;
    }
}

void ptx::store_matrices(u32 row, const u32 *const *from, bool transposed) {
    const Shown *all = machine::show({{row, *from[0], *from[1], *from[2], *from[3]}});
    const int lane = this_thread().index % WARP, matrix = lane / 8;
    check_banks(all, matrix);
    u32 words[4];
    for (int i = 0; i < 4; ++i) words[i] = all[lane % 8 * 4 + i].words[1 + matrix];
    if (transposed)
        for (int i = 0; i < 4; ++i) {
            words[i] = 0;
            for (int half = 0; half < 2; ++half) {
                const u32 both = all[(2 * i + half) * 4 + lane % 8 / 2].words[1 + matrix];
                words[i] |= (lane % 2 ? both >> 16 : both & 0xffff) << 16 * half;
            }
        }
    machine::write(row, words, 16);
}

// ------------------------------------------------------------------------------------ mma.sync

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
void ptx::multiply(const char *kind, float *const *d, const u32 *const *a, const u32 *const *b) {
    const bool is_bf16 = !std::strcmp(kind, "m16n8k16.row.col.f32.bf16.bf16.f32");
    if (!is_bf16 && std::strcmp(kind, "m16n8k16.row.col.f32.f16.f16.f32"))
        fail("mma.sync: %s", kind);
    const Shown *all = machine::show({{*a[0], *a[1], *a[2], *a[3], *b[0], *b[1]}});
    const int lane = this_thread().index % WARP;
    // The numbers of the two rows and columns that meet in this lane.
    float rows[2][16], columns[2][16];
    for (int i = 0; i < 2; ++i)
        for (int k = 0; k < 16; ++k) {
            const auto &of_row = all[lane / 4 * 4 + k % 8 / 2];
            const auto &of_column = all[(lane % 4 * 2 + i) * 4 + k % 8 / 2];
            const u32 a = of_row.words[k / 8 * 2 + i] >> 16 * (k % 2) & 0xffff;
            const u32 b = of_column.words[4 + k / 8] >> 16 * (k % 2) & 0xffff;
            rows[i][k] = widened(a, is_bf16 ? 'b' : 'f');
            columns[i][k] = widened(b, is_bf16 ? 'b' : 'f');
        }
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k) *d[i] += rows[i / 2][k] * columns[i % 2][k];
}

// --------------------------------------------------------------------------------------- wgmma

void ptx::wgmma_fence_sync_aligned() { this_thread().is_fenced = true; }

// What the name of a kind says. Each is a literal, which is read once.
static const Product &shape_of(const char *kind) {
    static std::map<const char *, Product> read;
    const auto known = read.find(kind);
    if (known != read.end()) return known->second;
    Product product = {};
    int k = 0;
    char type[8], other[8];
    if (std::sscanf(kind, "m64n%dk%d.f32.%7[^.].%7s", &product.columns, &k, type, other) != 4 ||
        std::strcmp(type, other) || !std::strchr("bfe", *type))
        fail("wgmma: %s", kind);
    product.type = *type, product.bytes = *type == 'e' ? k : 2 * k;
    const bool has_shape = product.columns % 8 == 0 && product.columns <= 256;
    if (product.bytes != 32 || !has_shape) fail("wgmma: %s", kind);
    return read[kind] = product;
}

void ptx::issue(const char *kind, float *const *d, int count, const u32 *const *a, u64 a_rows,
                u64 b_rows, bool add, bool transposes_b, bool transposes_a) {
    Product product = shape_of(kind);
    if (count != product.columns / 2) fail("wgmma: %d registers of %s", count, kind);
    if ((transposes_a || transposes_b) && product.type == 'e')
        fail("wgmma: an operand of 8 bits is transposed");
    // PTX ISA, wgmma.fence: before the first, and when registers were used since.
    if (!this_thread().is_fenced) fail("wgmma.mma_async without wgmma.fence");
    bool apart = false;
    for (int i = 0; i < count; ++i) apart |= d[i] != d[0] + i;
    if (apart) fail("wgmma: sums that do not lie one after the other");
    product.d = d[0];
    if (a) std::copy(a, a + 4, product.a);
    product.a_rows = a_rows, product.b_rows = b_rows;
    product.add = add, product.transposes_b = transposes_b, product.transposes_a = transposes_a;
    this_thread().products.push_back(product);
}

void ptx::wgmma_commit_group_sync_aligned() {
    Thread &thread = this_thread();
    Warpgroup &warpgroup = machine::this_warpgroup();
    thread.is_fenced = false;
    warpgroup.committing[thread.index % WARPGROUP].swap(thread.products);
    thread.products.clear();
    machine::meet(warpgroup.barrier, "wgmma.commit_group", [&] {
        warpgroup.groups.push_back(std::move(warpgroup.committing));
        warpgroup.committing = std::move(warpgroup.finished);
        warpgroup.committing.resize(WARPGROUP);
        if (!(machine::mode & LATE_READS))
            machine::multiply(*thread.cta, thread.index / WARPGROUP);
    });
}

void ptx::wgmma_wait_group_sync_aligned(int pending) {
    Thread &thread = this_thread();
    Warpgroup &warpgroup = machine::this_warpgroup();
    machine::meet(warpgroup.barrier, "wgmma.wait_group", [&] {
        for (; int(warpgroup.groups.size()) > pending; warpgroup.groups.pop_front()) {
            if (machine::mode & LATE_READS)
                machine::multiply(*thread.cta, thread.index / WARPGROUP);
            warpgroup.finished.swap(warpgroup.groups.front());
        }
    });
}

namespace {

// A matrix descriptor (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"): rows
// of `width` bytes, swizzled in groups of 8. Of 16 bytes: core matrices of 8 rows, not swizzled.
struct Descriptor {
    u32 address, leading, stride;
    int width;

    explicit Descriptor(u64 bits)
        : address((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4),
          stride((bits >> 32 & 0x3fff) << 4) {
        const int widths[] = {16, 128, 64, 32};
        width = widths[bits >> 62];
        if (bits >> 49 & 7) fail("wgmma: a matrix with a base offset");
    }
    u32 swizzled(u32 at) const { return at ^ (at >> 3 & u32(width - 16)); }
    // K-major: a byte of a row.
    u32 k_major(int row, int byte) const {
        if (width == 16) return address + row / 8 * stride + row % 8 * 16 + byte / 16 * leading + byte % 16;
        return swizzled(address + row / 8 * stride + row % 8 * width + byte);
    }
    // MN-major, 16 bits: element `row` of line k, whose elements lie together by `width` bytes.
    u32 mn_major(int row, int k) const {
        if (width == 16) fail("wgmma: a matrix by columns without a swizzle");
        const int byte = 2 * row;
        return swizzled(address + byte / width * leading + byte % width + k / 8 * stride +
                        k % 8 * width);
    }
};

constexpr int UNIT = 16;  // bytes, which no swizzle tears apart

// The numbers of a unit: 8 of 16 bits, or 16 of 8 bits.
void take_unit(Cta &cta, u32 address, char type, float *to) {
    const unsigned char *from = machine::at(cta.async, address, UNIT, UNIT);
    if (type == 'e') {
        for (int i = 0; i < UNIT; ++i) to[i] = e4m3(from[i]);
        return;
    }
    unsigned short halves[UNIT / 2];
    std::memcpy(halves, from, UNIT);
    if (type == 'b')
        for (int i = 0; i < UNIT / 2; ++i) to[i] = widened(halves[i], 'b');
    else
        for (int i = 0; i < UNIT / 2; ++i) to[i] = widened(halves[i], 'f');
}

// `count` rows of 32 bytes of an operand in shared memory, to work(row, k, number).
template <class WORK>
void take(Cta &cta, const Descriptor &rows, int count, char type, bool transposed, WORK work) {
    const int size = type == 'e' ? 1 : 2, numbers = UNIT / size;
    float unit[UNIT];
    if (transposed) {
        for (int k = 0; k < 16; ++k)
            for (int row = 0; row < count; row += numbers) {
                take_unit(cta, rows.mn_major(row, k), type, unit);
                for (int i = 0; i < numbers; ++i) work(row + i, k, unit[i]);
            }
        return;
    }
    for (int row = 0; row < count; ++row)
        for (int byte = 0; byte < 32; byte += UNIT) {
            take_unit(cta, rows.k_major(row, byte), type, unit);
            for (int i = 0; i < numbers; ++i) work(row, byte / size + i, unit[i]);
        }
}

// The first row of a thread's registers; the second one is 8 further down.
int row_of(int thread) { return thread / WARP * 16 + thread % WARP / 4; }

struct Operands {
    float a[64][32], b[32][256], d[64][256];  // b: by k
};

// PTX ISA, "Register Fragments for wgmma.mma_async": A of 64 x 32 bytes.
void take_left(Cta &cta, Operands &to, const Product *const *products) {
    const Product &first = *products[0];
    const int size = first.type == 'e' ? 1 : 2;
    if (!first.a[0]) {
        take(cta, Descriptor(first.a_rows), 64, first.type, first.transposes_a,
             [&](int row, int k, float number) { to.a[row][k] = number; });
        return;
    }
    for (int thread = 0; thread < WARPGROUP; ++thread)
        for (int word = 0; word < 4; ++word)
            for (int i = 0; i < 4 / size; ++i) {
                const int row = row_of(thread) + word % 2 * 8;
                const int byte = word / 2 * 16 + thread % 4 * 4 + size * i;
                const u32 bits = *products[thread]->a[word] >> 8 * size * i;
                to.a[row][byte / size] = widened(bits & (size == 1 ? 0xff : 0xffff), first.type);
            }
}

void take_right(Cta &cta, Operands &to, const Product &product) {
    take(cta, Descriptor(product.b_rows), product.columns, product.type, product.transposes_b,
         [&](int column, int k, float number) { to.b[k][column] = number; });
}

// Calls work(an element of `d`, a thread's register of it).
template <class WORK> void for_sums(Operands &all, const Product *const *products, WORK work) {
    const int count = products[0]->columns / 2;
    for (int thread = 0; thread < WARPGROUP; ++thread) {
        float *rows[2] = {all.d[row_of(thread)], all.d[row_of(thread) + 8]};
        float *own = products[thread]->d;
        for (int i = 0, column = thread % 4 * 2; i < count; i += 4, column += 8)
            for (int j = 0; j < 4; ++j) work(rows[j / 2][column + j % 2], own[i + j]);
    }
}

// Adds to 8 sums of each of 4 rows, term by term.
void add_products(Operands &all, int row, int column, int terms) {
    typedef float Eight __attribute__((vector_size(32)));
    Eight sums[4], others;
    for (int i = 0; i < 4; ++i) std::memcpy(&sums[i], &all.d[row + i][column], sizeof others);
    for (int k = 0; k < terms; ++k) {
        std::memcpy(&others, &all.b[k][column], sizeof others);
        for (int i = 0; i < 4; ++i) sums[i] += all.a[row + i][k] * others;
    }
    for (int i = 0; i < 4; ++i) std::memcpy(&all.d[row + i][column], &sums[i], sizeof others);
}

void multiply_one(Cta &cta, const Product *const *products) {
    static Operands all;
    const Product &first = *products[0];
    for (int thread = 1; thread < WARPGROUP; ++thread) {
        const Product &other = *products[thread];
        if (other.columns != first.columns || other.type != first.type || other.add != first.add ||
            other.a_rows != first.a_rows || other.b_rows != first.b_rows ||
            other.transposes_b != first.transposes_b ||
            other.transposes_a != first.transposes_a || !other.a[0] != !first.a[0])
            fail("wgmma: thread %d of a warpgroup multiplies other matrices", thread);
    }
    take_left(cta, all, products);
    take_right(cta, all, first);
    for_sums(all, products, [&](float &sum, float &own) { sum = first.add ? own : 0; });
    for (int row = 0; row < 64; row += 4)
        for (int column = 0; column < first.columns; column += 8)
            add_products(all, row, column, first.type == 'e' ? 32 : 16);
    for_sums(all, products, [&](float &sum, float &own) { own = sum; });
}

}  // namespace

// Late products complete when the oldest group is waited for, early ones when a group is committed.
void machine::multiply(Cta &cta, int warpgroup) {
    auto &groups = cta.warpgroups[warpgroup].groups;
    const auto &group = mode & LATE_READS ? groups.front() : groups.back();
    for (const auto &own : group)
        if (own.size() != group[0].size()) fail("wgmma: threads commit different products");
    for (size_t i = 0; i < group[0].size(); ++i) {
        const Product *products[WARPGROUP];
        for (int thread = 0; thread < WARPGROUP; ++thread) products[thread] = &group[thread][i];
        multiply_one(cta, products);
    }
}
