// Tensors in MX on a GPU, for tests.
#pragma once
#include <vector>
#include "llmc/cuda/limits.h"      // kOldestMx
#include "test/cpu/fp8_testing.h"  // HostMx
#include "test/cuda_testing.h"     // OnDevice

// A copy of a tensor, or of its marks.
struct DeviceMx {
    OnDevice<e4m3> data, transposed;
    OnDevice<e8m0> scales, transposed_scales;
    int64_t rows, cols;

    DeviceMx(Cuda& cuda, const HostMx& x)
        : data(cuda, x.data),
          transposed(cuda, x.transposed),
          scales(cuda, x.scales),
          transposed_scales(cuda, x.transposed_scales),
          rows(x.rows),
          cols(x.cols) {}
    MxTensor view() { return {data.data, scales.data, transposed.data, transposed_scales.data, rows, cols}; }
    std::vector<Floats> bits() {
        HostMx host(rows, cols);
        host.data = data.values(), host.scales = scales.values();
        host.transposed = transposed.values(), host.transposed_scales = transposed_scales.values();
        return host.bits();
    }
};

// Whether the GPU multiplies in MX. The emulated one does, as a Blackwell.
inline bool has_mx(Cuda& cuda) {
#ifdef ANVIL_EMULATED
    cuda.compute_capability = kOldestMx;
#endif
    return cuda.compute_capability >= kOldestMx;
}
