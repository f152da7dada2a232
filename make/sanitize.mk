# Targets: race, sanitize, tsan, msan, fuzz, aarch64: the tests in other builds.

# $(call try,TARGET,WHAT IT NEEDS,COMMANDS): COMMANDS, unless something is missing
try = $(if $(strip $(2)),@echo '$(1): skipped: it needs $(strip $(2))',@$(3))
CLANG = $(firstword $(foreach c,$(patsubst %,clang++-%,22 21 20 19 18 17 16) clang++,$(shell command -v $(c))))
KERNEL_TESTS = $(SUBMAKE) run-emulated KERNELS_ONLY=1 SCHEDULES=in_order

race: ## the kernels' tests on the emulator under its race checker
	$(call try,race,$(if $(IS_CLANG),g++: dev/emulator/race.cpp answers what it calls),\
	  +$(KERNEL_TESTS) RACE=1 VARIANT=$(HOST_VARIANT))

# clang++ 16 or newer, if it has OpenMP, compiles in half the time. Without MPI, which has small leaks, and the tests
# tagged [plain]: long runs of what shorter tests cover, and tests that run no program of Anvil's. Tests and cold code
# compute little and are not optimized. detect_stack_use_after_return=0: the emulator has a thousand stacks per kernel.
SANITIZERS = -fsanitize=address,undefined -fno-sanitize=null,object-size,vptr,pointer-overflow -fno-sanitize-recover=all
SANITIZE_CXX ?= $(or $(if $(filter file,$(origin CXX)),$(CLANG_SANITIZES)),$(CXX))
CLANG_SANITIZES = $(if $(CLANG),$(if $(call builds,$(CLANG) -std=c++20 $(SANITIZERS) -fopenmp,\043include <omp.h>\n\
  struct P { int a$(,) b; }; int main() { auto [a$(,) b] = P(); return [b] { return b; }() + a + omp_get_thread_num(); \
  }),$(CLANG)))
sanitize: ## all tests, kernels too, under AddressSanitizer and UndefinedBehaviorSanitizer
	@+SCHEDULES=in_order WITHOUT_TESTS='~[plain]' KMP_BLOCKTIME=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  ASAN_OPTIONS=$(ASAN_OPTIONS):abort_on_error=0:detect_stack_use_after_return=0 \
	  LSAN_OPTIONS=suppressions=$(CURDIR)/test/leaks_of_others.txt:print_suppressions=0 \
	  $(addprefix ASAN_SYMBOLIZER_PATH=,$(wildcard $(dir $(realpath $(SANITIZE_CXX)))llvm-symbolizer)) \
	  $(MAKE) --no-print-directory test VARIANT=sanitize CXX=$(SANITIZE_CXX) USE_MPI=0 OPT=-O1 TEST_OPT=-O0 \
	  EMULATED_OPT=-O0 CXXFLAGS_EXTRA='$(SANITIZERS) -fno-omit-frame-pointer'

# The host's threads: readers, savers, watchdogs, ranks. Without OpenMP, whose library is not instrumented.
tsan: ## the host's tests under ThreadSanitizer
	@+TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:report_thread_leaks=0:second_deadlock_stack=1 \
	  WITHOUT_TESTS='~[plain]' $(SUBMAKE) run-tests VARIANT=tsan USE_OMP=0 USE_MPI=0 OPT=-O1 TEST_OPT=-O0 \
	  CXXFLAGS_EXTRA='-fsanitize=thread -fno-omit-frame-pointer'

# MemorySanitizer expects every part of a program to be instrumented. The standard library is not, so only memory that
# kernels use is checked, which dev/emulator poisons. Without OpenMP, whose library is not instrumented either.
MSAN_CXX ?= $(CLANG)
MSAN_FLAGS := -fsanitize=memory -fsanitize-ignorelist=dev/emulator/msan_ignored.txt -mllvm -msan-poison-stack=0 \
  -fno-sanitize-memory-param-retval -fno-sanitize-memory-use-after-dtor -w -fno-omit-frame-pointer
NO_CLANG = a clang++ whose -fsanitize=$(1) links (scripts/setup.sh --clang)
msan: ## the kernels' tests on the emulator under clang's MemorySanitizer
	$(call try,msan,$(if $(call builds,$(MSAN_CXX) -fsanitize=memory,int main() {}),,$(call NO_CLANG,memory)),\
	  +MSAN_SYMBOLIZER_PATH=$(dir $(realpath $(MSAN_CXX)))llvm-symbolizer \
	  MSAN_OPTIONS=poison_in_malloc=0:poison_in_free=0 $(KERNEL_TESTS) VARIANT=msan \
	  CXX=$(MSAN_CXX) USE_OMP=0 USE_MPI=0 OPT=-O1 TEST_OPT=-O0 CXXFLAGS_EXTRA='$(MSAN_FLAGS)')

# The fuzzer NAME is test/fuzz/NAME_fuzz.cpp with the initial corpus test/fuzz/corpus/NAME/. Its findings and new corpus
# files go to the build folder. Fuzzers read files, so the training code is not linked.
FUZZ_CXX   ?= $(MSAN_CXX)
FUZZERS    := $(FUZZ_FILES:test/fuzz/%_fuzz.cpp=%)
FUZZED     := $(if $(OP),$(filter $(OP),$(FUZZERS)),$(FUZZERS))
FUZZ_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -w
SECONDS    ?= 60
fuzz: ## readers of files under clang's libFuzzer; OP=safetensors fuzzes one, SECONDS=600 for so long each
	$(if $(FUZZED),,$(error no fuzzer$(if $(OP), test/fuzz/$(OP)_fuzz.cpp); there are: $(FUZZERS)))
	$(call try,fuzz,$(if $(call builds,$(FUZZ_CXX) -fsanitize=fuzzer$(,)address,extern "C" int LLVMFuzzerTestOneInput(\
	  const char*$(,) unsigned long) { return 0; }),,$(call NO_CLANG,fuzzer)),+UBSAN_OPTIONS=print_stacktrace=1 \
	  $(SUBMAKE) run-fuzz VARIANT=fuzz CXX=$(FUZZ_CXX) USE_OMP=0 USE_MPI=0 OPT=-O1 CXXFLAGS_EXTRA='$(FUZZ_FLAGS)')

# Checks that the fuzzers compile, with any compiler.
fuzz-objects: $(FUZZ_FILES:%=$(O)/%.o)

run-fuzz: $(FUZZED:%=$(O)/fuzz/%)
	@set -e; for name in $(FUZZED); do echo "fuzz $$name: $(SECONDS) s"; mkdir -p $(O)/fuzz/found/$$name; \
	  $(O)/fuzz/$$name -max_total_time=$(SECONDS) -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
	    -print_funcs=0 -print_final_stats=1 -artifact_prefix=$(O)/fuzz/found/$$name- \
	    $(O)/fuzz/found/$$name test/fuzz/corpus/$$name; done

NOT_FUZZED := $(patsubst %,llmc/%/%,comm optim run checkpoint train commands plan)
$(O)/fuzz/%: $(O)/test/fuzz/%_fuzz.cpp.o $(KERNELS) $(call objects,$(filter-out $(NOT_FUZZED),$(FILES)))
	$(call link,-fsanitize=fuzzer)

# Debian's names of the cross compiler and of the emulator (packages g++-aarch64-linux-gnu and qemu-user). Third-party
# headers are this machine's: they do not depend on the processor, except for those of Catch2 3, which has a library.
# g++ 12 for aarch64 crashes when it optimizes the CUDA emulator's own code.
AARCH64_CXX  ?= aarch64-linux-gnu-g++
AARCH64_RUN  ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
AARCH64_LACKS = $(if $(and $(call succeeds,command -v $(AARCH64_CXX) && command -v $(firstword $(AARCH64_RUN))),\
  $(wildcard $(CATCH2_DIR)/catch2/catch.hpp)),,apt-get install g++-aarch64-linux-gnu qemu-user catch2 (version 2))
AARCH64_BUILD = DEPS_DIR=build/aarch64/deps VARIANT=aarch64 CXX=$(AARCH64_CXX) CPU_ARCH=armv8-a USE_MPI=0 OPT=-O1 \
  EMULATOR_OPT=-O1 CXXFLAGS_EXTRA=-DANVIL_QEMU
# Leaves out tests that run programs, slow under qemu, except for the golden run, whose losses must be those of x86.
aarch64: ## tests of ops, kernels and models, and the golden run, on aarch64: cross-compiled, under qemu
	$(call try,aarch64,$(AARCH64_LACKS),\
	  +mkdir -p build/aarch64/deps/include; ln -sfn $(abspath $(JSON_DIR)/nlohmann \
	    $(XXHASH_DIR)/xxhash.h $(CATCH2_DIR)/catch2) build/aarch64/deps/include/; \
	  export ANVIL_RUN_WITH='$(AARCH64_RUN)' SCHEDULES=in_order; status=0; \
	  for what in 'run-tests KERNELS_ONLY=1' 'run-emulated KERNELS_ONLY=1' 'run-tests OP=golden'; do \
	    $(SUBMAKE) $$what $(AARCH64_BUILD) || status=1; done; exit $$status)
