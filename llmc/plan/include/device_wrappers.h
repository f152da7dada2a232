/*
The wrappers of llmc/cuda/device.cuh for a device that launches nothing: a launch is written down with the name of its
kernel, which only the source's text has.
*/
#pragma once
#include "llmc/cuda/cuda_device.h"  // Cuda

template <class T>
using type_of = T;  // type_of<float[4][2]>: an array type inside a macro
#define SMEM_STATIC(T, name, extents) type_of<T extents> name
#define SMEM_DYNAMIC(T, name) T* const name = nullptr

template <class T>
Pack<T> load16(const T*) {
    return {};
}
template <class T>
Pack<T> load16_streaming(const T*) {
    return {};
}
template <class T>
Pack<T> load16_uncached(const T*) {
    return {};
}
template <class T>
void store16(T*, const Pack<T>&) {}
template <class T>
void store16_streaming(T*, const Pack<T>&) {}
inline void publish(int*, int) {}
inline int published(const int*) { return 0; }
inline void wait_until(const int*, int) {}
inline uint32_t bf16x2(float, float) { return 0; }
template <class T>
T from_float(float) {
    return {};
}
template <class Fp8>
uint16_t fp8x2(float, float) {
    return 0;
}
inline float fast_exp2(float x) { return x; }
inline void mma_m16n8k16(float (&)[4], const uint32_t (&)[4], const uint32_t (&)[2]) {}
inline void ldmatrix_x4(uint32_t (&)[4], const void*) {}
inline void ldmatrix_x4_transposed(uint32_t (&)[4], const void*) {}
inline void cp_async16(void*, const void*, bool) {}
inline void cp_async_commit() {}
template <int n>
void cp_async_wait() {}

// The first name that ends so: of `c ? a_kernel<1> : a_kernel<2>`, too, whose kernels are one template.
inline std::string kernel_in(const std::string& text) {
    const size_t at = text.find("_kernel");
    if (at == std::string::npos) return "";
    size_t begin = at;
    while (begin > 0 && (std::isalnum(uint8_t(text[begin - 1])) || text[begin - 1] == '_')) begin--;
    return text.substr(begin, at - begin) + "_kernel";
}

template <class... P>
void traced_launch(const char* text, Cuda& cuda, const KernelLabel& label, void (*)(P...), dim3 grid, dim3 block,
                   size_t shared_bytes, std::type_identity_t<P>...) {
    StepRecorder* const recorder = StepRecorder::current();
    if (!recorder) return;
    const bool is_known = label.cost.bytes > 0 || label.cost.flops > 0;
    TracedWork& one = recorder->add(TracedWork::Kind::kernel, label.name, cuda.stream);
    one.cost = is_known ? label.cost : recorder->take_op_cost();
    one.has_op_cost = !is_known || one.name == one.op;
    one.kernel = kernel_in(text);
    one.is_bf16 = (std::is_same_v<P, const bf16*> || ...) || (std::is_same_v<P, bf16*> || ...);
    std::copy_n(&grid.x, 3, one.grid);
    std::copy_n(&block.x, 3, one.block);
    one.shared_bytes = int64_t(shared_bytes);
}
#define launch(...) traced_launch(#__VA_ARGS__, __VA_ARGS__)
