# Targets: race, sanitize, tsan, msan, fuzz.

# Only for g++: dev/emulator/race.cpp implements the calls that g++ generates.
race: ## the kernels' tests on the emulator under its race checker
	$(if $(findstring clang,$(CXX_VERSION)),@echo 'race: skipped: $(CXX) is clang$(,) and the checker answers what g++ calls',\
	  @+$(SUBMAKE) run-emulated RACE=1 KERNELS_ONLY=1 SCHEDULES=in_order VARIANT=$(HOST_VARIANT))

CLANG = $(firstword $(foreach c,$(patsubst %,clang++-%,22 21 20 19 18 17 16) clang++,$(shell command -v $(c))))
# Uses clang++ 16 or newer if it has OpenMP, which compiles in half the time. Without MPI, which has small leaks. Without the tests
# tagged [plain]: long runs of what shorter tests cover, and tests that run no program of Anvil's. Tests and cold code compute little
# and are not optimized, which halves the compile time. detect_stack_use_after_return=0, because the emulator has a thousand stacks
# per kernel.
SANITIZERS = -fsanitize=address,undefined -fno-sanitize=null,object-size,vptr,pointer-overflow -fno-sanitize-recover=all
SANITIZE_CXX ?= $(or $(if $(filter file,$(origin CXX)),$(CLANG_SANITIZES)),$(CXX))
CLANG_SANITIZES = $(if $(CLANG),$(shell printf '\043include <omp.h>\nstruct P { int a, b; };\n \
  int main() { auto [a, b] = P(); return [b] { return b; }() + a + omp_get_thread_num(); }' | \
  $(CLANG) -std=c++20 $(SANITIZERS) -fopenmp -x c++ - -o /dev/null 2>/dev/null && echo $(CLANG)))
sanitize: ## all tests, kernels too, under AddressSanitizer and UndefinedBehaviorSanitizer
	@+SCHEDULES=in_order WITHOUT_TESTS='~[plain]' ASAN_OPTIONS=$(ASAN_OPTIONS):abort_on_error=0:detect_stack_use_after_return=0 \
	  UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=suppressions=$(CURDIR)/test/leaks_of_others.txt:print_suppressions=0 KMP_BLOCKTIME=0 \
	  $(addprefix ASAN_SYMBOLIZER_PATH=,$(wildcard $(dir $(realpath $(SANITIZE_CXX)))llvm-symbolizer)) \
	  $(MAKE) --no-print-directory test VARIANT=sanitize CXX=$(SANITIZE_CXX) USE_MPI=0 OPT=-O1 TEST_OPT=-O0 EMULATED_OPT=-O0 COLD_OPT=-O0 \
	  CXXFLAGS_EXTRA='$(SANITIZERS) -fno-omit-frame-pointer'

# Checks the host's threads: readers, savers, watchdogs, ranks. Without OpenMP, whose library is not instrumented, so ThreadSanitizer
# would not see its barriers.
TSAN_ENVIRONMENT = TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:report_thread_leaks=0:second_deadlock_stack=1
tsan: ## the host's tests under ThreadSanitizer
	@+$(TSAN_ENVIRONMENT) WITHOUT_TESTS='~[plain]' $(SUBMAKE) run-tests VARIANT=tsan USE_OMP=0 USE_MPI=0 OPT=-O1 TEST_OPT=-O0 \
	  CXXFLAGS_EXTRA='-fsanitize=thread -fno-omit-frame-pointer'

# Only clang++ has MemorySanitizer, which expects every part of a program to be instrumented. The standard library is not, so only
# memory that kernels use is checked, which dev/emulator poisons, but not the host's heap and stack. Without OpenMP, whose library is
# not instrumented either. Clang before 16 cannot capture structured bindings in lambdas.
MSAN_CXX ?= $(CLANG)
MSAN_WORKS = $(if $(MSAN_CXX),$(shell echo 'int main() {}' | $(MSAN_CXX) -fsanitize=memory -x c++ - -o /dev/null 2>/dev/null && echo 1))
msan: ## the kernels' tests on the emulator under clang's MemorySanitizer
	$(if $(MSAN_WORKS),@+MSAN_SYMBOLIZER_PATH=$(dir $(realpath $(MSAN_CXX)))llvm-symbolizer \
	  MSAN_OPTIONS=poison_in_malloc=0:poison_in_free=0 $(SUBMAKE) run-emulated VARIANT=msan CXX=$(MSAN_CXX) \
	  USE_OMP=0 USE_MPI=0 OPT=-O1 COLD_OPT=-O0 KERNELS_ONLY=1 SCHEDULES=in_order CXXFLAGS_EXTRA='-fsanitize=memory -fsanitize-ignorelist=dev/emulator/msan_ignored.txt -mllvm \
	  -msan-poison-stack=0 -fno-sanitize-memory-param-retval -fno-sanitize-memory-use-after-dtor -w -fno-omit-frame-pointer',\
	  @echo 'msan: skipped: no clang++ whose -fsanitize=memory links (scripts/setup.sh --clang)')

# The fuzzer NAME is test/fuzz/NAME_fuzz.cpp with the initial corpus test/fuzz/corpus/NAME/. Its findings and new corpus files go to the
# build folder. Fuzzers read files, so the training code is not linked.
FUZZ_CXX ?= $(MSAN_CXX)
FUZZERS  := $(patsubst test/fuzz/%_fuzz.cpp,%,$(sort $(wildcard test/fuzz/*_fuzz.cpp)))
FUZZED   := $(if $(OP),$(filter $(OP),$(FUZZERS)),$(FUZZERS))
SECONDS  ?= 60
FUZZ_WORKS = $(if $(FUZZ_CXX),$(shell echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' | \
  $(FUZZ_CXX) -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null && echo 1))
fuzz: ## readers of files under clang's libFuzzer; OP=safetensors fuzzes one, SECONDS=600 for so long each
	$(if $(FUZZED),,$(error no fuzzer$(if $(OP), test/fuzz/$(OP)_fuzz.cpp); there are: $(FUZZERS)))
	$(if $(FUZZ_WORKS),@+UBSAN_OPTIONS=print_stacktrace=1 $(SUBMAKE) run-fuzz VARIANT=fuzz CXX=$(FUZZ_CXX) USE_OMP=0 USE_MPI=0 OPT=-O1 \
	  CXXFLAGS_EXTRA='-fsanitize=fuzzer-no-link$(,)address$(,)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -w',\
	  @echo 'fuzz: skipped: no clang++ whose -fsanitize=fuzzer links (scripts/setup.sh --clang)')

# Checks that the fuzzers compile, with any compiler.
fuzz-objects: $(FUZZERS:%=$(O)/test/fuzz/%_fuzz.cpp.o)

run-fuzz: $(FUZZED:%=$(O)/fuzz/%)
	@set -e; for name in $(FUZZED); do echo "fuzz $$name: $(SECONDS) s"; mkdir -p $(O)/fuzz/found/$$name; \
	  $(O)/fuzz/$$name -max_total_time=$(SECONDS) -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_funcs=0 -print_final_stats=1 \
	    -artifact_prefix=$(O)/fuzz/found/$$name- $(O)/fuzz/found/$$name test/fuzz/corpus/$$name; done

$(O)/fuzz/%: $(O)/test/fuzz/%_fuzz.cpp.o $(filter-out $(addprefix $(O)/llmc/,comm/% optim/% run% checkpoint/% train/% commands/% plan/%),$(ENGINE))
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) -fsanitize=fuzzer $^ -o $@ $(LDFLAGS)
