# Targets: lint, format, tidy, debug, compile_commands.json, install, info, help.

# Prefers the version that setup.sh installs (it may just have done so), because the result depends on the version.
CLANG_FORMAT = $$(ls $(DEPS_DIR)/lint/bin/clang-format 2>/dev/null || echo clang-format)

lint: ## layers, mirrored files, format, scripts; WARNINGS=1 compiles all there is, too
	@DEPS_DIR=$(DEPS_DIR) scripts/setup.sh $(if $(WARNINGS),--tests) --lint
	@+CLANG_FORMAT=$(CLANG_FORMAT) SUBMAKE='$(SUBMAKE)' WARNINGS='$(WARNINGS)' dev/lint/lint.sh
format: ## rewrite all sources with clang-format
	@DEPS_DIR=$(DEPS_DIR) scripts/setup.sh --lint
	@git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 $(CLANG_FORMAT) -i
objects: $(OBJECTS)

compile_commands.json: FORCE ## for editors (clangd) and clang-tidy: how each file is compiled
	$(Q)$(SUBMAKE) $(GENERATED:$(O)/%=build/$(HOST_VARIANT)/%) VARIANT=$(HOST_VARIANT)
	$(Q)$(SUBMAKE) -nBk V=1 JOIN= PRECOMPILED= OP_TESTS='$(ALL_TESTS)' VARIANT=$(HOST_VARIANT) objects 2>/dev/null | \
	  python3 make/compile_commands.py > $@
tidy: compile_commands.json ## clang-tidy on changed files (.clang-tidy). dev/lint/tidy.sh --all: on all
	@dev/lint/tidy.sh
debug: ## programs for a debugger, in build/debug: no optimization, all variables
	@+$(SUBMAKE) all VARIANT=debug OPT=-O0 DEBUG_INFO=-g CCACHE=
	@echo 'GOMP_SPINCOUNT=1000 gdb --args build/debug/train_gpt ...    (so that the program does not start itself again)'
install: all ## programs, man page, completion for bash: into PREFIX (/usr/local), under DESTDIR
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh $(BIN)
uninstall: ## what `make install` put there
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh --uninstall

# $(call row,NAME,FOUND,WHY NOT)
row = @printf '%-14s %s\n' '$(1)' '$(or $(2),no: $(3))'
optional_row = $(call row,$(1),$(if $(IS_$(2)),$($(2)_LIB)),$(or $($(2)_TOO_OLD),$($(2)_LIB:%=% is not used),\
  not found; set $(2)_HOME))
info: ## what was found, where, and why something was not
	$(call row,compiler,$(if $(CXX_REFUSED),,$(CXX_VERSION)),$(or $(subst error: ,,$(CXX_REFUSED)),$(CXX) does not run))
	$(call row,processor,$(if $(filter only,$(LEVELS)),$(ARCH),each of: $(LEVELS)) on $(shell nproc) cores ($(MACHINE)))
	$(call row,OpenMP,$(if $(HAVE_OMP),yes),$(if $(filter 0,$(USE_OMP)),USE_OMP=0,$(CXX) -fopenmp does not link))
	$(call row,headers,$(if $(MISSING),,$(JSON_DIR) $(XXHASH_DIR)),missing $(MISSING); run scripts/setup.sh)
	$(call row,Catch2,$(CATCH2_DIR:%=% (version $(if $(CATCH2_LIBS),3,2))),not found; `make test` installs it)
	$(call row,CUDA,$(if $(filter-out 0,$(USE_CUDA)),$(HAVE_CUDA:%=% ($(CUDA_VERSION)) for sm $(GPU_ARCHS)$(if \
	  $(filter-out $(CXX),$(NVCC_CXX)),$(,) host code by $(NVCC_CXX)))),$(if \
	  $(filter 0,$(USE_CUDA)),USE_CUDA=0,missing $(CUDA_MISSING)))
	$(call row,cuBLASLt,$(CUBLASLT_LIB),not found)
	$(call optional_row,cuDNN,CUDNN)
	$(call optional_row,NCCL,NCCL)
	$(call row,MPI,$(if $(IS_MPI),$(MPI_LIB)),$(if $(filter 0,$(USE_MPI)),USE_MPI=0,not found; `make test` installs it))
	$(call row,ccache,$(CCACHE),not found; without it a clean build recompiles everything)
	$(call row,build folder,$(O))
	$(call row,version,$(VERSION)$(,) build $(BUILD_ID))
help: ## this list
	@awk -F':.*## ' '/^[a-z_.-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile make/*.mk
	@echo '  USE_CUDA USE_CUDNN USE_NCCL USE_MPI USE_OMP = auto|0|1'
	@echo '  CXX CPU_ARCH OPT DEBUG_INFO CXXFLAGS_EXTRA CCACHE JOIN DEPS_DIR JOBS PREFIX DESTDIR V=1'
clean: ## remove what was built
	rm -rf build train_gpt data/tokenize
