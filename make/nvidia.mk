# Targets: cuda-check, cuda-link, cublaslt-calls, cudnn-plans, nccl-calls: what NVIDIA's software tells without a GPU.

NVDISASM ?= $(firstword $(wildcard $(CUDA_DIR:%=%/bin/nvdisasm) $(NVIDIA_WHEELS:%=%/cu13/bin/nvdisasm)))
cuda-check: ## each kernel by nvcc: no spills, wide loads, registers as in doc/results/registers.txt (RENEW=1 writes it)
	$(call try,$(if $(filter 100,$(NVCC_CHIPS)),,an nvcc that compiles for sm_100 (CUDA 12.8 or newer; CUDA_HOME)),\
	  python3 dev/lint/check_kernels.py $(CUDA_DIR)/bin/nvcc --cxx $(CXX) $(addprefix --nvdisasm ,$(NVDISASM)) -j$(JOBS) \
	    --ptx build/ptx $(if $(RENEW),--renew))
PTX_TESTS = $(SUBMAKE) $(E)/tests VARIANT=$(HOST_VARIANT) OP= && python3 dev/ptx/main.py $(E)/tests build/ptx -j$(JOBS)
ptx: ## the kernels' tests on nvcc's PTX, which a machine in C++ executes (dev/ptx); after cuda-check
	$(call try,$(if $(wildcard build/ptx/90a/*.ptx),,PTX of the kernels: make cuda-check),+$(PTX_TESTS))
ptx-mutants: ## faults in nvcc's PTX at random, and which of them those tests find: MUTANTS=112 SEED=1
	+$(PTX_TESTS) --mutants $(or $(MUTANTS),112) --seed $(or $(SEED),1)
cuda-link: ## what a run on a GPU needs, compiled by nvcc for Hopper and linked with NVIDIA's libraries, not run
	$(call try,$(CUDA_MISSING),+$(SUBMAKE) engine VARIANT=$(HOST_VARIANT) && \
	  $(SUBMAKE) run-cuda-link VARIANT=cuda GPU_ARCHS=90 OPT=-O0)
engine: $(ENGINE) $(O)/train_gpt.cu.o $(O)/test/main.cpp.o

# Many files are joined into one, nothing is optimized (cuda-check optimizes every kernel; ptxas 12.4 crashes without),
# and objects that need no header of NVIDIA's are those of the host build: minutes instead of a quarter of an hour.
J := $(O)/joined
FROM_HOST = $(patsubst $(O)/%,build/$(HOST_VARIANT)/%,$(filter-out $(NVIDIA:%=$(O)/%.o),$(1))) \
  $(filter $(NVIDIA:%=$(O)/%.o),$(1))
J_ENGINE  = $(J)/kernels.cu.o $(call FROM_HOST,$(filter-out $(CUDA_KERNELS:%=$(O)/%.o),$(ENGINE)))
$(J)/kernels.cu: private TEXT = printf '\#include "%s"\n' $(CUDA_KERNELS)
$(J)/tests_1.cu: private TEXT = $(call join_files,$(wordlist 1,22,$(cuda_FILES)))
$(J)/tests_2.cu: private TEXT = $(call join_files,$(wordlist 23,99,$(cuda_FILES)))
$(J)/benches.cu: private TEXT = $(call join_files,$(BENCHES:$(O)/bench/%=dev/bench/%.cu))
REWRITTEN += $(patsubst %,$(J)/%.cu,kernels tests_1 tests_2 benches)
$(J)/%: private NVCC := $(subst -O3 -g -x cu -lineinfo,-O0 -x cu -Xcicc -O0 -Xptxas \
  -O$(if $(call older,$(CUDA_VERSION),12.6),1,0),$(NVCC))
$(J)/tests_and_benches: $(J)/tests_1.cu.o $(J)/tests_2.cu.o $(J)/benches.cu.o $(J_ENGINE) \
  $(call FROM_HOST,$(O)/test/main.cpp.o)
$(J)/train_gpt: $(call FROM_HOST,$(O)/train_gpt.cu.o) $(J_ENGINE)
$(J)/tests_and_benches $(J)/train_gpt:
	$(call link,$(CATCH2_LIBS))

# Checks that the programs start, so that NVIDIA's libraries are found at run time.
run-cuda-link: $(J)/tests_and_benches $(J)/train_gpt
	@$(J)/train_gpt --help > /dev/null
	@$(J)/tests_and_benches --list-tests | sed -n 's/^\([0-9]* test cases\)$$/cuda-link: \1/p' | grep .
cublaslt-calls: ## are products described to cuBLASLt as they are meant? against one made here
	$(call try,$(CUDA_MISSING),+$(SUBMAKE) run-$@ VARIANT=cuda)
cudnn-plans: ## has cuDNN a plan for every shape? three minutes
	$(call try,$(if $(HAVE_CUDNN),,cuDNN; see make info),+$(SUBMAKE) run-$@ VARIANT=cuda USE_CUDNN=1)
nccl-calls: ## as far as NCCL itself goes without a GPU
	$(call try,$(if $(HAVE_NCCL),,NCCL; see make info),+$(SUBMAKE) run-$@ VARIANT=cuda USE_NCCL=1)
run-nccl-calls run-cublaslt-calls run-cudnn-plans: run-%: $(O)/% $(O)/no_driver/libcuda.so.1
	@$(if $(filter cudnn%,$*),LD_LIBRARY_PATH=$(O)/no_driver$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}) $< $(TEST_ARGS)

# $(call calls,TEST,FILES OF llmc/): their objects, and those of llmc/base/ and llmc/platform/
calls = $(patsubst %,$(O)/%.cpp.o,test/$(1) test/main $(2:%=llmc/%)) \
  $(call objects,$(filter llmc/base/% llmc/platform/%,$(FILES)))
$(O)/cublaslt-calls: $(call calls,cuda/cublaslt_calls,cuda/cublaslt cuda/attention/cudnn_absent cuda/matmul_cache)
# The test implements cuBLASLt and the CUDA runtime itself, so none of NVIDIA's libraries are linked.
$(O)/cublaslt-calls: private LINK_WITH = $(patsubst %,-L%,$(wildcard $(DEPS_DIR)/lib))
$(O)/nccl-calls: $(call calls,comm/nccl_calls,comm/gpu/nccl_comm comm/gpu/cuda_comm comm/watchdog \
  cuda/attention/cudnn_absent)
$(O)/cudnn-plans: $(call calls,cuda/cudnn_plans,$(patsubst %,cuda/%,attention/cudnn_attention cublaslt cuda_device \
  cuda_profile matmul_cache))
$(patsubst %,$(O)/%,cublaslt-calls nccl-calls cudnn-plans):
	$(call link,$(CATCH2_LIBS))
$(O)/no_driver/libcuda.so.1: test/cuda/no_driver.c
	$(call say,CC,$<)
	$(Q)$(CC) -Wall -Wextra -shared -fPIC $< -o $@
