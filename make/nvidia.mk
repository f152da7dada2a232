# Checks of the sources with nvcc and NVIDIA's libraries on a machine without a GPU.

NVDISASM ?= $(firstword $(wildcard $(CUDA_DIR:%=%/bin/nvdisasm) $(NVIDIA_WHEELS:%=%/cu13/bin/nvdisasm)))
cuda-check: ## every kernel compiled by nvcc: no spills, wide loads, registers as in doc/results/registers.txt (RENEW=1 writes it)
	$(if $(filter 100,$(NVCC_CHIPS)),@python3 dev/lint/check_kernels.py $(CUDA_DIR)/bin/nvcc --cxx $(CXX) $(addprefix --nvdisasm ,$(NVDISASM)) -j$(JOBS) $(if $(RENEW),--renew),\
	  @echo 'cuda-check: skipped: no nvcc that compiles for sm_100 (CUDA 12.8 or newer; CUDA_HOME)')

cuda-link: ## what a run on a GPU needs, compiled by nvcc for Hopper and linked with NVIDIA's libraries, not run
	@$(if $(HAVE_CUDA),,echo 'cuda-link: skipped: it needs $(CUDA_MISSING)')
	$(if $(HAVE_CUDA),@+$(SUBMAKE) engine VARIANT=$(HOST_VARIANT) && $(SUBMAKE) run-cuda-link VARIANT=cuda GPU_ARCHS=90 OPT=-O0)

engine: $(ENGINE) $(O)/train_gpt.cu.o $(O)/test/main.cpp.o

# A normal build would take a quarter of an hour on one core, mostly for headers. So here many files are joined into one, nothing is
# optimized (cuda-check compiles every kernel with optimization; ptxas 12.4 crashes without any), and objects that need no header of
# NVIDIA's are those of the host build.
J := $(O)/joined
FROM_HOST   = $(patsubst $(O)/%,build/$(HOST_VARIANT)/%,$(filter-out $(NVIDIA:%=$(O)/%.o),$(1))) $(filter $(NVIDIA:%=$(O)/%.o),$(1))
JOINED_NVCC = $(subst -O3 -g -x cu -lineinfo,-O0 -x cu -Xcicc -O0 -Xptxas -O$(if $(call older,$(CUDA_VERSION),12.6),1,0),$(NVCC))
TESTED_CU  := $(sort $(wildcard test/*/*_cuda_test.cu))
$(J)/tests_1.cu: JOINED = $(wordlist 1,22,$(TESTED_CU))
$(J)/tests_2.cu: JOINED = $(wordlist 23,$(words $(TESTED_CU)),$(TESTED_CU))
$(J)/benches.cu: JOINED = $(sort $(wildcard dev/bench/*.cu))
$(J)/tests_1.cu $(J)/tests_2.cu $(J)/benches.cu: make/join_sources.py $(TESTED_CU) $(wildcard dev/bench/*.cu)
	@mkdir -p $(@D)
	$(Q)python3 $< $(JOINED) > $@
$(J)/kernels.cu: $(CUDA_KERNELS)
	@mkdir -p $(@D)
	$(Q)printf '#include "%s"\n' $^ > $@
$(J)/%.o: $(J)/%.cu $(O)/flags | headers
	$(call say,NVCC,$<)
	$(Q)$(JOINED_NVCC) -MMD -MP -c $< -o $@
-include $(wildcard $(J)/*.d)

J_ENGINE = $(J)/kernels.o $(call FROM_HOST,$(filter-out $(CUDA_KERNELS:%=$(O)/%.o),$(ENGINE)))
$(J)/tests_and_benches: $(patsubst %,$(J)/%.o,tests_1 tests_2 benches) $(J_ENGINE) $(call FROM_HOST,$(O)/test/main.cpp.o)
$(J)/train_gpt: $(call FROM_HOST,$(O)/train_gpt.cu.o) $(J_ENGINE)
$(J)/tests_and_benches $(J)/train_gpt:
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

# Checks that the programs start, so that NVIDIA's libraries are found at run time.
run-cuda-link: $(J)/tests_and_benches $(J)/train_gpt
	@$(J)/train_gpt --help > /dev/null
	@$(J)/tests_and_benches --list-tests | sed -n 's/^\([0-9]* test cases\)$$/cuda-link: \1/p' | grep .

.PHONY: cudnn-plans run-cudnn-plans cublaslt-calls run-cublaslt-calls nccl-calls run-nccl-calls
cublaslt-calls: ## are products described to cuBLASLt as they are meant? against one made here
	@$(if $(HAVE_CUDA),,echo 'cublaslt-calls: skipped: it needs $(CUDA_MISSING)')
	$(if $(HAVE_CUDA),@+$(SUBMAKE) run-cublaslt-calls VARIANT=cuda)

cudnn-plans: ## has cuDNN a plan for every shape? three minutes
	@$(if $(HAVE_CUDNN),,echo 'cudnn-plans: skipped: it needs $(or $(CUDA_MISSING),cuDNN with its headers (set CUDNN_HOME or NVIDIA_WHEELS))')
	$(if $(HAVE_CUDNN),@+$(SUBMAKE) run-cudnn-plans VARIANT=cuda USE_CUDNN=1)

nccl-calls: ## as far as NCCL itself goes without a GPU
	@$(if $(HAVE_NCCL),,echo 'nccl-calls: skipped: it needs $(or $(CUDA_MISSING),NCCL with its header (set NCCL_HOME or NVIDIA_WHEELS))')
	$(if $(HAVE_NCCL),@+$(SUBMAKE) run-nccl-calls VARIANT=cuda USE_NCCL=1)

run-nccl-calls: $(O)/nccl-calls
	@$< $(TEST_ARGS)

run-cublaslt-calls: $(O)/cublaslt-calls
	@$< $(TEST_ARGS)

run-cudnn-plans: $(O)/cudnn-plans $(O)/no_driver/libcuda.so.1
	@LD_LIBRARY_PATH=$(O)/no_driver$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH} $< $(TEST_ARGS)

# The test implements cuBLASLt and the CUDA runtime itself, so none of NVIDIA's libraries are linked.
$(O)/cublaslt-calls: $(patsubst %,$(O)/%.cpp.o,test/cuda/cublaslt_calls llmc/cuda/cublaslt llmc/cuda/attention/cudnn_absent llmc/cuda/matmul_cache llmc/base/file llmc/base/hash test/main)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(patsubst %,-L%,$(wildcard $(DEPS_DIR)/lib)) $(CATCH2_LIBS)

$(O)/nccl-calls: $(patsubst %,$(O)/%.cpp.o,test/comm/nccl_calls llmc/comm/gpu/nccl_comm llmc/comm/gpu/cuda_comm llmc/comm/watchdog llmc/cuda/attention/cudnn_absent llmc/base/file llmc/base/hash test/main)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

$(O)/cudnn-plans: $(patsubst %,$(O)/%.cpp.o,test/cuda/cudnn_plans $(addprefix llmc/cuda/,attention/cudnn_attention cuda_device cuda_profile cublaslt matmul_cache) $(addprefix llmc/base/,file hash json profile) test/main)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS) $(CATCH2_LIBS)

$(O)/no_driver/libcuda.so.1: test/cuda/no_driver.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -Wall -Wextra -shared -fPIC $< -o $@

-include $(wildcard $(O)/test/cuda/cudnn_plans.cpp.d $(O)/test/cuda/cublaslt_calls.cpp.d $(O)/test/comm/nccl_calls.cpp.d)
