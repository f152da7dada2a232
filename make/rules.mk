# Rules for compiling objects and linking programs.

GENERATED := $(O)/generated/registers.inc $(O)/generated/modeling_anvil.inc
# $(call compile,NOTE): compiles with the target's own FLAGS, and with a precompiled header that it depends on. Without
# CUDA, a .cu file is compiled as C++.
define compile
$(call say,$(if $(NVCC_TAKES),NVCC,CXX),"$<$(1)")
$(Q)$(if $(NVCC_TAKES),$(NVCC),$(CCACHE) $(COMPILE) $(FLAGS) $(HEADERS) -x c++) -MMD -MP -c $< -o $@
endef
NVCC_TAKES = $(if $(IS_CUDA),$(filter %.cu,$<))
$(O)/%.o: % $(O)/flags | headers $(GENERATED)
	$(compile)
# With it nvcc 13.0 ends here in an internal error: "unsupported aggregate constant".
$(patsubst %,$(O)/test/cuda/%_cuda_test.cu.o,matmul matmul_fp8 newton_schulz symmetric_matmul): private RELAXED =
# Joined sources are in the build folder.
$(O)/%.o: $(O)/% $(O)/flags | headers $(GENERATED)
	$(compile)
$(E)/%.o: % $(O)/flags | headers
	$(call compile, (emulated))
# -fno-strict-aliasing: kernels load 16 bytes of any type at once. -Wno-unknown-pragmas: `#pragma unroll` is for nvcc.
# The race checker instruments only kernels. With DWARF 5, addr2line 2.40 would report races in a joined source instead
# of the file that it includes; -gdwarf-4 alone would add variables, too.
$(E)/%: private FLAGS = -Idev/emulator/include -DANVIL_EMULATED $(if $(RACE),-DANVIL_RACE \
  $(if $(filter %.cu,$<),-fsanitize=thread -g1 -gdwarf-4)) -fno-strict-aliasing -Wno-unknown-pragmas
$(O)/test/% $(O)/dev/% $(E)/%: private ARCH = $(HERE)
# An object for a level exports only the name of its table, so that its copies of inline functions stay local. (By
# default g++ makes a static variable of an inline function unique in the process, and objcopy could not make it local.)
# It must have no static initializers: those would run before main() on every processor.
$(KERNELS): private ARCH = $(ARCH_$*)
$(KERNELS): private FLAGS = $(if $(IS_CLANG),,-fno-gnu-unique) -DANVIL_KERNELS=kKernels_$*
$(KERNELS): $(O)/%/llmc/cpu/kernels.cpp.o: llmc/cpu/kernels.cpp $(O)/flags | headers
	$(call compile,$(patsubst %, (%),$(filter-out only,$*)))
	$(if $(filter only,$*),,$(Q)make/hide_names.sh $@ kKernels_$*)
# Detects the processor's features, so it must run on all processors.
$(O)/llmc/base/processor.cpp.o: private ARCH = $(if $(KNOWS_LEVELS),-march=x86-64)

# Most files include the same standard headers, a fifth of their compile time: these are precompiled, for files with the
# same flags. Not for clang++, which gains nothing, and not with ccache, which would need settings for it. g++ 12 then
# takes std::string for ours, and warns falsely.
PRECOMPILED := $(if $(CCACHE)$(IS_CLANG),,1)
HEADERS = $(if $(PRECOMPILED),$(patsubst %.gch,-include % -Wno-array-bounds -Wno-stringop-overflow,\
  $(filter %.gch,$^)))
ifneq ($(PRECOMPILED),)
  $(patsubst %,$(O)/%.o,train_gpt.cu data/tokenize.cpp) $(filter-out $(KERNELS) %/processor.cpp.o %/traced_step.cpp.o \
    $(if $(IS_CUDA),%.cu.o),$(ENGINE)): $(O)/standard_headers.h.gch
  $(if $(RACE),,$(EMULATED) $(EMULATED_KERNELS) $(EMULATED_BACKEND): $(E)/standard_headers.h.gch)
endif
%/standard_headers.h.gch: make/standard_headers.h $(O)/flags | headers
	@mkdir -p $(@D); cp $< $(@:.gch=)
	$(Q)$(COMPILE) $(FLAGS) -MMD -MP -MT $@ -MF $@.d -x c++-header $< -o $@

# Most of the time of a test is compilation: -O2 takes two thirds of the time of -O3, -O1 three fifths, and -Og, for
# what computes little, two fifths. A kernel that a test shares with the engine is linked from the engine's optimized
# objects. `private`: $(O)/flags must have the engine's flags.
lighter  = $(if $(filter -O3,$(OPT)),$(1),$(OPT))
LIGHT    := $(call lighter,-O1)
TEST_OPT ?= $(call lighter,-Og)
EMULATED_OPT ?= $(TEST_OPT)
EMULATOR_OPT ?= -O3
optimize = $(eval $(2): private override OPT := $(1) $(if $(IS_CLANG),,-Wno-maybe-uninitialized))
$(call optimize,$(TEST_OPT),$(filter-out $(OPS_TESTS),$(TESTS)) $(COLD) $(EMULATED_BACKEND) $(O)/data/tokenize.cpp.o)
$(call optimize,$(EMULATED_OPT),$(EMULATED_TESTS))
$(call optimize,$(call lighter,-O2),$(OPS_TESTS))
# `plan` simulates a step for each GPU and number of ranks. Launches on a GPU stay fast.
$(call optimize,$(LIGHT),$(EMULATED_KERNELS) $(O)/dev/bench/joined_% $(E)/dev/bench/% \
  $(filter %/plan.cpp.o $(O)/llmc/plan/% $(if $(IS_CUDA),%/cuda_backend.cpp.o),$(COLD)))
$(call optimize,$(EMULATOR_OPT),$(filter $(E)/dev/emulator/%,$(EMULATED)) $(PTX_MACHINE))
# Catch2's own code would take 16 s with optimization.
$(call optimize,-O0,$(O)/test/main.cpp.o)
$(O)/test/main.cpp.o: private override DEBUG_INFO :=
# The traced step: launchers compiled again, for a runtime that records launches (llmc/plan/include). It runs once.
$(call optimize,-O0 -fno-strict-aliasing -Wno-unknown-pragmas,$(O)/llmc/plan/traced_step.cpp.o)
$(O)/llmc/plan/traced_step.cpp.o: private override CPPFLAGS := -Illmc/plan/include $(CPPFLAGS)

# Files that are rewritten only if their content changes: joined and generated sources, and the flags, libraries and
# commit that objects depend on. build/variant has the variant of the programs in the root folder.
TEXT = echo '$(subst ',,$(STAMP))'
define rewrite
@mkdir -p $(@D)
@{ $(TEXT); } > $@.$$$$; if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi
endef
$(O)/flags: STAMP = $(COMPILE) $(TEST_OPT) $(foreach level,$(LEVELS_all),$(ARCH_$(level))) \
  $(CPU_SUM) $(if $(IS_CUDA),$(NVCC_CXX) $(CHIPS) $(LDFLAGS))
build/variant: STAMP = $(VARIANT)
$(if $(BIN),,$(PROGRAMS): build/variant)
# Objects with flags of their own are compiled again when these change.
OWN_FLAGS := $(patsubst %,$(O)/llmc/%.cpp.o,base/build_id comm/launch/mpi_ranks cpu/chosen_kernels)
$(OWN_FLAGS): %: %.flags
$(OWN_FLAGS:=.flags): private STAMP = $(FLAGS)
$(O)/llmc/base/build_id.cpp%: private FLAGS = -DANVIL_VERSION='"$(VERSION)"' -DANVIL_BUILD_ID='"$(BUILD_ID)"' \
  -DANVIL_LIBRARIES='"$(LIBRARIES)"'
$(O)/llmc/comm/launch/mpi_%: private FLAGS = $(if $(IS_MPI),-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX \
  $(call system_include,$(MPI_DIR)))
$(O)/llmc/cpu/chosen_kernels.cpp%: private FLAGS = -D"ANVIL_ALL_KERNELS(X)=$(patsubst %,X(kKernels_%),$(LEVELS))"
# The register counts of all kernels, for the model of a GPU; the Python file in an export, as a C++ string.
$(O)/generated/registers.inc: private TEXT = n=' +([0-9]+)'; \
  sed -nE "s/^(.*_kernel<.*>)$$n$$n$$n$$n$$n$$n\$$/{\"\1\", {\2, \3}, {\4, \5}, {\6, \7}},/p" doc/results/registers.txt
$(O)/generated/modeling_anvil.inc: private TEXT = printf 'R"anvil('; cat python/anvil/modeling_anvil.py; \
  printf ')anvil"\n'
ROOM_SOURCES := $(patsubst %,$(O)/llmc/joined/%.cpp,$(ROOMS))
$(ROOM_SOURCES): private TEXT = printf '\#include "%s"\n' $(call room,$(basename $(@F)))
# $(call join_files,FILES): tests, each in a namespace of its own, because several may have the same names (even main).
# Their includes come first, under their own #if; there `#pragma once` makes those in the namespaces empty.
join_files = grep -hE '^\#(include|if|el|endif)' $(1); printf '%s\n' $(1) | \
  sed -E 's|.*/(.*)\.cp*u*$$|namespace of_\1 {\n\#include "&"\n}|'
JOINED_TESTS := $(patsubst %.o,%,$(filter $(O)/test/joined_% $(E)/test/joined_%,$(TESTS) $(EMULATED_TESTS)))
$(JOINED_TESTS): private TEXT = $(call join_files,$(part))
REWRITTEN := $(O)/flags build/variant $(OWN_FLAGS:=.flags) $(GENERATED) $(ROOM_SOURCES) $(JOINED_TESTS)

headers:
	$(if $(MISSING),$(error headers not found: $(MISSING). Run scripts/setup.sh to install them$(,) \
	  or put them in $(DEPS_DIR)/include))@:

LINK_WITH = $(LDFLAGS)
define link
$(call say,LINK,$@)
$(Q)$(COMPILE) $(filter %.o,$^) -o $@ $(LINK_WITH) $(1)
endef
$(BIN)train_gpt: $(O)/train_gpt.cu.o $(ENGINE)
$(E)/train_gpt: $(O)/train_gpt.cu.o $(EMULATED) $(EMULATED_KERNELS) $(EMULATED_BACKEND) \
  $(filter-out $(O)/llmc/commands/cuda_backend%,$(ENGINE))
$(BIN)data/tokenize $(E)/data/tokenize: $(O)/data/tokenize.cpp.o $(ENGINE)
$(PROGRAMS) $(EMULATED_PROGRAMS):
	$(link)
