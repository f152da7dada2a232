/*
What each instruction does, from the PTX ISA 9.0. Arithmetic is in make_table(): an opcode and a function of a lane's
operands. Approximate instructions are rounded correctly, but flush what PTX says they flush. A NaN result is PTX's
canonical one.
*/
#include "dev/ptx/instructions.h"
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include "dev/ptx/asynchronous.h"

namespace ptx {

namespace {

using u16 = uint16_t;
using s16 = int16_t;
using u32 = uint32_t;
using s32 = int32_t;
using u64 = uint64_t;
using s64 = int64_t;

// ---- values ------------------------------------------------------------------------------------------------------

// What a register of a type T holds: four bytes, or eight.
template <class T>
using Held = std::conditional_t<sizeof(T) == 8, u64, u32>;
template <class T>
T value_of(Held<T> held) {
    if constexpr (std::is_floating_point_v<T>) return std::bit_cast<T>(held);
    return T(held);
}
template <class T>
Held<T> held(T value) {
    if constexpr (std::is_same_v<T, float>) return std::isnan(value) ? 0x7FFFFFFF : std::bit_cast<u32>(value);
    if constexpr (std::is_same_v<T, double>) return std::isnan(value) ? 0x7FFFFFFFFFFFFFFF : std::bit_cast<u64>(value);
    if constexpr (std::is_integral_v<T> && sizeof(T) < 8)
        return u32(std::make_unsigned_t<std::conditional_t<std::is_same_v<T, bool>, u32, T>>(value));
    return Held<T>(value);
}

template <class T>
void store_lanes(T* to, const T* values, u32 lanes) {
    if (lanes == kAllLanes)
        std::memcpy(to, values, kLanes * sizeof(T));
    else
        for (int lane = 0; lane < kLanes; lane++) to[lane] = lanes >> lane & 1 ? values[lane] : to[lane];
}

// Of a selection only what is selected must be defined.
u32 defined_by_select(Warp& warp, const Instruction& own) {
    const u32* selects = warp.get<u32>(own.from[2], 0);
    u32 mask = 0;
    for (int lane = 0; lane < kLanes; lane++) mask |= u32(selects[lane] != 0) << lane;
    return warp.written[own.from[2].number] &
           ((mask & warp.written[own.from[0].number]) | (~mask & warp.written[own.from[1].number]));
}
struct Select {
    template <class T>
    T operator()(T a, T b, u32 c) const {
        return c ? a : b;
    }
};

// to[0] = f(from[0], from[1], ...) in each lane.
template <class F, class R, class... A>
void each_lane(Warp& warp, const Instruction& own, u32 lanes) {
    [&]<size_t... i>(std::index_sequence<i...>) {
        u32 defined = kAllLanes;
        const auto sources = std::make_tuple(warp.peek<Held<A>>(own.from[i], defined)...);
        Held<R> results[kLanes];
        for (int lane = 0; lane < kLanes; lane++)
            results[lane] = held<R>(F()(value_of<A>(std::get<i>(sources)[lane])...));
        if constexpr (std::is_same_v<F, Select>) defined = defined_by_select(warp, own);
        store_lanes(warp.set<Held<R>>(own.to[0], lanes, defined), results, lanes);
    }(std::index_sequence_for<A...>());
}

// x. The compiler must compute with it here.
template <class T>
T opaque(T x) {
    asm volatile("" : "+m"(x));
    return x;
}

// The same with the host's rounding mode set, one lane after the other.
template <int mode, class F, class R, class... A>
void each_lane_rounded(Warp& warp, const Instruction& own, u32 lanes) {
    const int before = std::fegetround();
    std::fesetround(mode);
    [&]<size_t... i>(std::index_sequence<i...>) {
        u32 defined = kAllLanes;
        const auto sources = std::make_tuple(warp.peek<Held<A>>(own.from[i], defined)...);
        Held<R> results[kLanes];
        for (int lane = 0; lane < kLanes; lane++)
            results[lane] = held<R>(opaque(F()(opaque(value_of<A>(std::get<i>(sources)[lane]))...)));
        store_lanes(warp.set<Held<R>>(own.to[0], lanes, defined), results, lanes);
    }(std::index_sequence_for<A...>());
    std::fesetround(before);
}

#define OPERATION(name, ...)         \
    struct name {                    \
        template <class T>           \
        auto operator()(T a) const { \
            return __VA_ARGS__;      \
        }                            \
    }
#define OPERATION2(name, ...)             \
    struct name {                         \
        template <class T, class U>       \
        auto operator()(T a, U b) const { \
            return __VA_ARGS__;           \
        }                                 \
    }
#define OPERATION3(name, ...)                  \
    struct name {                              \
        template <class T, class U, class V>   \
        auto operator()(T a, U b, V c) const { \
            return __VA_ARGS__;                \
        }                                      \
    }

// Signed overflow wraps: sums and products are computed unsigned.
template <class T>
using Unsigned = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
OPERATION2(Add, T(Unsigned<T>(a) + Unsigned<T>(b)));
OPERATION2(Sub, T(Unsigned<T>(a) - Unsigned<T>(b)));
OPERATION2(Mul, T(Unsigned<T>(a) * Unsigned<T>(b)));
OPERATION2(Div, b == 0 ? T(~T(0)) : std::is_signed_v<T> && b == T(-1) ? T(-Unsigned<T>(a)) : T(a / b));
OPERATION2(Rem, b == 0 ? a : std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b));
OPERATION2(FloatDiv, a / b);
OPERATION2(Min, a < b ? a : b);
OPERATION2(Max, a > b ? a : b);
// A NaN loses, and -0 is less than +0.
OPERATION2(FloatMin, std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b);
OPERATION2(FloatMax, std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b);
OPERATION2(And, T(a& b));
OPERATION2(Or, T(a | b));
OPERATION2(Xor, T(a ^ b));
OPERATION2(ShiftLeft, b >= sizeof(T) * 8 ? T(0) : T(a << b));
OPERATION2(ShiftRight, b >= sizeof(T) * 8 ? T(std::is_signed_v<T> && a < T(0) ? -1 : 0) : T(a >> b));
OPERATION(Not, T(~a));
OPERATION(NotPredicate, T(!a));
OPERATION(Neg, T(-Unsigned<T>(a)));
OPERATION(Abs, std::abs(a));
OPERATION(Sqrt, std::sqrt(a));
OPERATION(Reciprocal, T(1) / a);
OPERATION(ReciprocalRoot, float(1 / std::sqrt(double(a))));
OPERATION(Popcount, u32(std::popcount(a)));
OPERATION(LeadingZeros, u32(std::countl_zero(a)));
// The shift that brings the highest bit to the top; all bits if there is none.
OPERATION(FindShift, a == 0 ? 0xFFFFFFFFu : u32(std::countl_zero(a)));
OPERATION3(MulAdd, T(Unsigned<T>(a) * Unsigned<T>(b) + Unsigned<T>(c)));
OPERATION3(FusedMulAdd, std::fma(a, b, c));
struct MulWide {
    template <class T>
    auto operator()(T a, T b) const {
        using Wide = std::conditional_t<std::is_signed_v<T>, s64, std::conditional_t<sizeof(T) == 2, u32, u64>>;
        return Wide(a) * Wide(b);
    }
};
struct ReverseBits {
    u32 operator()(u32 a) const {
        u32 reversed = 0;
        for (int i = 0; i < 32; i++) reversed |= (a >> i & 1) << (31 - i);
        return reversed;
    }
};
// a's lowest d bits, put into b from bit c on.
template <class T>
struct InsertBits {
    T operator()(T a, T b, u32 c, u32 d) const {
        const u32 bits = sizeof(T) * 8, first = c & 255, count = std::min(d & 255, first < bits ? bits - first : 0);
        if (count == 0) return b;
        const T mask = T((count >= bits ? T(0) : T(1) << count) - 1) << first;
        return T((b & ~mask) | (T(a << first) & mask));
    }
};
struct Permute {
    u32 operator()(u32 a, u32 b, u32 selectors) const {
        const u64 bytes = u64(b) << 32 | a;
        u32 result = 0;
        for (int i = 0; i < 4; i++) {
            const u32 selector = selectors >> 4 * i & 15;
            u32 byte = u32(bytes >> 8 * (selector & 7)) & 255;
            if (selector & 8) byte = byte & 128 ? 255 : 0;  // its sign in all bits
            result |= byte << 8 * i;
        }
        return result;
    }
};
template <bool flushes>
struct Exp2 {
    float operator()(float a) const {
        const float smallest = std::numeric_limits<float>::min();
        const float y = float(std::exp2(double(a)));
        return flushes && y < smallest ? 0 : y;
    }
};
// Two units in the last place; of a divisor above 2^126 only the sign counts.
struct DivApprox {
    float operator()(float a, float b) const {
        if (std::abs(b) > 0x1p126f && std::isfinite(b))
            return std::isfinite(a) ? std::copysign(0.f, a) * std::copysign(1.f, b) : std::nanf("");
        return a / b;
    }
};
// To its upper 32 bits.
struct ReciprocalApproxF64 {
    double operator()(double a) const {
        double r = std::abs(a) < std::numeric_limits<double>::min() ? std::copysign(INFINITY, a) : 1 / a;
        if (std::abs(r) < std::numeric_limits<double>::min()) r = std::copysign(0.0, r);
        return std::bit_cast<double>(std::bit_cast<u64>(r) & 0xFFFFFFFF00000000);
    }
};

template <class R>
struct Convert {
    template <class A>
    R operator()(A a) const {
        return R(a);
    }
};
template <class Low>
struct ExtendLow {
    s64 operator()(u64 a) const { return s64(Low(a)); }
};
// Toward zero, clamped to the integers that there are; a NaN is 0, of 64 bits the least.
template <class R>
struct TruncateTo {
    template <class A>
    R operator()(A a) const {
        if (std::isnan(a)) return sizeof(R) == 8 ? R(u64(1) << 63) : R(0);
        if (a >= A(std::numeric_limits<R>::max())) return std::numeric_limits<R>::max();
        if (a <= A(std::numeric_limits<R>::min())) return std::numeric_limits<R>::min();
        return R(a);
    }
};
OPERATION(Truncate, std::trunc(a));
struct Saturate {
    float operator()(float a) const { return a > 0 ? std::min(a, 1.f) : 0; }
};
template <bool to_zero>
u16 bf16_of(float x) {
    const u32 bits = std::bit_cast<u32>(x);
    if (std::isnan(x)) return 0x7FFF;
    return u16((bits + (to_zero ? 0 : 0x7FFF + (bits >> 16 & 1))) >> 16);
}
template <bool to_zero>
struct PackBf16 {
    u32 operator()(float a, float b) const { return u32(bf16_of<to_zero>(a)) << 16 | bf16_of<to_zero>(b); }
};
// The nearest of a format's finite values, of two equally near ones the even code; beyond the largest, that one.
template <int mantissa_bits, int bias, int largest>
u32 fp8_of(float x) {
    if (std::isnan(x)) return 0x7F;
    const auto value = [](int code) {
        const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
        const double fraction = double(mantissa) / (1 << mantissa_bits);
        return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    };
    const double size = std::abs(double(x));
    int low = 0, high = largest;
    if (size >= value(largest)) low = largest;
    while (low < largest && high - low > 1) {
        const int middle = (low + high) / 2;
        (value(middle) <= size ? low : high) = middle;
    }
    if (low < largest) {
        const double down = size - value(low), up = value(low + 1) - size;
        if (up < down || (up == down && low % 2)) low++;
    }
    return u32(low) | (std::signbit(x) ? 0x80 : 0);
}
struct PackE4m3 {
    u16 operator()(float a, float b) const { return u16(fp8_of<3, 7, 0x7E>(a) << 8 | fp8_of<3, 7, 0x7E>(b)); }
};
struct PackE5m2 {
    u16 operator()(float a, float b) const { return u16(fp8_of<2, 15, 0x7B>(a) << 8 | fp8_of<2, 15, 0x7B>(b)); }
};

#define COMPARISON(name, ...)             \
    struct name {                         \
        template <class T>                \
        bool operator()(T a, T b) const { \
            return __VA_ARGS__;           \
        }                                 \
    }
COMPARISON(Eq, a == b);
COMPARISON(Ne, a<b || a> b);
COMPARISON(Lt, a < b);
COMPARISON(Le, a <= b);
COMPARISON(Gt, a > b);
COMPARISON(Ge, a >= b);
COMPARISON(Equ, !(a < b || a > b));
COMPARISON(Neu, !(a == b));
COMPARISON(Ltu, !(a >= b));
COMPARISON(Leu, !(a > b));
COMPARISON(Gtu, !(a <= b));
COMPARISON(Geu, !(a < b));

// ---- the table ---------------------------------------------------------------------------------------------------

using Table = std::map<std::string, Arithmetic>;

template <class F, class R, class... A>
Arithmetic entry() {
    return {each_lane<F, R, A...>, int(sizeof(Held<R>)), {int(sizeof(Held<A>))...}};
}
template <int mode, class F, class R, class... A>
Arithmetic rounded_entry() {
    return {each_lane_rounded<mode, F, R, A...>, int(sizeof(Held<R>)), {int(sizeof(Held<A>))...}};
}

template <class T>
void add_comparisons(Table& t, const std::string& type) {
    t["setp.eq." + type] = entry<Eq, bool, T, T>(), t["setp.ne." + type] = entry<Ne, bool, T, T>();
    t["setp.lt." + type] = entry<Lt, bool, T, T>(), t["setp.le." + type] = entry<Le, bool, T, T>();
    t["setp.gt." + type] = entry<Gt, bool, T, T>(), t["setp.ge." + type] = entry<Ge, bool, T, T>();
    if constexpr (std::is_floating_point_v<T>) {
        t["setp.equ." + type] = entry<Equ, bool, T, T>(), t["setp.neu." + type] = entry<Neu, bool, T, T>();
        t["setp.ltu." + type] = entry<Ltu, bool, T, T>(), t["setp.leu." + type] = entry<Leu, bool, T, T>();
        t["setp.gtu." + type] = entry<Gtu, bool, T, T>(), t["setp.geu." + type] = entry<Geu, bool, T, T>();
    }
}
template <class T>
void add_integers(Table& t, const std::string& type) {
    add_comparisons<T>(t, type);
    t["add." + type] = entry<Add, T, T, T>(), t["sub." + type] = entry<Sub, T, T, T>();
    t["mul.lo." + type] = entry<Mul, T, T, T>(), t["mad.lo." + type] = entry<MulAdd, T, T, T, T>();
    t["div." + type] = entry<Div, T, T, T>(), t["rem." + type] = entry<Rem, T, T, T>();
    t["min." + type] = entry<Min, T, T, T>(), t["max." + type] = entry<Max, T, T, T>();
    t["shr." + type] = entry<ShiftRight, T, T, u32>();
    t["selp." + type] = entry<Select, T, T, T, u32>();
    t["neg." + type] = entry<Neg, T, T>();
}
template <class T>
void add_bits(Table& t, const std::string& type) {
    add_comparisons<T>(t, type);
    t["and." + type] = entry<And, T, T, T>(), t["or." + type] = entry<Or, T, T, T>();
    t["xor." + type] = entry<Xor, T, T, T>(), t["not." + type] = entry<Not, T, T>();
    t["shl." + type] = entry<ShiftLeft, T, T, u32>();
    t["selp." + type] = entry<Select, T, T, T, u32>();
}
template <class T>
void add_floats(Table& t, const std::string& type) {
    add_comparisons<T>(t, type);
    for (const char* rn : {"", ".rn"}) {
        t["add" + (rn + ("." + type))] = entry<Add, T, T, T>(), t["sub" + (rn + ("." + type))] = entry<Sub, T, T, T>();
        t["mul" + (rn + ("." + type))] = entry<Mul, T, T, T>();
    }
    t["fma.rn." + type] = entry<FusedMulAdd, T, T, T, T>(), t["div.rn." + type] = entry<FloatDiv, T, T, T>();
    t["add.rz." + type] = rounded_entry<FE_TOWARDZERO, Add, T, T, T>();
    t["sub.rz." + type] = rounded_entry<FE_TOWARDZERO, Sub, T, T, T>();
    t["mul.rz." + type] = rounded_entry<FE_TOWARDZERO, Mul, T, T, T>();
    t["div.rz." + type] = rounded_entry<FE_TOWARDZERO, FloatDiv, T, T, T>();
    t["fma.rz." + type] = rounded_entry<FE_TOWARDZERO, FusedMulAdd, T, T, T, T>();
    t["fma.rm." + type] = rounded_entry<FE_DOWNWARD, FusedMulAdd, T, T, T, T>();
    t["min." + type] = entry<FloatMin, T, T, T>(), t["max." + type] = entry<FloatMax, T, T, T>();
    t["abs." + type] = entry<Abs, T, T>(), t["neg." + type] = entry<Neg, T, T>();
    t["sqrt.rn." + type] = entry<Sqrt, T, T>(), t["rcp.rn." + type] = entry<Reciprocal, T, T>();
    t["selp." + type] = entry<Select, T, T, T, u32>();
}

Table make_table() {
    Table t;
    add_integers<s16>(t, "s16"), add_integers<u16>(t, "u16"), add_integers<s32>(t, "s32");
    add_integers<u32>(t, "u32"), add_integers<s64>(t, "s64"), add_integers<u64>(t, "u64");
    add_bits<u16>(t, "b16"), add_bits<u32>(t, "b32"), add_bits<u64>(t, "b64");
    add_floats<float>(t, "f32"), add_floats<double>(t, "f64");
    t["and.pred"] = entry<And, u32, u32, u32>(), t["or.pred"] = entry<Or, u32, u32, u32>();
    t["xor.pred"] = entry<Xor, u32, u32, u32>(), t["not.pred"] = entry<NotPredicate, u32, u32>();
    t["mul.wide.s32"] = entry<MulWide, s64, s32, s32>(), t["mul.wide.u32"] = entry<MulWide, u64, u32, u32>();
    t["mul.wide.u16"] = entry<MulWide, u32, u16, u16>();
    t["brev.b32"] = entry<ReverseBits, u32, u32>(), t["prmt.b32"] = entry<Permute, u32, u32, u32, u32>();
    t["popc.b32"] = entry<Popcount, u32, u32>(), t["clz.b32"] = entry<LeadingZeros, u32, u32>();
    t["bfind.shiftamt.u32"] = entry<FindShift, u32, u32>();
    t["bfi.b32"] = entry<InsertBits<u32>, u32, u32, u32, u32, u32>();
    t["bfi.b64"] = entry<InsertBits<u64>, u64, u64, u64, u32, u32>();
    t["ex2.approx.f32"] = entry<Exp2<false>, float, float>();
    t["ex2.approx.ftz.f32"] = entry<Exp2<true>, float, float>();
    t["rsqrt.approx.f32"] = entry<ReciprocalRoot, float, float>();
    t["rcp.approx.ftz.f64"] = entry<ReciprocalApproxF64, double, double>();
    t["div.approx.f32"] = entry<DivApprox, float, float, float>();

    t["cvt.f64.f32"] = entry<Convert<double>, double, float>(),
    t["cvt.rn.f32.f64"] = entry<Convert<float>, float, double>();
    t["cvt.rz.f32.f64"] = rounded_entry<FE_TOWARDZERO, Convert<float>, float, double>();
    t["cvt.rn.f32.s32"] = entry<Convert<float>, float, s32>(),
    t["cvt.rn.f32.u32"] = entry<Convert<float>, float, u32>();
    t["cvt.rn.f32.s64"] = entry<Convert<float>, float, s64>(),
    t["cvt.rn.f32.u64"] = entry<Convert<float>, float, u64>();
    t["cvt.rz.f32.s32"] = rounded_entry<FE_TOWARDZERO, Convert<float>, float, s32>();
    t["cvt.rz.f32.s64"] = rounded_entry<FE_TOWARDZERO, Convert<float>, float, s64>();
    t["cvt.rz.f32.u64"] = rounded_entry<FE_TOWARDZERO, Convert<float>, float, u64>();
    t["cvt.rn.f64.s64"] = entry<Convert<double>, double, s64>(),
    t["cvt.rn.f64.u64"] = entry<Convert<double>, double, u64>();
    t["cvt.rzi.f64.f64"] = entry<Truncate, double, double>();
    t["cvt.rzi.s32.f32"] = entry<TruncateTo<s32>, s32, float>(),
    t["cvt.rzi.u32.f32"] = entry<TruncateTo<u32>, u32, float>();
    t["cvt.rzi.s64.f32"] = entry<TruncateTo<s64>, s64, float>(),
    t["cvt.rzi.u64.f32"] = entry<TruncateTo<u64>, u64, float>();
    // From the lower half of a register of eight bytes, too.
    t["cvt.s64.s32/8"] = entry<ExtendLow<s32>, s64, u64>(), t["cvt.u64.u32/8"] = entry<ExtendLow<u32>, u64, u64>();
    t["cvt.s64.s32"] = entry<Convert<s64>, s64, s32>(), t["cvt.u64.u32"] = entry<Convert<u64>, u64, u32>();
    t["cvt.u64.u16"] = entry<Convert<u64>, u64, u16>(), t["cvt.u32.u16"] = entry<Convert<u32>, u32, u16>();
    t["cvt.u16.u32"] = entry<Convert<u16>, u16, u32>(), t["cvt.u32.u64"] = entry<Convert<u32>, u32, u64>();
    t["cvt.sat.f32.f32"] = entry<Saturate, float, float>();
    t["cvt.rn.bf16x2.f32"] = entry<PackBf16<false>, u32, float, float>();
    t["cvt.rz.bf16x2.f32"] = entry<PackBf16<true>, u32, float, float>();
    t["cvt.rn.satfinite.e4m3x2.f32"] = entry<PackE4m3, u16, float, float>();
    t["cvt.rn.satfinite.e5m2x2.f32"] = entry<PackE5m2, u16, float, float>();
    return t;
}

}  // namespace

const Arithmetic* find_arithmetic(const std::string& opcode) {
    static const Table table = make_table();
    const auto found = table.find(opcode);
    return found == table.end() ? nullptr : &found->second;
}

namespace {

// ---- moves -------------------------------------------------------------------------------------------------------

template <class T>
void move(Warp& warp, const Instruction& own, u32 lanes) {
    u32 defined = kAllLanes;
    T values[kLanes];
    std::memcpy(values, warp.peek<T>(own.from[0], defined), sizeof values);
    store_lanes(warp.set<T>(own.to[0], lanes, defined), values, lanes);
}
// Several registers of `bits` each in one, or one in several.
template <class Whole, class Part, int bits>
void pack(Warp& warp, const Instruction& own, u32 lanes) {
    Whole whole[kLanes] = {};
    u32 defined = kAllLanes;
    for (size_t i = 0; i < own.from.size(); i++) {
        const Part* part = warp.peek<Part>(own.from[i], defined);
        for (int lane = 0; lane < kLanes; lane++)
            whole[lane] |= (Whole(part[lane]) & ((Whole(1) << bits) - 1)) << bits * int(i);
    }
    store_lanes(warp.set<Whole>(own.to[0], lanes, defined), whole, lanes);
}
template <class Whole, class Part, int bits>
void unpack(Warp& warp, const Instruction& own, u32 lanes) {
    Whole whole[kLanes];
    u32 defined = kAllLanes;
    std::memcpy(whole, warp.peek<Whole>(own.from[0], defined), sizeof whole);
    for (size_t i = 0; i < own.to.size(); i++) {
        Part part[kLanes];
        for (int lane = 0; lane < kLanes; lane++)
            part[lane] = Part(whole[lane] >> bits * int(i) & ((Whole(1) << bits) - 1));
        store_lanes(warp.set<Part>(own.to[i], lanes, defined), part, lanes);
    }
}

// ---- memory ------------------------------------------------------------------------------------------------------

u64 address_of(Warp& warp, const Instruction& own, size_t source, int lane, u32 lanes) {
    const Register reg = own.from[source];
    const u64 base = own.number[0] == 8 ? warp.get<u64>(reg, lanes)[lane] : warp.get<u32>(reg, lanes)[lane];
    return base + u64(own.offset);
}

// Where a lane's access goes; checks and marks it. number[1]: the window of the address space, 0 for generic.
char* access(Warp& warp, const Instruction& own, u64 address, u32 bytes, int lane, bool is_write, bool strong = false) {
    if (address % bytes) warp.fail("%u bytes at %#llx: not aligned", bytes, (unsigned long long)address);
    Block& block = warp.block;
    const Space space = Space(own.number[1]);
    if (space == Space::shared || (space == Space::generic && address / kSharedWindow == 1)) {
        const u64 at = space == Space::shared ? address : address - kSharedWindow;
        if (at + bytes > block.shared.size())
            warp.fail("the shared address %#llx is outside of every array", (unsigned long long)at);
        if (strong)
            block.check_strong(warp, u32(at), bytes, is_write);
        else if (is_write)
            block.check_write(warp, u32(at), bytes, u32(lane));
        else
            block.check_read(warp, u32(at), bytes, u32(lane));
        return block.shared.data() + at;
    }
    if (space == Space::param || (space == Space::generic && address / kSharedWindow == 3)) {
        const u64 at = space == Space::param ? address : address - kParamWindow;
        auto& parameters = const_cast<std::vector<char>&>(block.grid.launch.parameters);
        if (is_write || at + bytes > parameters.size()) warp.fail("a parameter at %llu", (unsigned long long)at);
        return parameters.data() + at;
    }
    if (space == Space::local || (space == Space::generic && address / kSharedWindow == 2)) {
        const u64 at = space == Space::local ? address : address - kLocalWindow;
        if (at + bytes > block.grid.kernel.local_bytes) warp.fail("local memory at %llu", (unsigned long long)at);
        return warp.local.data() + size_t(lane) * block.grid.kernel.local_bytes + at;
    }
    if (is_write)
        block.grid.global->write(warp, address, bytes, u32(lane), strong);
    else
        block.grid.global->read(warp, address, bytes, u32(lane), strong);
    return reinterpret_cast<char*>(address);
}

// Values of a type of number[2] bytes, in registers of number[3], to which signed ones (then it is negative) are
// extended.
template <class Held>
void put_loaded(Warp& warp, Register reg, u32 lanes, const char (*values)[16], size_t first, int size, bool is_signed) {
    Held results[kLanes] = {};
    const int unused = int(sizeof(Held)) - size;
    for (int lane = 0; lane < kLanes; lane++) {
        std::memcpy(&results[lane], values[lane] + first, size_t(size));
        if (is_signed && unused)
            results[lane] = Held(std::make_signed_t<Held>(results[lane] << 8 * unused) >> 8 * unused);
    }
    store_lanes(warp.set<Held>(reg, lanes), results, lanes);
}
void load(Warp& warp, const Instruction& own, u32 lanes) {
    const int size = own.number[2];
    const u32 bytes = u32(size) * u32(own.to.size());
    char values[kLanes][16] = {};
    if (Space(own.number[1]) == Space::param && lanes == kAllLanes && own.is_uniform) {
        std::memcpy(values[0], access(warp, own, address_of(warp, own, 0, 0, lanes), bytes, 0, false), bytes);
        for (int lane = 1; lane < kLanes; lane++) std::memcpy(values[lane], values[0], 16);
    } else {
        for (int lane = 0; lane < kLanes; lane++)
            if (lanes >> lane & 1)
                std::memcpy(values[lane], access(warp, own, address_of(warp, own, 0, lane, lanes), bytes, lane, false),
                            bytes);
    }
    for (size_t i = 0; i < own.to.size(); i++)
        if (std::abs(own.number[3]) == 8)
            put_loaded<u64>(warp, own.to[i], lanes, values, i * size_t(size), size, own.number[3] < 0);
        else
            put_loaded<u32>(warp, own.to[i], lanes, values, i * size_t(size), size, own.number[3] < 0);
}
void store(Warp& warp, const Instruction& own, u32 lanes) {
    const u32 size = u32(own.number[2]), bytes = size * u32(own.from.size() - 1);
    char values[kLanes][16];
    for (size_t i = 1; i < own.from.size(); i++) {
        const bool is_wide = own.number[3] == 8;
        const char* from = is_wide ? reinterpret_cast<const char*>(warp.get<u64>(own.from[i], lanes))
                                   : reinterpret_cast<const char*>(warp.get<u32>(own.from[i], lanes));
        for (int lane = 0; lane < kLanes; lane++)
            std::memcpy(values[lane] + (i - 1) * size, from + lane * (is_wide ? 8 : 4), size);
    }
    for (int lane = 0; lane < kLanes; lane++)
        if (lanes >> lane & 1)
            std::memcpy(access(warp, own, address_of(warp, own, 0, lane, lanes), bytes, lane, true), values[lane],
                        bytes);
}

// ---- memory that others wait for ---------------------------------------------------------------------------------

Clocks& released_at(Warp& warp, u64 address) {
    return address / kSharedWindow == 1 ? warp.block.released[u32(address)] : warp.block.grid.global->released[address];
}
void store_release(Warp& warp, const Instruction& own, u32 lanes) {
    const u32* values = warp.get<u32>(own.from[1], lanes);
    const Clocks seen = warp.seen(lanes);
    for (int lane = 0; lane < kLanes; lane++) {
        if (!(lanes >> lane & 1)) continue;
        const u64 address = address_of(warp, own, 0, lane, lanes);
        std::memcpy(access(warp, own, address, 4, lane, true, true), &values[lane], 4);
        released_at(warp, address) = seen;
    }
    warp.block.grid.changes++;
}
void load_acquire(Warp& warp, const Instruction& own, u32 lanes) {
    u32 values[kLanes] = {};
    for (int lane = 0; lane < kLanes; lane++) {
        if (!(lanes >> lane & 1)) continue;
        const u64 address = address_of(warp, own, 0, lane, lanes);
        std::memcpy(&values[lane], access(warp, own, address, 4, lane, false, true), 4);
        warp.acquire(released_at(warp, address));
    }
    store_lanes(warp.set<u32>(own.to[0], lanes), values, lanes);
    warp.yielded = true;
}
// Relaxed: orders other memory only with fences before and after it.
template <class T, class F>
void atomic(Warp& warp, const Instruction& own, u32 lanes) {
    T values[kLanes], old[kLanes] = {};
    std::memcpy(values, warp.get<T>(own.from[1], lanes), sizeof values);
    for (int lane = 0; lane < kLanes; lane++) {
        if (!(lanes >> lane & 1)) continue;
        const u64 address = address_of(warp, own, 0, lane, lanes);
        access(warp, own, address, sizeof(T), lane, false, true);
        char* at = access(warp, own, address, sizeof(T), lane, true, true);
        std::memcpy(&old[lane], at, sizeof(T));
        const T changed = F()(old[lane], values[lane]);
        std::memcpy(at, &changed, sizeof(T));
        Clocks& released = warp.block.grid.global->released[address];
        join(warp.to_acquire, released);
        join(released, warp.fenced);
    }
    store_lanes(warp.set<T>(own.to[0], lanes), old, lanes);
    warp.block.grid.changes++;
}
void fence(Warp& warp, const Instruction&, u32 lanes) {
    warp.acquire(warp.to_acquire);
    warp.fenced = warp.seen(lanes);
}

// ---- warps and blocks --------------------------------------------------------------------------------------------

void shuffle(Warp& warp, const Instruction& own, u32 lanes) {
    u32 values[kLanes], results[kLanes] = {}, valid[kLanes] = {};
    const u32 has = warp.written[own.from[0].number];
    std::memcpy(values, warp.file.data() + own.from[0].at, sizeof values);
    const u32 *b = warp.get<u32>(own.from[1], lanes), *c = warp.get<u32>(own.from[2], lanes);
    for (int lane = 0; lane < kLanes; lane++) {
        if (!(lanes >> lane & 1)) continue;
        const int by = int(b[lane] & 31), clamp = int(c[lane] & 31), segment = int(c[lane] >> 8 & 31);
        const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
        int source = lane;
        bool is_inside = true;
        switch (own.number[0]) {
            case 0:
                source = lane ^ by, is_inside = source <= last;
                break;
            case 1:
                source = first | (by & ~segment), is_inside = source <= last;
                break;
            case 2:
                source = lane + by, is_inside = source <= last;
                break;
            case 3:
                source = lane - by, is_inside = source >= last;
                break;
        }
        if (!is_inside) source = lane;
        if (!(lanes >> source & 1)) warp.fail("lane %d takes the value of lane %d, which is not there", lane, source);
        if (!(has >> source & 1)) warp.fail("lane %d takes a value of lane %d before it is written", lane, source);
        results[lane] = values[source], valid[lane] = is_inside;
    }
    store_lanes(warp.set<u32>(own.to[0], lanes), results, lanes);
    if (own.to.size() > 1) store_lanes(warp.set<u32>(own.to[1], lanes), valid, lanes);
}
// number[0]: 0 ballot, 1 any, 2 all, 3 the sum of all values.
void vote(Warp& warp, const Instruction& own, u32 lanes) {
    const u32* values = warp.get<u32>(own.from[0], lanes);
    u32 ballot = 0, sum = 0;
    for (int lane = 0; lane < kLanes; lane++)
        if (lanes >> lane & 1) ballot |= u32(values[lane] != 0) << lane, sum += values[lane];
    const u32 result[] = {ballot, ballot != 0, ballot == lanes, sum};
    u32 results[kLanes];
    std::fill_n(results, kLanes, result[own.number[0]]);
    store_lanes(warp.set<u32>(own.to[0], lanes), results, lanes);
}
void sync_warp(Warp& warp, const Instruction&, u32) { warp.clock++; }

// number[0]: 1 if the warp only arrives.
void barrier(Warp& warp, const Instruction& own, u32 lanes) {
    Block& block = warp.block;
    const auto uniform = [&](size_t source) {
        const u32* values = warp.get<u32>(own.from[source], lanes);
        for (int lane = 0; lane < kLanes; lane++)
            if (lanes >> lane & 1 && values[lane] != values[std::countr_zero(lanes)])
                warp.fail("lanes differ in a barrier");
        return values[std::countr_zero(lanes)];
    };
    const u32 which = uniform(0), whole = block.grid.num_warps * kLanes;
    const u32 threads = own.from.size() > 1 ? uniform(1) : whole;
    if (which > 15 || threads == 0 || threads % kLanes || threads > whole)
        warp.fail("barrier %u for %u threads", which, threads);
    NamedBarrier& own_barrier = block.barriers[which];
    if (own_barrier.arrived && own_barrier.threads != threads)
        warp.fail("barrier %u for %u threads, of %u for those who wait", which, threads, own_barrier.threads);
    own_barrier.threads = threads;
    own_barrier.arrived += kLanes;
    join(own_barrier.clocks, warp.seen(lanes));
    block.grid.changes++;
    const bool waits = !own.number[0];
    if (waits) warp.at_barrier = int(which), warp.generation = own_barrier.generation;
    if (own_barrier.arrived < threads) return;
    own_barrier.arrived = 0;
    own_barrier.generation++;
    own_barrier.left = std::move(own_barrier.clocks);
    own_barrier.clocks.clear();
}

// ---- matrices ----------------------------------------------------------------------------------------------------

float bf16_value(u32 bits) { return std::bit_cast<float>((bits & 0xFFFF) << 16); }

// Lane l, with g = l / 4 and c = 2 (l % 4), holds a[g][c], a[g + 8][c], a[g][c + 8], a[g + 8][c + 8] and b[c][g],
// b[c + 8][g], each with its neighbor in c, and d[g][c], d[g][c + 1], d[g + 8][c], d[g + 8][c + 1].
void mma(Warp& warp, const Instruction& own, u32 lanes) {
    float a[16][16], b[8][16];
    for (int i = 0; i < 4; i++) {
        const u32* packed = warp.get<u32>(own.from[size_t(i)], lanes);
        for (int lane = 0; lane < kLanes; lane++)
            for (int half = 0; half < 2; half++)
                a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + half] = bf16_value(packed[lane] >> 16 * half);
    }
    for (int i = 0; i < 2; i++) {
        const u32* packed = warp.get<u32>(own.from[size_t(4 + i)], lanes);
        for (int lane = 0; lane < kLanes; lane++)
            for (int half = 0; half < 2; half++)
                b[lane / 4][lane % 4 * 2 + i * 8 + half] = bf16_value(packed[lane] >> 16 * half);
    }
    double products[16][8];
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            double sum = 0;
            for (int k = 0; k < 16; k++) sum += double(a[row][k]) * double(b[column][k]);
            products[row][column] = sum;
        }
    float results[4][kLanes];
    for (int i = 0; i < 4; i++) {
        const float* added = warp.get<float>(own.from[size_t(6 + i)], lanes);
        for (int lane = 0; lane < kLanes; lane++)
            results[i][lane] = float(double(added[lane]) + products[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
    }
    for (int i = 0; i < 4; i++) store_lanes(warp.set<float>(own.to[size_t(i)], lanes), results[i], lanes);
}

// number[3]: 1 for transposed.
void ldmatrix(Warp& warp, const Instruction& own, u32 lanes) {
    u32 results[4][kLanes];
    for (int matrix = 0; matrix < 4; matrix++) {
        u16 m[8][8];
        for (int row = 0; row < 8; row++) {
            const int lane = 8 * matrix + row;
            std::memcpy(m[row], access(warp, own, address_of(warp, own, 0, lane, lanes), 16, lane, false), 16);
        }
        for (int lane = 0; lane < kLanes; lane++) {
            const int g = lane / 4, c = lane % 4 * 2;
            results[matrix][lane] = own.number[3] ? m[c][g] | u32(m[c + 1][g]) << 16 : m[g][c] | u32(m[g][c + 1]) << 16;
        }
    }
    for (size_t i = 0; i < 4; i++) store_lanes(warp.set<u32>(own.to[i], lanes), results[i], lanes);
}

// ---- asynchronous: asynchronous.cpp ------------------------------------------------------------------------------

u32 shared_of(Warp& warp, Register reg, int lane, u32 lanes) { return warp.get<u32>(reg, lanes)[lane]; }

template <class F>
void for_lanes(u32 lanes, F f) {
    for (int lane = 0; lane < kLanes; lane++)
        if (lanes >> lane & 1) f(lane);
}

void init_mbarrier(Warp& warp, const Instruction& own, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        mbarrier_init(warp, shared_of(warp, own.from[0], lane, lanes), shared_of(warp, own.from[1], lane, lanes));
    });
}
void fence_mbarriers(Warp& warp, const Instruction&, u32) { mbarrier_fence_init(warp); }
void arrive(Warp& warp, const Instruction& own, u32 lanes) {
    const Clocks seen = warp.seen(lanes);
    for_lanes(lanes, [&](int lane) {
        mbarrier_arrive(warp, shared_of(warp, own.from[0], lane, lanes),
                        own.from.size() > 1 ? shared_of(warp, own.from[1], lane, lanes) : 0, seen);
    });
}
void try_wait(Warp& warp, const Instruction& own, u32 lanes) {
    u32 results[kLanes] = {};
    for_lanes(lanes, [&](int lane) {
        results[lane] =
            mbarrier_test(warp, shared_of(warp, own.from[0], lane, lanes), shared_of(warp, own.from[1], lane, lanes));
        if (!results[lane]) warp.yielded = true;
    });
    store_lanes(warp.set<u32>(own.to[0], lanes), results, lanes);
}
void copy_tensor(Warp& warp, const Instruction& own, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const u64 at = warp.get<u64>(own.from[1], lanes)[lane];
        if (at / kSharedWindow != 3 || at % 64)
            warp.fail("a tensor map must be a parameter, at a multiple of 64 bytes");
        TensorMap map;
        std::memcpy(&map, warp.block.grid.launch.parameters.data() + (at - kParamWindow), sizeof map);
        s32 corner[4];
        for (int i = 0; i < 4; i++) corner[i] = s32(shared_of(warp, own.from[size_t(2 + i)], lane, lanes));
        tma_load(warp, shared_of(warp, own.from[0], lane, lanes), map, shared_of(warp, own.from[6], lane, lanes),
                 corner, u32(lane));
    });
}
void copy_bulk(Warp& warp, const Instruction& own, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        bulk_load(warp, shared_of(warp, own.from[0], lane, lanes), warp.get<u64>(own.from[1], lanes)[lane],
                  shared_of(warp, own.from[2], lane, lanes), shared_of(warp, own.from[3], lane, lanes), u32(lane));
    });
}
void fence_proxy(Warp& warp, const Instruction&, u32 lanes) { fence_async(warp, lanes); }
void copy_async(Warp& warp, const Instruction& own, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        cp_async(warp, shared_of(warp, own.from[0], lane, lanes) + u32(own.offset),
                 warp.get<u64>(own.from[1], lanes)[lane] + u64(own.number[0]),
                 own.from.size() > 2 ? shared_of(warp, own.from[2], lane, lanes) : 16, u32(lane));
    });
}
void commit_copies(Warp& warp, const Instruction&, u32 lanes) {
    for_lanes(lanes, [&](int lane) { warp.copy_group[lane]++; });
}
void wait_copies(Warp& warp, const Instruction& own, u32 lanes) {
    for_lanes(lanes, [&](int lane) { warp.complete_copies(u32(lane), u32(own.number[0])); });
}

void fence_wgmma(Warp& warp, const Instruction&, u32) {
    warp.is_fenced_for_wgmma = true;
    std::fill(warp.touched.begin(), warp.touched.end(), 0);
}
// from: a in four registers or a descriptor, b's descriptor, the predicate; to: d. number: columns, transposed a and b.
void multiply_async(Warp& warp, const Instruction& own, u32 lanes) {
    const auto uniform = [&](Register reg, bool is_predicate) {
        u64 values[kLanes];
        for (int lane = 0; lane < kLanes; lane++)
            values[lane] = is_predicate ? warp.get<u32>(reg, lanes)[lane] : warp.get<u64>(reg, lanes)[lane];
        for (const u64 value : values)
            if (value != values[0]) warp.fail("lanes differ in an operand of wgmma");
        return values[0];
    };
    Product product{};
    product.columns = own.number[0], product.transposed_a = own.number[1], product.transposed_b = own.number[2];
    product.d = own.to;
    product.a_in_registers = own.from.size() == 6;
    const size_t b = product.a_in_registers ? 4 : 1;
    if (product.a_in_registers)
        product.a.assign(own.from.begin(), own.from.begin() + 4);
    else
        product.a_tile = uniform(own.from[0], false);
    product.b_tile = uniform(own.from[b], false);
    product.adds = uniform(own.from[b + 1], true) != 0;
    wgmma(warp, std::move(product));
}
void commit_wgmma(Warp& warp, const Instruction&, u32) {
    warp.groups_of_products.push_back(std::move(warp.products));
    warp.products.clear();
}
void wait_wgmma(Warp& warp, const Instruction& own, u32) {
    warp.complete_products(size_t(own.number[0]));
    warp.is_fenced_for_wgmma = false;
}
// number[0]: of registers; [1]: 1 if it takes some.
void set_registers(Warp& warp, const Instruction& own, u32) {
    const u32 wanted = u32(own.number[0]);
    u32& free = warp.block.free_registers;
    if (own.number[1] ? wanted < warp.registers : wanted > warp.registers)
        warp.fail("%u registers, of %u", wanted, warp.registers);
    if (own.number[1] && (wanted - warp.registers) * kLanes > free) {  // until others have given some
        warp.groups[0].pc = warp.pc;
        warp.yielded = true;
        return;
    }
    free = free + warp.registers * kLanes - wanted * kLanes;
    warp.registers = wanted;
    warp.block.grid.changes++;
}
void trap(Warp& warp, const Instruction&, u32) { warp.fail("a trap"); }
void nothing(Warp&, const Instruction&, u32) {}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::string part;
    for (const char c : text)
        if (c == separator)
            parts.push_back(part), part.clear();
        else
            part += c;
    parts.push_back(part);
    return parts;
}

int bytes_of_type(const std::string& type) {
    if (type == "pred") return 4;
    const int bits = std::atoi(type.c_str() + 1);
    return bits / 8;
}
int held_bytes(const std::string& type) { return bytes_of_type(type) == 8 ? 8 : 4; }

}  // namespace

// ---- operands ----------------------------------------------------------------------------------------------------

void decode(Operands& operands, const std::string& opcode, const std::vector<std::string>& args, Instruction& own) {
    const std::vector<std::string> parts = split(opcode, '.');
    const std::string &head = parts[0], &type = parts.back();
    const auto has = [&](const char* part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
    const auto is = [&](const char* prefix) { return opcode.compare(0, std::strlen(prefix), prefix) == 0; };
    const auto list = [&](size_t i) { return operands.list(args.at(i)); };
    const auto from = [&](const std::string& name, int bytes) { own.from.push_back(operands.source(name, bytes)); };
    const auto to = [&](const std::string& name, int bytes) { own.to.push_back(operands.target(name, bytes)); };
    const auto address = [&](const std::string& text) {
        int bytes = 0;
        own.from.push_back(operands.address(text, &bytes, &own.offset));
        own.number[0] = bytes;
    };

    const bool is_wide = head == "cvt" && args.size() == 2 && args[1][0] == '%' && operands.size_of(args[1]) == 8 &&
                         held_bytes(type) == 4;
    if (const Arithmetic* arithmetic = find_arithmetic(is_wide ? opcode + "/8" : opcode)) {
        if (args.size() != arithmetic->from.size() + 1) operands.refuse();
        own.run = arithmetic->run;
        to(args[0], arithmetic->to);
        for (size_t i = 1; i < args.size(); i++) from(args[i], arithmetic->from[i - 1]);
        return;
    }
    if (head == "bra") {
        own.flow = Flow::branch;
        own.run = nothing;
    } else if (head == "ret" || head == "exit") {
        own.flow = Flow::exit;
        own.run = nothing;
    } else if (head == "trap") {
        own.run = trap;
    } else if (head == "mov") {
        const std::vector<std::string> targets = list(0), sources = list(1);
        const int whole = held_bytes(type);
        if (targets.size() == 1 && sources.size() == 1) {
            own.run = whole == 8 ? move<u64> : move<u32>;
            to(targets[0], whole), from(sources[0], whole);
        } else if (targets.size() == 1 && sources.size() == 2) {
            own.run = whole == 8 ? pack<u64, u32, 32> : pack<u32, u32, 16>;
            to(targets[0], whole);
            for (const std::string& name : sources) from(name, 4);
        } else if (targets.size() == 2 && sources.size() == 1) {
            own.run = whole == 8 ? unpack<u64, u32, 32> : unpack<u32, u32, 16>;
            from(sources[0], whole);
            for (const std::string& name : targets) to(name, 4);
        } else {
            operands.refuse();
        }
    } else if (head == "cvta") {
        // Generic addresses of global memory are the host's; others get their window's.
        own.run = move<u64>;
        const uint64_t window = has("shared")  ? kSharedWindow
                                : has("local") ? kLocalWindow
                                : has("param") ? kParamWindow
                                               : 0;
        if (window) {
            own.run = find_arithmetic(has("to") ? "sub.s64" : "add.s64")->run;
            to(args.at(0), 8), from(args.at(1), 8);
            own.from.push_back(operands.constant(window, 8));
        } else {
            to(args.at(0), 8), from(args.at(1), 8);
        }
    } else if (head == "ld" || head == "st") {
        own.number[1] = int(has("shared") || has("shared::cta") ? Space::shared
                            : has("global")                     ? Space::global
                            : has("param")                      ? Space::param
                            : has("local")                      ? Space::local
                                                                : Space::generic);
        if (has("acquire") || has("release")) {
            if (bytes_of_type(type) != 4 || !has("gpu")) operands.refuse();
        }
        own.number[2] = bytes_of_type(type);
        address(args.at(head == "ld" ? 1 : 0));
        own.is_uniform = args.at(head == "ld" ? 1 : 0)[1] != '%';
        for (const std::string& name : list(head == "ld" ? 0 : 1)) {
            // A register may be wider than the type.
            const int bytes = name[0] == '%' ? std::max(operands.size_of(name), held_bytes(type)) : held_bytes(type);
            own.number[3] = bytes;
            head == "ld" ? to(name, bytes) : from(name, bytes);
        }
        if (type[0] == 's') own.number[3] = -own.number[3];
        if (head == "st") own.number[3] = std::abs(own.number[3]);
        own.run = has("acquire") ? load_acquire : has("release") ? store_release : head == "ld" ? load : store;
        if (has("relaxed") || has("volatile")) operands.refuse();
        operands.kernel.communicates |= has("acquire") || has("release");
    } else if (head == "atom") {
        own.number[1] = int(Space::global);
        to(args.at(0), held_bytes(type));
        address(args.at(1));
        from(args.at(2), held_bytes(type));
        own.run = opcode == "atom.global.add.u32"   ? atomic<u32, Add>
                  : opcode == "atom.global.add.u64" ? atomic<u64, Add>
                  : opcode == "atom.global.max.u32" ? atomic<u32, Max>
                                                    : nullptr;
        operands.kernel.communicates = true;
    } else if (is("membar.gl") || is("fence.acq_rel.gpu") || is("fence.sc.gpu")) {
        own.run = fence;
    } else if (head == "shfl") {
        own.flow = Flow::lanes;
        const std::string mode = parts.at(2);
        own.number[0] = mode == "bfly" ? 0 : mode == "idx" ? 1 : mode == "down" ? 2 : 3;
        for (const std::string& name : split(args.at(0), '|')) to(name, 4);
        for (size_t i = 1; i < 5; i++) from(args.at(i), 4);
        own.run = shuffle;
    } else if (head == "vote" || head == "redux") {
        own.flow = Flow::lanes;
        own.number[0] = head == "redux" ? 3 : parts.at(2) == "ballot" ? 0 : parts.at(2) == "any" ? 1 : 2;
        if (head == "redux" && opcode != "redux.sync.add.u32") operands.refuse();
        to(args.at(0), 4), from(args.at(1), 4), from(args.at(2), 4);
        own.run = vote;
    } else if (is("bar.warp.sync")) {
        own.flow = Flow::lanes;
        from(args.at(0), 4);
        own.run = sync_warp;
    } else if (is("bar.sync") || is("barrier.cta.sync.aligned") || is("barrier.cta.arrive.aligned")) {
        own.flow = Flow::barrier;
        own.number[0] = has("arrive");
        for (const std::string& name : args) from(name, 4);
        own.run = barrier;
    } else if (is("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")) {
        own.flow = Flow::warp;
        for (const std::string& name : list(0)) to(name, 4);
        for (size_t i = 1; i < 4; i++)
            for (const std::string& name : list(i)) from(name, 4);
        own.run = mma;
    } else if (is("ldmatrix.sync.aligned.m8n8.x4.")) {
        own.flow = Flow::warp;
        own.number[1] = int(Space::shared), own.number[3] = has("trans");
        for (const std::string& name : list(0)) to(name, 4);
        address(args.at(1));
        own.run = ldmatrix;
    } else if (is("mbarrier.init.shared::cta.b64")) {
        address(args.at(0)), from(args.at(1), 4);
        own.run = init_mbarrier;
    } else if (is("mbarrier.arrive.")) {
        address(args.at(1));
        if (has("expect_tx")) from(args.at(2), 4);
        own.run = arrive;
    } else if (is("mbarrier.try_wait.parity.shared::cta.b64")) {
        to(args.at(0), 4), address(args.at(1)), from(args.at(2), 4);
        own.run = try_wait;
    } else if (is("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes")) {
        const std::string source = args.at(1).substr(1, args.at(1).size() - 2);
        address(args.at(0));
        from(source.substr(0, source.find(',')), 8);
        for (const std::string& name : operands.list(source.substr(source.find('{')))) from(name, 4);
        address(args.at(2));
        own.run = copy_tensor;
        operands.kernel.has_async_proxy = true;
    } else if (is("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes")) {
        address(args.at(0)), address(args.at(1)), from(args.at(2), 4), address(args.at(3));
        own.run = copy_bulk;
        operands.kernel.has_async_proxy = true;
    } else if (is("cp.async.cg.shared.global")) {
        if (args.at(2) != "16") operands.refuse();
        address(args[0]);
        const int64_t to_offset = own.offset;
        address(args[1]);
        own.number[0] = int(own.offset), own.offset = to_offset;
        if (args.size() > 3) from(args[3], 4);
        own.run = copy_async;
    } else if (is("cp.async.commit_group")) {
        own.run = commit_copies;
    } else if (is("cp.async.wait_group")) {
        own.number[0] = std::atoi(args.at(0).c_str());
        own.run = wait_copies;
    } else if (is("fence.mbarrier_init.release.cluster")) {
        own.run = fence_mbarriers;
    } else if (is("fence.proxy.async.shared::cta")) {
        own.run = fence_proxy;
    } else if (is("wgmma.fence.sync.aligned")) {
        own.flow = Flow::warp;
        own.run = fence_wgmma;
    } else if (is("wgmma.commit_group.sync.aligned")) {
        own.flow = Flow::warp;
        own.run = commit_wgmma;
    } else if (is("wgmma.wait_group.sync.aligned")) {
        own.flow = Flow::warp;
        own.number[0] = std::atoi(args.at(0).c_str());
        own.run = wait_wgmma;
    } else if (is("wgmma.mma_async.sync.aligned.m64n") &&
               is((opcode.substr(0, opcode.find("k16")) + "k16.f32.bf16.bf16").c_str())) {
        own.flow = Flow::warp;
        own.number[0] = std::atoi(opcode.c_str() + std::strlen("wgmma.mma_async.sync.aligned.m64n"));
        for (const std::string& name : list(0)) to(name, 4);
        if (int(own.to.size()) != own.number[0] / 2) operands.refuse();
        const bool in_registers = args.at(1)[0] == '{';
        if (in_registers)
            for (const std::string& name : list(1)) from(name, 4);
        else
            from(args[1], 8);
        from(args.at(2), 8), from(args.at(3), 4);
        if (args.at(4) != "1" || args.at(5) != "1") operands.refuse();  // neither operand is negated
        own.number[1] = in_registers ? 0 : std::atoi(args.at(6).c_str());
        own.number[2] = std::atoi(args.at(in_registers ? 6 : 7).c_str());
        own.run = multiply_async;
        operands.kernel.has_async_proxy = true;
    } else if (is("setmaxnreg.")) {
        own.flow = Flow::warp;
        own.number[0] = std::atoi(args.at(0).c_str()), own.number[1] = has("inc");
        own.run = set_registers;
    }
    // The others with an address have no offset.
    if (own.offset && own.run != load && own.run != store && own.run != ldmatrix && own.run != copy_async &&
        own.run != load_acquire && own.run != store_release && head != "atom")
        operands.refuse();
    if (!own.run) operands.refuse();
}

}  // namespace ptx
