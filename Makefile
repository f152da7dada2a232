# Anvil's build. `make help` lists the targets, `make info` says what was found and why something was not.
#
#   make                        ./train_gpt and ./data/tokenize, for this machine
#   make test                   the test suite, without a GPU; `make test OP=layernorm` runs one topic
#   make test-gpu               the tests of kernels on this machine's GPU
#   make USE_OMP=0 CXX=clang++  any variable can be set on the command line, in the environment or in config.mk
#
# Objects are in build/VARIANT/; changed flags rebuild them. How train_gpt is built: make/find.mk finds libraries,
# make/files.mk lists what is compiled, make/flags.mk has the flags, make/rules.mk compiles and links.

-include config.mk
$(foreach name,CUDA CUDNN NCCL MPI OMP,$(eval USE_$(name) ?= auto))
# Headers and libraries for machines where nothing can be installed: DEPS_DIR/include, DEPS_DIR/lib.
DEPS_DIR ?= .deps
# all: CPU kernels for each ISA level of make/flags.mk; the program selects the best one at run time. here: only for
# this processor's level; a later `make` compiles only the others. Or a value of -march: native, x86-64-v3, ...
CPU_ARCH ?= $(if $(and $(filter cpu cuda,$(VARIANT)),$(KNOWS_LEVELS)),all,native)
OPT      ?= -O3
# -g1: line numbers, which sanitizers report, for a tenth more compile time. -g: also variables, for another third.
DEBUG_INFO ?= $(if $(filter cpu cuda,$(VARIANT)),,-g1)
# How many files to compile at once in `make test`, `make lint` and `make sanitize` when no -j is given.
JOBS     ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1)
CCACHE   ?= $(shell command -v ccache)
CCACHE   := $(CCACHE)
# A comma, for use inside the arguments of a function.
, := ,
# V=1 shows whole commands. $(call say,WORD,WHAT): what comes before the command that makes a file
Q   := $(if $(V),,@)
say  = @mkdir -p $(@D)$(if $(V),,; printf '%-5s %s\n' $(1) $(2))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:
include $(patsubst %,make/%.mk,find flags files rules test sanitize bench nvidia tools)
all: $(LONGEST) $(PROGRAMS) ## build what this machine can (the default)
	$(if $(PASSED_OVER),@echo 'note: passed over: $(PASSED_OVER)')
$(REWRITTEN): FORCE
	$(rewrite)
-include $(shell find $(O) -name '*.d' 2>/dev/null)
.PHONY: all test FORCE
FORCE:
