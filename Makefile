# Anvil's build. `make help` lists the targets, `make info` says what was found and why something was not.
#
#   make                        ./train_gpt and ./data/tokenize, for this machine
#   make test                   the whole test suite, without a GPU; `make test OP=layernorm` runs one topic
#   make test-gpu               the tests of kernels on this machine's GPU
#   make USE_OMP=0 CXX=clang++  any variable can be set on the command line, in the environment or in config.mk
#
# Objects are in build/VARIANT/, with a copy of their flags: changed flags rebuild everything. The parts of the Makefile are in
# make/, included in this order: find (compilers and libraries), flags, files, rules, stamps; then the targets: test, sanitize,
# aarch64, nvidia, bench, tools, install.

-include config.mk

USE_CUDA  ?= auto
USE_CUDNN ?= auto
USE_NCCL  ?= auto
USE_MPI   ?= auto
USE_OMP   ?= auto
# Headers and libraries for machines where nothing can be installed: DEPS_DIR/include, DEPS_DIR/lib.
DEPS_DIR  ?= .deps
# all: compiles the CPU kernels once for each ISA level of make/flags.mk; the program selects the best one at run time. here: only
# for this processor's level; a later `make` compiles only the other levels. Or a single value of -march: native, x86-64-v3, ...
CPU_ARCH  ?= $(if $(filter cpu cuda,$(VARIANT)),$(if $(KNOWS_LEVELS),all,native),native)
OPT       ?= -O3
# -g1: line numbers, which sanitizers report, for a tenth more compile time. -g: also variables, for debuggers, for another third.
# Profilers name functions without either.
DEBUG_INFO ?= $(if $(filter cpu cuda,$(VARIANT)),,-g1)
# How many files to compile at once in `make test`, `make lint` and `make sanitize` when no -j is given.
JOBS      ?= $(shell nproc 2>/dev/null || echo 1)
# `CXX ?= g++` would have no effect, because make itself defines CXX.
ifeq ($(origin CXX),default)
  CXX := g++
endif
ifeq ($(origin CCACHE),undefined)
  CCACHE := $(shell command -v ccache 2>/dev/null)
endif

# A comma, for use inside the arguments of a function.
, := ,

include $(patsubst %,make/%.mk,find flags files)

# V=1 shows whole commands.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '%-5s %s\n' $(1) $(2))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all objects test test-all run-tests run-emulated test-gpu run-gpu race sanitize tsan msan aarch64 fuzz run-fuzz fuzz-objects cuda-check cuda-link run-cuda-link engine bench bench-scaling bench-cpu run-bench-cpu bench-smoke run-bench-smoke \
  lint format info help install uninstall clean headers FORCE

all: $(LONGEST) $(PROGRAMS) ## build what this machine can (the default)
	$(if $(PASSED_OVER),@echo 'note: passed over: $(PASSED_OVER)')

$(BIN)train_gpt: $(O)/train_gpt.cu.o $(ENGINE)
$(BIN)data/tokenize: $(O)/data/tokenize.cpp.o $(ENGINE)
$(PROGRAMS):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $(filter %.o,$^) -o $@ $(LDFLAGS)

$(E)/train_gpt: $(O)/train_gpt.cu.o $(EMULATED) $(EMULATED_KERNELS) $(filter-out $(O)/llmc/commands/cuda_backend%,$(ENGINE)) $(EMULATED_BACKENDS)
$(E)/data/tokenize: $(O)/data/tokenize.cpp.o $(ENGINE)
$(EMULATED_PROGRAMS):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)

include $(patsubst %,make/%.mk,rules stamps test sanitize aarch64 nvidia bench tools install)

help: ## this list
	@awk -F':.*## ' '/^[a-z_.-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile $(patsubst %,make/%.mk,test bench tools install sanitize aarch64 nvidia)
	@echo '  USE_CUDA USE_CUDNN USE_NCCL USE_MPI USE_OMP = auto|0|1; CXX CPU_ARCH OPT DEBUG_INFO CXXFLAGS_EXTRA CCACHE JOIN DEPS_DIR JOBS PREFIX DESTDIR V=1'

clean: ## remove what was built
	rm -rf build train_gpt data/tokenize

-include $(OBJECTS:.o=.d)
