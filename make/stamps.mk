# Stamps: files with the flags, libraries and commit that objects depend on. A stamp is rewritten only if its content changes.

# `private`: else its prerequisite $(O)/flags would contain this flag, too, and every commit would rebuild everything.
$(O)/llmc/base/build_id.cpp.o: private CXXFLAGS += -DANVIL_VERSION='"$(VERSION)"' -DANVIL_BUILD_ID='"$(BUILD_ID)"' -DANVIL_LIBRARIES='"$(strip $(LIBRARIES))"'
$(O)/llmc/base/build_id.cpp.o: $(O)/build_id

$(O)/flags: STAMP = $(COMPILE) $(TEST_OPT) $(COLD_OPT) $(foreach level,$(or $(ALL_LEVELS),$(LEVELS)),$(ARCH_$(level))) $(CPU_SUM) $(if $(IS_CUDA),$(NVCC_CXX) $(CHIPS) $(NVCCFLAGS_EXTRA) $(LDFLAGS))
$(O)/levels: STAMP = $(LEVELS)
$(O)/neighbors: STAMP = $(HOT_GROUPS) $(COLD_GROUPS) $(notdir $(JOINABLE))
$(O)/nccl_flags: STAMP = $(NCCL_FLAGS)
$(O)/mpi_flags: STAMP = $(MPI_FLAGS)
$(O)/build_id: STAMP = $(VERSION) $(BUILD_ID) $(strip $(LIBRARIES))
# The variant of the programs in the root folder.
build/variant: STAMP = $(VARIANT)
$(if $(BIN),,$(PROGRAMS): build/variant)
$(O)/flags $(O)/levels $(O)/neighbors $(O)/nccl_flags $(O)/mpi_flags $(O)/build_id build/variant: FORCE
	@mkdir -p $(@D)
	@echo '$(STAMP)' | cmp -s - $@ || echo '$(STAMP)' > $@

headers:
	$(if $(strip $(MISSING)),$(error headers not found: $(strip $(MISSING)). Run scripts/setup.sh to install them$(,) \
	  or put them in $(DEPS_DIR)/include))@:

# Waiting threads spin briefly, then sleep. libgomp's default is to spin longer, which is no faster on an idle machine and many times
# slower on a busy one. train_gpt sets this itself (llmc/run/omp_spin.h).
export GOMP_SPINCOUNT ?= 1000
