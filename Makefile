# Anvil's build. `make help` lists the targets, `make info` says what was found and why something was not.
#
#   make                        ./train_gpt and ./data/prepare, for what this machine can do
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
# The default is fastest here; a program that must run on other machines wants x86-64-v3, say.
CPU_ARCH  ?= native
OPT       ?= -O3
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
# $(call library_in,NAME,FOLDERS): the first libNAME.so, or with a version behind it, as a path
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
# NCCL and MPI are looked for, so that `make info` can tell, but nothing uses them yet.
NCCL_DIR  := $(call dir_with,nccl.h,$(NCCL_HOME:%=%/include) $(CUDA_DIR:%=%/include) $(INCLUDE_DIRS))
MPI_DIR   := $(call dir_with,mpi.h,$(MPI_HOME:%=%/include) $(wildcard /usr/lib/*/openmpi/include) $(INCLUDE_DIRS))

# $(call check,NAME,VALUE,FOUND,WHAT TO INSTALL): USE_NAME must be auto, 0 or 1; 1 needs FOUND
check = $(if $(filter auto 0 1,$(2)),,$(error USE_$(1)=$(2): expected auto, 0 or 1))$(strip \
  )$(if $(filter 1,$(2)),$(if $(3),,$(error USE_$(1)=1 but $(1) was not found: $(4))))
# $(call unused,NAME): for what is found but has no source yet
unused = $(if $(filter 1,$(USE_$(1))),$(error USE_$(1)=1: this version of Anvil trains on the CPU \
  or one GPU$(,) in one process; it has no $(1) code yet. Use USE_$(1)=auto or 0))
ifneq ($(filter-out help info clean format,$(or $(MAKECMDGOALS),all)),)
  $(call check,OMP,$(USE_OMP),$(HAVE_OMP),install libgomp1 or use g++)
  $(call check,CUDA,$(USE_CUDA),$(HAVE_CUDA),missing $(strip $(CUDA_MISSING)))
  $(call check,CUDNN,$(USE_CUDNN),$(HAVE_CUDNN),install libcudnn9-dev-cuda-13 or nvidia-cudnn-cu13 or set CUDNN_HOME)
  $(call check,NCCL,$(USE_NCCL),$(NCCL_DIR),install libnccl-dev or set NCCL_HOME)$(call unused,NCCL)
  $(call check,MPI,$(USE_MPI),$(MPI_DIR),install libopenmpi-dev or set MPI_HOME)$(call unused,MPI)
endif

# ---- flags -----------------------------------------------------------------------------------------------------
# -ffp-contract=off: a*b+c is rounded twice unless the source says std::fma. Otherwise the compiler decides, function
# by function, and the same training run would give other bits under another compiler or at another -O.
# -Wno-restrict: g++ 12 warns of impossible overlaps inside std::string (its bug 105651).
# -fopenmp-simd: without OpenMP the `omp simd` loops are still vectorised.
CXXFLAGS = -std=c++20 $(OPT) -g -Wall -Wextra -ffp-contract=off -march=$(CPU_ARCH) -pthread \
  $(if $(findstring clang,$(CXX_VERSION)),,-Wno-restrict) $(if $(HAVE_OMP),-fopenmp,-fopenmp-simd -Wno-unknown-pragmas) $(CXXFLAGS_EXTRA)
CPPFLAGS = -I. $(if $(IS_CUDA),$(addprefix -isystem ,$(CUDA_DIR)/include $(CUBLASLT_INC) $(if $(IS_CUDNN),$(CUDNN_DIR)))) $(patsubst %,-isystem %,$(wildcard $(DEPS_DIR)/include))
LDFLAGS  = $(patsubst %,-L%,$(wildcard $(DEPS_DIR)/lib))
COMPILE  = $(CXX) $(CPPFLAGS) $(CXXFLAGS)

# The CUDA build: .cu files by nvcc, for the GPU at hand or, where there is none, for all that Anvil supports.
IS_CUDA  := $(filter cuda,$(VARIANT))
IS_CUDNN := $(if $(IS_CUDA),$(if $(filter-out 0,$(USE_CUDNN)),$(HAVE_CUDNN)))
ifneq ($(IS_CUDA),)
  # 90 and 100 mean 90a and 100a: all of the chip, and no other.
  GPU_ARCHS ?= $(or $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null))),80 90 100)
  CHIPS      = $(patsubst 100,100a,$(patsubst 90,90a,$(GPU_ARCHS)))
  NVCC       = $(CCACHE) $(CUDA_DIR)/bin/nvcc -ccbin $(CXX) -std=c++20 -O3 -g -x cu -lineinfo $(CPPFLAGS) \
    $(foreach chip,$(CHIPS),-gencode arch=compute_$(chip),code=sm_$(chip)) --diag-suppress=1675 --expt-relaxed-constexpr \
    -Xptxas=--warn-on-spills $(addprefix -Xcompiler ,$(filter-out -std=c++20 -Wall -Wextra,$(CXXFLAGS))) $(NVCCFLAGS_EXTRA)
  # $(call link,LIBRARY): by its path, found again at run time
  link = $(1) -Wl$(,)-rpath$(,)$(patsubst %/,%,$(dir $(1)))
  LDFLAGS += -L$(CUDA_DIR)/lib64 -lcudart_static -ldl -lrt $(call link,$(CUBLASLT_LIB)) $(if $(IS_CUDNN),$(call link,$(CUDNN_LIB)))
endif

BUILD_ID := $(or $(shell git describe --always --dirty 2>/dev/null),unknown)
# `native` means another thing on another processor: its resolved form is part of the stamp.
CPU_SUM  := $(shell $(CXX) -march=$(CPU_ARCH) -Q --help=target 2>/dev/null | cksum)

# The tests that need no GPU are built without nvcc.
HOST_VARIANT = $(or $(filter-out cuda,$(VARIANT)),cpu)

# ---- files -----------------------------------------------------------------------------------------------------
O   := build/$(VARIANT)
# The everyday programs lie where people look for them; those of other variants stay in their build folder.
BIN := $(if $(filter $(DEFAULT_VARIANT),$(VARIANT)),,$(O)/)
# Files that need NVIDIA's headers are not part of the CPU build.
NVIDIA  := llmc/cuda/cuda_device.cpp llmc/cuda/cublaslt.cpp llmc/cuda/cudnn_attention.cpp llmc/cuda/cudnn_absent.cpp
ENGINE  := $(patsubst %,$(O)/%.o,$(filter-out $(NVIDIA),$(sort $(wildcard llmc/*/*.cpp))))
ifneq ($(IS_CUDA),)
  ENGINE += $(patsubst %,$(O)/%.o,$(filter-out llmc/cuda/cudnn_$(if $(IS_CUDNN),absent,attention).cpp,$(NVIDIA)))
endif
# With OP=layernorm only the files named after it are built, if there are any; another topic is looked for in all.
OP_TESTS   := $(if $(OP),$(wildcard test/$(OP)_test.cpp test/$(OP)_cuda_test.cu))
TEST_FILES := $(if $(OP_TESTS),$(OP_TESTS),$(sort $(wildcard test/*_test.cpp test/*_cuda_test.cu)))
# KERNELS_ONLY=1: without the tests that run programs, and what only these need of the engine.
ifneq ($(KERNELS_ONLY),)
  TEST_FILES := $(filter-out $(shell grep -lE 'program."|TinyRuns|golden' $(TEST_FILES)),$(TEST_FILES))
  ENGINE     := $(filter-out $(O)/llmc/data/% $(O)/llmc/train/%,$(ENGINE))
endif
TESTS      := $(patsubst %,$(O)/%.o,$(filter %.cpp,$(TEST_FILES)))
TEST_NAME  := tests$(if $(OP_TESTS),-$(OP))
# The CUDA kernels on the CPU: compiled by g++ against dev/emulator/include instead of the toolkit.
E := $(O)/emulated$(if $(RACE),-race)
EMULATED       := $(patsubst %,$(E)/%.o,llmc/cuda/cuda_device.cpp llmc/cuda/cudnn_absent.cpp \
  $(filter-out $(if $(RACE),,dev/emulator/race.cpp),$(sort $(wildcard dev/emulator/*.cpp))))
EMULATED_PROGRAMS := $(E)/train_gpt $(E)/data/prepare
EMULATED_TESTS := $(patsubst %,$(E)/%.o,$(filter %.cu,$(TEST_FILES)))
GPU_TESTS      := $(patsubst %,$(O)/%.o,$(filter %.cu,$(TEST_FILES)))
BENCHES := $(patsubst dev/bench/%.cu,$(O)/bench/%,$(sort $(wildcard dev/bench/*.cu)))
PROGRAMS := $(addprefix $(BIN),$(basename $(wildcard train_gpt.cu data/prepare.cpp)))
OBJECTS := $(ENGINE) $(TESTS) $(EMULATED) $(EMULATED_TESTS) $(O)/test/main.cpp.o $(E)/train_gpt.cu.o \
  $(patsubst %,$(O)/%.o,$(wildcard train_gpt.cu data/prepare.cpp dev/bench/*.cu))

# V=1 shows whole commands.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '%-5s %s\n' $(1) $(2))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all objects test run-tests run-emulated test-gpu run-gpu race sanitize msan cuda-check bench bench-smoke run-bench-smoke \
  lint format info help clean headers FORCE

all: $(PROGRAMS) ## build what this machine can (the default)

$(BIN)train_gpt: $(O)/train_gpt.cu.o $(ENGINE)
$(BIN)data/prepare: $(O)/data/prepare.cpp.o $(ENGINE)
$(PROGRAMS):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $(filter %.o,$^) -o $@ $(LDFLAGS)

$(E)/train_gpt: $(E)/train_gpt.cu.o $(EMULATED) $(ENGINE)
$(E)/data/prepare: $(O)/data/prepare.cpp.o $(ENGINE)
$(EMULATED_PROGRAMS):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)

$(O)/%.cpp.o: %.cpp $(O)/flags | headers
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CCACHE) $(COMPILE) -MMD -MP -c $< -o $@

# Without CUDA, a .cu file is C++.
$(O)/%.cu.o: %.cu $(O)/flags | headers
	@mkdir -p $(@D)
	$(call say,$(if $(IS_CUDA),NVCC,CXX),$<)
	$(Q)$(if $(IS_CUDA),$(NVCC),$(CCACHE) $(COMPILE) -x c++) -MMD -MP -c $< -o $@

# -fno-strict-aliasing: kernels read sixteen bytes of any type at once. `#pragma unroll` is nvcc's.
EMULATED_FLAGS = -Idev/emulator/include -DANVIL_EMULATED $(if $(RACE),-DANVIL_RACE -O1) -fno-strict-aliasing -Wno-unknown-pragmas
$(E)/%.cpp.o: %.cpp $(O)/flags | headers
	@mkdir -p $(@D)
	$(call say,CXX,"$< (emulated)")
	$(Q)$(CCACHE) $(COMPILE) $(EMULATED_FLAGS) -MMD -MP -c $< -o $@

# Kernels are where races are looked for: see dev/emulator/race.h.
$(E)/%.cu.o: %.cu $(O)/flags | headers
	@mkdir -p $(@D)
	$(call say,CXX,"$< (emulated)")
	$(Q)$(CCACHE) $(COMPILE) $(EMULATED_FLAGS) $(if $(RACE),-fsanitize=thread) -MMD -MP -x c++ -c $< -o $@

# In `make lint` the kernels' tests are half of all the work, and other builds optimise them too.
ifeq ($(VARIANT),lint)
  $(EMULATED_TESTS): override OPT := -O0
endif

# Catch2's own code: 16 s to compile with optimisation, and nothing of it matters for speed.
$(O)/test/main.cpp.o: override OPT := -O0

$(O)/llmc/base/build_id.cpp.o: CXXFLAGS += -DANVIL_BUILD_ID='"$(BUILD_ID)"'
$(O)/llmc/base/build_id.cpp.o: $(O)/build_id

# Rewritten only when the content changes, so that whatever depends on them is rebuilt then and only then.
$(O)/flags: STAMP = $(COMPILE) $(CPU_SUM) $(if $(IS_CUDA),$(CHIPS) $(NVCCFLAGS_EXTRA) $(LDFLAGS))
$(O)/build_id: STAMP = $(BUILD_ID)
# The programs at the top are of one variant, of which this names the one.
build/variant: STAMP = $(VARIANT)
$(if $(BIN),,$(PROGRAMS): build/variant)
$(O)/flags $(O)/build_id build/variant: FORCE
	@mkdir -p $(@D)
	@echo '$(STAMP)' | cmp -s - $@ || echo '$(STAMP)' > $@

headers:
	$(if $(strip $(MISSING)),$(error headers not found: $(strip $(MISSING)). Run scripts/setup.sh to install them$(,) \
	  or put them in $(DEPS_DIR)/include))@:

# Threads that wait for each other spin a little, then sleep. libgomp's default, to spin for long, is no faster on a
# quiet machine and many times slower on one that does anything else. train_gpt sets this itself (llmc/cpu/waiting.h).
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
NEEDED_PROGRAMS = $(if $(shell grep -lE 'program."|TinyRuns|golden' $(TEST_FILES)),$(PROGRAMS))
TOPIC = $(if $(OP),'[$(OP)]') $(TEST_ARGS)
run-tests: $(if $(TESTS),$(O)/$(TEST_NAME) $(NEEDED_PROGRAMS))
	$(if $(TESTS),@ANVIL_PROGRAMS=$(or $(BIN),./) $(O)/$(TEST_NAME) $(TOPIC))

# In every order of threads that the emulator has: a result that depends on it is wrong.
SCHEDULES ?= in_order reverse random
run-emulated: $(if $(EMULATED_TESTS),$(E)/$(TEST_NAME) $(if $(NEEDED_PROGRAMS),$(EMULATED_PROGRAMS)))
	@set -e; for schedule in $(if $(EMULATED_TESTS),$(SCHEDULES)); do \
	  echo "emulated GPU, threads $$schedule:"; \
	  ANVIL_EMULATOR_SCHEDULE=$$schedule ANVIL_PROGRAMS=$(E)/ $(E)/$(TEST_NAME) $(TOPIC); done

# main.cpp.o last: of an inline function in two objects the linker keeps the first, and that one is not optimised.
$(O)/$(TEST_NAME): $(TESTS) $(ENGINE) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

# The emulator first, for the same reason: what the race checker itself calls must not be a copy that the checker watches.
$(E)/$(TEST_NAME): $(EMULATED) $(EMULATED_TESTS) $(ENGINE) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

$(O)/gpu-$(TEST_NAME): $(GPU_TESTS) $(ENGINE) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

test-gpu: ## the kernels' tests on a GPU; OP=layernorm runs one topic
	@$(if $(HAVE_CUDA),,echo 'make test-gpu: missing $(strip $(CUDA_MISSING))' >&2; exit 2)
	@+$(SUBMAKE) run-gpu VARIANT=cuda

run-gpu: $(O)/gpu-$(TEST_NAME) $(NEEDED_PROGRAMS)
	@ANVIL_PROGRAMS=$(or $(BIN),./) $(O)/gpu-$(TEST_NAME) $(TOPIC)

# g++ alone: dev/emulator/race.cpp answers the calls that it makes.
race: ## the kernels' tests on the emulator under its race checker
	$(if $(findstring clang,$(CXX_VERSION)),@echo 'race: skipped: $(CXX) is clang$(,) and the checker answers what g++ calls',\
	  @+$(SUBMAKE) run-emulated RACE=1 KERNELS_ONLY=1 SCHEDULES=in_order VARIANT=$(HOST_VARIANT))

sanitize: ## all tests, kernels too, under AddressSanitizer and UndefinedBehaviorSanitizer
	@+SCHEDULES=in_order ASAN_OPTIONS=$(ASAN_OPTIONS):abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 $(MAKE) --no-print-directory test \
	  VARIANT=sanitize OPT=-O1 CXXFLAGS_EXTRA='-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer'

# clang++ alone has this sanitizer, and every part of a program should be compiled with it: the standard library is not.
# So only the memory that kernels share is watched, which dev/emulator marks as undefined, and neither the heap nor the
# stack of the host. Without OpenMP, whose library is not compiled so either. Before clang 16, lambdas cannot capture
# structured bindings.
MSAN_CXX ?= $(firstword $(foreach c,$(patsubst %,clang++-%,22 21 20 19 18 17 16) clang++,$(shell command -v $(c))))
MSAN_WORKS = $(if $(MSAN_CXX),$(shell echo 'int main() {}' | $(MSAN_CXX) -fsanitize=memory -x c++ - -o /dev/null 2>/dev/null && echo 1))
msan: ## the kernels' tests on the emulator under clang's MemorySanitizer
	$(if $(MSAN_WORKS),@+MSAN_SYMBOLIZER_PATH=$(dir $(realpath $(MSAN_CXX)))llvm-symbolizer \
	  MSAN_OPTIONS=poison_in_malloc=0:poison_in_free=0 $(SUBMAKE) run-emulated VARIANT=msan CXX=$(MSAN_CXX) \
	  USE_OMP=0 OPT=-O1 KERNELS_ONLY=1 SCHEDULES=in_order CXXFLAGS_EXTRA='-fsanitize=memory -fsanitize-ignorelist=dev/emulator/msan_ignored.txt -mllvm \
	  -msan-poison-stack=0 -fno-sanitize-memory-param-retval -w -fno-omit-frame-pointer',\
	  @echo 'msan: skipped: no clang++ whose -fsanitize=memory links (apt install clang-19 libclang-rt-19-dev llvm-19)')

cuda-check: ## every kernel compiled by nvcc: no spills, registers as in doc/results/registers.txt (RENEW=1 writes it)
	$(if $(CUDA_DIR),@python3 scripts/check_kernels.py $(CUDA_DIR)/bin/nvcc -j$(JOBS) $(if $(RENEW),--renew),\
	  @echo 'cuda-check: skipped: no nvcc with its headers (install the CUDA toolkit or set CUDA_HOME)')

$(BENCHES): $(O)/bench/%: $(O)/dev/bench/%.cu.o $(ENGINE)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)

BENCH := $(if $(OP),$(filter %/$(OP),$(BENCHES)),$(BENCHES))
bench: $(BENCH) ## build and run the benchmarks; OP=gelu runs one
	$(if $(BENCH),,$(error no benchmark$(if $(OP), dev/bench/$(OP).cu; there are: $(notdir $(BENCHES)), in dev/bench)))
	@set -e; for bench in $(BENCH); do $$bench; done

# ---- NVIDIA's libraries, on a machine without a GPU ------------------------------------------------------------
.PHONY: cudnn-plans run-cudnn-plans cublaslt-calls run-cublaslt-calls
cublaslt-calls: ## are products described to cuBLASLt as they are meant? against one made here
	@$(if $(HAVE_CUDA),,echo 'cublaslt-calls: skipped: it needs $(strip $(CUDA_MISSING))')
	$(if $(HAVE_CUDA),@+$(SUBMAKE) run-cublaslt-calls VARIANT=cuda)

cudnn-plans: ## has cuDNN a plan for every shape? three minutes
	@$(if $(HAVE_CUDNN),,echo 'cudnn-plans: skipped: it needs $(or $(strip $(CUDA_MISSING)),cuDNN with its headers (set CUDNN_HOME or NVIDIA_WHEELS))')
	$(if $(HAVE_CUDNN),@+$(SUBMAKE) run-cudnn-plans VARIANT=cuda USE_CUDNN=1)

run-cublaslt-calls: $(O)/cublaslt-calls
	@$< $(TEST_ARGS)

run-cudnn-plans: $(O)/cudnn-plans $(O)/no_driver/libcuda.so.1
	@LD_LIBRARY_PATH=$(O)/no_driver$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH} $< $(TEST_ARGS)

# It is its own cuBLASLt and CUDA runtime: none of NVIDIA's are linked.
$(O)/cublaslt-calls: $(patsubst %,$(O)/%.cpp.o,test/cublaslt_calls llmc/cuda/cublaslt llmc/cuda/cudnn_absent llmc/cuda/matmul_cache llmc/base/file llmc/base/hash test/main)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(patsubst %,-L%,$(wildcard $(DEPS_DIR)/lib)) $(CATCH2_LIBS)

$(O)/cudnn-plans: $(O)/test/cudnn_plans.cpp.o $(ENGINE) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

$(O)/no_driver/libcuda.so.1: test/no_driver.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -Wall -Wextra -shared -fPIC $< -o $@

-include $(wildcard $(O)/test/cudnn_plans.cpp.d $(O)/test/cublaslt_calls.cpp.d)

# On the emulator only those whose op has kernels yet.
EMULATED_BENCH := $(patsubst llmc/cuda/%.cuh,$(E)/bench/%,$(wildcard $(BENCH:$(O)/bench/%=llmc/cuda/%.cuh)))
$(E)/bench/%: $(E)/dev/bench/%.cu.o $(EMULATED) $(ENGINE)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)
-include $(EMULATED_BENCH:$(E)/bench/%=$(E)/dev/bench/%.cu.d)

bench-smoke: ## run every benchmark on tiny shapes, on the CPU and the emulated GPU
	@+$(SUBMAKE) run-bench-smoke VARIANT=$(or $(filter-out cuda,$(VARIANT)),cpu)

run-bench-smoke: $(BENCH) $(EMULATED_BENCH)
	@set -e; rm -f $(O)/bench-smoke.jsonl; for bench in $(BENCH) $(EMULATED_BENCH); do \
	  $$bench --smoke --json $(O)/bench-smoke.jsonl; done; \
	for bench in $(EMULATED_BENCH); do $$bench --smoke --fp32 --json $(O)/bench-smoke.jsonl; done; \
	python3 scripts/perf_table.py --validate $(O)/bench-smoke.jsonl

# ---- house-keeping ---------------------------------------------------------------------------------------------
SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
# Formatters differ by version: this one and no other.
CLANG_FORMAT = $(or $(wildcard $(DEPS_DIR)/lint/bin/clang-format),clang-format)

lint: ## layers, mirrored files, format, warnings, scripts, generated pages
	@DEPS_DIR=$(DEPS_DIR) scripts/setup.sh --tests --lint
	@+CLANG_FORMAT=$(CLANG_FORMAT) SUBMAKE='$(SUBMAKE)' scripts/lint.sh

objects: $(OBJECTS)

format: ## rewrite all sources with clang-format
	@DEPS_DIR=$(DEPS_DIR) scripts/setup.sh --lint
	@$(CLANG_FORMAT) -i $(SOURCES)

# $(call row,NAME,FOUND,WHY NOT)
row = @printf '%-14s %s\n' '$(1)' '$(or $(2),no: $(3))'
# $(call later,NAME,WHERE,SET WITH): what is only looked for
later = $(call row,$(1),$(if $(2),$(2) (found; not used by this version)),not found; $(3))
info: ## what was found, where, and why something was not
	$(call row,compiler,$(CXX_VERSION),$(CXX) does not run)
	$(call row,processor,-march=$(CPU_ARCH) on $(shell nproc) cores ($(shell uname -m)))
	$(call row,OpenMP,$(if $(HAVE_OMP),yes),$(if $(filter 0,$(USE_OMP)),USE_OMP=0,$(CXX) -fopenmp does not link))
	$(call row,CLI11,$(CLI11_DIR),not found; run scripts/setup.sh)
	$(call row,nlohmann-json,$(JSON_DIR),not found; run scripts/setup.sh)
	$(call row,xxHash,$(XXHASH_DIR),not found; run scripts/setup.sh)
	$(call row,Catch2,$(CATCH2_DIR)$(if $(CATCH2_DIR), (version $(if $(CATCH2_LIBS),3,2))),not found; `make test` installs it)
	$(call row,CUDA,$(if $(filter-out 0,$(USE_CUDA)),$(HAVE_CUDA)$(if $(HAVE_CUDA), for sm $(CHIPS))),$(if $(filter 0,$(USE_CUDA)),USE_CUDA=0,missing $(strip $(CUDA_MISSING))))
	$(call row,cuBLASLt,$(CUBLASLT_LIB),not found)
	$(call row,cuDNN,$(if $(IS_CUDNN),$(CUDNN_LIB)),$(if $(CUDNN_LIB),$(CUDNN_LIB) is not used,not found; set CUDNN_HOME))
	$(call later,NCCL,$(NCCL_DIR),set NCCL_HOME)
	$(call later,MPI,$(MPI_DIR),`make test` installs Open MPI)
	$(call row,ccache,$(CCACHE),not found; without it a clean build recompiles everything)
	$(call row,build folder,$(O))
	$(call row,build id,$(BUILD_ID))

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo '  USE_CUDA USE_CUDNN USE_NCCL USE_MPI USE_OMP = auto|0|1; CXX CPU_ARCH OPT CXXFLAGS_EXTRA CCACHE DEPS_DIR JOBS V=1'

clean: ## remove what was built
	rm -rf build train_gpt data/prepare

-include $(OBJECTS:.o=.d)
