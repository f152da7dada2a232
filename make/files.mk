# The files of the engine, the tests and the benchmarks, and their objects.

O   := build/$(VARIANT)
# Programs of the default variant are in the root folder, those of other variants in their build folder.
BIN := $(if $(filter $(DEFAULT_VARIANT),$(VARIANT)),,$(O)/)
# Files that need NVIDIA's headers are not part of the CPU build.
NVIDIA  := $(wildcard $(patsubst %,llmc/%.cpp,cuda/cuda_device cuda/cuda_graph cuda/cuda_kernels cuda/cuda_profile cuda/cublaslt cuda/attention/cudnn_attention \
  cuda/attention/cudnn_absent comm/gpu/cuda_comm comm/gpu/nccl_comm comm/gpu/nccl_absent commands/cuda_backend))
CUDA_KERNELS := $(sort $(wildcard llmc/cuda/*.cu llmc/cuda/attention/*.cu))
# For each optional library one file uses it, and another reports that it is missing. LEFT_OUT has the one that is not compiled.
LEFT_OUT := $(patsubst %,llmc/%.cpp,cuda/attention/cudnn_$(if $(IS_CUDNN),absent,attention) comm/gpu/nccl_$(if $(IS_NCCL),absent,comm) \
  $(if $(IS_MPI),comm/launch/mpi_absent,comm/launch/mpi_ranks comm/launch/mpi_network) $(if $(IS_CUDA),commands/cuda_backend_absent))
# The CPU's kernels, once per level.
KERNELS  := $(LEVELS:%=$(O)/%/llmc/cpu/kernels.cpp.o)
ENGINE   := $(patsubst %,$(O)/%.o,$(filter-out $(LEFT_OUT) llmc/cpu/kernels.cpp,$(filter-out $(NVIDIA),$(sort $(wildcard llmc/*/*.cpp llmc/*/*/*.cpp))) \
  $(if $(IS_CUDA),$(NVIDIA) $(CUDA_KERNELS)))) $(KERNELS)
# HOT: code that works on every byte, token or value. It is optimized, which takes a third more compile time. COLD is the rest. It is
# linked last, because the linker keeps the first copy of an inline function.
HOT  := $(patsubst %,$(O)/llmc/%.cpp.o,$(addprefix base/,hash json) \
  $(addprefix comm/host/,host_barrier host_comm host_exchange shared_buffers shared_memory) \
  $(addprefix data/,bpe bpe_training documents loader packing shards split token_scan tokenizer) \
  $(addprefix interop/,gguf llmc_model stored_model tensor_files) io/checkpoint $(addprefix optim/,matrix_buckets sharding sharding_plan) cuda/%)
COLD := $(filter-out $(HOT) $(KERNELS),$(filter %.cpp.o,$(ENGINE)))
# Most of a file's compile time is for headers and templates that its neighbors need, too. So without ccache, several files of a folder
# are compiled as one source, in half the time. Names local to a file must then differ from those of its neighbors. With ccache, which
# favors small changes, and with `make JOIN=`, each file is compiled alone. Files with flags of their own are not joined, nor are those
# that some program links without the rest.
JOIN ?= $(if $(CCACHE),,1)
COLD_FILES := $(COLD)
JOINABLE := $(filter-out $(KERNELS) $(patsubst %,$(O)/llmc/%.cpp.o,base/build_id base/flags% base/hash base/json base/processor comm/gpu/cuda_comm \
  comm/gpu/nccl_% comm/launch/mpi_% interop/export io/safetensors plan/gpu_model commands/cpu_backend commands/cuda_backend% plan/traced_step),$(ENGINE))
# $(call neighbors,GROUP,hot or cold): the objects that are joined in a group like io or io+model, which names its folders
neighbors  = $(filter $(patsubst %,$(O)/llmc/%/%,$(subst +, ,$(1))),$(filter $(if $(filter hot,$(2)),$(HOT),$(COLD_FILES)),$(JOINABLE)))
# $(call joined_of,GROUPS,hot or cold): the joined objects; `replaced` has those that they replace
joined_of  = $(patsubst %,$(O)/llmc/%/joined_$(2).cpp.o,$(1))
replaced   = $(foreach g,$(1),$(call neighbors,$(g),$(2)))
HOT_GROUPS  := $(if $(JOIN),comm data interop optim)
COLD_GROUPS := $(if $(JOIN),base comm data+interop io+model optim plan run+checkpoint+train+commands)
COLD     := $(filter-out $(call replaced,$(COLD_GROUPS),cold),$(COLD)) $(call joined_of,$(COLD_GROUPS),cold)
ENGINE   := $(filter-out $(call replaced,$(HOT_GROUPS),hot) $(COLD_FILES),$(ENGINE)) $(call joined_of,$(HOT_GROUPS),hot) $(COLD)
# The files that take longest are compiled first, so that no core waits for them at the end.
LONGEST  := $(KERNELS) $(filter $(O)/llmc/run% $(O)/llmc/commands/% $(O)/llmc/plan/% $(O)/llmc/data%,$(ENGINE))
# With OP=layernorm only the test files of that name are built. If there are none, all are built and run with OP as their tag.
OP_TESTS   := $(if $(OP),$(wildcard test/*/$(OP)_test.cpp test/*/$(OP)_cuda_test.cu))
TEST_FILES := $(if $(OP_TESTS),$(OP_TESTS),$(sort $(wildcard test/*/*_test.cpp test/*/*_cuda_test.cu)))
# Finds tests that run programs: they call `program(`, directly or through a helper. make would count its parenthesis: \x28.
RUN_PROGRAMS = grep -lP 'program\x28|TinyRuns|host_runs|golden'
# KERNELS_ONLY=1: only tests of kernels, models and optimizers, and the parts of the engine that they need. Without tests that run
# programs, and without the traced step, whose launches the tests of models cover.
ifneq ($(KERNELS_ONLY),)
  TEST_FILES := $(filter %.cu test/base/% test/cpu/% test/model/% test/optim/%,$(TEST_FILES))
  TEST_FILES := $(filter-out %/traced_step_cuda_test.cu $(shell $(RUN_PROGRAMS) $(TEST_FILES)) \
    $(shell grep -lE '"llmc/(run|checkpoint|train|commands)/' $(filter %.cpp,$(TEST_FILES))),$(TEST_FILES))
  ENGINE     := $(filter-out $(addprefix $(O)/llmc/,data/% data+interop/% interop/% run% checkpoint/% train/% commands/% plan/%),$(ENGINE))
endif
# An op's own tests and benchmark include its headers. They need neither the trainer and its flags nor the table of CPU kernels, which
# is compiled once per level, unless they set its tile kernel. That takes a sixth of the compile time; `make test` without OP tests the
# table.
OP_ENGINE   := $(filter-out $(O)/llmc/base/flags%,$(filter $(patsubst %,$(O)/llmc/%,base/% cuda/% \
  io/safetensors.cpp.o),$(ENGINE)))
NEED_ENGINE := $(if $(OP_TESTS),$(filter-out test/cpu/% test/cuda/%,$(OP_TESTS))$(shell grep -l software_tiles $(OP_TESTS)),all)
TEST_ENGINE := $(if $(NEED_ENGINE),$(ENGINE),$(OP_ENGINE))
# Tests of the CPU ops are optimized, so that they test the optimized ops.
OPS_FILES  := $(filter $(patsubst llmc/%.h,test/%_test.cpp,$(wildcard llmc/cpu/*.h)),$(TEST_FILES))
HOST_FILES := $(filter-out $(OPS_FILES),$(filter %.cpp,$(TEST_FILES)))
CUDA_FILES := $(filter %.cu,$(TEST_FILES))
# Most of a test's compile time is for headers (5 s per source), so make/join_sources.py joins many tests into one source, unless OP
# names a topic. With ccache there are more and smaller sources, so that fewer tests are compiled again after a change.
# $(call joined,FOLDER,FILES,NUMBER OF SOURCES,NAME)
joined = $(if $(OP_TESTS),$(2:%=$(1)/%.o),$(if $(2),$(patsubst %,$(1)/test/joined_%-of-$(3)_$(4).o,$(shell seq $(3)))))
OPS_TESTS  := $(call joined,$(O),$(OPS_FILES),$(if $(JOIN),4,6),ops.cpp)
TESTS      := $(OPS_TESTS) $(call joined,$(O),$(HOST_FILES),$(if $(JOIN),6,10),host.cpp)
TEST_NAME  := tests$(if $(OP_TESTS),-$(OP))
# The CUDA kernels on the CPU: compiled by g++ against dev/emulator/include instead of the toolkit.
E := $(O)/emulated$(if $(RACE),-race)
# The table of all kernels, which an op's own tests do not need.
EMULATED_KERNELS := $(patsubst %,$(E)/%.o,llmc/cuda/cuda_kernels.cpp $(CUDA_KERNELS))
NEEDED_KERNELS = $(if $(shell grep -lE '"(llmc/cuda/cuda_kernels|llmc/comm/gpu/local_cuda|test/models)\.h"' $(CUDA_FILES)),$(EMULATED_KERNELS))
EMULATED       := $(patsubst %,$(E)/%.o,llmc/cuda/cuda_device.cpp llmc/cuda/cuda_graph.cpp llmc/cuda/cuda_profile.cpp llmc/comm/gpu/cuda_comm.cpp llmc/comm/gpu/nccl_comm.cpp \
  $(filter-out $(if $(RACE),,dev/emulator/race.cpp),$(sort $(wildcard dev/emulator/*.cpp))))
# An op's own tests and benchmarks need no collectives. Tests with collectives but without the table need the kernel sum_ranks.
NO_COLLECTIVES := $(filter-out $(E)/llmc/comm/% $(E)/dev/emulator/fake_nccl% $(E)/dev/emulator/process_ranks%,$(EMULATED))
TEST_EMULATED  = $(if $(NEED_ENGINE),$(EMULATED) $(if $(NEEDED_KERNELS),,$(E)/llmc/cuda/sum_ranks.cu.o),$(NO_COLLECTIVES))
EMULATED_BACKENDS := $(E)/llmc/commands/cuda_backend.cpp.o
EMULATED_PROGRAMS := $(E)/train_gpt $(E)/data/tokenize
EMULATED_TESTS := $(call joined,$(E),$(CUDA_FILES),$(if $(JOIN),4,8),cuda.cu) \
  $(if $(shell grep -l '"test/models.h"' /dev/null $(CUDA_FILES)),$(E)/test/models.cu.o)
GPU_TESTS      := $(CUDA_FILES:%=$(O)/%.o)
BENCHES := $(patsubst dev/bench/%.cu,$(O)/bench/%,$(sort $(wildcard dev/bench/*.cu)))
PROGRAMS := $(addprefix $(BIN),$(basename $(wildcard train_gpt.cu data/tokenize.cpp)))
OBJECTS := $(ENGINE) $(TESTS) $(EMULATED) $(EMULATED_KERNELS) $(EMULATED_TESTS) $(O)/test/main.cpp.o $(EMULATED_BACKENDS) \
  $(patsubst %,$(O)/%.o,$(wildcard train_gpt.cu data/tokenize.cpp dev/bench/*.cu test/fuzz/*.cpp))
