# make aarch64: tests for aarch64 on any machine, with a cross compiler and an emulator.

# Debian's names of the cross compiler and of the emulator (packages g++-aarch64-linux-gnu and qemu-user). Third-party headers are this
# machine's: they do not depend on the processor, except for those of Catch2 3, which comes with a library.
AARCH64_CXX     ?= aarch64-linux-gnu-g++
AARCH64_RUN     ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
AARCH64_HEADERS := build/aarch64/deps
AARCH64_LACKS   := $(strip $(foreach tool,$(AARCH64_CXX) $(firstword $(AARCH64_RUN)),$(if $(shell command -v $(tool)),,$(tool))) \
  $(if $(wildcard $(CATCH2_DIR)/catch2/catch.hpp),,Catch2 2))
# g++ 12 for aarch64 crashes when it optimizes the CUDA emulator's own code.
AARCH64_BUILD    = DEPS_DIR=$(AARCH64_HEADERS) VARIANT=aarch64 CXX=$(AARCH64_CXX) CPU_ARCH=armv8-a USE_MPI=0 OPT=-O1 EMULATOR_OPT=-O1 CXXFLAGS_EXTRA=-DANVIL_QEMU

# Leaves out the tests that run programs, which are slow under qemu, except for the golden run, whose losses must be those of x86.
aarch64: ## tests of ops, kernels and models, and the golden run, on aarch64: cross-compiled, under qemu
ifneq ($(AARCH64_LACKS),)
	@echo 'aarch64: skipped: it needs $(AARCH64_LACKS) (apt-get install g++-aarch64-linux-gnu qemu-user catch2)'
else
	@mkdir -p $(AARCH64_HEADERS)/include
	@ln -sfn $(abspath $(JSON_DIR)/nlohmann $(XXHASH_DIR)/xxhash.h $(CATCH2_DIR)/catch2) $(AARCH64_HEADERS)/include/
	@+export ANVIL_RUN_WITH='$(AARCH64_RUN)' SCHEDULES=in_order; status=0; \
	  $(SUBMAKE) run-tests KERNELS_ONLY=1 $(AARCH64_BUILD) || status=1; \
	  $(SUBMAKE) run-emulated KERNELS_ONLY=1 $(AARCH64_BUILD) || status=1; \
	  $(SUBMAKE) run-tests OP=golden $(AARCH64_BUILD) || status=1; exit $$status
endif
