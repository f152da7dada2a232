# Rules for compiling objects.

# Most files include the same standard headers, a fifth of their compile time: these are precompiled. Not for clang++, which gains
# nothing (dev/log/build_and_ci.md), and not with ccache, which would need special settings for it. g++ 12 does not treat precompiled
# headers as system headers, and gives false warnings about std::string.
PRECOMPILED  := $(if $(CCACHE)$(findstring clang,$(CXX_VERSION)),,1)
# $(call parsed,FOLDER): the flags that use precompiled headers; $(call parsed_first,FOLDER): their file, as a prerequisite
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

# Without CUDA, a .cu file is compiled as C++.
$(O)/%.cu.o: %.cu $(O)/flags | headers
	@mkdir -p $(@D)
	$(call say,$(if $(IS_CUDA),NVCC,CXX),$<)
	$(Q)$(if $(IS_CUDA),$(NVCC),$(CCACHE) $(COMPILE) $(HEADERS) -x c++) -MMD -MP -c $< -o $@

# By default g++ makes a static variable of an inline function unique in the whole process, and objcopy could not make it local.
NOT_UNIQUE := $(if $(findstring clang,$(CXX_VERSION)),,-fno-gnu-unique)
# An object for a level exports only the name of its table, so that its copies of inline functions stay local. It must have no static
# initializers: those would run before main() on every processor.
define kernel_rules
$(O)/$(1)/%.o: private ARCH = $(ARCH_$(1))
$(O)/$(1)/%.o: % $(O)/flags | headers
	@mkdir -p $$(@D)
	$$(call say,CXX,"$$<$(if $(filter-out only,$(1)), ($(1)))")
	$$(Q)$$(CCACHE) $$(COMPILE) $(NOT_UNIQUE) -DANVIL_KERNELS=kKernels_$(1) -MMD -MP -MF $$(@:.o=.d) -MT $$@ -c $$< -o $$(@:.o=.all.o)
	$(if $(filter-out only,$(1)),$$(Q)make/hide_names.sh $$(@:.o=.all.o) kKernels_$(1) $$@,$$(Q)mv $$(@:.o=.all.o) $$@)
endef
$(foreach level,$(LEVELS),$(eval $(call kernel_rules,$(level))))
$(O)/llmc/cpu/chosen_kernels.cpp.o: private CPPFLAGS += '-DANVIL_ALL_KERNELS(X)=$(patsubst %,X(kKernels_%),$(LEVELS))'
$(O)/llmc/cpu/chosen_kernels.cpp.o: $(O)/levels
$(O)/test/% $(O)/dev/% $(E)/%: private ARCH = $(HERE)
# Detects the processor's features, so it must run on all processors.
$(O)/llmc/base/processor.cpp.o: private ARCH = $(if $(KNOWS_LEVELS),-march=x86-64)

# -fno-strict-aliasing: kernels load 16 bytes of any type at once. -Wno-unknown-pragmas: `#pragma unroll` is for nvcc.
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

# The race checker instruments only kernels: see dev/emulator/race.h. -gdwarf-4: with DWARF 5, addr2line 2.40 would report races in a
# joined source instead of the file that it includes. -g1 comes before it, because -gdwarf-4 alone would add variables, too.
define compile_emulated
@mkdir -p $(@D)
$(call say,CXX,"$< (emulated)")
$(Q)$(CCACHE) $(COMPILE) $(EMULATED_FLAGS) $(if $(RACE),-fsanitize=thread -g1 -gdwarf-4) $(HEADERS) -MMD -MP -x c++ -c $< -o $@
endef
$(E)/%.cu.o: %.cu $(O)/flags | headers
	$(compile_emulated)
$(E)/%.cu.o: $(E)/%.cu $(O)/flags | headers
	$(compile_emulated)

# Precompiled headers require equal flags, so they are not used for kernels of a level, for tests and for unoptimized files.
WITH_HEADERS := $(filter-out $(KERNELS) $(O)/llmc/base/processor.cpp.o $(O)/llmc/plan/traced_step.cpp.o $(if $(IS_CUDA),%.cu.o),\
  $(filter $(O)/llmc/%,$(ENGINE)) $(patsubst %,$(O)/%.o,train_gpt.cu data/tokenize.cpp))
$(WITH_HEADERS): private HEADERS = $(call parsed,$(O))
$(WITH_HEADERS): $(call parsed_first,$(O))
# The race checker compiles with other flags.
EMULATED_WITH_HEADERS := $(if $(RACE),,$(EMULATED) $(EMULATED_KERNELS) $(EMULATED_BACKENDS))
$(EMULATED_WITH_HEADERS): private HEADERS = $(call parsed,$(E))
$(EMULATED_WITH_HEADERS): $(call parsed_first,$(E))

# Joined sources are rewritten only if they change, so that after a change only that test's group is compiled again.
$(O)/test/joined_%_ops.cpp: FILES = $(OPS_FILES)
$(O)/test/joined_%_host.cpp: FILES = $(HOST_FILES)
$(E)/test/joined_%_cuda.cu: FILES = $(CUDA_FILES)
# $(call write_joined,OPTIONS)
define write_joined
@mkdir -p $(@D)
@python3 make/join_sources.py --part $* $(1) $(FILES) > $@.new
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

# Tests run once or twice, so most of their time is compilation. With -O1 it takes three fifths of the time, and the emulator is hardly
# slower. With -Og, for tests that compute little, it takes two fifths. `private`: $(O)/flags must have the engine's flags. With -O1,
# g++ falsely warns of uninitialized variables.
LIGHT    := $(if $(filter -O3,$(OPT)),-O1,$(OPT))
TEST_OPT ?= $(if $(filter -O3,$(OPT)),-Og,$(OPT))
TRUSTED  := $(if $(findstring clang,$(CXX_VERSION)),,-Wno-maybe-uninitialized)
$(filter-out $(OPS_TESTS),$(TESTS)): private override OPT := $(TEST_OPT) $(TRUSTED)
$(EMULATED_KERNELS) $(patsubst %,$(E)/%.o,$(wildcard dev/bench/*.cu)): private override OPT := $(LIGHT) $(TRUSTED)
# Kernels that a test shares with the engine are linked from the engine's optimized objects.
EMULATED_OPT ?= $(LIGHT)
$(EMULATED_TESTS): private override OPT := $(EMULATED_OPT) $(TRUSTED)

# Takes a fifth less compile time than -O1. Code that launches kernels on a GPU is optimized below, so that launches stay fast.
COLD_OPT ?= $(TEST_OPT)
$(COLD) $(EMULATED_BACKENDS) $(O)/data/tokenize.cpp.o: private override OPT := $(COLD_OPT) $(TRUSTED)
# Optimized, too: `plan` simulates a step for each GPU and number of ranks.
$(filter $(O)/llmc/plan/% $(if $(IS_CUDA),$(O)/llmc/commands/cuda_backend%),$(COLD)): private override OPT := $(LIGHT) $(TRUSTED)

# A tenth of the time of emulated tests is spent in the emulator itself, which compiles in seconds.
EMULATOR_OPT ?= -O3
$(filter $(E)/dev/%,$(EMULATED)): private override OPT := $(EMULATOR_OPT)

# Catch2's own code would take 16 s to compile with optimization, and its speed does not matter.
$(O)/test/main.cpp.o: private override OPT := -O0
$(O)/test/main.cpp.o: private override DEBUG_INFO :=

# -I for nccl.h: the header that belongs to the library must precede one that the toolkit may have. Only these files include nccl.h
# and mpi.h, so only they are compiled again when another version is found.
NCCL_FLAGS = $(if $(IS_NCCL),-I$(NCCL_DIR))
$(O)/llmc/comm/gpu/nccl_comm.cpp.o $(O)/test/comm/nccl_calls.cpp.o: private CPPFLAGS += $(NCCL_FLAGS)
$(O)/llmc/comm/gpu/nccl_comm.cpp.o $(O)/test/comm/nccl_calls.cpp.o: $(O)/nccl_flags
MPI_FILES = $(patsubst %,$(O)/%.o,$(wildcard llmc/comm/launch/mpi_*.cpp))
$(MPI_FILES): private CPPFLAGS += $(MPI_FLAGS)
$(MPI_FILES): $(O)/mpi_flags

# The traced step: launchers compiled again, for a runtime that records launches (llmc/plan/include). It runs once, for `plan`, and is
# not optimized.
TRACED := $(O)/llmc/plan/traced_step.cpp.o
$(TRACED): private override CPPFLAGS := -Illmc/plan/include $(CPPFLAGS)
$(TRACED): private override OPT := -O0 -fno-strict-aliasing -Wno-unknown-pragmas
# The register counts of all kernels, for the model of a GPU.
$(O)/generated/registers.inc: doc/results/registers.txt
	@mkdir -p $(@D)
	@sed -nE 's/^(.*_kernel<.*>) +([0-9]+) +([0-9]+) +([0-9]+) +([0-9]+) +([0-9]+) +([0-9]+)$$/{"\1", {\2, \3}, {\4, \5}, {\6, \7}},/p' $< > $@
$(O)/llmc/plan/gpu_model.cpp.o: private override CPPFLAGS += -I$(O)/generated
$(O)/llmc/plan/gpu_model.cpp.o: $(O)/generated/registers.inc
# The Python file that an export includes for transformers, as a C++ string.
$(O)/generated/modeling_anvil.inc: python/anvil/modeling_anvil.py
	@mkdir -p $(@D)
	@{ printf 'R"anvil('; cat $<; printf ')anvil"\n'; } > $@
$(O)/llmc/interop/export.cpp.o: private override CPPFLAGS += -I$(O)/generated
$(O)/llmc/interop/export.cpp.o: $(O)/generated/modeling_anvil.inc
