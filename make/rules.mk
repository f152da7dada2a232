# How an object is made of a file.

# Most files read the same headers of the standard library, a fifth of the time to compile them: parsed once. Not for clang++, which
# gains nothing by it (dev/LOG.md), nor with ccache, which would have to be told to trust that. g++ 12 does not take them for a system's
# headers any more, and warns of what no std::string ever does.
PRECOMPILED  := $(if $(CCACHE)$(findstring clang,$(CXX_VERSION)),,1)
# $(call parsed,FOLDER): what a file is compiled with, and what it waits for
parsed        = $(if $(PRECOMPILED),-include $(1)/standard_headers.h -Wno-array-bounds -Wno-stringop-overflow)
parsed_first  = $(if $(PRECOMPILED),$(1)/standard_headers.h.gch)
define parse_headers
@mkdir -p $(@D)
@cp $< $(@:.gch=)
$(Q)$(COMPILE) $(1) -MMD -MP -MT $@ -MF $@.d -x c++-header $< -o $@
endef
$(O)/standard_headers.h.gch: make/standard_headers.h $(O)/flags | headers
	$(call parse_headers)
$(E)/standard_headers.h.gch: private ARCH = $(HERE)
$(E)/standard_headers.h.gch: make/standard_headers.h $(O)/flags | headers
	$(call parse_headers,$(EMULATED_FLAGS))

define compile_host
@mkdir -p $(@D)
$(call say,CXX,$<)
$(Q)$(CCACHE) $(COMPILE) $(HEADERS) -MMD -MP -c $< -o $@
endef
$(O)/%.cpp.o: %.cpp $(O)/flags | headers
	$(compile_host)
$(O)/%.cpp.o: $(O)/%.cpp $(O)/flags | headers
	$(compile_host)

# Without CUDA, a .cu file is C++.
$(O)/%.cu.o: %.cu $(O)/flags | headers
	@mkdir -p $(@D)
	$(call say,$(if $(IS_CUDA),NVCC,CXX),$<)
	$(Q)$(if $(IS_CUDA),$(NVCC),$(CCACHE) $(COMPILE) $(HEADERS) -x c++) -MMD -MP -c $< -o $@

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
$(O)/llmc/cpu/chosen_kernels.cpp.o: $(O)/levels
$(O)/test/% $(O)/dev/% $(E)/%: private ARCH = $(HERE)
# It looks what the processor has.
$(O)/llmc/base/processor.cpp.o: private ARCH = $(if $(KNOWS_LEVELS),-march=x86-64)

# -fno-strict-aliasing: kernels read sixteen bytes of any type at once. `#pragma unroll` is nvcc's.
EMULATED_FLAGS = -Idev/emulator/include -DANVIL_EMULATED $(if $(RACE),-DANVIL_RACE) -fno-strict-aliasing -Wno-unknown-pragmas
define compile_emulated_host
@mkdir -p $(@D)
$(call say,CXX,"$< (emulated)")
$(Q)$(CCACHE) $(COMPILE) $(EMULATED_FLAGS) $(HEADERS) -MMD -MP -c $< -o $@
endef
$(E)/%.cpp.o: %.cpp $(O)/flags | headers
	$(compile_emulated_host)
$(E)/%.cpp.o: $(E)/%.cpp $(O)/flags | headers
	$(compile_emulated_host)

# Kernels are where races are looked for: see dev/emulator/race.h. -gdwarf-4: of a joined source's functions, addr2line 2.40
# takes DWARF 5's first file for the source itself, and a race would be reported in a file that nobody wrote. -g1 before it, which
# alone would ask for variables, too.
define compile_emulated
@mkdir -p $(@D)
$(call say,CXX,"$< (emulated)")
$(Q)$(CCACHE) $(COMPILE) $(EMULATED_FLAGS) $(if $(RACE),-fsanitize=thread -g1 -gdwarf-4) $(HEADERS) -MMD -MP -x c++ -c $< -o $@
endef
$(E)/%.cu.o: %.cu $(O)/flags | headers
	$(compile_emulated)
$(E)/%.cu.o: $(E)/%.cu $(O)/flags | headers
	$(compile_emulated)

# Not for what has other flags: a level's, a test's, none that optimize.
WITH_HEADERS := $(filter-out $(KERNELS) $(O)/llmc/base/processor.cpp.o $(O)/llmc/train/traced_step.cpp.o $(if $(IS_CUDA),%.cu.o),\
  $(filter $(O)/llmc/%,$(ENGINE)) $(patsubst %,$(O)/%.o,train_gpt.cu data/tokenize.cpp))
$(WITH_HEADERS): private HEADERS = $(call parsed,$(O))
$(WITH_HEADERS): $(call parsed_first,$(O))
# The race checker's files are parsed otherwise.
EMULATED_WITH_HEADERS := $(if $(RACE),,$(EMULATED) $(EMULATED_KERNELS) $(EMULATED_BACKENDS))
$(EMULATED_WITH_HEADERS): private HEADERS = $(call parsed,$(E))
$(EMULATED_WITH_HEADERS): $(call parsed_first,$(E))

# Written when they change, so that a changed test is compiled again with those of its group alone.
$(O)/test/joined_%_ops.cpp: FILES = $(OPS_FILES)
$(O)/test/joined_%_host.cpp: FILES = $(HOST_FILES)
$(E)/test/joined_%_cuda.cu: FILES = $(CUDA_FILES)
# $(call write_joined,OPTIONS)
define write_joined
@mkdir -p $(@D)
@python3 scripts/join_sources.py --part $* $(1) $(FILES) > $@.new
@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
endef
$(O)/test/joined_%_ops.cpp: FORCE
	$(call write_joined)
$(O)/test/joined_%_host.cpp: FORCE
	$(call write_joined)
$(E)/test/joined_%_cuda.cu: FORCE
	$(call write_joined)

# $(call write_includes,FILES)
define write_includes
@mkdir -p $(@D)
@printf '#include "%s"\n' $(1) > $@
endef
$(O)/llmc/%/joined_hot.cpp: $(O)/neighbors
	$(call write_includes,$(patsubst $(O)/%.o,%,$(call neighbors,$*,hot)))
$(O)/llmc/%/joined_cold.cpp: $(O)/neighbors
	$(call write_includes,$(patsubst $(O)/%.o,%,$(call neighbors,$*,cold)))
$(O)/llmc/train/joined_cpu_backends.cpp: $(O)/neighbors
	$(call write_includes,$(CPU_BACKENDS))
$(E)/llmc/train/joined_cuda_backends.cpp: $(O)/neighbors
	$(call write_includes,$(CUDA_BACKENDS))

# Tests run once or twice, and compiling them is most of the work: three fifths of the time with -O1, and the emulator gets
# hardly slower; of what computes little itself, two fifths with -Og. `private`: the flags that stand in $(O)/flags are those of
# the engine. g++ -O1 takes for uninitialized what with -O3, in the engine, it sees to be set.
LIGHT    := $(if $(filter -O3,$(OPT)),-O1,$(OPT))
TEST_OPT ?= $(if $(filter -O3,$(OPT)),-Og,$(OPT))
TRUSTED  := $(if $(findstring clang,$(CXX_VERSION)),,-Wno-maybe-uninitialized)
$(filter-out $(OPS_TESTS),$(TESTS)): private override OPT := $(TEST_OPT) $(TRUSTED)
$(EMULATED_KERNELS) $(patsubst %,$(E)/%.o,$(wildcard dev/bench/*.cu)): private override OPT := $(LIGHT) $(TRUSTED)
# Kernels that a test shares with the engine are linked from there, optimized.
EMULATED_OPT ?= $(LIGHT)
$(EMULATED_TESTS): private override OPT := $(EMULATED_OPT) $(TRUSTED)

# A fifth less to compile than with -O1. What launches kernels on a GPU is not to be the slower for it.
COLD_OPT ?= $(TEST_OPT)
$(COLD) $(EMULATED_BACKENDS) $(O)/data/tokenize.cpp.o: private override OPT := $(COLD_OPT) $(TRUSTED)
# `plan` plays a step through for each GPU and number of ranks.
$(filter $(O)/llmc/trace/% $(if $(IS_CUDA),$(O)/llmc/train/cuda_backend%),$(COLD)): private override OPT := $(LIGHT) $(TRUSTED)

# A tenth of what emulated tests take is the emulator's own, which compiles in seconds.
EMULATOR_OPT ?= -O3
$(filter $(E)/dev/%,$(EMULATED)): private override OPT := $(EMULATOR_OPT)

# Catch2's own code: 16 s to compile with optimization, and nothing of it matters for speed.
$(O)/test/main.cpp.o: private override OPT := -O0
$(O)/test/main.cpp.o: private override DEBUG_INFO :=

# nccl.h by -I: the one that belongs to the library, before one that the toolkit may have. It and mpi.h are included by these
# files alone, and only they are compiled again when another is found.
NCCL_FLAGS = $(if $(IS_NCCL),-I$(NCCL_DIR))
$(O)/llmc/comm/nccl_comm.cpp.o $(O)/test/comm/nccl_calls.cpp.o: private CPPFLAGS += $(NCCL_FLAGS)
$(O)/llmc/comm/nccl_comm.cpp.o $(O)/test/comm/nccl_calls.cpp.o: $(O)/nccl_flags
MPI_FILES = $(patsubst %,$(O)/%.o,$(wildcard llmc/comm/mpi_*.cpp))
$(MPI_FILES): private CPPFLAGS += $(MPI_FLAGS)
$(MPI_FILES): $(O)/mpi_flags

# The step that is traced: launchers compiled once more, for a runtime that writes down (llmc/trace/include). It runs once, for
# `plan`, and is not optimized at all.
TRACED := $(O)/llmc/train/traced_step.cpp.o
$(TRACED): private override CPPFLAGS := -Illmc/trace/include $(CPPFLAGS)
$(TRACED): private override OPT := -O0 -fno-strict-aliasing -Wno-unknown-pragmas
# The model of a GPU knows each kernel's registers.
$(O)/generated/registers.inc: doc/results/registers.txt
	@mkdir -p $(@D)
	@sed -nE 's/^(.*_kernel<.*>) +([0-9]+) +([0-9]+) +([0-9]+) +([0-9]+) +([0-9]+) +([0-9]+)$$/{"\1", {\2, \3}, {\4, \5}, {\6, \7}},/p' $< > $@
$(O)/llmc/trace/gpu_model.cpp.o: private override CPPFLAGS += -I$(O)/generated
$(O)/llmc/trace/gpu_model.cpp.o: $(O)/generated/registers.inc
# What an export hands on to transformers, as a string.
$(O)/generated/modeling_anvil.inc: python/anvil/modeling_anvil.py
	@mkdir -p $(@D)
	@{ printf 'R"anvil('; cat $<; printf ')anvil"\n'; } > $@
$(O)/llmc/interop/export.cpp.o: private override CPPFLAGS += -I$(O)/generated
$(O)/llmc/interop/export.cpp.o: $(O)/generated/modeling_anvil.inc
