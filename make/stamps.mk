# What objects depend on besides files: flags, libraries, the commit. Each stamp is rewritten when its content changes.

# `private`: not of $(O)/flags, which it depends on, or every commit would rebuild everything.
$(O)/llmc/base/build_id.cpp.o: private CXXFLAGS += -DANVIL_VERSION='"$(VERSION)"' -DANVIL_BUILD_ID='"$(BUILD_ID)"' -DANVIL_LIBRARIES='"$(strip $(LIBRARIES))"'
$(O)/llmc/base/build_id.cpp.o: $(O)/build_id

# Rewritten only when the content changes, so that whatever depends on them is rebuilt then and only then.
$(O)/flags: STAMP = $(COMPILE) $(TEST_OPT) $(COLD_OPT) $(foreach level,$(or $(ALL_LEVELS),$(LEVELS)),$(ARCH_$(level))) $(CPU_SUM) $(if $(IS_CUDA),$(CHIPS) $(NVCCFLAGS_EXTRA) $(LDFLAGS))
$(O)/levels: STAMP = $(LEVELS)
$(O)/neighbors: STAMP = $(HOT_GROUPS) $(COLD_GROUPS) $(notdir $(JOINABLE))
$(O)/nccl_flags: STAMP = $(NCCL_FLAGS)
$(O)/mpi_flags: STAMP = $(MPI_FLAGS)
$(O)/build_id: STAMP = $(VERSION) $(BUILD_ID) $(strip $(LIBRARIES))
# The programs at the top are of one variant, of which this names the one.
build/variant: STAMP = $(VARIANT)
$(if $(BIN),,$(PROGRAMS): build/variant)
$(O)/flags $(O)/levels $(O)/neighbors $(O)/nccl_flags $(O)/mpi_flags $(O)/build_id build/variant: FORCE
	@mkdir -p $(@D)
	@echo '$(STAMP)' | cmp -s - $@ || echo '$(STAMP)' > $@

headers:
	$(if $(strip $(MISSING)),$(error headers not found: $(strip $(MISSING)). Run scripts/setup.sh to install them$(,) \
	  or put them in $(DEPS_DIR)/include))@:

# Threads that wait for each other spin a little, then sleep. libgomp's default, to spin for long, is no faster on a
# quiet machine and many times slower on one that does anything else. train_gpt sets this itself (llmc/train/omp_spin.h).
export GOMP_SPINCOUNT ?= 1000
