# Anvil's build. `make help` lists the targets, `make info` says what was found and why something was not.
#
#   make                        ./train_gpt and ./data/tokenize, for what this machine can do
#   make test                   the whole test suite, without a GPU; `make test OP=layernorm` runs one topic
#   make test-gpu               the kernels' tests on this machine's GPU
#   make USE_OMP=0 CXX=clang++  any variable can be set on the command line, in the environment or in config.mk
#
# Objects lie in build/VARIANT/, beside a copy of the flags they were made with: changed flags rebuild everything.

-include config.mk

USE_CUDA  ?= auto
USE_CUDNN ?= auto
USE_NCCL  ?= auto
USE_MPI   ?= auto
USE_OMP   ?= auto
# Headers and libraries carried along where nothing can be installed: DEPS_DIR/include, DEPS_DIR/lib.
DEPS_DIR  ?= .deps
# all: the CPU's code once for each level below, and the program takes the best that its processor has. Or what -march
# knows, for that alone, a third of the time to compile: native, x86-64-v3, ...
CPU_ARCH  ?= $(if $(filter cpu cuda,$(VARIANT)),$(if $(KNOWS_LEVELS),all,native),native)
OPT       ?= -O3
# Line numbers, for sanitizers and profilers, cost little; variables, for debuggers (DEBUG_INFO=-g), a third of the time to
# compile.
DEBUG_INFO ?= -g1
# How many files to compile at once in `make test`, `make lint` and `make sanitize` when no -j is given.
JOBS      ?= $(shell nproc 2>/dev/null || echo 1)
# make's own default (g++ on Linux); `CXX ?=` would not see it.
ifeq ($(origin CXX),default)
  CXX := g++
endif
ifeq ($(origin CCACHE),undefined)
  CCACHE := $(shell command -v ccache 2>/dev/null)
endif

# For a comma inside the arguments of a function.
, := ,

# ---- what this machine has -------------------------------------------------------------------------------------
# $(call dir_with,FILE PATTERN,FOLDERS): the first of FOLDERS that holds FILE
dir_with = $(firstword $(foreach d,$(2),$(if $(wildcard $(d)/$(1)),$(d))))

INCLUDE_DIRS := $(wildcard $(DEPS_DIR)/include) \
  $(shell $(CXX) -E -v -x c++ /dev/null 2>&1 >/dev/null | sed -n '/^.include </,/^End/s/^ //p')
CLI11_DIR   := $(call dir_with,CLI/CLI.hpp,$(INCLUDE_DIRS))
JSON_DIR    := $(call dir_with,nlohmann/json.hpp,$(INCLUDE_DIRS))
XXHASH_DIR  := $(call dir_with,xxhash.h,$(INCLUDE_DIRS))
CATCH2_DIR  := $(call dir_with,catch2/catch*.hpp,$(INCLUDE_DIRS))
# Version 2 is one header; version 3 (catch_all.hpp) comes with a library.
CATCH2_LIBS := $(if $(wildcard $(CATCH2_DIR)/catch2/catch_all.hpp),-lCatch2)
MISSING     := $(if $(CLI11_DIR),,CLI11) $(if $(JSON_DIR),,nlohmann-json) $(if $(XXHASH_DIR),,xxHash)

CXX_VERSION := $(shell $(CXX) --version 2>/dev/null | head -n 1)
ifneq ($(USE_OMP),0)
  HAVE_OMP := $(shell echo 'int main() {}' | $(CXX) -fopenmp -x c++ - -o /dev/null 2>/dev/null && echo 1)
endif

# A folder counts as CUDA only with both the compiler and its headers: /usr/local/bin/nvcc may be a wrapper script.
NVCC_PATH := $(shell command -v nvcc 2>/dev/null)
CUDA_DIRS := $(CUDA_HOME) $(CUDA_PATH) $(NVCC_PATH:%/bin/nvcc=%) /usr/local/cuda \
  $(lastword $(sort $(wildcard /usr/local/cuda-*))) /opt/cuda
CUDA_DIR  := $(foreach d,$(CUDA_DIRS),$(if $(wildcard $(d)/bin/nvcc),$(call dir_with,include/cuda_runtime.h,$(d))))
CUDA_DIR  := $(firstword $(CUDA_DIR))
# NVIDIA's libraries are part of the toolkit, of the system, or wheels of `pip install nvidia-cublas nvidia-cudnn-cu13`.
NVIDIA_WHEELS ?= $(wildcard $(shell python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)/nvidia)
# $(call library_in,NAME,FOLDERS): the first libNAME.so, or with a version after it, as a path
library_in = $(firstword $(foreach d,$(2),$(firstword $(wildcard $(d)/lib$(1).so) $(sort $(wildcard $(d)/lib$(1).so.*)))))
SYSTEM_LIBS  := $(wildcard /usr/lib/$(shell uname -m)-linux-gnu /usr/lib64 /usr/lib)
CUBLASLT_INC := $(call dir_with,cublasLt.h,$(CUDA_DIR:%=%/include) $(NVIDIA_WHEELS:%=%/cu13/include) $(INCLUDE_DIRS))
CUBLASLT_LIB := $(call library_in,cublasLt,$(CUDA_DIR:%=%/lib64) $(NVIDIA_WHEELS:%=%/cu13/lib) $(SYSTEM_LIBS))
CUDNN_DIR := $(call dir_with,cudnn.h,$(CUDNN_HOME:%=%/include) $(CUDA_DIR:%=%/include) $(NVIDIA_WHEELS:%=%/cudnn/include) $(INCLUDE_DIRS))
CUDNN_LIB := $(call library_in,cudnn,$(CUDNN_HOME:%=%/lib) $(CUDA_DIR:%=%/lib64) $(NVIDIA_WHEELS:%=%/cudnn/lib) $(SYSTEM_LIBS))
# What a GPU needs at least, and what is missing of it.
CUDA_MISSING := $(if $(CUDA_DIR),,nvcc with its headers (install the CUDA toolkit or set CUDA_HOME)) \
  $(if $(and $(CUBLASLT_INC),$(CUBLASLT_LIB)),,cuBLASLt (part of the toolkit or `pip install nvidia-cublas`))
HAVE_CUDA    := $(if $(strip $(CUDA_MISSING)),,$(CUDA_DIR))
HAVE_CUDNN   := $(if $(and $(HAVE_CUDA),$(CUDNN_DIR),$(CUDNN_LIB)),$(CUDNN_DIR))
VARIANT      ?= $(DEFAULT_VARIANT)
DEFAULT_VARIANT := $(if $(filter-out 0,$(USE_CUDA)),$(if $(HAVE_CUDA),cuda,cpu),cpu)
NCCL_DIR := $(call dir_with,nccl.h,$(NCCL_HOME:%=%/include) $(CUDA_DIR:%=%/include) $(NVIDIA_WHEELS:%=%/nccl/include) $(INCLUDE_DIRS))
NCCL_LIB := $(call library_in,nccl,$(NCCL_HOME:%=%/lib) $(CUDA_DIR:%=%/lib64) $(NVIDIA_WHEELS:%=%/nccl/lib) $(SYSTEM_LIBS))
HAVE_NCCL := $(if $(and $(HAVE_CUDA),$(NCCL_DIR),$(NCCL_LIB)),$(NCCL_DIR))
# MPI: the folder that was named, else the one that mpicxx compiles with, which goes with the mpirun beside it.
MPICXX_WORDS := $(if $(MPI_HOME),,$(shell mpicxx -show 2>/dev/null))
MPI_DIR  := $(call dir_with,mpi.h,$(MPI_HOME:%=%/include) $(patsubst -I%,%,$(filter -I%,$(MPICXX_WORDS))) \
  $(if $(MPI_HOME),,$(wildcard /usr/lib/*/openmpi/include) $(INCLUDE_DIRS)))
MPI_LIB  := $(call library_in,mpi,$(MPI_HOME:%=%/lib) $(MPI_HOME:%=%/lib64) $(patsubst -L%,%,$(filter -L%,$(MPICXX_WORDS))) \
  $(if $(MPI_HOME),,$(wildcard /usr/lib/*/openmpi/lib) $(SYSTEM_LIBS)))
HAVE_MPI := $(if $(and $(MPI_DIR),$(MPI_LIB)),$(MPI_DIR))

# $(call check,NAME,VALUE,FOUND,WHAT TO INSTALL): USE_NAME must be auto, 0 or 1; 1 needs FOUND
check = $(if $(filter auto 0 1,$(2)),,$(error USE_$(1)=$(2): expected auto, 0 or 1))$(strip \
  )$(if $(filter 1,$(2)),$(if $(3),,$(error USE_$(1)=1 but $(1) was not found: $(4))))
ifneq ($(filter-out help info clean format,$(or $(MAKECMDGOALS),all)),)
  $(call check,OMP,$(USE_OMP),$(HAVE_OMP),install libgomp1 or use g++)
  $(call check,CUDA,$(USE_CUDA),$(HAVE_CUDA),missing $(strip $(CUDA_MISSING)))
  $(call check,CUDNN,$(USE_CUDNN),$(HAVE_CUDNN),install libcudnn9-dev-cuda-13 or nvidia-cudnn-cu13 or set CUDNN_HOME)
  $(call check,NCCL,$(USE_NCCL),$(HAVE_NCCL),it needs CUDA and libnccl-dev or nvidia-nccl-cu13 or NCCL_HOME)
  $(call check,MPI,$(USE_MPI),$(HAVE_MPI),install libopenmpi-dev or set MPI_HOME)
endif

# ---- flags -----------------------------------------------------------------------------------------------------
# The levels of llmc/base/processor.h, in ascending order. What is not of the CPU's ops is compiled for every processor;
# tests and benchmarks for this one.
KNOWS_LEVELS := $(shell $(CXX) -march=x86-64-v4 -mavx512bf16 -E -x c++ /dev/null >/dev/null 2>&1 && echo 1)
ifeq ($(CPU_ARCH),all)
  LEVELS := baseline avx2 avx512 avx512_bf16
  ARCH_baseline    := -march=x86-64
  ARCH_avx2        := -march=x86-64-v3
  ARCH_avx512      := -march=x86-64-v4
  ARCH_avx512_bf16 := -march=x86-64-v4 -mavx512bf16
  ARCH      = $(ARCH_baseline)
  HERE      = -march=native
else
  LEVELS   := only
  ARCH_only = -march=$(CPU_ARCH)
  ARCH      = $(ARCH_only)
  HERE      = $(ARCH_only)
endif

# -ffp-contract=off: a*b+c is rounded twice unless the source says std::fma. Otherwise the compiler decides, function
# by function, and the same training run would give other bits under another compiler or at another -O.
# -Wno-restrict: g++ 12 warns of impossible overlaps inside std::string (its bug 105651). clang++ warns of what libstdc++'s
# stable_sort uses, and of each loop under `#pragma unroll` that it unrolls otherwise.
# -fopenmp-simd: without OpenMP the `omp simd` loops are still vectorized.
CXXFLAGS = -std=c++20 $(OPT) $(DEBUG_INFO) -Wall -Wextra -ffp-contract=off $(ARCH) -pthread \
  $(if $(findstring clang,$(CXX_VERSION)),-Wno-deprecated-declarations -Wno-pass-failed,-Wno-restrict) $(if $(HAVE_OMP),-fopenmp,-fopenmp-simd -Wno-unknown-pragmas) $(CXXFLAGS_EXTRA)
# $(call system_include,FOLDERS): but not what is searched anyway, whose order must stay as it is
system_include = $(addprefix -isystem ,$(filter-out $(INCLUDE_DIRS),$(1)))
CPPFLAGS = -I. $(if $(IS_CUDA),$(call system_include,$(CUDA_DIR)/include $(CUBLASLT_INC) $(if $(IS_CUDNN),$(CUDNN_DIR)) $(if $(IS_NCCL),$(NCCL_DIR)))) $(patsubst %,-isystem %,$(wildcard $(DEPS_DIR)/include))
LDFLAGS  = $(patsubst %,-L%,$(wildcard $(DEPS_DIR)/lib))
COMPILE  = $(CXX) $(CPPFLAGS) $(CXXFLAGS)

# The CUDA build: .cu files by nvcc, for the GPU at hand or, where there is none, for all that Anvil supports.
IS_CUDA  := $(filter cuda,$(VARIANT))
IS_CUDNN := $(if $(IS_CUDA),$(if $(filter-out 0,$(USE_CUDNN)),$(HAVE_CUDNN)))
IS_NCCL  := $(if $(IS_CUDA),$(if $(filter-out 0,$(USE_NCCL)),$(HAVE_NCCL)))
IS_MPI   := $(if $(filter-out 0,$(USE_MPI)),$(HAVE_MPI))
# $(call link,LIBRARY): by its path, found again at run time
link = $(1) -Wl$(,)-rpath$(,)$(patsubst %/,%,$(dir $(1)))
ifneq ($(IS_CUDA),)
  # Code for a chip runs on what its generation has later, too: for 80 on 86 and 89, for 100 on 103. The PTX of the newest is
  # compiled by the driver of any that comes after it: 120, say. Neither is so of 90a and 100a, whose code is for that chip alone,
  # and all that they have more (wgmma, tcgen05) no kernel uses.
  ifeq ($(origin GPU_ARCHS),undefined)
    GPU_ARCHS := $(or $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null))),80 90 100)
  endif
  CHIPS  := $(shell printf '%s\n' $(GPU_ARCHS) | sort -nu)
  CODE    = $(foreach chip,$(CHIPS),-gencode arch=compute_$(chip),code=sm_$(chip)) \
    -gencode arch=compute_$(lastword $(CHIPS)),code=compute_$(lastword $(CHIPS))
  NVCC    = $(CCACHE) $(CUDA_DIR)/bin/nvcc -ccbin $(CXX) -std=c++20 -O3 -g -x cu -lineinfo $(CPPFLAGS) $(CODE) \
    --diag-suppress=1675 --expt-relaxed-constexpr -Xptxas=--warn-on-spills \
    $(addprefix -Xcompiler ,$(filter-out -std=c++20 -Wall -Wextra,$(CXXFLAGS))) $(NVCCFLAGS_EXTRA)
  LDFLAGS += -L$(CUDA_DIR)/lib64 -lcudart_static -ldl -lrt $(call link,$(CUBLASLT_LIB)) $(if $(IS_CUDNN),$(call link,$(CUDNN_LIB))) \
    $(if $(IS_NCCL),$(call link,$(NCCL_LIB)))
endif
# MPI's bindings for C++ are gone from newer ones, and nobody's loss. The system's folders are searched without being told.
MPI_FLAGS = $(if $(IS_MPI),-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(call system_include,$(MPI_DIR)))
LDFLAGS  += $(if $(IS_MPI),$(if $(filter $(SYSTEM_LIBS:%=%/),$(dir $(MPI_LIB))),$(MPI_LIB),$(call link,$(MPI_LIB))))

LIBRARIES = $(if $(IS_CUDA),cuBLASLt=$(CUBLASLT_LIB)) $(if $(IS_CUDNN),cuDNN=$(CUDNN_LIB)) $(if $(IS_NCCL),NCCL=$(NCCL_LIB)) \
  $(if $(IS_MPI),MPI=$(MPI_LIB))
BUILD_ID := $(or $(shell git describe --always --dirty 2>/dev/null),unknown)
# `native` means another thing on another processor: its resolved form is part of the stamp.
CPU_SUM  := $(shell $(CXX) $(HERE) -Q --help=target 2>/dev/null | cksum)

# The tests that need no GPU are built without nvcc.
HOST_VARIANT = $(or $(filter-out cuda,$(VARIANT)),cpu)

# ---- files -----------------------------------------------------------------------------------------------------
O   := build/$(VARIANT)
# The everyday programs lie where people look for them; those of other variants stay in their build folder.
BIN := $(if $(filter $(DEFAULT_VARIANT),$(VARIANT)),,$(O)/)
# Files that need NVIDIA's headers are not part of the CPU build.
CUDA_BACKENDS := $(patsubst %,llmc/train/%.cpp,cuda_backend cuda_backend_fp32 cuda_backend_bf16)
NVIDIA  := $(wildcard $(patsubst %,llmc/%.cpp,cuda/cuda_device cuda/cuda_kernels cuda/cuda_profile cuda/cublaslt cuda/cudnn_attention cuda/cudnn_absent \
  comm/cuda_comm comm/nccl_comm comm/nccl_absent) $(CUDA_BACKENDS))
CUDA_KERNELS := $(sort $(wildcard llmc/cuda/*.cu))
# Where a library may be missing, one file has what needs it and another says that it is not there.
LEFT_OUT := $(patsubst %,llmc/%.cpp,cuda/cudnn_$(if $(IS_CUDNN),absent,attention) comm/nccl_$(if $(IS_NCCL),absent,comm) \
  $(if $(IS_MPI),comm/mpi_absent comm/mpi_network_absent,comm/mpi_ranks comm/mpi_network) $(if $(IS_CUDA),train/cuda_backend_absent))
# The CPU's kernels, once per level.
KERNELS  := $(LEVELS:%=$(O)/%/llmc/cpu/kernels.cpp.o)
ENGINE   := $(patsubst %,$(O)/%.o,$(filter-out $(LEFT_OUT) llmc/cpu/kernels.cpp,$(filter-out $(NVIDIA),$(sort $(wildcard llmc/*/*.cpp))) \
  $(if $(IS_CUDA),$(NVIDIA) $(CUDA_KERNELS)))) $(KERNELS)
# What runs once, or prints, is hardly optimized, for a shorter build. It is linked last, because of an inline function in two
# objects the linker keeps the first.
COLD := $(patsubst %,$(O)/llmc/%.cpp.o,$(addprefix base/,build_id flags flags_text host_memory number_text processor) \
  $(addprefix comm/,handshake host launch meeting mpi_absent mpi_network_absent nccl_absent tcp_ranks watchdog) \
  $(addprefix data/,progress tokenizer_formats tokenizer_json) $(addprefix interop/,export model_config tokenizer_export) \
  $(addprefix model/,architecture shape) $(addprefix optim/,recipe whole_plan) \
  $(addprefix train/,backend checkpointing command cuda_backend_absent depth_scaling doctor event_file log log_follower memory_plan plan run_config run_flags run_inputs run_request \
    scaling tokens))
ENGINE   := $(filter-out $(COLD),$(ENGINE)) $(filter $(COLD),$(ENGINE))
# With OP=layernorm only the files named after it are built, if there are any; another topic is looked for in all.
OP_TESTS   := $(if $(OP),$(wildcard test/$(OP)_test.cpp test/$(OP)_cuda_test.cu))
TEST_FILES := $(if $(OP_TESTS),$(OP_TESTS),$(sort $(wildcard test/*_test.cpp test/*_cuda_test.cu)))
# Which tests run programs: they call `program(`, whose parenthesis make would count, or what does.
RUN_PROGRAMS = grep -lP 'program\x28|TinyRuns|golden'
# KERNELS_ONLY=1: without the tests that run programs, and what only these need of the engine.
ifneq ($(KERNELS_ONLY),)
  TEST_FILES := $(filter-out $(shell $(RUN_PROGRAMS) $(TEST_FILES)),$(TEST_FILES))
  ENGINE     := $(filter-out $(O)/llmc/data/% $(O)/llmc/train/%,$(ENGINE))
endif
# Those of the CPU's ops, which hold what the optimizer makes of these.
OPS_FILES  := $(filter $(patsubst llmc/cpu/%.h,test/%_test.cpp,$(wildcard llmc/cpu/*.h)),$(TEST_FILES))
HOST_FILES := $(filter-out $(OPS_FILES),$(filter %.cpp,$(TEST_FILES)))
CUDA_FILES := $(filter %.cu,$(TEST_FILES))
# Most of what a test takes to compile is its headers: scripts/join_sources.py makes one source of many, unless a single topic
# is asked for. $(call joined,FOLDER,FILES,HOW MANY,NAME)
joined = $(if $(OP_TESTS),$(2:%=$(1)/%.o),$(if $(2),$(patsubst %,$(1)/test/joined_%-of-$(3)_$(4).o,$(shell seq $(3)))))
OPS_TESTS  := $(call joined,$(O),$(OPS_FILES),6,ops.cpp)
TESTS      := $(OPS_TESTS) $(call joined,$(O),$(HOST_FILES),10,host.cpp)
TEST_NAME  := tests$(if $(OP_TESTS),-$(OP))
# The CUDA kernels on the CPU: compiled by g++ against dev/emulator/include instead of the toolkit.
E := $(O)/emulated$(if $(RACE),-race)
# The table of all kernels. An op's own test does without.
EMULATED_KERNELS := $(patsubst %,$(E)/%.o,llmc/cuda/cuda_kernels.cpp $(CUDA_KERNELS))
NEEDED_KERNELS = $(if $(shell grep -lE '"(llmc/cuda/cuda_kernels|llmc/comm/local_cuda|test/models)\.h"' $(CUDA_FILES)),$(EMULATED_KERNELS))
EMULATED       := $(patsubst %,$(E)/%.o,llmc/cuda/cuda_device.cpp llmc/cuda/cuda_profile.cpp llmc/comm/cuda_comm.cpp llmc/comm/nccl_comm.cpp \
  $(filter-out $(if $(RACE),,dev/emulator/race.cpp),$(sort $(wildcard dev/emulator/*.cpp))))
EMULATED_BACKENDS := $(CUDA_BACKENDS:%=$(E)/%.o)
EMULATED_PROGRAMS := $(E)/train_gpt $(E)/data/tokenize
EMULATED_TESTS := $(call joined,$(E),$(CUDA_FILES),8,cuda.cu) \
  $(if $(shell grep -l '"test/models.h"' /dev/null $(CUDA_FILES)),$(E)/test/models.cu.o)
GPU_TESTS      := $(CUDA_FILES:%=$(O)/%.o)
BENCHES := $(patsubst dev/bench/%.cu,$(O)/bench/%,$(sort $(wildcard dev/bench/*.cu)))
PROGRAMS := $(addprefix $(BIN),$(basename $(wildcard train_gpt.cu data/tokenize.cpp)))
OBJECTS := $(ENGINE) $(TESTS) $(EMULATED) $(EMULATED_KERNELS) $(EMULATED_TESTS) $(O)/test/main.cpp.o $(EMULATED_BACKENDS) \
  $(patsubst %,$(O)/%.o,$(wildcard train_gpt.cu data/tokenize.cpp dev/bench/*.cu test/fuzz/*.cpp))

# V=1 shows whole commands.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '%-5s %s\n' $(1) $(2))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all objects test run-tests run-emulated test-gpu run-gpu race sanitize tsan msan fuzz run-fuzz fuzz-objects cuda-check cuda-link run-cuda-link engine bench bench-scaling bench-cpu run-bench-cpu bench-smoke run-bench-smoke \
  lint format info help clean headers FORCE

all: $(PROGRAMS) ## build what this machine can (the default)

$(BIN)train_gpt: $(O)/train_gpt.cu.o $(ENGINE)
$(BIN)data/tokenize: $(O)/data/tokenize.cpp.o $(ENGINE)
$(PROGRAMS):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $(filter %.o,$^) -o $@ $(LDFLAGS)

$(E)/train_gpt: $(O)/train_gpt.cu.o $(EMULATED) $(EMULATED_KERNELS) $(EMULATED_BACKENDS) $(filter-out $(O)/llmc/train/cuda_backend%,$(ENGINE))
$(E)/data/tokenize: $(O)/data/tokenize.cpp.o $(ENGINE)
$(EMULATED_PROGRAMS):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)

define compile_host
@mkdir -p $(@D)
$(call say,CXX,$<)
$(Q)$(CCACHE) $(COMPILE) -MMD -MP -c $< -o $@
endef
$(O)/%.cpp.o: %.cpp $(O)/flags | headers
	$(compile_host)
$(O)/%.cpp.o: $(O)/%.cpp $(O)/flags | headers
	$(compile_host)

# Without CUDA, a .cu file is C++.
$(O)/%.cu.o: %.cu $(O)/flags | headers
	@mkdir -p $(@D)
	$(call say,$(if $(IS_CUDA),NVCC,CXX),$<)
	$(Q)$(if $(IS_CUDA),$(NVCC),$(CCACHE) $(COMPILE) -x c++) -MMD -MP -c $< -o $@

# g++ makes a static variable of an inline function one for the whole process, which objcopy would have to leave so.
NOT_UNIQUE := $(if $(findstring clang,$(CXX_VERSION)),,-fno-gnu-unique)
# An object for a level shows one name, that of its table: what it has of inline functions stays its own. What it computed
# before main() would run on every processor: it must have nothing of the kind.
define kernel_rules
$(O)/$(1)/%.o: private ARCH = $(ARCH_$(1))
$(O)/$(1)/%.o: % $(O)/flags | headers
	@mkdir -p $$(@D)
	$$(call say,CXX,"$$<$(if $(filter-out only,$(1)), ($(1)))")
	$$(Q)$$(CCACHE) $$(COMPILE) $(NOT_UNIQUE) -DANVIL_KERNELS=kKernels_$(1) -MMD -MP -MF $$(@:.o=.d) -MT $$@ -c $$< -o $$(@:.o=.all.o)
	$(if $(filter-out only,$(1)),$$(Q)scripts/hide_names.sh $$(@:.o=.all.o) kKernels_$(1) $$@,$$(Q)mv $$(@:.o=.all.o) $$@)
endef
$(foreach level,$(LEVELS),$(eval $(call kernel_rules,$(level))))
$(O)/llmc/cpu/chosen_kernels.cpp.o: private CPPFLAGS += '-DANVIL_ALL_KERNELS(X)=$(patsubst %,X(kKernels_%),$(LEVELS))'
$(O)/test/% $(O)/dev/% $(E)/%: private ARCH = $(HERE)
# It looks what the processor has.
$(O)/llmc/base/processor.cpp.o: private ARCH = $(if $(KNOWS_LEVELS),-march=x86-64)

# -fno-strict-aliasing: kernels read sixteen bytes of any type at once. `#pragma unroll` is nvcc's.
EMULATED_FLAGS = -Idev/emulator/include -DANVIL_EMULATED $(if $(RACE),-DANVIL_RACE) -fno-strict-aliasing -Wno-unknown-pragmas
$(E)/%.cpp.o: %.cpp $(O)/flags | headers
	@mkdir -p $(@D)
	$(call say,CXX,"$< (emulated)")
	$(Q)$(CCACHE) $(COMPILE) $(EMULATED_FLAGS) -MMD -MP -c $< -o $@

# Kernels are where races are looked for: see dev/emulator/race.h. -gdwarf-4: of a joined source's functions, addr2line 2.40
# takes DWARF 5's first file for the source itself, and a race would be reported in a file that nobody wrote.
define compile_emulated
@mkdir -p $(@D)
$(call say,CXX,"$< (emulated)")
$(Q)$(CCACHE) $(COMPILE) $(EMULATED_FLAGS) $(if $(RACE),-fsanitize=thread -gdwarf-4) -MMD -MP -x c++ -c $< -o $@
endef
$(E)/%.cu.o: %.cu $(O)/flags | headers
	$(compile_emulated)
$(E)/%.cu.o: $(E)/%.cu $(O)/flags | headers
	$(compile_emulated)

# Written when they change, so that a changed test is compiled again with those of its group alone.
$(O)/test/joined_%_ops.cpp: FILES = $(OPS_FILES)
$(O)/test/joined_%_host.cpp: FILES = $(HOST_FILES)
$(E)/test/joined_%_cuda.cu: FILES = $(CUDA_FILES)
define write_joined
@mkdir -p $(@D)
@python3 scripts/join_sources.py --part $* $(FILES) > $@.new
@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
endef
$(O)/test/joined_%_ops.cpp: FORCE
	$(write_joined)
$(O)/test/joined_%_host.cpp: FORCE
	$(write_joined)
$(E)/test/joined_%_cuda.cu: FORCE
	$(write_joined)

# Tests run once or twice, and compiling them is most of the work: three fifths of the time with -O1, and the emulator gets
# hardly slower. `private`: the flags that stand in $(O)/flags are those of the engine.
# g++ -O1 takes for uninitialized what with -O3, in the engine, it sees to be set.
LIGHT    := $(if $(filter -O3,$(OPT)),-O1,$(OPT))
TEST_OPT ?= $(LIGHT)
TRUSTED  := $(if $(findstring clang,$(CXX_VERSION)),,-Wno-maybe-uninitialized)
$(filter-out $(OPS_TESTS),$(TESTS)): private override OPT := $(TEST_OPT) $(TRUSTED)
$(EMULATED_TESTS) $(EMULATED_KERNELS) $(EMULATED_BACKENDS) $(patsubst %,$(E)/%.o,$(wildcard dev/bench/*.cu)): private override OPT := $(LIGHT) $(TRUSTED)

$(COLD): private override OPT := $(LIGHT) $(TRUSTED)

# A tenth of what emulated tests take is the emulator's own, which compiles in seconds.
$(filter $(E)/dev/%,$(EMULATED)): private override OPT := -O3

# Catch2's own code: 16 s to compile with optimization, and nothing of it matters for speed.
$(O)/test/main.cpp.o: private override OPT := -O0

# nccl.h by -I: the one that belongs to the library, before one that the toolkit may have. It and mpi.h are included by these
# files alone, and only they are compiled again when another is found.
NCCL_FLAGS = $(if $(IS_NCCL),-I$(NCCL_DIR))
$(O)/llmc/comm/nccl_comm.cpp.o $(O)/test/nccl_calls.cpp.o: private CPPFLAGS += $(NCCL_FLAGS)
$(O)/llmc/comm/nccl_comm.cpp.o $(O)/test/nccl_calls.cpp.o: $(O)/nccl_flags
MPI_FILES = $(patsubst %,$(O)/%.o,$(wildcard llmc/comm/mpi_*.cpp))
$(MPI_FILES): private CPPFLAGS += $(MPI_FLAGS)
$(MPI_FILES): $(O)/mpi_flags

# `private`: not of $(O)/flags, which it depends on, or every commit would rebuild everything.
$(O)/llmc/base/build_id.cpp.o: private CXXFLAGS += -DANVIL_BUILD_ID='"$(BUILD_ID)"' -DANVIL_LIBRARIES='"$(strip $(LIBRARIES))"'
$(O)/llmc/base/build_id.cpp.o: $(O)/build_id

# Rewritten only when the content changes, so that whatever depends on them is rebuilt then and only then.
$(O)/flags: STAMP = $(COMPILE) $(TEST_OPT) $(foreach level,$(LEVELS),$(ARCH_$(level))) $(CPU_SUM) $(if $(IS_CUDA),$(CHIPS) $(NVCCFLAGS_EXTRA) $(LDFLAGS))
$(O)/nccl_flags: STAMP = $(NCCL_FLAGS)
$(O)/mpi_flags: STAMP = $(MPI_FLAGS)
$(O)/build_id: STAMP = $(BUILD_ID) $(strip $(LIBRARIES))
# The programs at the top are of one variant, of which this names the one.
build/variant: STAMP = $(VARIANT)
$(if $(BIN),,$(PROGRAMS): build/variant)
$(O)/flags $(O)/nccl_flags $(O)/mpi_flags $(O)/build_id build/variant: FORCE
	@mkdir -p $(@D)
	@echo '$(STAMP)' | cmp -s - $@ || echo '$(STAMP)' > $@

headers:
	$(if $(strip $(MISSING)),$(error headers not found: $(strip $(MISSING)). Run scripts/setup.sh to install them$(,) \
	  or put them in $(DEPS_DIR)/include))@:

# Threads that wait for each other spin a little, then sleep. libgomp's default, to spin for long, is no faster on a
# quiet machine and many times slower on one that does anything else. train_gpt sets this itself (llmc/train/omp_spin.h).
export GOMP_SPINCOUNT ?= 1000

# ---- tests and benchmarks --------------------------------------------------------------------------------------
# A make of its own, because what setup.sh installs changes what is found above.
SUBMAKE = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))

test: ## build and run the tests; OP=layernorm runs one topic
	@USE_MPI=$(USE_MPI) DEPS_DIR=$(DEPS_DIR) scripts/setup.sh --tests
	@+rm -f build/counts; mkdir -p build; export ANVIL_COUNTS=build/counts; status=0; \
	  for part in run-tests run-emulated; do $(SUBMAKE) $$part VARIANT=$(HOST_VARIANT) || status=1; done; \
	  awk '{passed += $$1; failed += $$2} END {printf "\n%d passed, %d failed\n", passed, failed; exit passed + failed == 0}' \
	    build/counts || status=1; exit $$status

# A topic may have tests of one kind only, and may do without the programs.
NEEDED_PROGRAMS = $(if $(shell $(RUN_PROGRAMS) $(TEST_FILES)),$(PROGRAMS))
run-tests: $(if $(TESTS),$(O)/$(TEST_NAME) $(NEEDED_PROGRAMS))
	$(if $(TESTS),@ANVIL_PROGRAMS=$(or $(BIN),./) scripts/run_tests.sh $(JOBS) $(O)/$(TEST_NAME) '$(OP)' $(TEST_ARGS))

# In every order of threads that the emulator has: a result that depends on it is wrong.
SCHEDULES ?= in_order reverse random
run-emulated: $(if $(EMULATED_TESTS),$(E)/$(TEST_NAME) $(if $(NEEDED_PROGRAMS),$(EMULATED_PROGRAMS)))
	$(if $(EMULATED_TESTS),@SCHEDULES='$(SCHEDULES)' ANVIL_PROGRAMS=$(E)/ scripts/run_tests.sh $(JOBS) $(E)/$(TEST_NAME) '$(OP)' $(TEST_ARGS))

# Of an inline function in two objects the linker keeps the first, which should be an optimized one.
$(O)/$(TEST_NAME): $(OPS_TESTS) $(ENGINE) $(filter-out $(OPS_TESTS),$(TESTS)) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

# The emulator first: what the race checker itself calls must not be a copy that the checker watches.
$(E)/$(TEST_NAME): $(EMULATED) $(NEEDED_KERNELS) $(EMULATED_TESTS) $(ENGINE) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

$(O)/gpu-$(TEST_NAME): $(GPU_TESTS) $(ENGINE) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

test-gpu: ## the kernels' tests on a GPU; OP=layernorm runs one topic
	@$(if $(HAVE_CUDA),,echo 'make test-gpu: missing $(strip $(CUDA_MISSING))' >&2; exit 2)
	@+$(SUBMAKE) run-gpu VARIANT=cuda

run-gpu: $(O)/gpu-$(TEST_NAME) $(NEEDED_PROGRAMS)
	@ANVIL_PROGRAMS=$(or $(BIN),./) $(O)/gpu-$(TEST_NAME) $(if $(OP),'[$(OP)]') $(TEST_ARGS)

# g++ alone: dev/emulator/race.cpp answers the calls that it makes.
race: ## the kernels' tests on the emulator under its race checker
	$(if $(findstring clang,$(CXX_VERSION)),@echo 'race: skipped: $(CXX) is clang$(,) and the checker answers what g++ calls',\
	  @+$(SUBMAKE) run-emulated RACE=1 KERNELS_ONLY=1 SCHEDULES=in_order VARIANT=$(HOST_VARIANT))

CLANG = $(firstword $(foreach c,$(patsubst %,clang++-%,22 21 20 19 18 17 16) clang++,$(shell command -v $(c))))
# clang++ 16 or newer compiles these in half the time, if it has its OpenMP, too. Without MPI, which leaks a little and is not ours.
# Without the tests tagged [plain], which train for long what shorter ones train, too. What tests themselves compute is
# little: not optimized. Stacks are not kept for who uses them after their function: the emulator has a thousand a kernel.
SANITIZERS = -fsanitize=address,undefined -fno-sanitize=null,object-size,vptr,pointer-overflow -fno-sanitize-recover=all
SANITIZE_CXX ?= $(or $(if $(filter file,$(origin CXX)),$(CLANG_SANITIZES)),$(CXX))
CLANG_SANITIZES = $(if $(CLANG),$(shell printf '\043include <omp.h>\nstruct P { int a, b; };\n \
  int main() { auto [a, b] = P(); return [b] { return b; }() + a + omp_get_thread_num(); }' | \
  $(CLANG) -std=c++20 $(SANITIZERS) -fopenmp -x c++ - -o /dev/null 2>/dev/null && echo $(CLANG)))
sanitize: ## all tests, kernels too, under AddressSanitizer and UndefinedBehaviorSanitizer
	@+SCHEDULES=in_order WITHOUT_TESTS='~[plain]' ASAN_OPTIONS=$(ASAN_OPTIONS):abort_on_error=0:detect_stack_use_after_return=0 \
	  UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=suppressions=$(CURDIR)/test/leaks_of_others.txt:print_suppressions=0 KMP_BLOCKTIME=0 \
	  $(addprefix ASAN_SYMBOLIZER_PATH=,$(wildcard $(dir $(realpath $(SANITIZE_CXX)))llvm-symbolizer)) \
	  $(MAKE) --no-print-directory test VARIANT=sanitize CXX=$(SANITIZE_CXX) USE_MPI=0 OPT=-O1 TEST_OPT=-O0 \
	  CXXFLAGS_EXTRA='$(SANITIZERS) -fno-omit-frame-pointer'

# The threads of the host: readers, savers, watchdogs, ranks. Without OpenMP, whose library is not compiled so and whose
# barriers this sanitizer does not see.
TSAN_ENVIRONMENT = TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:report_thread_leaks=0:second_deadlock_stack=1
tsan: ## the host's tests under ThreadSanitizer
	@+$(TSAN_ENVIRONMENT) WITHOUT_TESTS='~[plain]' $(SUBMAKE) run-tests VARIANT=tsan USE_OMP=0 USE_MPI=0 OPT=-O1 TEST_OPT=-O0 \
	  CXXFLAGS_EXTRA='-fsanitize=thread -fno-omit-frame-pointer'

# clang++ alone has this sanitizer, and every part of a program should be compiled with it: the standard library is not.
# So only the memory that kernels share is watched, which dev/emulator marks as undefined, and neither the heap nor the
# stack of the host. Without OpenMP, whose library is not compiled so either. Before clang 16, lambdas cannot capture
# structured bindings.
MSAN_CXX ?= $(CLANG)
MSAN_WORKS = $(if $(MSAN_CXX),$(shell echo 'int main() {}' | $(MSAN_CXX) -fsanitize=memory -x c++ - -o /dev/null 2>/dev/null && echo 1))
msan: ## the kernels' tests on the emulator under clang's MemorySanitizer
	$(if $(MSAN_WORKS),@+MSAN_SYMBOLIZER_PATH=$(dir $(realpath $(MSAN_CXX)))llvm-symbolizer \
	  MSAN_OPTIONS=poison_in_malloc=0:poison_in_free=0 $(SUBMAKE) run-emulated VARIANT=msan CXX=$(MSAN_CXX) \
	  USE_OMP=0 USE_MPI=0 OPT=-O1 KERNELS_ONLY=1 SCHEDULES=in_order CXXFLAGS_EXTRA='-fsanitize=memory -fsanitize-ignorelist=dev/emulator/msan_ignored.txt -mllvm \
	  -msan-poison-stack=0 -fno-sanitize-memory-param-retval -fno-sanitize-memory-use-after-dtor -w -fno-omit-frame-pointer',\
	  @echo 'msan: skipped: no clang++ whose -fsanitize=memory links (scripts/setup.sh --clang)')

# A fuzzer of NAME is test/fuzz/NAME_fuzz.cpp and begins with test/fuzz/corpus/NAME/; what it finds and learns stays in the
# build folder. Files are what is read, so what trains is not linked.
FUZZ_CXX ?= $(MSAN_CXX)
FUZZERS  := $(patsubst test/fuzz/%_fuzz.cpp,%,$(sort $(wildcard test/fuzz/*_fuzz.cpp)))
FUZZED   := $(if $(OP),$(filter $(OP),$(FUZZERS)),$(FUZZERS))
SECONDS  ?= 60
FUZZ_WORKS = $(if $(FUZZ_CXX),$(shell echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' | \
  $(FUZZ_CXX) -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null && echo 1))
fuzz: ## readers of files under clang's libFuzzer; OP=safetensors fuzzes one, SECONDS=600 for so long each
	$(if $(FUZZED),,$(error no fuzzer$(if $(OP), test/fuzz/$(OP)_fuzz.cpp); there are: $(FUZZERS)))
	$(if $(FUZZ_WORKS),@+UBSAN_OPTIONS=print_stacktrace=1 $(SUBMAKE) run-fuzz VARIANT=fuzz CXX=$(FUZZ_CXX) USE_OMP=0 USE_MPI=0 OPT=-O1 \
	  CXXFLAGS_EXTRA='-fsanitize=fuzzer-no-link$(,)address$(,)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -w',\
	  @echo 'fuzz: skipped: no clang++ whose -fsanitize=fuzzer links (scripts/setup.sh --clang)')

# Do they compile, with any compiler?
fuzz-objects: $(FUZZERS:%=$(O)/test/fuzz/%_fuzz.cpp.o)

run-fuzz: $(FUZZED:%=$(O)/fuzz/%)
	@set -e; for name in $(FUZZED); do echo "fuzz $$name: $(SECONDS) s"; mkdir -p $(O)/fuzz/found/$$name; \
	  $(O)/fuzz/$$name -max_total_time=$(SECONDS) -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_funcs=0 -print_final_stats=1 \
	    -artifact_prefix=$(O)/fuzz/found/$$name- $(O)/fuzz/found/$$name test/fuzz/corpus/$$name; done

$(O)/fuzz/%: $(O)/test/fuzz/%_fuzz.cpp.o $(filter-out $(patsubst %,$(O)/llmc/%/%.o,comm optim train),$(ENGINE))
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) -fsanitize=fuzzer $^ -o $@ $(LDFLAGS)

NVDISASM ?= $(firstword $(wildcard $(CUDA_DIR:%=%/bin/nvdisasm) $(NVIDIA_WHEELS:%=%/cu13/bin/nvdisasm)))
cuda-check: ## every kernel compiled by nvcc: no spills, wide loads, registers as in doc/results/registers.txt (RENEW=1 writes it)
	$(if $(CUDA_DIR),@python3 scripts/check_kernels.py $(CUDA_DIR)/bin/nvcc --cxx $(CXX) $(addprefix --nvdisasm ,$(NVDISASM)) -j$(JOBS) $(if $(RENEW),--renew),\
	  @echo 'cuda-check: skipped: no nvcc with its headers (install the CUDA toolkit or set CUDA_HOME)')

cuda-link: ## what a run on a GPU needs, compiled by nvcc for Hopper and linked with NVIDIA's libraries, not run
	@$(if $(HAVE_CUDA),,echo 'cuda-link: skipped: it needs $(strip $(CUDA_MISSING))')
	$(if $(HAVE_CUDA),@+$(SUBMAKE) engine VARIANT=$(HOST_VARIANT) && $(SUBMAKE) run-cuda-link VARIANT=cuda GPU_ARCHS=90 OPT=-O0)

engine: $(ENGINE) $(O)/train_gpt.cu.o $(O)/test/main.cpp.o

# A quarter of an hour of one core, file by file as for a run, most of it for headers: so many files are one here, nothing is
# optimized (cuda-check does that, with every kernel), and what needs no header of NVIDIA's is the other build's.
J := $(O)/joined
FROM_HOST   = $(patsubst $(O)/%,build/$(HOST_VARIANT)/%,$(filter-out $(NVIDIA:%=$(O)/%.o),$(1))) $(filter $(NVIDIA:%=$(O)/%.o),$(1))
JOINED_NVCC = $(subst -O3 -g -x cu -lineinfo,-O0 -x cu -Xcicc -O0 -Xptxas -O0,$(NVCC))
TESTED_CU  := $(sort $(wildcard test/*_cuda_test.cu))
$(J)/tests_1.cu: JOINED = $(wordlist 1,22,$(TESTED_CU))
$(J)/tests_2.cu: JOINED = $(wordlist 23,$(words $(TESTED_CU)),$(TESTED_CU))
$(J)/benches.cu: JOINED = $(sort $(wildcard dev/bench/*.cu))
$(J)/tests_1.cu $(J)/tests_2.cu $(J)/benches.cu: scripts/join_sources.py $(TESTED_CU) $(wildcard dev/bench/*.cu)
	@mkdir -p $(@D)
	$(Q)python3 $< $(JOINED) > $@
$(J)/kernels.cu: $(CUDA_KERNELS)
	@mkdir -p $(@D)
	$(Q)printf '#include "%s"\n' $^ > $@
$(J)/%.o: $(J)/%.cu $(O)/flags | headers
	$(call say,NVCC,$<)
	$(Q)$(JOINED_NVCC) -MMD -MP -c $< -o $@
-include $(wildcard $(J)/*.d)

J_ENGINE = $(J)/kernels.o $(call FROM_HOST,$(filter-out $(CUDA_KERNELS:%=$(O)/%.o),$(ENGINE)))
$(J)/tests_and_benches: $(patsubst %,$(J)/%.o,tests_1 tests_2 benches) $(J_ENGINE) $(call FROM_HOST,$(O)/test/main.cpp.o)
$(J)/train_gpt: $(call FROM_HOST,$(O)/train_gpt.cu.o) $(J_ENGINE)
$(J)/tests_and_benches $(J)/train_gpt:
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

# They start: NVIDIA's libraries are found again.
run-cuda-link: $(J)/tests_and_benches $(J)/train_gpt
	@$(J)/train_gpt --help > /dev/null
	@$(J)/tests_and_benches --list-tests | sed -n 's/^\([0-9]* test cases\)$$/cuda-link: \1/p' | grep .

$(BENCHES): $(O)/bench/%: $(O)/dev/bench/%.cu.o $(ENGINE)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)

BENCH := $(if $(OP),$(filter %/$(OP),$(BENCHES)),$(BENCHES))
bench: $(BENCH) ## build and run the benchmarks; OP=gelu runs one
	$(if $(BENCH),,$(error no benchmark$(if $(OP), dev/bench/$(OP).cu; there are: $(notdir $(BENCHES)), in dev/bench)))
	@set -e; for bench in $(BENCH); do $$bench; done

# ---- NVIDIA's libraries, on a machine without a GPU ------------------------------------------------------------
.PHONY: cudnn-plans run-cudnn-plans cublaslt-calls run-cublaslt-calls nccl-calls run-nccl-calls
cublaslt-calls: ## are products described to cuBLASLt as they are meant? against one made here
	@$(if $(HAVE_CUDA),,echo 'cublaslt-calls: skipped: it needs $(strip $(CUDA_MISSING))')
	$(if $(HAVE_CUDA),@+$(SUBMAKE) run-cublaslt-calls VARIANT=cuda)

cudnn-plans: ## has cuDNN a plan for every shape? three minutes
	@$(if $(HAVE_CUDNN),,echo 'cudnn-plans: skipped: it needs $(or $(strip $(CUDA_MISSING)),cuDNN with its headers (set CUDNN_HOME or NVIDIA_WHEELS))')
	$(if $(HAVE_CUDNN),@+$(SUBMAKE) run-cudnn-plans VARIANT=cuda USE_CUDNN=1)

nccl-calls: ## as far as NCCL itself goes without a GPU
	@$(if $(HAVE_NCCL),,echo 'nccl-calls: skipped: it needs $(or $(strip $(CUDA_MISSING)),NCCL with its header (set NCCL_HOME or NVIDIA_WHEELS))')
	$(if $(HAVE_NCCL),@+$(SUBMAKE) run-nccl-calls VARIANT=cuda USE_NCCL=1)

run-nccl-calls: $(O)/nccl-calls
	@$< $(TEST_ARGS)

run-cublaslt-calls: $(O)/cublaslt-calls
	@$< $(TEST_ARGS)

run-cudnn-plans: $(O)/cudnn-plans $(O)/no_driver/libcuda.so.1
	@LD_LIBRARY_PATH=$(O)/no_driver$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH} $< $(TEST_ARGS)

# It is its own cuBLASLt and CUDA runtime: none of NVIDIA's are linked.
$(O)/cublaslt-calls: $(patsubst %,$(O)/%.cpp.o,test/cublaslt_calls llmc/cuda/cublaslt llmc/cuda/cudnn_absent llmc/cuda/matmul_cache llmc/base/file llmc/base/hash test/main)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(patsubst %,-L%,$(wildcard $(DEPS_DIR)/lib)) $(CATCH2_LIBS)

$(O)/nccl-calls: $(patsubst %,$(O)/%.cpp.o,test/nccl_calls llmc/comm/nccl_comm llmc/comm/cuda_comm llmc/comm/watchdog llmc/cuda/cudnn_absent llmc/base/file llmc/base/hash test/main)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

$(O)/cudnn-plans: $(patsubst %,$(O)/%.cpp.o,test/cudnn_plans $(addprefix llmc/cuda/,cudnn_attention cuda_device cuda_profile cublaslt matmul_cache) llmc/base/file llmc/base/hash llmc/base/profile test/main)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

$(O)/no_driver/libcuda.so.1: test/no_driver.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -Wall -Wextra -shared -fPIC $< -o $@

-include $(wildcard $(O)/test/cudnn_plans.cpp.d $(O)/test/cublaslt_calls.cpp.d $(O)/test/nccl_calls.cpp.d)

# On the emulator only those whose op has kernels yet.
EMULATED_BENCH := $(patsubst llmc/cuda/%.cuh,$(E)/bench/%,$(wildcard $(BENCH:$(O)/bench/%=llmc/cuda/%.cuh)))
$(E)/bench/%: $(E)/dev/bench/%.cu.o $(EMULATED) $(ENGINE)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)
-include $(EMULATED_BENCH:$(E)/bench/%=$(E)/dev/bench/%.cu.d)

bench-scaling: $(BIN)train_gpt ## tok/s of 1, 2, 4, ... ranks, into doc/performance.md; some minutes
	@python3 scripts/bench_scaling.py --program $(or $(BIN),./)train_gpt $(BENCH_ARGS)

bench-cpu: ## a training step on the CPU, op by op, beside the machine's limits, into doc/performance.md; some minutes
	@+$(SUBMAKE) run-bench-cpu VARIANT=$(HOST_VARIANT)

run-bench-cpu: $(O)/bench/cpu_steps
	@python3 dev/bench/cpu_steps.py --program $< $(BENCH_ARGS)

bench-smoke: ## run every benchmark on tiny shapes, on the CPU and the emulated GPU
	@+$(SUBMAKE) run-bench-smoke VARIANT=$(or $(filter-out cuda,$(VARIANT)),cpu)

run-bench-smoke: $(BENCH) $(EMULATED_BENCH)
	@set -e; rm -f $(O)/bench-smoke.jsonl; for bench in $(BENCH) $(EMULATED_BENCH); do \
	  $$bench --smoke --json $(O)/bench-smoke.jsonl; done; \
	for bench in $(filter-out %/cpu_steps,$(BENCH)); do $$bench --smoke --bf16 --json $(O)/bench-smoke.jsonl; done; \
	for bench in $(EMULATED_BENCH); do $$bench --smoke --fp32 --json $(O)/bench-smoke.jsonl; done; \
	python3 scripts/perf_table.py --validate $(O)/bench-smoke.jsonl

# ---- house-keeping ---------------------------------------------------------------------------------------------
SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
# Formatters differ by version: this one and no other.
# Looked for when it is needed: setup.sh may just have installed it.
CLANG_FORMAT = $$(ls $(DEPS_DIR)/lint/bin/clang-format 2>/dev/null || echo clang-format)

lint: ## layers, mirrored files, format, scripts; WARNINGS=1 compiles all there is, too
	@DEPS_DIR=$(DEPS_DIR) scripts/setup.sh $(if $(WARNINGS),--tests) --lint
	@+CLANG_FORMAT=$(CLANG_FORMAT) SUBMAKE='$(SUBMAKE)' WARNINGS='$(WARNINGS)' scripts/lint.sh

objects: $(OBJECTS)

compile_commands.json: FORCE ## for editors (clangd) and clang-tidy: how each file is compiled
	$(Q)$(SUBMAKE) -nBk V=1 VARIANT=$(HOST_VARIANT) objects 2>/dev/null | python3 scripts/compile_commands.py > $@.tmp
	$(Q)mv $@.tmp $@

tidy: compile_commands.json ## clang-tidy on changed files (.clang-tidy); skipped where it is missing. scripts/tidy.sh --all: on all
	@scripts/tidy.sh

debug: ## programs for a debugger, in build/debug: no optimization, all variables
	@+$(SUBMAKE) all VARIANT=debug OPT=-O0 DEBUG_INFO=-g CCACHE=
	@echo 'GOMP_SPINCOUNT=1000 gdb --args build/debug/train_gpt ...    (with that set, the program does not start itself again)'

format: ## rewrite all sources with clang-format
	@DEPS_DIR=$(DEPS_DIR) scripts/setup.sh --lint
	@$(CLANG_FORMAT) -i $(SOURCES)

# $(call row,NAME,FOUND,WHY NOT)
row = @printf '%-14s %s\n' '$(1)' '$(or $(2),no: $(3))'
info: ## what was found, where, and why something was not
	$(call row,compiler,$(CXX_VERSION),$(CXX) does not run)
	$(call row,processor,$(if $(filter all,$(CPU_ARCH)),each of: $(LEVELS),$(ARCH)) on $(shell nproc) cores ($(shell uname -m)))
	$(call row,OpenMP,$(if $(HAVE_OMP),yes),$(if $(filter 0,$(USE_OMP)),USE_OMP=0,$(CXX) -fopenmp does not link))
	$(call row,CLI11,$(CLI11_DIR),not found; run scripts/setup.sh)
	$(call row,nlohmann-json,$(JSON_DIR),not found; run scripts/setup.sh)
	$(call row,xxHash,$(XXHASH_DIR),not found; run scripts/setup.sh)
	$(call row,Catch2,$(CATCH2_DIR)$(if $(CATCH2_DIR), (version $(if $(CATCH2_LIBS),3,2))),not found; `make test` installs it)
	$(call row,CUDA,$(if $(filter-out 0,$(USE_CUDA)),$(HAVE_CUDA)$(if $(HAVE_CUDA), for sm $(CHIPS))),$(if $(filter 0,$(USE_CUDA)),USE_CUDA=0,missing $(strip $(CUDA_MISSING))))
	$(call row,cuBLASLt,$(CUBLASLT_LIB),not found)
	$(call row,cuDNN,$(if $(IS_CUDNN),$(CUDNN_LIB)),$(if $(CUDNN_LIB),$(CUDNN_LIB) is not used,not found; set CUDNN_HOME))
	$(call row,NCCL,$(if $(IS_NCCL),$(NCCL_LIB)),$(if $(NCCL_LIB),$(NCCL_LIB) is not used,not found; set NCCL_HOME))
	$(call row,MPI,$(if $(IS_MPI),$(MPI_LIB)),$(if $(filter 0,$(USE_MPI)),USE_MPI=0,not found; `make test` installs Open MPI or set MPI_HOME))
	$(call row,ccache,$(CCACHE),not found; without it a clean build recompiles everything)
	$(call row,build folder,$(O))
	$(call row,build id,$(BUILD_ID))

help: ## this list
	@awk -F':.*## ' '/^[a-z_.-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo '  USE_CUDA USE_CUDNN USE_NCCL USE_MPI USE_OMP = auto|0|1; CXX CPU_ARCH OPT DEBUG_INFO CXXFLAGS_EXTRA CCACHE DEPS_DIR JOBS V=1'

clean: ## remove what was built
	rm -rf build train_gpt data/tokenize

-include $(OBJECTS:.o=.d)
