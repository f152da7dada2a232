# Targets: lint, format, tidy, debug, compile_commands.json, info.

SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
# Prefers the version that setup.sh installs, because the result depends on the version. Evaluated when it is used, because setup.sh
# may just have installed it.
CLANG_FORMAT = $$(ls $(DEPS_DIR)/lint/bin/clang-format 2>/dev/null || echo clang-format)

lint: ## layers, mirrored files, format, scripts; WARNINGS=1 compiles all there is, too
	@DEPS_DIR=$(DEPS_DIR) scripts/setup.sh $(if $(WARNINGS),--tests) --lint
	@+CLANG_FORMAT=$(CLANG_FORMAT) SUBMAKE='$(SUBMAKE)' WARNINGS='$(WARNINGS)' dev/lint/lint.sh

objects: $(OBJECTS)

compile_commands.json: FORCE ## for editors (clangd) and clang-tidy: how each file is compiled
	$(Q)$(SUBMAKE) $(patsubst %,build/$(HOST_VARIANT)/generated/%.inc,registers modeling_anvil) VARIANT=$(HOST_VARIANT)
	$(Q)$(SUBMAKE) -nBk V=1 JOIN= PRECOMPILED= VARIANT=$(HOST_VARIANT) objects 2>/dev/null | python3 make/compile_commands.py > $@.tmp
	$(Q)mv $@.tmp $@

tidy: compile_commands.json ## clang-tidy on changed files (.clang-tidy); skipped where it is missing. dev/lint/tidy.sh --all: on all
	@dev/lint/tidy.sh

debug: ## programs for a debugger, in build/debug: no optimization, all variables
	@+$(SUBMAKE) all VARIANT=debug OPT=-O0 DEBUG_INFO=-g CCACHE=
	@echo 'GOMP_SPINCOUNT=1000 gdb --args build/debug/train_gpt ...    (with that set, the program does not start itself again)'

format: ## rewrite all sources with clang-format
	@DEPS_DIR=$(DEPS_DIR) scripts/setup.sh --lint
	@$(CLANG_FORMAT) -i $(SOURCES)

# $(call row,NAME,FOUND,WHY NOT)
row = @printf '%-14s %s\n' '$(1)' '$(or $(2),no: $(3))'
CUDA_FOUND = $(if $(HAVE_CUDA),$(HAVE_CUDA) ($(CUDA_VERSION)) for sm $(GPU_ARCHS)$(if $(filter-out $(CXX),$(NVCC_CXX)),$(,) host code by $(NVCC_CXX)))
info: ## what was found, where, and why something was not
	$(call row,compiler,$(if $(CXX_REFUSED),,$(CXX_VERSION)),$(or $(subst error: ,,$(CXX_REFUSED)),$(CXX) does not run))
	$(call row,processor,$(if $(filter all here,$(CPU_ARCH)),each of: $(LEVELS),$(ARCH)) on $(shell nproc) cores ($(shell uname -m)))
	$(call row,OpenMP,$(if $(HAVE_OMP),yes),$(if $(filter 0,$(USE_OMP)),USE_OMP=0,$(CXX) -fopenmp does not link))
	$(call row,nlohmann-json,$(JSON_DIR),not found; run scripts/setup.sh)
	$(call row,xxHash,$(XXHASH_DIR),not found; run scripts/setup.sh)
	$(call row,Catch2,$(CATCH2_DIR)$(if $(CATCH2_DIR), (version $(if $(CATCH2_LIBS),3,2))),not found; `make test` installs it)
	$(call row,CUDA,$(if $(filter-out 0,$(USE_CUDA)),$(CUDA_FOUND)),$(if $(filter 0,$(USE_CUDA)),USE_CUDA=0,missing $(CUDA_MISSING)))
	$(call row,cuBLASLt,$(CUBLASLT_LIB),not found)
	$(call row,cuDNN,$(if $(IS_CUDNN),$(CUDNN_LIB)),$(or $(CUDNN_TOO_OLD),$(if $(CUDNN_LIB),$(CUDNN_LIB) is not used,not found; set CUDNN_HOME)))
	$(call row,NCCL,$(if $(IS_NCCL),$(NCCL_LIB)),$(or $(NCCL_TOO_OLD),$(if $(NCCL_LIB),$(NCCL_LIB) is not used,not found; set NCCL_HOME)))
	$(call row,MPI,$(if $(IS_MPI),$(MPI_LIB)),$(if $(filter 0,$(USE_MPI)),USE_MPI=0,not found; `make test` installs Open MPI or set MPI_HOME))
	$(call row,ccache,$(CCACHE),not found; without it a clean build recompiles everything)
	$(call row,build folder,$(O))
	$(call row,version,$(VERSION)$(,) build $(BUILD_ID))
