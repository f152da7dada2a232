// See cuda_kernels.h.
#include "llmc/cuda/cuda_kernels.h"

namespace {

template <class... Families>
OpTable<Families...> filled(const OpTable<Families...>&) {
    return {cuda_ops<Families>()...};
}

}  // namespace

template <class T>
const Ops<Cuda, T>& ops(Cuda&) {
    static const Ops<Cuda, T> table = filled(Ops<Cuda, T>());
    return table;
}
template const Ops<Cuda, float>& ops<float>(Cuda&);
template const Ops<Cuda, bf16>& ops<bf16>(Cuda&);
