# The files of the engine, the tests and the benchmarks, and their objects.

O   := build/$(VARIANT)
# Programs of the default variant are in the root folder, those of other variants in their build folder.
BIN := $(if $(filter $(DEFAULT_VARIANT),$(VARIANT)),,$(O)/)
# Files that need NVIDIA's headers are not part of the CPU build. For each optional library one file uses it, and
# another reports that it is missing: LEFT_OUT has the one that is not compiled.
NVIDIA := $(filter-out %/matmul_cache.cpp,$(wildcard llmc/cuda/*.cpp llmc/cuda/*/*.cpp llmc/comm/gpu/*.cpp)) \
  llmc/commands/cuda_backend.cpp
CUDA_KERNELS := $(sort $(wildcard llmc/cuda/*.cu llmc/cuda/*/*.cu))
LEFT_OUT := $(patsubst %,llmc/%.cpp,cuda/attention/cudnn_$(if $(IS_CUDNN),absent,attention) cpu/kernels \
  comm/gpu/nccl_$(if $(IS_NCCL),absent,comm) $(if $(IS_CUDA),commands/cuda_backend_absent) \
  $(if $(IS_MPI),comm/launch/mpi_absent,comm/launch/mpi_ranks) platform/$(if $(IS_DARWIN),linux,darwin)) \
  $(if $(IS_CUDA),,$(NVIDIA))
FILES := $(filter-out $(LEFT_OUT),$(if $(IS_CUDA),$(CUDA_KERNELS)) $(sort $(wildcard llmc/*/*.cpp llmc/*/*/*.cpp)))
# With OP=layernorm only the test files of that name are built. If there are none, all are, and OP is a tag.
ALL_TESTS  := $(sort $(wildcard test/*/*_test.cpp test/*/*_cuda_test.cu))
OP_TESTS   := $(if $(OP),$(filter %/$(OP)_test.cpp %/$(OP)_cuda_test.cu,$(ALL_TESTS)))
TEST_FILES := $(or $(OP_TESTS),$(ALL_TESTS))
containing = $(shell grep -lE '$(1)' /dev/null $(2))
# Tests that run programs call `program(`, directly or through a helper. make would count its parenthesis.
PAREN := (
RUN_PROGRAMS = $(call containing,program[$(PAREN)]|TinyRuns|host_runs|golden,$(TEST_FILES))
# KERNELS_ONLY=1: only tests of kernels, models and optimizers that run no program, and what they need of the engine.
# Without the traced step, whose launches the tests of models cover.
ifneq ($(KERNELS_ONLY),)
  FILES := $(filter-out $(patsubst %,llmc/%/%,data interop run checkpoint train commands plan),$(FILES))
  TEST_FILES := $(filter-out %/traced_step_cuda_test.cu $(RUN_PROGRAMS) $(call containing,\
    "llmc/(run|checkpoint|train|commands)/,$(filter %.cpp,$(TEST_FILES))),\
    $(filter %.cu test/base/% test/cpu/% test/model/% test/optim/%,$(TEST_FILES)))
endif

# Most of a file's compile time is for headers and templates that its neighbors need, too. So without ccache, which
# favors small changes, the files of a room are compiled as one source, in half the time. Names local to a file must
# then differ from those of its neighbors. ALONE: files with flags of their own, and those that some program links
# without the rest.
JOIN  ?= $(if $(CCACHE),,1)
ALONE := $(NVIDIA) $(patsubst %,llmc/%.cpp,base/build_id base/processor comm/launch/mpi_ranks commands/cpu_backend \
  commands/cuda_backend_absent io/safetensors plan/traced_step platform/linux platform/darwin)
# HOT is what works on every byte, token or value. It is optimized, which takes twice the compile time.
HOT_FILES := $(patsubst %,llmc/data/%.cpp,bpe bpe_training documents loader packing shards split token_scan tokenizer) \
  $(patsubst %,llmc/interop/%.cpp,gguf llmc_model stored_model tensor_files) llmc/base/hash.cpp llmc/base/json.cpp \
  llmc/io/checkpoint.cpp llmc/eval/sample.cpp $(wildcard llmc/comm/host/*.cpp llmc/optim/*.cpp)
HOT_ROOMS := $(patsubst %,hot-%,base comm data eval interop io optim)
ROOMS := $(HOT_ROOMS) base comm data+interop io+model+eval plan run+checkpoint+train+commands
HOT   := $(HOT_FILES:%=$(O)/%.o) $(HOT_ROOMS:%=$(O)/llmc/joined/%.cpp.o) $(O)/llmc/cuda/%
# $(call room,NAME): its files. $(call objects,FILES): the objects of some of FILES, hot ones first, because the linker
# keeps the first copy of an inline function.
room    = $(if $(JOIN),$(filter $(patsubst %,llmc/%/%,$(subst +, ,$(1:hot-%=%))),\
  $(if $(filter hot-%,$(1)),$(HOT_FILES),$(filter-out $(ALONE) $(HOT_FILES),$(FILES)))))
IN_ROOM := $(foreach r,$(ROOMS),$(call room,$(r)))
unsorted = $(foreach r,$(ROOMS),$(if $(filter $(call room,$(r)),$(1)),$(O)/llmc/joined/$(r).cpp.o)) \
  $(patsubst %,$(O)/%.o,$(filter-out $(IN_ROOM),$(1)))
objects = $(filter $(HOT),$(unsorted)) $(filter-out $(HOT),$(unsorted))
KERNELS := $(LEVELS:%=$(O)/%/llmc/cpu/kernels.cpp.o)
ENGINE  := $(KERNELS) $(call objects,$(FILES))
COLD    := $(filter-out $(HOT) $(KERNELS),$(filter %.cpp.o,$(ENGINE)))
# Compiled first, so that no core waits for them at the end.
LONGEST := $(KERNELS) $(filter %/cpu_backend.cpp.o %/traced_step.cpp.o $(O)/llmc/joined/%,$(ENGINE))
# An op's own tests need neither the trainer nor the tables of kernels, unless they set a tile kernel of the CPU's.
OTHER_TESTS := $(if $(OP_TESTS),$(filter-out test/cpu/% test/cuda/%,$(OP_TESTS)),all)
TEST_ENGINE := $(if $(OTHER_TESTS)$(call containing,software_tiles,$(OP_TESTS)),$(ENGINE),\
  $(call objects,$(filter llmc/base/% llmc/platform/% llmc/cuda/% llmc/io/safetensors.cpp,$(FILES))))

# For the same reason each kind of test is compiled as at most four sources, unless OP names a topic: joined_KIND_N.cu
# has every N-th of $(KIND_FILES). Tests of ops share most templates: on two cores, one source takes half the time of
# four. Tests of the host would need 2 GB each in two. Tests of the CPU ops are optimized, as these ops are.
PARTS_host := 1 2 3 4
PARTS_ops  := $(if $(filter 1 2 3,$(JOBS)),1,$(PARTS_host))
PARTS_cuda := $(if $(filter 1 2 3,$(JOBS)),1 2,$(PARTS_host))
kind   = $(word 2,$(subst _, ,$(@F)))
part   = $(shell printf '%s\n' $($(kind)_FILES) | awk -v n=$(words $(PARTS_$(kind))) \
  'NR % n == $(lastword $(subst _, ,$(basename $@))) % n')
joined = $(if $(OP_TESTS),$($(2)_FILES:%=$(1)/%.o),$(if $($(2)_FILES),$(PARTS_$(2):%=$(1)/test/joined_$(2)_%.cu.o)))
ops_FILES  := $(filter $(patsubst llmc/%.h,test/%_test.cpp,$(wildcard llmc/cpu/*.h)),$(TEST_FILES))
host_FILES := $(filter-out $(ops_FILES),$(filter %.cpp,$(TEST_FILES)))
cuda_FILES := $(filter %.cu,$(TEST_FILES))
OPS_TESTS  := $(call joined,$(O),ops)
TESTS      := $(OPS_TESTS) $(call joined,$(O),host)
TEST_NAME  := tests$(if $(OP_TESTS),-$(OP))
# The CUDA kernels on the CPU: compiled by g++ against dev/emulator/include instead of the toolkit.
E := $(O)/emulated$(if $(RACE),-race)
EMULATED_TESTS := $(call joined,$(E),cuda) \
  $(if $(call containing,"test/models.h",$(cuda_FILES)),$(E)/test/models.cu.o)
EMULATED := $(patsubst %,$(E)/%.o,$(patsubst %,llmc/%.cpp,cuda/cuda_device cuda/cuda_profile \
  comm/gpu/cuda_comm comm/gpu/nccl_comm) $(filter-out $(if $(RACE),,%/race.cpp),$(sort $(wildcard dev/emulator/*.cpp))))
# Executes nvcc's PTX in place of the emulated kernels, if asked to: dev/ptx.
PTX_MACHINE := $(patsubst %,$(E)/%.o,$(sort $(wildcard dev/ptx/*.cpp)))
EMULATED_BACKEND := $(E)/llmc/commands/cuda_backend.cpp.o
EMULATED_KERNELS := $(patsubst %,$(E)/%.o,llmc/cuda/cuda_kernels.cpp $(CUDA_KERNELS))
NO_COLLECTIVES := $(filter-out $(E)/llmc/comm/% %/fake_nccl.cpp.o %/process_ranks.cpp.o,$(EMULATED))

PROGRAMS := $(BIN)train_gpt $(BIN)data/tokenize
EMULATED_PROGRAMS := $(E)/train_gpt $(E)/data/tokenize
BENCH_FILES := $(sort $(wildcard dev/bench/*.cu))
FUZZ_FILES  := $(sort $(wildcard test/fuzz/*_fuzz.cpp))
OBJECTS := $(ENGINE) $(TESTS) $(EMULATED) $(PTX_MACHINE) $(EMULATED_KERNELS) $(EMULATED_TESTS) $(EMULATED_BACKEND) \
  $(patsubst %,$(O)/%.o,test/main.cpp train_gpt.cu data/tokenize.cpp $(BENCH_FILES) $(FUZZ_FILES))
