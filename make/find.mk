# Finds compilers, headers and libraries. USE_X=auto uses X if it is found, 1 requires it, 0 does not use it.

# $(call dir_with,FILE PATTERN,FOLDERS): the first of FOLDERS that contains FILE
dir_with = $(firstword $(foreach d,$(2),$(if $(wildcard $(d)/$(1)),$(d))))
# $(call succeeds,COMMAND): 1 if it does. $(call builds,COMPILER,PROGRAM): 1 if COMPILER compiles and links it
succeeds = $(shell { $(1); } >/dev/null 2>&1 && echo 1)
builds   = $(call succeeds,printf '$(2)' | $(1) -x c++ - -o /dev/null)

IS_DARWIN    := $(filter Darwin,$(shell uname -s))
# Compilers translate what they say, and g++ wraps it to the width of the terminal.
ASK          := LC_ALL=C COLUMNS=80
CXX_REFUSED  := $(shell $(ASK) CXX='$(CXX)' scripts/setup.sh --compiler 2>&1)
CXX_VERSION  := $(shell $(CXX) --version 2>/dev/null | head -n 1)
IS_CLANG     := $(findstring clang,$(CXX_VERSION))
INCLUDE_DIRS := $(wildcard $(DEPS_DIR)/include) \
  $(shell $(ASK) $(CXX) -E -v -x c++ /dev/null 2>&1 >/dev/null | sed -n '/^.include </,/^End/s/^ //p')
JSON_DIR     := $(call dir_with,nlohmann/json.hpp,$(INCLUDE_DIRS))
XXHASH_DIR   := $(call dir_with,xxhash.h,$(INCLUDE_DIRS))
CATCH2_DIR   := $(call dir_with,catch2/catch*.hpp,$(INCLUDE_DIRS))
# Version 2 is one header; version 3 (catch_all.hpp) comes with a library.
CATCH2_LIBS  := $(if $(wildcard $(CATCH2_DIR)/catch2/catch_all.hpp),-lCatch2)
MISSING      := $(strip $(if $(JSON_DIR),,nlohmann-json) $(if $(XXHASH_DIR),,xxHash))
# The flags for OpenMP. Apple's clang++ takes others, and libomp from where CPATH and LIBRARY_PATH say.
with_omp     = $(if $(call builds,$(CXX) $(1),int main() {}),$(1))
HAVE_OMP     := $(if $(filter 0,$(USE_OMP)),,$(or $(call with_omp,-fopenmp),$(if $(IS_DARWIN),\
  $(call with_omp,-Xclang -fopenmp -lomp))))

# A folder counts as CUDA only with both the compiler and its headers: /usr/local/bin/nvcc may be a wrapper script.
NVCC_PATH := $(shell command -v nvcc 2>/dev/null)
CUDA_DIR  := $(call dir_with,include/cuda_runtime.h,$(patsubst %/bin/nvcc,%,$(wildcard $(addsuffix /bin/nvcc,\
  $(CUDA_HOME) $(CUDA_PATH) $(NVCC_PATH:%/bin/nvcc=%) /usr/local/cuda \
  $(lastword $(sort $(wildcard /usr/local/cuda-*))) /opt/cuda))))
CUDA_VERSION := $(or $(shell sed -nE 's/^.define CUDART_VERSION +([0-9]+)0([0-9])0.*/\1.\2/p' \
  $(CUDA_DIR)/include/cuda_runtime_api.h 2>/dev/null),0)
CUDA_MAJOR   := $(or $(filter-out 0,$(basename $(CUDA_VERSION))),13)
# $(call older,VERSION,LEAST): VERSION if it is older than LEAST
older = $(filter-out $(2),$(firstword $(shell printf '%s\n' $(1) $(2) | sort -V)))

# The chips that both Anvil and nvcc know, and those to compile for: this machine's or, if nvidia-smi lists none, one of
# each generation. Its failures are texts on stdout, and of a GPU without a number it says [N/A].
NVCC_CHIPS := $(if $(CUDA_DIR),$(filter-out 3% 5% 6% 7%,$(patsubst compute_%,%,\
  $(shell $(CUDA_DIR)/bin/nvcc --list-gpu-arch 2>/dev/null))))
GPU_CHIPS  := $(if $(NVCC_CHIPS),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
  sed -nE 's/^ *([0-9]+)\.([0-9]) *$$/\1\2/p' | sort -nu))
GPU_ARCHS  ?= $(filter $(NVCC_CHIPS),$(or $(GPU_CHIPS),80 90 100))
# nvcc needs a host compiler that is not newer than it. $(call nvcc_takes,COMPILER): COMPILER, if NVIDIA's check passes
nvcc_takes = $(if $(call succeeds,printf '\043include <crt/host_config.h>\n' | \
  $(1) -D__CUDACC__ -I$(CUDA_DIR)/include -E -x c++ -),$(1))
NVCC_CXX  := $(if $(CUDA_DIR),$(firstword $(foreach c,$(CXX) g++-14 g++-13 g++-12,$(call nvcc_takes,$(c)))))
HOST_MOST  = $(shell sed -nE 's/.*gcc versions later than ([0-9]+) .*/\1/p' $(CUDA_DIR)/include/crt/host_config.h)

# NVIDIA's libraries come with the toolkit, with the system, or as wheels.
NVIDIA_WHEELS ?= $(wildcard $(shell python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
  2>/dev/null)/nvidia)
MACHINE      := $(shell uname -m)
SYSTEM_LIBS  := $(wildcard /usr/lib/$(MACHINE)-linux-gnu /usr/lib64 /usr/lib)
# $(call library_in,NAME,FOLDERS): the path of the first libNAME.so or libNAME.so.VERSION
library_in = $(firstword $(foreach d,$(2),$(wildcard $(d)/lib$(1).so) $(sort $(wildcard $(d)/lib$(1).so.*))))
# $(call beside,FOLDER,NAME,OTHER FOLDERS): the library that comes with the headers in FOLDER, else one elsewhere
beside = $(if $(1),$(call library_in,$(2),$(patsubst %,$(1:%/include=%)/%,lib64 lib lib/$(MACHINE)-linux-gnu) \
  $(3) $(SYSTEM_LIBS)))
CUBLAS_WHEEL := $(NVIDIA_WHEELS:%=%/$(if $(filter 12,$(CUDA_MAJOR)),cublas,cu$(CUDA_MAJOR)))
CUBLASLT_INC := $(call dir_with,cublasLt.h,$(CUDA_DIR:%=%/include) $(CUBLAS_WHEEL:%=%/include) $(INCLUDE_DIRS))
CUBLASLT_LIB := $(call beside,$(CUBLASLT_INC),cublasLt,$(CUDA_DIR:%=%/lib64) $(CUBLAS_WHEEL:%=%/lib))
# $(call version_in,HEADER): MAJOR.MINOR
version_in = $(shell sed -nE 's/^.define (CUDNN|NCCL)_(MAJOR|MINOR) +([0-9]+).*/\3/p' $(1) | paste -sd.)
# $(call optional,NAME,WHEEL,HEADER,LEAST): NAME_DIR has the first header of version LEAST or newer, beside NAME_LIB
define optional
$(1)_HEADERS := $(if $(CUDA_DIR),$(wildcard $(addsuffix /$(3),$($(1)_HOME:%=%/include) $(CUDA_DIR)/include \
  $(NVIDIA_WHEELS:%=%/$(2)/include) $(INCLUDE_DIRS))))
$(1)_DIR := $$(patsubst %/,%,$$(dir $$(firstword $$(foreach h,$$($(1)_HEADERS),\
  $$(if $$(call older,$$(call version_in,$$(h)),$(4)),,$$(h))))))
$(1)_TOO_OLD := $$(if $$($(1)_DIR),,$$(if $$($(1)_HEADERS),$$(firstword $$($(1)_HEADERS)) is of version \
  $$(call version_in,$$(firstword $$($(1)_HEADERS)))$$(,) expected $(4) or newer))
$(1)_LIB := $$(call beside,$$($(1)_DIR),$(2),$($(1)_HOME:%=%/lib) $(CUDA_DIR:%=%/lib64) $(NVIDIA_WHEELS:%=%/$(2)/lib))
endef
$(eval $(call optional,CUDNN,cudnn,cudnn_version.h,9.8))
$(eval $(call optional,NCCL,nccl,nccl.h,2.19))
# What is missing of the minimum for a GPU build.
define LACKS_OF_CUDA
$(if $(call older,$(CUDA_VERSION),12.4),CUDA 12.4 or newer ($(CUDA_DIR) has $(CUDA_VERSION)))
$(if $(NVCC_CHIPS),,an nvcc that runs ($(CUDA_DIR)/bin/nvcc --list-gpu-arch fails))
$(if $(NVCC_CHIPS),$(if $(GPU_ARCHS),,a GPU that it supports (nvidia-smi lists sm $(GPU_CHIPS)$(,) \
  CUDA $(CUDA_VERSION) and Anvil know $(NVCC_CHIPS); GPU_ARCHS=... compiles for others)))
$(if $(NVCC_CXX),,a host compiler that nvcc $(CUDA_VERSION) takes ($(CXX) is too new for it: install g++-$(HOST_MOST)))
$(if $(CUBLASLT_LIB),,cuBLASLt (in the toolkit or `pip install nvidia-cublas$(if $(filter 12,$(CUDA_MAJOR)),-cu12)`))
endef
CUDA_MISSING := $(strip $(if $(CUDA_DIR),$(LACKS_OF_CUDA),\
  nvcc with its headers (install the CUDA toolkit or set CUDA_HOME)))
HAVE_CUDA    := $(if $(CUDA_MISSING),,$(CUDA_DIR))
HAVE_CUDNN   := $(and $(HAVE_CUDA),$(CUDNN_LIB),$(CUDNN_DIR))
HAVE_NCCL    := $(and $(HAVE_CUDA),$(NCCL_LIB),$(NCCL_DIR))
PASSED_OVER   = $(if $(and $(filter-out 0,$(USE_CUDA)),$(CUDA_DIR)),$(strip \
  $(or $(CUDA_MISSING),$(CUDNN_TOO_OLD) $(NCCL_TOO_OLD))))
DEFAULT_VARIANT := $(if $(and $(filter-out 0,$(USE_CUDA)),$(HAVE_CUDA)),cuda,cpu)
VARIANT      ?= $(DEFAULT_VARIANT)
HOST_VARIANT  = $(or $(filter-out cuda,$(VARIANT)),cpu)
# MPI: in MPI_HOME, else where mpicxx looks, which matches the mpirun of the same installation.
MPI_WORDS := $(if $(MPI_HOME),-I$(MPI_HOME)/include -L$(MPI_HOME)/lib -L$(MPI_HOME)/lib64,\
  $(shell mpicxx -show 2>/dev/null) $(INCLUDE_DIRS:%=-I%) $(SYSTEM_LIBS:%=-L%))
MPI_DIR   := $(call dir_with,mpi.h,$(patsubst -I%,%,$(filter -I%,$(MPI_WORDS))))
MPI_LIB   := $(call library_in,mpi,$(patsubst -L%,%,$(filter -L%,$(MPI_WORDS))))
HAVE_MPI  := $(if $(MPI_LIB),$(MPI_DIR))

# $(call check,NAME,WHAT TO INSTALL): USE_NAME must be auto, 0 or 1; 1 needs HAVE_NAME
check = $(if $(filter auto 0 1,$(USE_$(1))),,$(error USE_$(1)=$(USE_$(1)): expected auto, 0 or 1))$(strip \
  )$(if $(filter 1,$(USE_$(1))),$(if $(HAVE_$(1)),,$(error USE_$(1)=1 but $(1) was not found: $(2))))
ifneq ($(filter-out help info clean format,$(or $(MAKECMDGOALS),all)),)
  $(if $(CXX_REFUSED),$(error $(subst error: ,,$(CXX_REFUSED))))
  $(call check,OMP,install libgomp1 or use g++)
  $(call check,CUDA,missing $(CUDA_MISSING))
  $(if $(and $(HAVE_CUDA),$(filter cuda,$(VARIANT)),$(filter-out $(NVCC_CHIPS),$(GPU_ARCHS))),\
    $(error GPU_ARCHS=$(GPU_ARCHS): expected some of $(NVCC_CHIPS)))
  $(call check,CUDNN,$(or $(CUDNN_TOO_OLD),install libcudnn9-dev-cuda-$(CUDA_MAJOR) or nvidia-cudnn-cu$(CUDA_MAJOR) \
    or set CUDNN_HOME))
  $(call check,NCCL,$(or $(NCCL_TOO_OLD),it needs CUDA and libnccl-dev or nvidia-nccl-cu$(CUDA_MAJOR) or NCCL_HOME))
  $(call check,MPI,install libopenmpi-dev or set MPI_HOME)
endif
