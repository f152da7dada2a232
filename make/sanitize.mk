# Targets: race, sanitize, tsan, msan, fuzz, libcxx, darwin-syntax, aarch64: the tests in other builds.

# $(call try,WHAT THE TARGET NEEDS,COMMANDS): COMMANDS, unless something is missing
try = $(if $(strip $(1)),@echo '$@: skipped: it needs $(strip $(1))',@$(2))
CLANG ?= $(firstword $(foreach c,$(patsubst %,clang++-%,22 21 20 19 18 17 16) clang++,$(shell command -v $(c))))
# $(call clang_for,SANITIZER,PROGRAM): what is missing if CLANG cannot link the program
clang_for = $(if $(call builds,$(CLANG) -fsanitize=$(1),$(2)),,a clang++ whose -fsanitize=$(1) links (scripts/setup.sh \
  --clang))
KERNEL_TESTS = $(SUBMAKE) run-emulated KERNELS_ONLY=1

race: ## the kernels' tests on the emulator under its race checker, threads in reverse unless OP is set
	$(call try,$(if $(IS_CLANG),g++: dev/emulator/race.cpp answers what it calls),\
	  +$(KERNEL_TESTS) RACE=1 SCHEDULES=$(if $(OP),in_order,reverse) VARIANT=$(HOST_VARIANT))

# clang++ 16 or newer, if it has OpenMP, compiles in half the time. Without MPI, which has small leaks, and the tests
# tagged [plain]: long runs of what shorter tests cover, and tests that run no program of Anvil's. Tests and cold code
# compute little and are not optimized. detect_stack_use_after_return=0: the emulator has a thousand stacks per kernel.
SANITIZERS = -fsanitize=address,undefined -fno-sanitize=null,object-size,vptr,pointer-overflow -fno-sanitize-recover=all
CLANG_PROBE  = \043include <omp.h>\nstruct P { int a; }; int main() { auto [a] = P(); return [a] { return a; }(); }
SANITIZE_CXX = $(if $(and $(filter default,$(origin CXX)),\
  $(call builds,$(CLANG) -std=c++20 $(SANITIZERS) -fopenmp,$(CLANG_PROBE))),$(CLANG),$(CXX))
sanitize: ## all tests, kernels too, under AddressSanitizer and UndefinedBehaviorSanitizer
	@+SCHEDULES=in_order WITHOUT_TESTS='~[plain]' KMP_BLOCKTIME=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  ASAN_OPTIONS=$(ASAN_OPTIONS):abort_on_error=0:detect_stack_use_after_return=0 \
	  LSAN_OPTIONS=suppressions=$(CURDIR)/test/leaks_of_others.txt:print_suppressions=0 \
	  $(addprefix ASAN_SYMBOLIZER_PATH=,$(wildcard $(dir $(realpath $(SANITIZE_CXX)))llvm-symbolizer)) \
	  $(MAKE) --no-print-directory test VARIANT=sanitize CXX=$(SANITIZE_CXX) USE_MPI=0 OPT=-O1 TEST_OPT=-O0 \
	  CXXFLAGS_EXTRA='$(SANITIZERS) -fno-omit-frame-pointer'

# The host's threads: readers, savers, watchdogs, ranks. Without OpenMP, whose library is not instrumented.
tsan: ## the host's tests under ThreadSanitizer
	@+TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:report_thread_leaks=0:second_deadlock_stack=1 \
	  WITHOUT_TESTS='~[plain]' $(SUBMAKE) run-tests VARIANT=tsan USE_OMP=0 USE_MPI=0 OPT=-O1 TEST_OPT=-O0 \
	  CXXFLAGS_EXTRA='-fsanitize=thread -fno-omit-frame-pointer'

# MemorySanitizer expects every part of a program to be instrumented. The standard library is not, so only memory that
# kernels use is checked, which dev/emulator poisons. Without OpenMP, whose library is not instrumented either.
MSAN_FLAGS := -fsanitize=memory -fsanitize-ignorelist=dev/emulator/msan_ignored.txt -mllvm -msan-poison-stack=0 \
  -fno-sanitize-memory-param-retval -fno-sanitize-memory-use-after-dtor -w -fno-omit-frame-pointer
msan: ## the kernels' tests on the emulator under clang's MemorySanitizer
	$(call try,$(call clang_for,memory,int main() {}),\
	  +MSAN_SYMBOLIZER_PATH=$(dir $(realpath $(CLANG)))llvm-symbolizer \
	  MSAN_OPTIONS=poison_in_malloc=0:poison_in_free=0 $(KERNEL_TESTS) SCHEDULES=in_order VARIANT=msan \
	  CXX=$(CLANG) USE_OMP=0 USE_MPI=0 OPT=-O1 TEST_OPT=-O0 EMULATED_OPT=-O1 CXXFLAGS_EXTRA='$(MSAN_FLAGS)')

# The fuzzer NAME is test/fuzz/NAME_fuzz.cpp with the initial corpus test/fuzz/corpus/NAME/. Its findings and new corpus
# files go to the build folder. Fuzzers read files, so the training code is not linked.
FUZZERS    := $(FUZZ_FILES:test/fuzz/%_fuzz.cpp=%)
FUZZED     := $(if $(OP),$(filter $(OP),$(FUZZERS)),$(FUZZERS))
FUZZ_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -w
SECONDS    ?= 60
fuzz: ## readers of files under clang's libFuzzer; OP=safetensors fuzzes one, SECONDS=600 for so long each
	$(if $(FUZZED),,$(error no fuzzer$(if $(OP), test/fuzz/$(OP)_fuzz.cpp); there are: $(FUZZERS)))
	$(call try,$(call clang_for,fuzzer$(,)address,extern "C" int LLVMFuzzerTestOneInput(const char*$(,) unsigned long) { \
	  return 0; }),+UBSAN_OPTIONS=print_stacktrace=1 $(SUBMAKE) run-fuzz VARIANT=fuzz CXX=$(CLANG) USE_OMP=0 USE_MPI=0 \
	  OPT=-O1 CXXFLAGS_EXTRA='$(FUZZ_FLAGS)')
# Checks that the fuzzers compile, with any compiler.
fuzz-objects: $(FUZZ_FILES:%=$(O)/%.o)
run-fuzz: $(FUZZED:%=$(O)/fuzz/%)
	@set -e; for name in $(FUZZED); do echo "fuzz $$name: $(SECONDS) s"; mkdir -p $(O)/fuzz/found/$$name; \
	  $(O)/fuzz/$$name -max_total_time=$(SECONDS) -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
	    -print_funcs=0 -print_final_stats=1 -artifact_prefix=$(O)/fuzz/found/$$name- \
	    $(O)/fuzz/found/$$name test/fuzz/corpus/$$name; done
$(O)/fuzz/%: $(O)/test/fuzz/%_fuzz.cpp.o $(KERNELS) $(call objects,$(filter-out \
  $(patsubst %,llmc/%/%,comm optim run checkpoint train commands plan),$(FILES)))
	$(call link,-fsanitize=fuzzer)

# With libc++, Darwin's C++ library: no warning, and the bits of g++.
LIBCXX       = $(wildcard $(dir $(realpath $(shell command -v $(CLANG))))../include/c++/v1)
LIBCXX_NEEDS = $(if $(LIBCXX),,clang++ with libc++ (scripts/setup.sh --libcxx))
libcxx: ## the golden run, compiled by clang++ with libc++
	$(call try,$(LIBCXX_NEEDS),+$(SUBMAKE) run-tests OP=golden VARIANT=libcxx CXX=$(CLANG) CPU_ARCH=here USE_MPI=0 \
	  OPT=-O1 TEST_OPT=-O0 DEBUG_INFO=-g0 CXXFLAGS_EXTRA='-stdlib=libc++ -Werror')
# Parses what a Mac compiles, with libc++, and musl's C headers without what only Linux has (dev/darwin/). No SDK.
DARWIN_NEEDS = $(if $(wildcard /usr/include/$(MACHINE)-linux-musl),$(LIBCXX_NEEDS),musl-dev (scripts/setup.sh --libcxx))
DARWIN_FLAGS = --target=arm64-apple-macos14 -fsyntax-only -Werror -nostdinc++ -nostdlibinc -isystem $(LIBCXX) \
  -idirafter build/darwin/include -D_BSD_SOURCE -D_XOPEN_SOURCE=700 -include dev/darwin/darwin.h
darwin-syntax: ## parses what a Mac compiles: calls that only Linux has are errors
	$(call try,$(DARWIN_NEEDS),+set -e; dev/darwin/headers.sh build/darwin/include; mkdir -p build/darwin/deps/include; \
	  ln -sfn $(abspath $(JSON_DIR)/nlohmann $(XXHASH_DIR)/xxhash.h) build/darwin/deps/include/; \
	  $(SUBMAKE) parsed VARIANT=darwin DEPS_DIR=build/darwin/deps IS_DARWIN=1 CXX=$(CLANG) CPU_ARCH=armv8-a USE_CUDA=0 \
	    USE_MPI=0 OPT= DEBUG_INFO= CCACHE= CXXFLAGS_EXTRA='$(DARWIN_FLAGS)')
parsed: $(ENGINE) $(O)/train_gpt.cu.o $(O)/data/tokenize.cpp.o

# Cross-compiled on Debian. Third-party headers are this machine's: they do not depend on the processor, except for
# those of Catch2 3, which has a library. g++ 12 for aarch64 crashes when it optimizes the CUDA emulator's own code.
# Leaves out tests that run programs, slow under qemu, except for the golden run, whose losses must be those of x86.
AARCH64_NEEDS = $(if $(and $(call succeeds,command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64),\
  $(wildcard $(CATCH2_DIR)/catch2/catch.hpp)),,apt-get install g++-aarch64-linux-gnu qemu-user catch2 (version 2))
AARCH64_BUILD = DEPS_DIR=build/aarch64/deps VARIANT=aarch64 CXX=aarch64-linux-gnu-g++ CPU_ARCH=armv8-a USE_MPI=0 \
  OPT=-O1 EMULATOR_OPT=-O1 CXXFLAGS_EXTRA=-DANVIL_QEMU
aarch64: ## tests of ops, kernels and models, and the golden run, on aarch64: cross-compiled, under qemu
	$(call try,$(AARCH64_NEEDS),+mkdir -p build/aarch64/deps/include; ln -sfn $(abspath $(JSON_DIR)/nlohmann \
	    $(XXHASH_DIR)/xxhash.h $(CATCH2_DIR)/catch2) build/aarch64/deps/include/; \
	  export ANVIL_RUN_WITH='qemu-aarch64 -L /usr/aarch64-linux-gnu' SCHEDULES=in_order; status=0; \
	  for what in 'run-tests KERNELS_ONLY=1' 'run-emulated KERNELS_ONLY=1' 'run-tests OP=golden'; do \
	    $(SUBMAKE) $$what $(AARCH64_BUILD) || status=1; done; exit $$status)
