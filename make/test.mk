# Targets: test (tests of the host, and of kernels on the emulated GPU), test-all, test-gpu.

# Starts make again, because it must find what setup.sh has installed.
SUBMAKE = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))

# OP that names no test file is a tag. Checked before anything is compiled.
ifneq ($(and $(OP),$(filter test run-tests run-emulated test-gpu run-gpu sanitize tsan msan race,$(MAKECMDGOALS))),)
  NAMES := $(sort $(OP_TESTS) $(shell grep -ohE '\[[a-z_0-9.]+\]' test/*/*_test.cpp test/*/*_cuda_test.cu | tr -d '[]') \
    $(patsubst %_cuda,%,$(patsubst %_test,%,$(basename $(notdir $(TEST_FILES))))))
  $(if $(OP_TESTS)$(filter $(OP),$(NAMES)),,$(error no test is called $(OP)$(addprefix ; near: ,$(shell \
    python3 -c 'import difflib, sys; print(*difflib.get_close_matches(*sys.argv[1:2], sys.argv[2:]))' $(OP) $(NAMES)))))
endif

test: ## build and run the tests; OP=layernorm runs one topic
	@USE_MPI=$(USE_MPI) DEPS_DIR=$(DEPS_DIR) scripts/setup.sh --tests
	@+rm -f build/counts; mkdir -p build; export ANVIL_COUNTS=build/counts; status=0; \
	  for part in run-tests run-emulated; do $(SUBMAKE) $$part VARIANT=$(HOST_VARIANT) || status=1; done; \
	  awk '{passed += $$1; failed += $$2} END {printf "\n%d passed, %d failed\n", passed, failed; exit passed + failed == 0}' \
	    build/counts || status=1; exit $$status

test-all: ## the same, kernels in all three orders of emulated threads
	@+$(MAKE) --no-print-directory test SCHEDULES='in_order reverse random'

# A topic may have tests of one kind only, and may not need the programs.
NEEDED_PROGRAMS = $(if $(shell $(RUN_PROGRAMS) $(TEST_FILES)),$(PROGRAMS))
# Without SCHEDULES, which may be in the environment: only emulated threads have an order.
run-tests: $(if $(TESTS),$(O)/$(TEST_NAME) $(NEEDED_PROGRAMS))
	$(if $(TESTS),@CXX='$(CXX)' SCHEDULES= ANVIL_PROGRAMS=$(or $(BIN),./) make/run_tests.sh $(JOBS) $(O)/$(TEST_NAME) '$(OP)' $(TEST_ARGS))

# Orders of the emulator's threads: a result that depends on them is wrong. One topic runs in all of them, everything in the first.
SCHEDULES ?= $(if $(OP),in_order reverse random,in_order)
run-emulated: $(if $(EMULATED_TESTS),$(E)/$(TEST_NAME) $(if $(NEEDED_PROGRAMS),$(EMULATED_PROGRAMS)))
	$(if $(EMULATED_TESTS),@CXX='$(CXX)' SCHEDULES='$(SCHEDULES)' ANVIL_PROGRAMS=$(E)/ make/run_tests.sh $(JOBS) $(E)/$(TEST_NAME) '$(OP)' $(TEST_ARGS))

# The linker keeps the first copy of an inline function, so optimized objects come first.
$(O)/$(TEST_NAME): $(OPS_TESTS) $(TEST_ENGINE) $(filter-out $(OPS_TESTS),$(TESTS)) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

# The emulator comes first: the race checker must not call an instrumented copy of an inline function.
$(E)/$(TEST_NAME): $(TEST_EMULATED) $(NEEDED_KERNELS) $(EMULATED_TESTS) $(TEST_ENGINE) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

$(O)/gpu-$(TEST_NAME): $(GPU_TESTS) $(TEST_ENGINE) $(O)/test/main.cpp.o
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

test-gpu: ## the kernels' tests on a GPU; OP=layernorm runs one topic
	@$(if $(HAVE_CUDA),,echo 'make test-gpu: missing $(CUDA_MISSING)' >&2; exit 2)
	@+$(SUBMAKE) run-gpu VARIANT=cuda

run-gpu: $(O)/gpu-$(TEST_NAME) $(NEEDED_PROGRAMS)
	@ANVIL_PROGRAMS=$(or $(BIN),./) $(O)/gpu-$(TEST_NAME) $(if $(OP),'[$(OP)]') $(TEST_ARGS)
