# Flags for compiling and linking C++ and CUDA.

# The ISA levels of llmc/base/processor.h, in ascending order. Only CPU ops are compiled per level. The rest is compiled
# for the baseline, tests and benchmarks for this machine's processor.
LEVELS_all       := baseline avx2 avx512 avx512_bf16
ARCH_baseline    := -march=x86-64
ARCH_avx2        := -march=x86-64-v3
ARCH_avx512      := -march=x86-64-v4
ARCH_avx512_bf16 := -march=x86-64-v4 -mavx512bf16
# Darwin has no objcopy, which levels need (make/hide_names.sh), and on arm64 its clang++ knows no -march=native.
ARCH_only         = -m$(if $(and $(IS_DARWIN),$(filter arm64,$(MACHINE))),cpu,arch)=$(CPU_ARCH:here=native)
KNOWS_LEVELS := $(if $(IS_DARWIN),,$(call succeeds,$(CXX) $(ARCH_avx512_bf16) -E -x c++ /dev/null))
LEVELS_here  := $(if $(KNOWS_LEVELS),$(shell echo ANVIL_CPU_LEVEL | \
  $(CXX) -march=native -w -include llmc/base/processor.h -I. -E -P -x c++ - | tail -n 1))
LEVELS       := $(or $(LEVELS_$(CPU_ARCH)),only)
ARCH          = $(if $(filter only,$(LEVELS)),$(ARCH_only),$(ARCH_baseline))
# clang++ 19 warns of features that -march=native combines on a Granite Rapids.
HERE          = $(if $(filter only,$(LEVELS)),$(ARCH_only),$(if $(IS_CLANG),$(ARCH_$(LEVELS_here)),-march=native))

# -ffp-contract=off: a*b+c is rounded twice unless the source says std::fma; else bits would depend on compiler and -O.
# -fopenmp-simd: without OpenMP, `omp simd` loops are still vectorized. ggc-min-heapsize: g++ collects garbage from 512
# MB on instead of 128, which saves a seventh of its time. False warnings: -Wrestrict of g++ 12 (its bug 105651),
# -Wdangling-reference of g++ 13; clang++'s of libstdc++'s stable_sort, and of loops it does not unroll; those of
# Darwin that the long long of an int64_t is not the long of %ld.
CXXFLAGS = -std=c++20 $(OPT) $(DEBUG_INFO) -Wall -Wextra -ffp-contract=off $(ARCH) -pthread \
  $(if $(IS_CLANG),-Wno-deprecated-declarations -Wno-pass-failed,-Wno-restrict -Wno-dangling-reference) \
  $(if $(IS_DARWIN),-Wno-format) $(or $(HAVE_OMP:1=-fopenmp),-fopenmp-simd -Wno-unknown-pragmas) $(CXXFLAGS_EXTRA)
# $(call system_include,FOLDERS): -isystem for those that are not searched anyway, whose order must not change
system_include = $(addprefix -isystem ,$(filter-out $(INCLUDE_DIRS),$(1)))
# The headers of NCCL and cuDNN must precede those of the toolkit, which may be older.
CPPFLAGS = -I. -I$(O)/generated $(if $(IS_CUDA),$(call system_include,$(IS_NCCL) $(IS_CUDNN) $(CUDA_DIR)/include \
  $(CUBLASLT_INC)) -DANVIL_CUDA_MAJOR=$(CUDA_MAJOR)) $(patsubst %,-isystem %,$(wildcard $(DEPS_DIR)/include))
LDFLAGS  = $(patsubst %,-L%,$(wildcard $(DEPS_DIR)/lib))
COMPILE  = $(CXX) $(CPPFLAGS) $(CXXFLAGS) $(if $(IS_CLANG),,--param=ggc-min-heapsize=524288)

IS_CUDA  := $(filter cuda,$(VARIANT))
IS_CUDNN := $(and $(IS_CUDA),$(filter-out 0,$(USE_CUDNN)),$(HAVE_CUDNN))
IS_NCCL  := $(and $(IS_CUDA),$(filter-out 0,$(USE_NCCL)),$(HAVE_NCCL))
IS_MPI   := $(if $(filter-out 0,$(USE_MPI)),$(HAVE_MPI))
LIBRARIES := $(strip $(if $(IS_CUDA),cuBLASLt=$(CUBLASLT_LIB)) $(if $(IS_CUDNN),cuDNN=$(CUDNN_LIB)) \
  $(if $(IS_NCCL),NCCL=$(NCCL_LIB)) $(if $(IS_MPI),MPI=$(MPI_LIB)))
# $(call linked,LIBRARY): a library by its path, where the program finds it at run time, too
linked = $(1) $(if $(filter $(SYSTEM_LIBS:%=%/),$(dir $(1))),,-Wl$(,)-rpath$(,)$(patsubst %/,%,$(dir $(1))))
ifneq ($(IS_CUDA),)
  # Code for a compute capability also runs on later chips of its generation. The driver of any later generation
  # compiles the PTX of the newest. Neither holds for 90a, whose code runs on that chip only; kernels need its features
  # (wgmma: llmc/cuda/hopper.cuh), and 90 is the only chip of its generation. So 90 is compiled as 90a, without PTX.
  CHIPS  := $(shell printf '%s\n' $(GPU_ARCHS) | sort -nu)
  NEWEST := $(filter-out 90,$(lastword $(CHIPS)))
  CODE    = $(foreach chip,$(CHIPS:90=90a),-gencode arch=compute_$(chip),code=sm_$(chip)) \
    $(if $(NEWEST),-gencode arch=compute_$(NEWEST)$(,)code=compute_$(NEWEST)) $(if $(filter 90,$(CHIPS)),-DANVIL_HOPPER)
  RELAXED = --expt-relaxed-constexpr
  NVCC    = $(CCACHE) $(CUDA_DIR)/bin/nvcc -ccbin $(NVCC_CXX) -std=c++20 -O3 -g -x cu -lineinfo $(CPPFLAGS) $(CODE) \
    --diag-suppress=1675 $(RELAXED) -Xptxas=--warn-on-spills \
    $(addprefix -Xcompiler ,$(filter-out -std=c++20 -Wall -Wextra,$(CXXFLAGS)))
  LDFLAGS += -L$(CUDA_DIR)/lib64 -lcudart_static -ldl -lrt
endif
LDFLAGS  += $(foreach library,$(LIBRARIES),$(call linked,$(lastword $(subst =, ,$(library)))))

BUILD_ID := $(or $(shell cat BUILD_ID 2>/dev/null),$(shell git describe --always --dirty 2>/dev/null),unknown)
VERSION  := $(shell cat VERSION)
# What `native` means depends on the processor.
CPU_SUM  := $(shell $(ASK) $(CXX) $(HERE) -Q --help=target 2>/dev/null | cksum)
