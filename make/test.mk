# Targets: test (tests of the host, and of kernels on the emulated GPU), test-all, test-gpu.

# Starts make again, because it must find what setup.sh has installed.
SUBMAKE = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))

# OP that names no test file is a tag. Checked before anything is compiled.
ifneq ($(and $(OP),$(filter test% run-tests run-emulated run-gpu sanitize tsan msan race,$(MAKECMDGOALS))),)
  TAGS := $(sort $(shell grep -ohE '\[[a-z_0-9.]+\]' $(ALL_TESTS) | tr -d '[]'))
  $(if $(OP_TESTS)$(filter $(OP),$(TAGS)),,$(error no test is called $(OP)$(addprefix ; near: ,$(shell \
    python3 -c 'import difflib, sys; print(*difflib.get_close_matches(*sys.argv[1:2], sys.argv[2:]))' $(OP) $(TAGS)))))
endif

# Where `make` has not built the other ISA levels, tests do not either, which saves 90 CPU seconds.
LEVELS_AS_BUILT = $(if $(filter all_file,$(CPU_ARCH)_$(origin CPU_ARCH)),$(if $(wildcard \
  build/$(HOST_VARIANT)/baseline),,CPU_ARCH=here))
# Most tests of the host wait, for ranks and clocks, while those of kernels are compiled and run beside them.
test: ## build and run the tests but for slow ones; OP=layernorm runs all of one topic
	@USE_MPI=$(USE_MPI) DEPS_DIR=$(DEPS_DIR) scripts/setup.sh --tests
	@+rm -f build/counts; mkdir -p build; export ANVIL_COUNTS=build/counts status=0; \
	  export WITHOUT_TESTS="$${WITHOUT_TESTS-$(if $(OP),,~[slow])}"; \
	  part() { $(SUBMAKE) $$1 VARIANT=$(HOST_VARIANT) $(LEVELS_AS_BUILT); }; \
	  part built-tests && { part run-tests & host=$$!; trap "kill $$host; exit 1" INT TERM; \
	    part run-emulated || status=1; wait $$host; } || status=1; \
	  awk '{p += $$1; f += $$2} END {printf "\n%d passed, %d failed\n", p, f; exit p + f == 0}' build/counts || status=1; \
	  exit $$status
test-all: ## slow tests, too, and kernels in all three orders of emulated threads; the CPU's for every ISA level
	@+WITHOUT_TESTS= SCHEDULES="$${SCHEDULES-in_order reverse random}" $(MAKE) --no-print-directory test \
	  CPU_ARCH='$(CPU_ARCH)'

NEEDED_PROGRAMS = $(if $(RUN_PROGRAMS),$(PROGRAMS))
# Orders of the emulator's threads: a result that depends on them is wrong. One topic runs in all of them, everything in
# the first. Tests of the host run once: only emulated threads have an order.
SCHEDULES ?= $(if $(OP),in_order reverse random,in_order)
run_tests = @CXX='$(CXX)' $(3) make/run_tests.sh $(2) $(1) '$(OP)' $(TEST_ARGS)
built-tests: $(if $(TESTS),$(O)/$(TEST_NAME) $(NEEDED_PROGRAMS))
run-tests: built-tests
	$(if $(TESTS),$(call run_tests,$(O)/$(TEST_NAME),$$((2 * $(JOBS))),SCHEDULES= ANVIL_PROGRAMS=$(or $(BIN),./)))
run-emulated: $(if $(EMULATED_TESTS),$(E)/$(TEST_NAME) $(if $(RUN_PROGRAMS),$(EMULATED_PROGRAMS)))
	$(if $(EMULATED_TESTS),$(call run_tests,$<,$(JOBS),SCHEDULES='$(SCHEDULES)' ANVIL_PROGRAMS=$(E)/))
test-gpu: ## the kernels' tests on a GPU; OP=layernorm runs one topic
	@+$(SUBMAKE) run-gpu VARIANT=cuda USE_CUDA=1
run-gpu: $(O)/gpu-$(TEST_NAME) $(NEEDED_PROGRAMS)
	@ANVIL_PROGRAMS=$(or $(BIN),./) $< $(if $(OP),'[$(OP)]') $(TEST_ARGS)

# The linker keeps the first copy of an inline function, so optimized objects come first, and the emulator before all:
# the race checker must not call an instrumented copy.
$(O)/$(TEST_NAME): $(OPS_TESTS) $(TEST_ENGINE) $(filter-out $(OPS_TESTS),$(TESTS)) $(O)/test/main.cpp.o
# -rdynamic: dev/ptx looks up the names of kernels.
$(E)/$(TEST_NAME): private LDFLAGS += -rdynamic
$(E)/$(TEST_NAME): $(if $(OTHER_TESTS),$(EMULATED) $(EMULATED_KERNELS),$(NO_COLLECTIVES)) $(PTX_MACHINE) \
  $(EMULATED_TESTS) $(TEST_ENGINE) $(O)/test/main.cpp.o
$(O)/gpu-$(TEST_NAME): $(cuda_FILES:%=$(O)/%.o) $(TEST_ENGINE) $(O)/test/main.cpp.o
$(O)/$(TEST_NAME) $(E)/$(TEST_NAME) $(O)/gpu-$(TEST_NAME):
	$(call link,$(CATCH2_LIBS))

# Waiting threads spin briefly: longer is many times slower on a busy machine. train_gpt: llmc/platform/omp_spin.h.
export GOMP_SPINCOUNT ?= 1000
